"""Fluctuations pages: one layer compared with SGD; two layers and flatness."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hyperribbon.application.explorer.controls import Choice, Slider, Values
from hyperribbon.application.explorer.figures import Drawing, curve, drawing
from hyperribbon.application.explorer.jobs import Report
from hyperribbon.application.explorer.theory_page import Action, Numbers, Picture, TheoryPage
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import numpy_generator
from hyperribbon.papers.simulation import simulate_one_layer
from hyperribbon.plots.style import COLORS
from hyperribbon.theory import fluctuations as theory

_ROUNDS = 100
_CHAINS = 64
_MEASURED_STEPS = 400
_LONGEST_BURN_IN = 20_000
_SAMPLING = {
    "replacement": "with replacement",
    "without_replacement": "without replacement",
    "shuffle": "epoch shuffling",
}
_CONTROLS = (
    Slider("N", "Weights N", 5, 60, 20, 1, whole=True, help="Input dimension."),
    Slider("load", "Samples per weight P/N", 1.2, 20, 4, 0.01, log=True, help="P = N · this."),
    Slider("S", "Batch size S", 1, 100, 10, 1, whole=True, help="Samples in a minibatch."),
    Slider("lr", "Learning rate λ", 0.005, 1.0, 0.1, 0.02, log=True, help="Step of SGD."),
    Slider("noise", "Label noise σε", 0.05, 2.0, 1.0, 0.05, help="Standard deviation."),
    Choice("sampling", "Batches drawn", _SAMPLING, "replacement"),
)


@lru_cache(maxsize=64)
def _realisation(N: int, P: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = numpy_generator(0, "explorer", "fluctuations")
    X = rng.standard_normal((N, P))
    return X, rng.standard_normal(N) @ X / np.sqrt(N) + noise * rng.standard_normal(P)


def _setting(values: Values) -> tuple[np.ndarray, np.ndarray, int, bool]:
    N = values["N"]
    P = max(round(N * values["load"]), N + 2)
    X, Y = _realisation(N, P, values["noise"])
    return X, Y, min(values["S"], P - 1), values["sampling"] == "replacement"


@lru_cache(maxsize=8)
def _covariances(**values: Any) -> dict[str, Any]:
    X, Y, S, replacement = _setting(values)
    H, lr = theory.hessian(X), values["lr"]
    C = theory.noise_covariance(X, Y, S, replacement=replacement)
    try:
        discrete = theory.discrete_covariance(X, Y, lr, S, replacement=replacement, rtol=1e-6)
    except ArgumentError:
        discrete = None  # no stationary state at this learning rate
    return {
        "H": H,
        "C": C,
        "continuum": theory.lyapunov_covariance(H, C, lr),
        "balance": theory.detailed_balance_covariance(H, C, lr),
        "discrete": discrete,
        "Q": theory.antisymmetric_part(H, C),
    }


def _eigenvalues(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.eigvalsh(matrix)[::-1]


def _draw_weights(values: Values, overlay: Any) -> Drawing:
    found = _covariances(**values)
    S = _setting(values)[2]
    unit = values["lr"] * values["noise"] ** 2 / (2 * S)
    index = np.arange(1, values["N"] + 1)
    traces = [
        curve(name, index, _eigenvalues(matrix) / unit, line={"color": color, "dash": dash})
        for key, name, color, dash in (
            ("continuum", "continuous time, Eq. 2.30", COLORS[0], "solid"),
            ("balance", "detailed balance, Eq. 2.33", "#888888", "dot"),
            ("discrete", "discrete time, exact", COLORS[2], "dash"),
        )
        if (matrix := found[key]) is not None
    ]
    if overlay is not None:
        measured = np.array(overlay["eigenvalues"]) / unit
        name = f"SGD, {overlay['samples']:,} samples"
        marker = {"symbol": "circle-open", "size": 8, "color": COLORS[1]}
        traces.append(curve(name, index, measured, mode="markers", marker=marker))
    return drawing(traces, "index", "eigenvalue of M / (λσε²/2S)", log="y")


def _draw_noise(values: Values, overlay: Any) -> Drawing:
    found = _covariances(**values)
    unit = values["noise"] ** 2 / _setting(values)[2]
    index = np.arange(1, values["N"] + 1)
    currents = np.sort(np.abs(np.linalg.eigvals(found["Q"]).imag))[::-1]
    dotted = {"color": "#888888", "dash": "dot"}
    traces = [
        curve("noise C", index, _eigenvalues(found["C"]) / unit, line={"color": COLORS[0]}),
        curve("σε²H/S (P → ∞)", index, _eigenvalues(found["H"]), line=dotted),
        curve("|Q|, broken balance", index, currents / unit, line={"color": COLORS[3]}),
    ]
    return drawing(traces, "index", "eigenvalue / (σε²/S)")


def _numbers(values: Values) -> Numbers:
    X, _, S, _ = _setting(values)
    slowest = theory.relaxation_steps(theory.hessian(X), values["lr"])
    found = _covariances(**values)
    broken = np.linalg.norm(found["Q"]) / np.linalg.norm(found["C"])
    low, high = theory.marchenko_pastur_edges(values["N"], X.shape[1], 1.0)
    gap = "no stationary state"
    if found["discrete"] is not None:
        gap = f"{np.trace(found['discrete']) / np.trace(found['continuum']) - 1:+.1%}"
    return [
        ("Samples P", str(X.shape[1])),
        ("Batch size S that is used, below P", str(S)),
        ("Broken detailed balance, ‖Q‖/‖C‖", f"{broken:.3f}"),
        ("Exact over continuous time, trace", gap),
        ("Relaxation of the slowest mode", f"{slowest:.0f} steps"),
        ("Marchenko–Pastur edges of H", f"{low:.3f} … {high:.3f}"),
    ]


def _simulate(values: Values, report: Report) -> dict[str, Any]:
    X, Y, S, _ = _setting(values)
    slowest = theory.relaxation_steps(theory.hessian(X), values["lr"])
    settings = {"lr": values["lr"], "batch_size": S, "sampling": values["sampling"]}
    settings |= {"steps": _MEASURED_STEPS, "chains": _CHAINS}
    settings["burn_in"] = min(int(3.5 * slowest) + 1, _LONGEST_BURN_IN)
    total, samples = np.zeros((values["N"], values["N"])), 0
    result: dict[str, Any] = {}
    for done in range(1, _ROUNDS + 1):
        statistics = simulate_one_layer(X, Y, **settings, seed=done)
        total += statistics.covariance * statistics.samples
        samples += statistics.samples
        result = {"eigenvalues": _eigenvalues(total / samples).tolist(), "samples": samples}
        if not report(done / _ROUNDS, result):
            break
    return result


def _code(values: Values) -> str:
    X, _, S, replacement = _setting(values)
    lr, drawn = values["lr"], f"replacement={replacement}"
    return (
        "import hyperribbon as hr\n"
        "from hyperribbon.core.generators import numpy_generator\n\n"
        "theory = hr.theory.fluctuations\n"
        f"N, P, noise = {values['N']}, {X.shape[1]}, {values['noise']}\n"
        'rng = numpy_generator(0, "explorer", "fluctuations")\n'
        "X = rng.standard_normal((N, P))\n"
        "Y = rng.standard_normal(N) @ X / N**0.5 + noise * rng.standard_normal(P)\n"
        f"H, C = theory.hessian(X), theory.noise_covariance(X, Y, {S}, {drawn})\n"
        f"M = theory.lyapunov_covariance(H, C, {lr})\n"
        f"exact = theory.discrete_covariance(X, Y, {lr}, {S}, {drawn})\n"
    )


PAGE = TheoryPage(
    key="fluctuations",
    title="Fluctuations",
    lead="Under SGD the weights of a linear model keep wandering. Their covariance follows from "
    "curvature and gradient noise; detailed balance is only a limit. Run SGD to check.",
    controls=_CONTROLS,
    pictures=(
        Picture(
            "weights", "Stationary covariance of the weights", _draw_weights,
            "Eigenvalues of the stationary weight covariance by three theories, and of simulated "
            "SGD once it has run.",
        ),
        Picture(
            "balance", "Gradient noise and broken detailed balance", _draw_noise,
            "Eigenvalues of the gradient noise covariance C, of the Hessian, and of the "
            "antisymmetric part Q.",
        ),
    ),
    numbers=_numbers,
    code=_code,
    action=Action("Run SGD", _simulate),
)  # fmt: skip


_TWO_LAYER_CONTROLS = (
    Slider("N_i", "Inputs", 10, 80, 50, 1, whole=True, help="Input width."),
    Slider("share", "Hidden over inputs", 0.1, 1.0, 0.8, 0.05, help="Hidden width / input width."),
    Slider("scale", "Scale of W₁", 0.05, 3.0, 1.0, 0.02, log=True, help="Times 1/√inputs."),
    Slider("D2", "D₂ = ‖W₂‖²", 0.05, 50.0, 1.0, 0.02, log=True, help="Squared norm of W₂."),
    Slider("S", "Batch size S", 1, 1000, 100, 0.05, log=True, whole=True, help="Minibatch."),
    Slider("lr", "Learning rate λ", 0.001, 0.5, 0.05, 0.02, log=True, help="Step of SGD."),
)


@lru_cache(maxsize=64)
def _first_layer(inputs: int, hidden: int) -> np.ndarray:
    rng = numpy_generator(0, "explorer", "first layer")
    return np.linalg.svd(rng.standard_normal((hidden, inputs)), compute_uv=False) / np.sqrt(inputs)


def _two_layers(values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Fluctuations page: singular values of W₁, squared, and variances of W₂ along its modes."""
    hidden = max(2, round(values["share"] * values["N_i"]))
    D1 = (values["scale"] * _first_layer(values["N_i"], hidden)) ** 2
    variances = theory.second_layer_variances(D1, values["D2"], values["lr"], values["S"], 1.0)
    return D1, variances[:, 0]


