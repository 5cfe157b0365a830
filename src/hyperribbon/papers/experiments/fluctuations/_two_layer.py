"""Two-layer linear networks on targets of pure noise: ensembles of SGD, and their modes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.core import numpy_generator
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations._regression import select
from hyperribbon.papers.simulation import TwoLayerEnsemble, descend_two_layer, simulate_two_layer
from hyperribbon.theory import fluctuations as theory


class TwoLayerConfig(kit.Frozen):
    """Network, task and ensemble of Fig. 8(c), on which the other figures build."""

    inputs: int = 30
    hidden: int = 20
    samples: int = 3000
    target_variance: float = 0.1
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 1500
    chains: int = 1500

    def item(self, seed: int, **own: Any) -> dict[str, Any]:
        """Return the item by which figures share one simulated two-layer ensemble.

        Args:
            seed: Names the realisation.
            **own: What differs: init1 and init2 (1), dynamics ("sgd"), chains, ….
        """
        shared = {field.name: getattr(self, field.name) for field in fields(TwoLayerConfig)}
        start = {"init1": 1.0, "init2": 1.0, "dynamics": "sgd"}
        return {**shared, **start, "seed": seed, "chain_seed": seed + 1, **own}


def linear_network(item: kit.Item) -> tuple[np.ndarray, ...]:
    """Return X, Y, W1, W2 of a two-layer network trained by gradient descent on pure noise.

    The item holds inputs, hidden, samples, target_variance, init1, init2 (the variances of the
    initial weights times N_i and N_h) and seed.
    """
    N_i, N_h, P = item["inputs"], item["hidden"], item["samples"]
    rng = numpy_generator(item["seed"], "two layers", N_i, N_h, P)
    X = rng.normal(size=(N_i, P)) / np.sqrt(N_i)
    Y = np.sqrt(item["target_variance"]) * rng.normal(size=(1, P))
    W1 = np.sqrt(item["init1"] / N_i) * rng.normal(size=(N_h, N_i))
    W2 = np.sqrt(item["init2"] / N_h) * rng.normal(size=(1, N_h))
    return X, Y, *descend_two_layer(X, Y, W1, W2, lr=0.5, tol=1e-8)


def run_chains(item: kit.Item, network: Sequence[np.ndarray], record: Any) -> TwoLayerEnsemble:
    """Run chains of a two-layer network from a `linear_network` and record them at some steps.

    The item also holds lr, batch_size, chains, dynamics and chain_seed.
    """
    options = select(item, "lr", "batch_size", "chains", "dynamics")
    return simulate_two_layer(*network, record=record, seed=item["chain_seed"], **options)


def simulate_ensemble(item: kit.Item) -> dict[str, Any]:
    """Simulate an ensemble of two-layer chains, all from the solution of `linear_network`.

    Returns the weights of all chains after the item's steps beside the solution, and the variance
    of the targets that the solution leaves unexplained.
    """
    X, Y, W1, W2 = linear_network(item)
    ensemble = run_chains(item, (X, Y, W1, W2), [item["steps"]])
    return {
        "W1": W1,
        "W2": W2,
        "chains1": ensemble.W1[0],
        "chains2": ensemble.W2[0],
        "unexplained": float(np.mean((Y - W2 @ W1 @ X) ** 2)),
    }


class EnsembleModes(kit.Frozen):
    """Fluctuations of an ensemble in the bases of its mean weights."""

    modes: theory.TwoLayerModes  # bases and eigenvalues D₁, D₂ of the mean weights
    # λσ²/(2S), the unit of variances, σ² the unexplained variance of these targets (on average
    # σy²(1−N_i/P))
    unit: float
    z1: np.ndarray  # (chains, N_i), fluctuations of the first layer along V
    z2: np.ndarray  # (chains, N_h), fluctuations of the second layer along A
    variances: np.ndarray  # (N_h,), variances of z₂ in that unit
    predicted: np.ndarray  # (N_h,), D₁/(D₁+D₂)


def measure_modes(item: kit.Item, ensemble: dict[str, Any]) -> EnsembleModes:
    """Return the fluctuations of an ensemble of two-layer networks about its mean."""
    chains1, chains2 = ensemble["chains1"].astype(float), ensemble["chains2"].astype(float)
    W1, W2 = chains1.mean(axis=0), chains2.mean(axis=0)
    modes = theory.decompose(W1, W2)
    unit = theory.isotropic_variance(item["lr"], ensemble["unexplained"], item["batch_size"])
    z1 = np.einsum("ho,chi->ci", modes.V, chains1 - W1)
    z2 = (chains2 - W2)[:, 0, :] @ modes.A
    predicted = modes.D1 / (modes.D1 + modes.D2[0])
    return EnsembleModes(modes, unit, z1, z2, z2.var(axis=0, ddof=1) / unit, predicted)


def stack_first_layer(chains1: np.ndarray) -> np.ndarray:
    """Return vec(δW₁) of every two-layer chain, columns stacked, (chains, N_h·N_i)."""
    deviation = chains1.astype(float) - chains1.mean(axis=0, dtype=float)
    return deviation.transpose(0, 2, 1).reshape(len(chains1), -1)


def share_ensemble(context: kit.Context, item: kit.Item) -> tuple[dict[str, Any], EnsembleModes]:
    """Return a two-layer ensemble, simulated once for all figures, and its modes."""
    ensemble = context.shared(simulate_ensemble, item, "chains of SGD")
    return ensemble, measure_modes(item, ensemble)


def first_layer_spectra(found: EnsembleModes, chains1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two-layer measured and predicted eigenvalues of cov δW₁, descending."""
    measured = np.linalg.eigvalsh(np.cov(stack_first_layer(chains1).T))[::-1] / found.unit
    D1, D2 = found.modes.D1, found.modes.D2[0]
    rest = np.ones(found.z1.shape[1] - len(D1))
    return measured, np.sort(np.concatenate([rest, D2 / (D1 + D2)]))[::-1]


