"""The explorer as a user sees it, in Chromium."""

import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from hyperribbon.application.explorer.controls import Choice
from hyperribbon.application.explorer.papers.fluctuations import PAGE as FLUCTUATIONS
from hyperribbon.application.explorer.papers.fluctuations import TWO_LAYER_PAGE
from hyperribbon.application.explorer.papers.linear_networks import PAGE as LINEAR
from hyperribbon.application.explorer.papers.ribbons import PAGE as RIBBONS
from hyperribbon.core.generators import numpy_generator
from hyperribbon.theory import fluctuations, linear_networks, ribbons

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory, serving):
    with serving(tmp_path_factory.mktemp("store")) as address:
        yield address


def stated(page, controls):
    query = parse_qs(urlsplit(page.url).query)
    return {c.name: c.parse(query[c.name][0]) if c.name in query else c.default for c in controls}


def ribbon_curve(values):
    ribbon = ribbons.Ribbon.exponential(
        values["n"],
        values["c"],
        sigma_star=values["ratio"],
        alpha=values["alpha"] / (1 + values["decay"]),
        steps=values["T"],
        weight_decay=values["decay"],
        batch_size=values["b"] or None,
    )
    return ribbon.spectrum()


def linear_curve(values):
    weights = np.array([values[f"p{i}"] for i in range(6)], float)
    layers = np.sort(np.sqrt(weights / weights.sum()) / values["sigma_x"])[::-1]
    found = linear_networks.balanced_eigenvalues(
        layers ** (1 / values["depth"]), values["depth"], values["d_in"], 6, values["sigma_x"]
    )
    return found[found > 0]


def fluctuation_curve(values):
    N = values["N"]
    P = max(round(N * values["load"]), N + 2)
    rng = numpy_generator(0, "explorer", "fluctuations")
    X = rng.standard_normal((N, P))
    Y = rng.standard_normal(N) @ X / np.sqrt(N) + values["noise"] * rng.standard_normal(P)
    S = min(values["S"], P - 1)
    replacement = values["sampling"] == "replacement"
    C = fluctuations.noise_covariance(X, Y, S, replacement=replacement)
    M = fluctuations.lyapunov_covariance(fluctuations.hessian(X), C, values["lr"])
    return np.linalg.eigvalsh(M)[::-1] / (values["lr"] * values["noise"] ** 2 / (2 * S))


def two_layer_curve(values):
    inputs, hidden = values["N_i"], max(2, round(values["share"] * values["N_i"]))
    first = numpy_generator(0, "explorer", "first layer").standard_normal((hidden, inputs))
    singular = np.linalg.svd(first, compute_uv=False) * values["scale"] / np.sqrt(inputs)
    return fluctuations.second_layer_variances(
        singular**2, values["D2"], values["lr"], values["S"], 1.0
    )[:, 0]


CASES = {
    "fluctuations": (
        FLUCTUATIONS,
        "fluctuations-weights",
        "continuous time, Eq. 2.30",
        fluctuation_curve,
    ),
    "two-layers": (TWO_LAYER_PAGE, "two-layers-flatness", "modes of W₂", two_layer_curve),
    "ribbons": (RIBBONS, "ribbons-spectrum", "all points, P", ribbon_curve),
    "linear": (LINEAR, "linear-spectrum", "predicted from the labels", linear_curve),
}


# The width does not enter the prediction; λ and S cancel in the unit of the covariance's axis.
UNSEEN = {"linear": ("width",), "fluctuations": ("lr", "S")}


def move(page, key, name):
    """Press the right arrow on a slider's handle, as a keyboard user does."""
    handle = page.locator(f"#{key}-{name} [role=slider]").first
    handle.focus()
    handle.press(
        "ArrowRight"
        if handle.get_attribute("aria-valuenow") != handle.get_attribute("aria-valuemax")
        else "ArrowLeft"
    )


def as_stated(page, controls, curve, theory):
    """A condition on a picture: the curve begins as theory says for the address of that moment.

    A handle on its way may stop at several values, and the address and the picture follow each.
    """

    def holds(shown):
        found, expected = shown.get(curve, ()), theory(stated(page, controls))
        return len(found) == len(expected) and abs(found[0] / expected[0] - 1) < 1e-9

    return holds


