"""Sec. I of [ribbons]: four spectra of one task on one axis."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from hyperribbon.core import derive_seed
from hyperribbon.core.data import load_data
from hyperribbon.manifold import InPCA, bhattacharyya
from hyperribbon.operators import NTK, Fisher, Hessian
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.kit import presets as make_presets
from hyperribbon.papers.experiments.ribbons._networks import even_snapshots
from hyperribbon.papers.experiments.ribbons._shared import CIRCLES, line_fits
from hyperribbon.papers.training import mlp, train_ensemble
from hyperribbon.spectra import eigsh

TITLE = "Input correlations, Fisher information, tangent kernel and inPCA of one task"
RANDOM = "trained networks"

_NAMES = {
    "inputs": "input correlations",
    "fisher": "Fisher information",
    "hessian": "Hessian",
    "kernel": "tangent kernel",
    "inpca": "inPCA of training",
}
_SETTING = (
    "one task, MNIST digits, with fully connected networks trained to it; the paper draws no such "
    "figure"
)
STATEMENTS = (
    kit.says(
        "pattern",
        "Sec. I.A",
        "These four concepts are clearly distinct from each other, but they share a suspiciously "
        "common pattern: (i) the stress captured by successive dimensions of an inPCA embedding "
        "[…] (ii) eigenvalues of the FIM […] (iii) eigenvalues of the input correlation matrices "
        "[…] all exhibit geometric decay.",
        "Each of the three falls by a factor of 10 and more within its first twenty values.",
        kit.Band.at_least(1.0, "words"),
        setting=_SETTING,
    ),
    kit.says(
        "hessian-inputs",
        "Sec. I",
        "The authors in [22] showed that the eigenspectrum of the input correlation matrix is "
        "closely related to the eigenspectrum of the Hessian of the training loss and the FIM for "
        "general deep networks.",
        "log λ of Hessian and Fisher information have a correlation of 0.9 and more with log λ of "
        "the inputs, over their first fifty.",
        kit.Band.at_least(0.9, "words"),
        setting=_SETTING,
    ),
    kit.observe(
        "geometric",
        "Sec. I.A",
        "log λ of the first fifty of all five is closer to a line in i than in log i.",
        kit.Band.at_least(0.0, "words"),
    ),
)


class Config(kit.Frozen):
    """Task and networks whose spectra are compared (thesis)."""

    data: str = "mnist5k"  # name of the data set
    samples: int = 300  # of the task; all spectra are of these samples
    width: int = 64  # of the hidden layer
    networks: int = 6  # trained, for inPCA; the first one has the Fisher information and Hessian
    epochs: int = 60  # passes
    snapshots: int = 20  # of each training, evenly along its path
    values: int = 50  # of each spectrum


PRESETS = make_presets(
    Config(),
    smoke=Config(samples=40, width=8, networks=2, epochs=6, snapshots=12, values=20),
    paper=Config(samples=1000, width=256, networks=20),
)


class Result(kit.Frozen):
    """Spectra of inputs, Fisher information, Hessian, kernel and inPCA, each over its first."""

    inputs: np.ndarray  # XXᵀ/n
    fisher: np.ndarray  # of a trained network
    hessian: np.ndarray  # of its training loss, largest first
    kernel: np.ndarray  # tangent kernel of an untrained one
    inpca: np.ndarray  # magnitudes, of the snapshots of all trainings
    time_like: np.ndarray  # (values,), which of these are negative
    stress: float  # explained by two dimensions
    accuracy: float  # of the trained network on the task


def compute(config: Config, context: kit.Context) -> Result:
    """Train the thesis's networks; compute spectra of inputs, Fisher, Hessian, kernel and inPCA."""
    item = {**vars(config), "seed": derive_seed(context.seed, "thesis")}
    found = context.map(_spectra, [item], "spectra")[0]
    return Result(**found)


