"""Fig. 2 of [ribbons]: eigenvalues of the correlation matrices of real data, and their slopes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hyperribbon.core import Band, Claim, derive_seed, numpy_generator
from hyperribbon.core.data import load_data
from hyperribbon.experiments.context import Context
from hyperribbon.experiments.ribbons._text import token_features
from hyperribbon.plots.style import COLORS, new_figure
from hyperribbon.theory.ribbons import Ribbon, slope

ID = "ribbons/fig2"
TITLE = "Real data are sloppy: spectra and slopes"


@dataclass(frozen=True)
class Config:
    """Data sets.

    Attributes:
        sets: Names of image sets, or "text".
        samples: Samples of each, at most.
        trained: Samples of the small regressions whose trajectories are compared with theory.
        steps: Their training time.
        initialisations: Models trained for each.
    """

    sets: tuple[str, ...] = ("mnist5k", "digits", "text")
    samples: int = 5000
    trained: int = 100
    steps: int = 100
    initialisations: int = 2000


PRESETS = {
    "smoke": Config(samples=600, initialisations=200),
    "laptop": Config(),
    "paper": Config(initialisations=20_000),
}
PRESETS_WITH_DATA = {
    "smoke": PRESETS["smoke"],
    "laptop": Config(sets=("mnist", "fashion_mnist", "cifar10", "text"), samples=8000),
    "paper": Config(
        sets=("mnist", "fashion_mnist", "cifar10", "text"), samples=60_000, initialisations=20_000
    ),
}


@dataclass(frozen=True)
class Result:
    """Spectra by data set.

    Attributes:
        names: Data sets.
        spectra: Their eigenvalues over the largest.
        slopes: (s,), of all eigenvalues above 1e-10 of the largest.
        stderrs: (s,).
        ranges: (s, 2), first and one past the last index fitted.
        local: (s, 3), slopes of the thirds.
        r_squared: (s,).
        lines: Fitted eigenvalues over the range.
        theory: (s, 20), eigenvalues of P(T) of linear regression on the data.
        trained: (s, 20), of P(N, T) of trained models.
        trained_share: (s,), whole variance of trained models over theory's.
    """

    names: list[str]
    spectra: list[np.ndarray]
    slopes: np.ndarray
    stderrs: np.ndarray
    ranges: np.ndarray
    local: np.ndarray
    r_squared: np.ndarray
    lines: list[np.ndarray]
    theory: np.ndarray
    trained: np.ndarray
    trained_share: np.ndarray


def compute(config: Config, context: Context) -> Result:
    """Diagonalise correlation matrices, fit slopes, and train linear models on each set."""
    items = [
        {
            "name": name,
            "samples": config.samples,
            "trained": config.trained,
            "steps": config.steps,
            "initialisations": config.initialisations,
            "seed": derive_seed(context.seed, "fig2", name),
        }
        for name in config.sets
    ]
    found = context.map(_measure, items, "data sets")
    fits = [slope(one["eigenvalues"]) for one in found]
    return Result(
        names=list(config.sets),
        spectra=[one["eigenvalues"] for one in found],
        slopes=np.array([fit.value for fit in fits]),
        stderrs=np.array([fit.stderr for fit in fits]),
        ranges=np.array([[fit.first, fit.last] for fit in fits]),
        local=np.array([fit.local for fit in fits]),
        r_squared=np.array([fit.r_squared for fit in fits]),
        lines=[fit.line() for fit in fits],
        theory=np.array([one["theory"] for one in found]),
        trained=np.array([one["trained"] for one in found]),
        trained_share=np.array([one["trained_share"] for one in found]),
    )


def _measure(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spectrum of XXᵀ/n, and PCA spectra of training on a few samples."""
    X, y = _features(item["name"], item["samples"])
    smaller = X.T @ X if X.shape[1] <= len(X) else X @ X.T
    eigenvalues = np.maximum(np.linalg.eigvalsh(smaller / len(X))[::-1], 0)
    rng = numpy_generator(item["seed"])
    chosen = rng.permutation(len(X))[: item["trained"]]
    few, goal = X[chosen], y[chosen]
    few = few * np.sqrt(len(few) / np.linalg.eigvalsh(few @ few.T)[-1])
    ribbon = Ribbon.from_data(few, goal, 1.0, 1.0, item["steps"])
    # Only the residuals matter: K's factor (n, n) stands for the weights' many directions.
    root = np.linalg.svd(few, full_matrices=False)
    factor = root[0] * root[1]
    weights = rng.standard_normal((item["initialisations"], factor.shape[1]))
    second, mean = np.zeros((len(few), len(few))), np.zeros(len(few))
    for _ in range(item["steps"]):
        residuals = (weights @ factor.T - goal) / np.sqrt(len(few))
        second += residuals.T @ residuals / len(weights)
        mean += residuals.mean(axis=0)
        weights -= residuals @ factor / np.sqrt(len(few))
    mean /= item["steps"]
    trained = np.linalg.eigvalsh(second / item["steps"] - np.outer(mean, mean))[::-1]
    return {
        "eigenvalues": eigenvalues / eigenvalues[0],
        "theory": ribbon.spectrum()[:20],
        "trained": trained[:20],
        "trained_share": float(trained.sum() / ribbon.spectrum().sum()),
    }