@pytest.mark.parametrize("key", CASES)
def test_every_slider_moves_the_picture_as_the_theory_says(visit, curves, key):
    model, picture, curve, theory = CASES[key]
    page = visit(key)
    before = curves(page, picture)[curve]
    for control in model.controls:
        old = page.url
        if isinstance(control, Choice):
            page.locator(f"#{key}-{control.name} input").nth(1).check()
        else:
            move(page, key, control.name)
        page.wait_for_function("old => window.location.href !== old", arg=old)
        settled = as_stated(page, model.controls, curve, theory)
        shown = curves(page, picture, until=settled)[curve]
        expected = theory(stated(page, model.controls))
        visible = np.isfinite(shown)
        np.testing.assert_allclose(shown[visible], expected[visible], rtol=1e-8)
        assert (
            shown.shape != before.shape
            or not np.array_equal(shown, before)
            or control.name in UNSEEN.get(key, ())
        )
        before = shown


def test_fluctuations_follow_the_library(visit, curves):
    page = visit("fluctuations?N=12&load=5&S=4&lr=0.2&noise=0.5&sampling=without_replacement")
    shown = curves(page, "fluctuations-weights")
    values = stated(page, FLUCTUATIONS.controls)
    from hyperribbon.application.explorer.papers.fluctuations import _realisation

    X, Y = _realisation(12, 60, 0.5)
    H = fluctuations.hessian(X)
    C = fluctuations.noise_covariance(X, Y, 4, replacement=False)
    unit = 0.2 * 0.5**2 / (2 * 4)
    M = fluctuations.lyapunov_covariance(H, C, 0.2)
    exact = fluctuations.discrete_covariance(X, Y, 0.2, 4, replacement=False)
    assert values["sampling"] == "without_replacement"
    np.testing.assert_allclose(
        shown["continuous time, Eq. 2.30"], np.linalg.eigvalsh(M)[::-1] / unit, rtol=1e-8
    )
    np.testing.assert_allclose(
        shown["discrete time, exact"], np.linalg.eigvalsh(exact)[::-1] / unit, rtol=1e-4
    )


def test_two_layers_follow_the_library(visit, curves):
    page = visit("two-layers?D2=10&scale=0.2")
    shown = curves(page, "two-layers-exponent")
    expected = fluctuations.local_exponent(np.logspace(-3, 3, 121), 1.0)
    np.testing.assert_allclose(shown["ψ = 2 D₂/(D₁+D₂)"], expected, rtol=1e-8)
    assert (shown["this network"] > 1.95).all()
    assert len(TWO_LAYER_PAGE.controls) == page.locator("[role=slider]").count()


def test_a_link_reproduces_the_view(visit, curves):
    link = "ribbons?n=30&c=0.5&T=562&ratio=3"
    page = visit(link)
    first = curves(page, "ribbons-spectrum")["all points, P"]
    assert len(first) == 30
    expected = ribbons.Ribbon.exponential(30, 0.5, sigma_star=3, steps=562)
    np.testing.assert_allclose(first, expected.spectrum(), rtol=1e-6)
    assert page.locator("#ribbons-readings dd").first.inner_text() == str(expected.dimensions(0.95))
    page.reload()
    np.testing.assert_array_equal(curves(page, "ribbons-spectrum")["all points, P"], first)


def test_a_nonsense_link_gives_defaults(visit, curves):
    page = visit("ribbons?n=banana&c=1e9&T=-4&b=nan")
    values = stated(page, RIBBONS.controls)
    assert len(curves(page, "ribbons-spectrum")["all points, P"]) == 50
    assert values["c"] == 1.5 and values["T"] == 1


@pytest.mark.parametrize("kind", ["svg", "png", "csv"])
def test_exports_open(visit, curves, tmp_path, kind):
    page = visit("linear?depth=2")
    plotted = curves(page, "linear-spectrum")["predicted from the labels"]
    with page.expect_download() as waiting:
        page.get_by_label(re.compile(f"Export Every.* as {kind.upper()}")).click()
    path = tmp_path / "export"
    waiting.value.save_as(path)
    content = path.read_bytes()
    if kind == "svg":
        assert b"<svg" in content[:200]
    elif kind == "png":
        assert content.startswith(b"\x89PNG")
    else:
        lines = content.decode().splitlines()
        assert lines[0] == "curve,x,y,value"
        np.testing.assert_allclose([float(line.split(",")[2]) for line in lines[1:]], plotted)


@pytest.mark.parametrize(
    ("link", "picture", "curve", "expression"),
    [
        ("ribbons?n=20&c=0.3", "spectrum", "all points, P", "ribbon.spectrum()"),
        (
            "linear?depth=2&p1=60&p5=0",
            "spectrum",
            "predicted from the labels",
            "eigenvalues[eigenvalues > 0]",
        ),
        (
            "fluctuations?N=12&S=4",
            "weights",
            "continuous time, Eq. 2.30",
            "numpy.linalg.eigvalsh(M)[::-1] / (0.1 / 8)",
        ),
        ("two-layers?D2=10", "flatness", "modes of W₂", "variances"),
    ],
)
def test_the_code_runs_and_gives_the_numbers_shown(visit, curves, link, picture, curve, expression):
    page = visit(link)
    key = link.split("?")[0]
    shown = curves(page, f"{key}-{picture}")[curve]
    page.get_by_text("Python code for this page").click()
    code = page.locator(f"#{key}-code").inner_text()
    scope = {"numpy": np}
    exec(code, scope)
    np.testing.assert_allclose(eval(expression, scope)[: len(shown)], shown, rtol=1e-4)