def random_spectra(item: kit.Item, draws: int = 50) -> tuple[np.ndarray, np.ndarray]:
    """Return the spectra of M₁₁ and M₂₂ of two-layer networks at random weights, descending.

    Means over `draws` networks, in the unit λσ²/(2S): the Gaussian lines of Figs. 8(b) and (c).
    """
    N_i, N_h = item["inputs"], item["hidden"]
    rng = numpy_generator(item["seed"], "random weights", N_i, N_h)
    first, second = [], []
    for _ in range(draws):
        W1 = np.sqrt(item["init1"] / N_i) * rng.normal(size=(N_h, N_i))
        modes = theory.decompose(W1, np.sqrt(item["init2"] / N_h) * rng.normal(size=(1, N_h)))
        second.append(np.sort(modes.D1 / (modes.D1 + modes.D2))[::-1])
        first.append(np.sort(modes.D2 / modes.sums[:, 0])[::-1])
    return np.mean(first, axis=0), np.mean(second, axis=0)


def column_share(chains1: np.ndarray) -> float:
    """Return how much of the variance of a column of a two-layer δW₁ is along one direction."""
    deviation = chains1.astype(float) - chains1.mean(axis=0, dtype=float)
    values = np.linalg.svd(deviation.transpose(2, 0, 1), compute_uv=False) ** 2
    return float(np.mean(values[:, 0] / values.sum(axis=1)))


def element_correlations(chains2: np.ndarray) -> np.ndarray:
    """Return |r| of every pair of elements of δW₂ of a two-layer ensemble, one output."""
    r = np.corrcoef(chains2[:, 0, :].astype(float).T)
    return np.abs(r[np.triu_indices(len(r), 1)])


def draw_spectra(
    axis: Axes,
    predicted: np.ndarray,
    first: np.ndarray,
    linear: np.ndarray,
    random: tuple[np.ndarray, np.ndarray],
) -> None:
    """Draw the spectra of both layers of a two-layer ensemble, δW₂ beside its prediction.

    Args:
        axis: Where to draw.
        predicted: Variances of δW₂ by Eq. (3.34).
        first: Measured eigenvalues of cov δW₁.
        linear: Those of Eq. (3.30).
        random: Those of `random_spectra`.
    """
    modes, label = np.arange(1, len(first) + 1), r"$\delta W_2$, Eq. (3.34)"
    axis.semilogy(modes[: len(predicted)], predicted, "-", color=kit.COLORS[0], label=label)
    shown, label = slice(2 * len(linear)), r"$\delta W_1$, ensemble"
    axis.semilogy(modes[shown], first[shown], "s", mfc="none", color=kit.COLORS[1], label=label)
    label = r"$\delta W_1$, Eq. (3.30)"
    axis.semilogy(modes[: len(linear)], linear, "-", color=kit.COLORS[1], label=label)
    for values, style, color, name in (
        (random[0], "--", kit.COLORS[1], r"$\delta W_1$"),
        (random[1], "-.", kit.COLORS[0], r"$\delta W_2$"),
    ):
        label = f"{name}, Gaussian weights"
        axis.semilogy(modes[: len(values)], values, style, color=color, lw=1, label=label)
    axis.set(xlabel="mode", ylabel=r"eigenvalues [$\lambda\sigma_y^2/2S$]")