def _spectra(item: kit.Item) -> dict[str, object]:
    data = load_data(item["data"], split="all", limit=item["samples"]).flat()
    X, k = data.inputs, item["values"]
    sizes = (X.shape[1], item["width"], data.classes)
    seeds = [derive_seed(item["seed"], network) for network in range(item["networks"])]
    steps = item["epochs"] * -(-len(X) // 30)
    every = np.unique(np.geomspace(1, steps, 4 * item["snapshots"]).round().astype(int))
    ensemble = train_ensemble(
        lambda seed: mlp(sizes, seed=seed),
        cross_entropy,
        data,
        seeds=seeds,
        epochs=item["epochs"],
        batch_size=30,
        lr=0.1,
        probe=X,
        every=every.tolist(),
    )
    paths = [np.asarray(member.predictions, dtype=np.float64) for member in ensemble]
    logs = np.concatenate([path[even_snapshots(path, item["snapshots"])] for path in paths])
    space = InPCA(2, metric="precomputed").fit(bhattacharyya(logs, log=True, precision="double"))
    trained, fresh = mlp(sizes), mlp(sizes)
    trained.load_state_dict(ensemble[0].result.final)
    fresh.load_state_dict(ensemble[0].result.initial)
    gram = (X @ X.T / len(X)).double().numpy()
    kernel = NTK(fresh, X).to_dense().double().numpy()
    right = (trained(X).argmax(dim=1) == data.targets).double().mean()
    found = {
        "inputs": np.linalg.eigvalsh(gram)[::-1][:k],
        "fisher": eigsh(Fisher(trained, data, likelihood="categorical"), k).eigenvalues,
        "hessian": eigsh(Hessian(trained, torch.nn.CrossEntropyLoss(), data), k).eigenvalues,
        "kernel": np.linalg.eigvalsh(kernel)[::-1][:k],
    }
    spectra = {name: np.asarray(values) for name, values in found.items()}
    magnitudes = np.abs(space.spectrum_[:k])
    return {
        **{name: values / values[0] for name, values in spectra.items()},
        "inpca": magnitudes / magnitudes[0],
        "time_like": space.spectrum_[:k] < 0,
        "stress": float(space.explained_stress_[1]),
        "accuracy": float(right),
    }


def plot(result: Result) -> kit.Figure:
    """Draw the thesis's spectra over their first value."""
    figure, axis = kit.new_figure(ratio=0.85)
    for color, (name, title) in zip(kit.COLORS, _NAMES.items(), strict=False):
        values = np.asarray(getattr(result, name))
        index = np.arange(1, len(values) + 1)
        # The Hessian of a network that fits its data is nearly the Fisher information.
        look = {"ls": "--", "lw": 1.0, "color": "black"} if name == "hessian" else {"color": color}
        axis.semilogy(index, np.where(values > 0, values, np.nan), **look, label=title)
        if name == "inpca":
            marked = index[np.asarray(result.time_like)]
            axis.semilogy(marked, values[marked - 1], color=color, **CIRCLES)
    axis.plot([], [], color="0.3", label="time-like", **CIRCLES)
    axis.set(xlabel="index $i$", ylabel=r"$\lambda_i/\lambda_1$")
    figure.legend(loc="outside upper center", ncols=2)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure how the thesis's spectra fall, how they relate, and the shape of their decay."""
    spectra = {name: np.asarray(getattr(result, name)) for name in _NAMES}
    falls = {name: -np.log10(abs(values[19])) for name, values in spectra.items()}
    three = [falls[name] for name in ("inputs", "fisher", "inpca")]
    related = {name: _relation(spectra["inputs"], spectra[name]) for name in ("hessian", "fisher")}
    shapes = {name: float(np.subtract(*line_fits(v))) for name, v in spectra.items()}
    return {
        "pattern": kit.over_seeds([min(three)], "log10(λ1/λ20): " + _list(falls)),
        "hessian-inputs": kit.over_seeds([min(related.values())], "correlation: " + _list(related)),
        "geometric": kit.over_seeds(
            [min(shapes.values())],
            f"R² against i minus that against log i: {_list(shapes)}; two dimensions of inPCA "
            f"explain {result.stress:.0%} of the stress; accuracy {result.accuracy:.3f}",
        ),
    }


def _list(values: dict[str, float]) -> str:
    return ", ".join(f"{_NAMES[name]} {value:.2f}" for name, value in values.items())


def _relation(inputs: np.ndarray, other: np.ndarray) -> float:
    both = (inputs > 0) & (other > 0)
    return float(np.corrcoef(np.log(inputs[both]), np.log(other[both]))[0, 1])