def test_label_proportions_are_bars_to_drag(visit, curves):
    page = visit("linear")
    before = curves(page, "linear-spectrum")["predicted from the labels"]
    track = page.locator("#linear-p2 .dash-slider-track")
    box, handle = track.bounding_box(), page.locator("#linear-p2 [role=slider]")
    assert box["height"] > 3 * box["width"]
    filled = page.locator("#linear-p2 .dash-slider-range").bounding_box()
    assert abs(filled["height"] / box["height"] - 0.2) < 0.05
    middle = handle.bounding_box()
    page.mouse.move(middle["x"] + middle["width"] / 2, middle["y"] + middle["height"] / 2)
    page.mouse.down()
    page.mouse.move(middle["x"] + middle["width"] / 2, box["y"] + 0.1 * box["height"], steps=8)
    page.mouse.up()
    page.wait_for_function(
        "handle => window.location.search.includes('p2=' + handle.ariaValueNow)",
        arg=handle.element_handle(),
    )
    curve = "predicted from the labels"
    settled = as_stated(page, LINEAR.controls, curve, linear_curve)
    shown = curves(page, "linear-spectrum", until=settled)[curve]
    values = stated(page, LINEAR.controls)
    assert 80 <= values["p2"] <= 99
    np.testing.assert_allclose(shown, linear_curve(values), rtol=1e-8)
    assert shown[0] != before[0]
    handle.press("End")
    page.wait_for_function("() => window.location.search.includes('p2=100')")


@pytest.mark.parametrize("key", ["ribbons", "linear", "fluctuations", "two-layers"])
def test_every_control_has_a_name_for_screen_readers(visit, curves, key):
    page = visit(key)
    page.locator("[role=slider]").first.wait_for()
    page.wait_for_function("() => !document.querySelector('[role=slider]:not([aria-label])')")
    names = [s.get_attribute("aria-label") for s in page.locator("[role=slider]").all()]
    assert len(set(names)) == len(names) > 3
    page.evaluate("() => document.querySelectorAll('details').forEach(e => { e.open = true; })")
    page.locator(f"#menu-{key}").wait_for(state="attached")
    named = "button, input, a, summary, [role=img]"
    unnamed = """(named) => [...document.querySelectorAll(named)].filter(
        e => e.offsetParent && !(e.innerText || e.ariaLabel || e.title || e.labels?.length
                                 || e.closest('.js-plotly-plot, [aria-hidden=true]'))
    ).map(e => e.outerHTML.slice(0, 120))"""
    assert page.evaluate(unnamed, named) == []


def test_a_click_in_the_diagram_moves_the_point(visit, curves):
    page = visit("ribbons")
    curves(page, "ribbons-phase")
    page.locator("#ribbons-phase .nsewdrag").first.click(position={"x": 120, "y": 60})
    page.wait_for_function("() => window.location.search.includes('c=')")
    values = stated(page, RIBBONS.controls)
    assert values["c"] > 0.5 and values["T"] != 50


def test_training_lands_on_the_prediction(visit, curves):
    page = visit("linear?depth=2&d_in=8&width=8")
    page.locator("#linear-start").click()
    page.wait_for_function("() => document.getElementById('linear-status').innerText === 'Done.'")
    shown = curves(page, "linear-spectrum", until=lambda shown: len(shown) == 2)
    predicted, trained = shown["predicted from the labels"], shown["trained network"]
    np.testing.assert_allclose(trained, predicted, rtol=0.01)
    move(page, "linear", "depth")
    curves(page, "linear-spectrum", until=lambda shown: len(shown) == 1)


def test_the_stop_button_stops_and_keeps_what_was_found(visit, curves):
    page = visit("fluctuations?N=40&load=1.2&lr=0.005")  # 90 s if nobody stops it
    curves(page, "fluctuations-weights")
    page.locator("#fluctuations-start").click()
    curves(
        page,
        "fluctuations-weights",
        until=lambda shown: any(name.startswith("SGD") for name in shown),
    )
    page.locator("#fluctuations-stop").click()
    page.wait_for_function(
        "() => document.getElementById('fluctuations-status').innerText.startsWith('Stopped')",
    )
    assert float(page.locator("#fluctuations-progress").get_attribute("value")) < 1
    assert page.locator("#fluctuations-start").is_enabled()