def _draw_flatness(values: Values, overlay: Any) -> Drawing:
    D1, variances = _two_layers(values)
    flatness = D1**-0.5
    middle = len(D1) // 2
    line = variances[middle] * (flatness / flatness[middle]) ** -2.0
    traces = [
        curve("modes of W₂", flatness, variances, mode="markers", marker={"color": COLORS[0]}),
        curve("ψ = 2", flatness, line, line={"color": "#888888", "dash": "dot"}),
    ]
    return drawing(traces, "flatness F = D₁<sup>−1/2</sup>", "variance along the mode", log="xy")


def _draw_exponent(values: Values, overlay: Any) -> Drawing:
    D1, D2 = _two_layers(values)[0], values["D2"]
    ratios = np.logspace(-3, 3, 121)
    everywhere, here = theory.local_exponent(ratios, 1.0), theory.local_exponent(D1, D2)
    marker = {"color": COLORS[0], "size": 8}
    traces = [
        curve("ψ = 2 D₂/(D₁+D₂)", ratios, everywhere, line={"color": "#888888"}),
        curve("this network", D1 / D2, here, mode="markers", marker=marker),
    ]
    return drawing(traces, "D₁/D₂", "local exponent ψ", log="x")


def _numbers_two(values: Values) -> Numbers:
    (D1, variances), D2 = _two_layers(values), values["D2"]
    local = theory.local_exponent(D1, D2)
    ratio = theory.stationarity_ratio(values["lr"], values["S"], 1.0, values["N_i"], D2)
    return [
        ("Exponent ψ fitted over all modes", f"{theory.fit_exponent(variances, D1):.3f}"),
        ("Local exponent, from flattest to sharpest", f"{local[-1]:.2f} … {local[0]:.2f}"),
        ("D₁, smallest … largest", f"{D1[-1]:.3g} … {D1[0]:.3g}"),
        ("Stationarity λσy²Nᵢ/(S D₂), must be ≪ 1", f"{ratio:.3g}"),
    ]


