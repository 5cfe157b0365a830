"""Pictures of the theory pages are plain dicts; plotly's own classes say whether they are right."""

import numpy as np
import plotly.graph_objects as go
import pytest

from hyperribbon.application.explorer.figures import axes_layout, curve, plain
from hyperribbon.application.explorer.papers import fluctuations, linear_networks, ribbons

PAGES = {
    page.key: page
    for page in (
        ribbons.PAGE,
        linear_networks.PAGE,
        fluctuations.PAGE,
        fluctuations.TWO_LAYER_PAGE,
    )
}
MEASURED = {"eigenvalues": [3.0, 2.0, 1.0], "samples": 1000, "loss": 0.1}


@pytest.mark.parametrize("overlay", [None, MEASURED], ids=["theory", "measured"])
@pytest.mark.parametrize("key", PAGES)
def test_every_picture_is_a_figure_that_plotly_accepts(key, overlay):
    page = PAGES[key]
    values = {control.name: control.default for control in page.controls}
    shown = overlay if page.action is not None else None
    for picture in page.pictures:
        drawn = picture.draw(values, shown)
        checked = go.Figure(drawn)
        assert [trace.name for trace in checked.data] == [trace["name"] for trace in drawn["data"]]
        assert checked.layout.xaxis.title.text and checked.layout.yaxis.title.text


def test_a_misspelt_property_would_be_found():
    with pytest.raises(ValueError, match="widht"):
        go.Figure({"data": [curve("a", [1], [2], line={"widht": 2})], "layout": {}})


def test_numbers_that_are_not_finite_are_left_out():
    assert plain(np.array([[1.5, np.nan], [np.inf, 2.0]])) == [[1.5, None], [None, 2.0]]


def test_logarithmic_axes_are_the_ones_named():
    layout = axes_layout("a", "b", log="y")
    assert (layout["xaxis"]["type"], layout["yaxis"]["type"]) == ("linear", "log")