def test_two_tabs_do_not_disturb_each_other(visit, curves):
    first, second = visit("ribbons?n=20"), visit("ribbons?n=90")
    move(first, "ribbons", "c")
    first.wait_for_function("() => window.location.search.includes('c=')")
    assert len(curves(first, "ribbons-spectrum")["all points, P"]) == 20
    assert len(curves(second, "ribbons-spectrum")["all points, P"]) == 90
    assert "c=" not in urlsplit(second.url).query


BAD_UPLOADS = [
    ("text.csv", b"a,b\nc,d\n", "not a matrix of numbers"),
    ("small.csv", b"1,2\n3,4\n", "shape is (2, 2)"),
    ("holes.csv", b"1,2,3,4\n" * 3 + b"1,nan,3,4\n" * 6, "NaN or infinite"),
    ("broken.npy", b"\x80\x04nonsense", "not a matrix of numbers"),
    ("program.exe", b"MZ", "unknown file format"),
    ("huge.csv", b"1," * 10_500_000, "exceeds the limit of 20 MB"),
]


def test_bad_uploads_get_a_message(visit, tmp_path):
    page = visit("ribbons")
    for name, content, words in BAD_UPLOADS:
        path = tmp_path / name
        path.write_bytes(content)
        page.locator("#ribbons-upload input[type=file]").set_input_files(path)
        page.wait_for_function(
            """([name, words]) => {
                const text = document.getElementById('ribbons-upload-message').innerText;
                return text.includes(name) && text.includes(words);
            }""",
            arg=[name, words],
        )


def test_an_uploaded_matrix_finds_its_place(visit, tmp_path):
    from hyperribbon.core.data import sloppy_inputs

    inputs, _ = sloppy_inputs(60, 30, 0.4)
    np.save(tmp_path / "data.npy", inputs)
    page = visit("ribbons")
    page.locator("#ribbons-upload input[type=file]").set_input_files(tmp_path / "data.npy")
    page.wait_for_function("() => window.location.search.includes('c=')")
    assert abs(stated(page, RIBBONS.controls)["c"] - 0.4) <= 0.02


def test_pages_fit_a_phone_and_both_themes(visit, curves):
    for scheme in ("light", "dark"):
        page = visit("ribbons", width=390, height=800, scheme=scheme)
        curves(page, "ribbons-spectrum")
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(overflow) <= 0
        assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.locator("#theme").click()
    page.wait_for_function("() => document.documentElement.dataset.theme === 'light'")


SETTLING_MS = 100  # a redraw that the last press still owes must not be taken for this one's
PATIENCE_MS = 5_000

REDRAWN = """([handle, key, plots, patience]) => new Promise(resolve => {
    setTimeout(() => resolve(null), patience);
    const waiting = new Set(plots);
    const started = performance.now();
    for (const id of plots) {
        const plot = document.getElementById(id).querySelector('.js-plotly-plot');
        plot.once('plotly_afterplot', () => {
            waiting.delete(id);
            if (waiting.size) { return; }
            requestAnimationFrame(() => resolve(performance.now() - started));
        });
    }
    handle.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
})"""


@pytest.mark.slow
@pytest.mark.parametrize("key", CASES)
def test_slider_to_picture_is_measured(visit, curves, key, record_property, capsys):
    """From the key press to all pictures redrawn, in the browser's own clock; reported only."""
    model = CASES[key][0]
    page = visit(key)
    plots = [f"{key}-{p.name}" for p in model.pictures]
    for plot in plots:
        curves(page, plot)
    medians = {}
    for control in model.controls:
        if isinstance(control, Choice):
            continue
        handle = page.locator(f"#{key}-{control.name} [role=slider]").first
        handle.focus()
        spans = []
        for turn in range(2):
            page.wait_for_timeout(SETTLING_MS)
            key_pressed = ("ArrowRight", "ArrowLeft")[turn % 2]
            arguments = [handle.element_handle(), key_pressed, plots, PATIENCE_MS]
            spans.append(page.evaluate(REDRAWN, arguments))
        seen = [span for span in spans if span is not None]
        assert seen, f"no picture followed {control.name} within {PATIENCE_MS} ms"
        medians[control.name] = float(np.median(seen))
        record_property(f"{key}.{control.name}.ms", round(medians[control.name]))
    with capsys.disabled():
        print(f"\n{key}: " + ", ".join(f"{n} {ms:.0f} ms" for n, ms in medians.items()))
