"""The explorer's page of stored runs, in Chromium."""

from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.manifold.predictions import as_probabilities
from hyperribbon.papers.experiments import run
from hyperribbon.papers.training import mlp
from hyperribbon.recording import Measurement

pytestmark = pytest.mark.browser

STORED = """([title, key]) => {
    const figure = [...document.querySelectorAll('figure')].find(
        f => f.querySelector('h2')?.innerText === title);
    const plot = figure?.querySelector('.js-plotly-plot');
    if (!plot || !plot._fullData?.length) { return null; }
    return plot._fullData.map(t => {
        const value = key.split('.').reduce((o, k) => o?.[k], t) ?? [];
        return Array.from(value, row => row?.length !== undefined && typeof row !== 'string'
            ? Array.from(row) : row);
    });
}"""
EMBEDDING = "Training in the space of predictions (inPCA)"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Two experiments, a recorded training with a tracked spectrum, and its inspection."""
    folder = tmp_path_factory.mktemp("store")
    for seed in (0, 1):
        run("ribbons/fig4", preset="smoke", out=folder, seed=seed)
    data = hr.load_data("digits", limit=300).flat()
    model, loss = mlp((64, 16, 10), "tanh", seed=0), nn.CrossEntropyLoss()
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tracker = hr.Tracker(4, lambda m: hr.Hessian(m, loss, data), tol=1e-2)
    recorder = hr.Recorder(
        folder / "training",
        every="1ep",
        probe=data.inputs[:60],
        measure=[Measurement("hessian", tracker)],
    )
    hr.train(model, loss, data, epochs=8, lr=0.2, batch_size=50, recorder=recorder)
    recorder.close()
    found = hr.inspect(
        model,
        loss,
        data,
        initial=initial,
        trajectory=recorder.trajectory,
        k=6,
        budget=10,
        console=Console(quiet=True),
    )
    found.save(folder / "inspection")
    return folder


@pytest.fixture(scope="module")
def address(store, serving):
    with serving(store) as address:
        yield address


def plotted(page, title, key):
    return page.wait_for_function(STORED, arg=[title, key]).json_value()


def test_runs_open_and_compare(visit):
    page = visit("runs")
    page.locator("#runs-run").click()
    options = page.locator("[role=option]")
    options.first.wait_for()
    names = options.all_inner_texts()
    assert sorted(name.split(":")[0] for name in names) == [
        "experiment",
        "experiment",
        "inspection",
        "recording",
    ]
    options.filter(has_text="ribbons_fig4").first.click()
    page.locator("article").first.wait_for()
    page.wait_for_function("() => window.location.search.includes('run=ribbons_fig4')")
    name = parse_qs(urlsplit(page.url).query)["run"][0]
    assert name.startswith("ribbons_fig4")
    other = visit(f"runs?run={name}&with=training")
    other.locator("article").nth(1).wait_for()
    assert other.locator("article").first.locator("td.holds").count() >= 1
    plotted(other, "loss", "y")
    plotted(other, EMBEDDING, "x")


def test_a_recorded_training_shows_its_spectra_metrics_and_path(visit, store):
    page = visit("runs?run=training")
    trajectory = hr.Trajectory.open(store / "training")
    (heights,) = plotted(page, "hessian.eigenvalues over training", "z")
    expected = trajectory.metric("hessian.eigenvalues")
    with np.errstate(invalid="ignore"):
        expected = np.log10(np.where(expected > 0, expected, np.nan)).T
    shown = np.array(heights, dtype=float)
    np.testing.assert_allclose(shown, expected, rtol=1e-5)
    for name in ("loss", "epoch_loss", "lr"):  # one chart a metric
        (heights,) = plotted(page, name, "y")
        measured = trajectory.metrics()[name].dropna().to_numpy(float)
        np.testing.assert_allclose(np.array(heights, float), measured, rtol=1e-6)
    points = hr.InPCA(n_components=3).fit_transform(as_probabilities(trajectory.predictions()))
    for axis, column in zip("xyz", points.T, strict=True):
        np.testing.assert_allclose(plotted(page, EMBEDDING, axis)[0], column, atol=1e-9)


@pytest.mark.parametrize(
    "color", ["hessian.eigenvalues, first", pytest.param("loss", marks=pytest.mark.slow)]
)
def test_the_path_is_coloured_by_anything_and_the_link_says_so(visit, store, color):
    page = visit("runs?run=training")
    trajectory = hr.Trajectory.open(store / "training")
    np.testing.assert_allclose(plotted(page, EMBEDDING, "marker.color")[0], trajectory.steps)
    page.get_by_label(color, exact=True).check()
    expected = trajectory.metric(color.split(",")[0]).reshape(len(trajectory), -1)[:, 0]
    page.wait_for_function(
        f"""([title, last]) =>
            Math.abs(({STORED})([title, 'marker.color'])?.[0].at(-1) / last - 1) < 1e-5""",
        arg=[EMBEDDING, float(expected[-1])],
    )
    page.wait_for_function("() => window.location.search.includes('color=')")
    again = visit(page.url.split("/", 3)[3])
    shown = np.array(plotted(again, EMBEDDING, "marker.color")[0], float)
    np.testing.assert_allclose(shown[1:], expected[1:], rtol=1e-5)


def test_an_inspection_shows_its_reading_and_the_prune_slider_reads_the_curves(visit, store):
    page = visit("runs?run=inspection")
    page.get_by_text("of the Fisher trace").wait_for(state="attached")  # folded
    fractions = plotted(page, "How much of the network is needed", "x")
    values = plotted(page, "How much of the network is needed", "y")
    names = ["".join(n) for n in plotted(page, "How much of the network is needed", "name")]
    assert plotted(page, "Drop when a layer is put back to its start", "x")
    handle = page.locator("article [role=slider]").first
    handle.focus()
    for key in ("Home", "End", "PageDown"):
        old = page.url
        handle.press(key)
        page.wait_for_function("old => window.location.href !== old", arg=old)
        fraction = float(handle.get_attribute("aria-valuenow"))
        pruned = names.index("pruned, smallest weights first")
        expected = np.interp(fraction, fractions[pruned], values[pruned])
        page.wait_for_function(
            """([name, value]) => [...document.querySelectorAll('article dl div')].some(
                row => row.innerText.includes(name) && row.innerText.includes(value))""",
            arg=[names[pruned], f"{expected:.3f}"],
        )
    again = visit(page.url.split("/", 3)[3])
    again.locator("article [role=slider]").first.wait_for()
    shown = again.locator("article [role=slider]").first.get_attribute("aria-valuenow")
    assert float(shown) == fraction


@pytest.mark.parametrize("kind", ["SVG", "PNG", "CSV"])
def test_stored_figures_are_exported(visit, store, tmp_path, kind):
    page = visit("runs?run=training")
    heights = plotted(page, "hessian.eigenvalues over training", "z")[0]
    with page.expect_download() as waiting:
        page.get_by_label(f"Export hessian.eigenvalues over training as {kind}").click()
    content = waiting.value.path().read_bytes()
    assert waiting.value.suggested_filename.endswith(kind.lower())
    if kind == "CSV":
        lines = content.decode().splitlines()
        assert len(lines) == 1 + np.size(heights)
        np.testing.assert_allclose(float(lines[1].split(",")[-1]), heights[0][0])
    else:
        assert (b"<svg" in content[:200]) if kind == "SVG" else content.startswith(b"\x89PNG")


def test_the_lines_of_a_recording_run(visit, store):
    page = visit(f"runs?run={quote('training')}")
    page.locator("article summary").click()
    scope = {}
    exec(page.locator("article pre").inner_text(), scope)
    assert len(scope["trajectory"]) == len(hr.Trajectory.open(store / "training"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_runs_fit_a_phone(visit, scheme):
    page = visit("runs?run=inspection&with=training", width=390, height=800, scheme=scheme)
    plotted(page, "loss", "y")
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(overflow) <= 0