def _code_two(values: Values) -> str:
    hidden = max(2, round(values["share"] * values["N_i"]))
    return (
        "import numpy as np\nimport hyperribbon as hr\n"
        "from hyperribbon.core.generators import numpy_generator\n\n"
        "theory = hr.theory.fluctuations\n"
        'rng = numpy_generator(0, "explorer", "first layer")\n'
        f"W1 = {values['scale']} * rng.standard_normal(({hidden}, {values['N_i']})) "
        f"/ {values['N_i']}**0.5\n"
        "D1 = np.linalg.svd(W1, compute_uv=False) ** 2\n"
        f"variances = theory.second_layer_variances(D1, {values['D2']}, {values['lr']}, "
        f"{values['S']}, 1.0)[:, 0]\n"
        f"theory.fit_exponent(variances, D1), theory.local_exponent(D1, {values['D2']})\n"
    )


TWO_LAYER_PAGE = TheoryPage(
    key="two-layers",
    title="Two layers",
    lead="In a two-layer linear network the weights vary most along the sharpest directions: the "
    "inverse variance–flatness relation. Its exponent is 2 only where D₁ ≪ D₂.",
    controls=_TWO_LAYER_CONTROLS,
    pictures=(
        Picture(
            "flatness", "Variance against flatness, mode by mode", _draw_flatness,
            "Variance of the second layer along each principal mode against the flatness of the "
            "loss along it, with a line of slope minus two.",
        ),
        Picture(
            "exponent", "Local exponent ψ", _draw_exponent,
            "Local exponent of the variance flatness relation against D1 over D2.",
        ),
    ),
    numbers=_numbers_two,
    code=_code_two,
)  # fmt: skip
