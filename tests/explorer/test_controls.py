import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperribbon.application.explorer.controls import Choice, Slider, read_link, write_link

CONTROLS = (
    Slider("n", "n", 1, 100, 10, 1, whole=True),
    Slider("T", "T", 1, 1e5, 50, 0.02, log=True, whole=True),
    Slider("c", "c", 0.02, 1.5, 0.2, 0.01),
    Choice("how", "how", {"a": "A", "b": "B"}, "a"),
)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 100),
    T=st.integers(1, 10**5),
    c=st.integers(20, 1500).map(lambda thousandths: thousandths / 1000),
    how=st.sampled_from("ab"),
)
def test_a_link_gives_back_what_it_states(n, T, c, how):
    values = {"n": n, "T": T, "c": c, "how": how}
    assert read_link(write_link(values, CONTROLS), CONTROLS) == values


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=40))
def test_any_link_gives_allowed_values(text):
    values = read_link(f"?n={text}&T={text}&c={text}&how={text}", CONTROLS)
    assert 1 <= values["n"] <= 100 and 1 <= values["T"] <= 1e5 and 0.02 <= values["c"] <= 1.5
    assert values["how"] in "ab"


def test_defaults_are_left_out_of_the_link():
    assert write_link({"n": 10, "T": 50, "c": 0.2, "how": "a"}, CONTROLS) == ""
    assert write_link({"n": 10, "T": 50, "c": 0.3, "how": "b"}, CONTROLS) == "?c=0.3&how=b"


@pytest.mark.parametrize("value", [1, 50, 562, 100_000])
def test_a_logarithmic_slider_keeps_its_value(value):
    slider = CONTROLS[1]
    assert slider.value(slider.position(value)) == value
    assert math.isclose(slider.position(value), math.log10(value), abs_tol=1e-6)
