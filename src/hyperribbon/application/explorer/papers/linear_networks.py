"""Linear networks page: Hessian eigenvalues predicted from the labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from hyperribbon.application.explorer.controls import Slider, Values
from hyperribbon.application.explorer.figures import Drawing, curve, drawing
from hyperribbon.application.explorer.jobs import Report
from hyperribbon.application.explorer.theory_page import Action, Numbers, Picture, TheoryPage
from hyperribbon.core.generators import numpy_generator
from hyperribbon.papers.simulation.linear_networks.descent import draw_linear_weights, train_linear
from hyperribbon.plots.style import COLORS
from hyperribbon.theory import linear_networks as theory

_CLASSES = 6
_ROUNDS = 20
_EPOCHS_PER_ROUND = 300
_CONTROLS = (
    Slider("depth", "Layers L", 1, 8, 3, 1, whole=True, help="Number of weight matrices."),
    Slider("d_in", "Input width d₀", 6, 40, 16, 1, whole=True, help="Features, and samples."),
    Slider("width", "Hidden width", 6, 40, 12, 1, whole=True, help="Of every hidden layer."),
    Slider("sigma_x", "Input scale σx", 0.3, 3.0, 1.0, 0.05, help="Root mean square."),
    *(
        Slider(
            f"p{label}",
            str(label),
            0,
            100,
            40 if label == 0 else 20,
            1,
            whole=True,
            help=f"Weight of class {label}; the shares are these weights over their sum.",
            is_bar=True,
        )
        for label in range(_CLASSES)
    ),
)


def _proportions(values: Values) -> np.ndarray:
    weights = np.array([values[f"p{label}"] for label in range(_CLASSES)], dtype=float)
    if weights.sum() == 0:
        weights[:] = 1
    return weights / weights.sum()


def _predict(values: Values) -> np.ndarray:
    """Linear-networks page: non-zero eigenvalues of a balanced network that fits the labels."""
    singular = np.sort(np.sqrt(_proportions(values)) / values["sigma_x"])[::-1]
    layers = singular ** (1 / values["depth"])
    eigenvalues = theory.balanced_eigenvalues(
        layers[layers > 0], values["depth"], values["d_in"], _CLASSES, values["sigma_x"]
    )
    return eigenvalues[eigenvalues > 0]


def _draw_spectrum(values: Values, overlay: Any) -> Drawing:
    eigenvalues = _predict(values)
    traces = [
        curve(
            "predicted from the labels",
            np.arange(1, len(eigenvalues) + 1),
            eigenvalues,
            mode="lines+markers",
            marker={"size": 5},
            line={"color": COLORS[0], "shape": "hv"},
        )
    ]
    if overlay is not None:
        measured = np.array(overlay["eigenvalues"])
        marker = {"symbol": "circle-open", "size": 9, "color": COLORS[1]}
        index = np.arange(1, len(measured) + 1)
        traces.append(curve("trained network", index, measured, mode="markers", marker=marker))
    return drawing(traces, "index", "eigenvalue of the Hessian", log="y")


def _draw_depth(values: Values, overlay: Any) -> Drawing:
    depths = np.arange(1, 9)
    traces = [
        curve(
            name,
            depths,
            [theory.label_sharpness(proportions, int(d), values["sigma_x"]) for d in depths],
            mode="lines+markers",
            line={"color": color, "dash": dash},
        )
        for name, proportions, color, dash in (
            ("these labels", _proportions(values), COLORS[0], "solid"),
            ("balanced labels", np.full(_CLASSES, 1 / _CLASSES), "#888888", "dot"),
        )
    ]
    if overlay is not None:
        marker = {"symbol": "circle-open", "size": 12, "color": COLORS[1], "line": {"width": 2}}
        sharpness = overlay["eigenvalues"][:1]
        traces.append(
            curve("trained network", [values["depth"]], sharpness, mode="markers", marker=marker)
        )
    return drawing(traces, "layers L", "sharpness λmax")


def _numbers(values: Values) -> Numbers:
    shares = _proportions(values)
    rank = int((shares > 0).sum())
    depth, d_in = values["depth"], values["d_in"]
    widths = [d_in] + [values["width"]] * (depth - 1) + [_CLASSES]
    eigenvalues = _predict(values)
    return [
        ("Sharpness, Eq. 14", f"{theory.label_sharpness(shares, depth, values['sigma_x']):.4f}"),
        ("Largest class share", f"{shares.max():.3f}"),
        ("Trace", f"{eigenvalues.sum():.4g}"),
        ("Non-zero eigenvalues", str(theory.balanced_count(rank, depth, d_in, _CLASSES))),
        ("… by the printed rule (min d)²", str(theory.printed_count(widths))),
        ("Largest stable learning rate, 2/λmax", f"{2 / eigenvalues[0]:.4g}"),
        ("Training samples, n = d₀", str(d_in)),
    ]


def _train(values: Values, report: Report) -> dict[str, Any]:
    """Linear-networks page: train a balanced network on white inputs (n = d₀)."""
    rng = numpy_generator(0, "explorer")
    d_in, depth, sigma_x = values["d_in"], values["depth"], values["sigma_x"]
    basis, _ = np.linalg.qr(rng.standard_normal((d_in, d_in)))
    inputs = np.sqrt(d_in) * sigma_x * basis
    # Labels with exactly these proportions: one-hot rows of weight √(share), mutually orthogonal.
    frame, _ = np.linalg.qr(rng.standard_normal((d_in, _CLASSES)))
    labels = np.sqrt(d_in * _proportions(values))[:, None] * frame.T
    moments = theory.Moments.of(inputs, labels)
    widths = [d_in] + [max(values["width"], _CLASSES)] * (depth - 1) + [_CLASSES]
    weights = draw_linear_weights(widths, "balanced", generator=rng)
    lr = 0.05 / max(_predict(values)[0], depth * sigma_x**2)
    result: dict[str, Any] = {}
    for done in range(1, _ROUNDS + 1):
        run = train_linear(weights, moments, lr=lr, epochs=_EPOCHS_PER_ROUND)
        weights = run.weights
        jacobian = theory.jacobian(weights, inputs)
        values_found = np.linalg.svd(jacobian, compute_uv=False) ** 2 / d_in
        kept = values_found[values_found > 1e-9 * values_found[0]]
        result = {"eigenvalues": kept[:400].tolist(), "loss": float(run.losses[-1])}
        if not report(done / _ROUNDS, result):
            break
    return result


def _code(values: Values) -> str:
    weights = [values[f"p{label}"] for label in range(_CLASSES)]
    return (
        "import numpy as np\nimport hyperribbon as hr\n\n"
        "theory = hr.theory.linear_networks\n"
        f"proportions = np.array({weights if sum(weights) else [1] * _CLASSES}, float)\n"
        "proportions /= proportions.sum()\n"
        f"depth, sigma_x = {values['depth']}, {values['sigma_x']}\n"
        "layers = np.sort((np.sqrt(proportions) / sigma_x) ** (1 / depth))[::-1]\n"
        "eigenvalues = theory.balanced_eigenvalues(\n"
        f"    layers[layers > 0], depth, {values['d_in']}, {_CLASSES}, sigma_x\n)\n"
        "sharpness = theory.label_sharpness(proportions, depth, sigma_x)\n"
    )


PAGE = TheoryPage(
    key="linear",
    title="Linear networks",
    lead="For a deep linear network on white inputs, every eigenvalue of the Hessian follows from "
    "the proportions of the classes. Drag the bars; train a network to check.",
    controls=_CONTROLS,
    pictures=(
        Picture(
            "spectrum", "Every non-zero eigenvalue of the Hessian", _draw_spectrum,
            "Predicted eigenvalues of the Hessian in descending order, and measured ones once a "
            "network has been trained.",
        ),
        Picture(
            "sharpness", "Sharpness against depth", _draw_depth,
            "Sharpness of the solution against the number of layers, for these labels and for "
            "balanced ones.",
        ),
    ),
    numbers=_numbers,
    code=_code,
    action=Action("Train such a network", _train),
    bars="Samples of each class (drag the bars)",
)  # fmt: skip