def _features(name: str, samples: int) -> tuple[np.ndarray, np.ndarray]:
    if name == "text":
        X = token_features(samples)
        return X, np.where(np.arange(len(X)) % 2 == 0, 1.0, -1.0)
    split = "all" if name in ("mnist5k", "digits") else "train"
    data = load_data(name, split=split, limit=samples).flat()
    return data.inputs.numpy().astype(float), np.where(data.targets.numpy() % 2 == 0, 1.0, -1.0)


def plot(result: Result) -> Figure:
    """Draw the spectra with their fitted lines, and PCA spectra of training on the data."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.8)
    for color, name, spectrum, c, error, span, line, theory, trained in zip(
        COLORS, result.names, result.spectra, result.slopes, result.stderrs, result.ranges,
        result.lines, result.theory, result.trained, strict=False,
    ):  # fmt: skip
        shown = spectrum[spectrum > 1e-10]
        label = f"{name}: $c={c:.4f}\\pm{error:.4f}$"
        left.semilogy(np.arange(1, len(shown) + 1), shown, color=color, lw=1.8, label=label)
        left.semilogy(np.arange(span[0], span[1]) + 1, line, color=color, ls="--", lw=0.9)
        index = np.arange(1, len(theory) + 1)
        right.semilogy(index, theory / theory[0], color=color, label=name)
        right.semilogy(index, trained / theory[0], "o", color=color, mfc="white", ms=3)
    left.set(xlabel="index $i$", ylabel=r"$\lambda_i/\lambda_1$", title="(a) input correlations",
             ylim=(1e-10, 300))  # fmt: skip
    left.legend(loc="upper right", fontsize=7)
    right.set(xlabel="index $i$", ylabel=r"$\lambda_i/\lambda_1$ of $P(T)$",
              title="(b) training linear models on them")  # fmt: skip
    right.set_xticks([1, 5, 10, 15, 20])
    right.legend(title="lines: closed form, circles: trained", loc="upper right")
    return figure


def claims(result: Result) -> list[Claim]:
    """Judge the drop, the range, the straightness and the simulation."""
    drops = np.array([spectrum[10] for spectrum in result.spectra])
    spans = np.array([np.log10(1 / s[s > 1e-10][-1]) for s in result.spectra])
    straight = int(result.r_squared.argmin())
    bend = result.local.max(axis=1) / result.local.min(axis=1)
    listed = "; ".join(
        f"{n}: {a:.3g}, {b:.3g}, {c:.3g}"
        for n, (a, b, c) in zip(result.names, result.local, strict=True)
    )
    worst = int(np.abs(result.trained_share - 1).argmax())
    return [
        Claim.judge(
            f"{ID}/drop",
            place="Fig. 2",
            statement="Eigenvalues drop sharply among the first few",
            expected=Band.at_most(0.1, "paper"),
            measured=drops.max(),
            why="λ11/λ1, the largest over the data sets",
        ),
        Claim.judge(
            f"{ID}/range",
            place="Sec. I",
            statement="Eigenvalues span a very large range, three decades and more",
            expected=Band.at_least(3, "paper"),
            measured=spans.min(),
            why="decades between the first and last eigenvalue above 1e-10, the least of all sets",
        ),
        Claim.judge(
            f"{ID}/uniform",
            place="Sec. I",
            statement="They are spread nearly uniformly on a logarithmic scale",
            expected=Band.at_least(0.9, "paper"),
            measured=result.r_squared.min(),
            why=f"R² of the line for {result.names[straight]}, the worst; slopes of first, middle "
            f"and last third: {listed}",
        ),
        Claim.judge(
            f"{ID}/one-slope",
            place="Sec. II.A",
            statement="One slope describes a data set: the slopes of its thirds agree within two",
            expected=Band.at_most(2, "paper"),
            measured=bend.max(),
            why="largest over smallest local slope; real spectra fall steeply first, then slowly",
        ),
        Claim.judge(
            f"{ID}/simulation",
            place="Eqs. (3) and (5)",
            statement="Linear models trained on the data have the closed form's variance",
            expected=Band.around(1.0, "closed form", atol=0.1),
            measured=result.trained_share[worst],
            why=f"traces of P(N, T) and P(T), the worst ({result.names[worst]})",
        ),
    ]
