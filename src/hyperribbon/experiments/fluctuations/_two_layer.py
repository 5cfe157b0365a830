"""Measures on ensembles of two-layer linear networks that several figures share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hyperribbon.experiments.kit import COLORS, Frozen, Item
from hyperribbon.theory import fluctuations as theory

__all__ = [
    "EnsembleModes",
    "TwoLayerConfig",
    "draw_first_layer",
    "first_layer_spectra",
    "measure_modes",
    "stacked_first",
]


class TwoLayerConfig(Frozen):
    """Network, task and ensemble of Fig. 8(c), on which the other figures build."""

    inputs: int = 30
    hidden: int = 20
    samples: int = 3000
    target_variance: float = 0.1
    lr: float = 0.1
    batch_size: int = 10
    steps: int = 3000
    chains: int = 1500

    def item(self, seed: int, **own: Any) -> dict[str, Any]:
        """Return the item of `two_layer_ensemble`; figures with the same one share the simulation.

        Args:
            seed: Names the realisation.
            **own: What differs: init1 and init2 (1), dynamics ("sgd"), chains, ….
        """
        shared = {field.name: getattr(self, field.name) for field in fields(TwoLayerConfig)}
        start = {"init1": 1.0, "init2": 1.0, "dynamics": "sgd"}
        return {**shared, **start, "seed": seed, "chain_seed": seed + 1, **own}


class EnsembleModes(Frozen):
    """Fluctuations of an ensemble in the bases of its mean weights."""

    modes: theory.TwoLayerModes  # bases and eigenvalues D₁, D₂ of the mean weights
    # λσ²/(2S), the unit of variances, σ² the unexplained variance of these targets (on average
    # σy²(1−N_i/P))
    unit: float
    z1: np.ndarray  # (chains, N_i), fluctuations of the first layer along V
    z2: np.ndarray  # (chains, N_h), fluctuations of the second layer along A
    variances: np.ndarray  # (N_h,), variances of z₂ in that unit
    predicted: np.ndarray  # (N_h,), D₁/(D₁+D₂)


def measure_modes(item: Item, ensemble: dict[str, Any]) -> EnsembleModes:
    """Return the fluctuations of the final weights about their mean over chains."""
    chains1, chains2 = ensemble["chains1"].astype(float), ensemble["chains2"].astype(float)
    W1, W2 = chains1.mean(axis=0), chains2.mean(axis=0)
    modes = theory.decompose(W1, W2)
    unit = theory.isotropic_variance(item["lr"], ensemble["unexplained"], item["batch_size"])
    z1 = np.einsum("ho,chi->ci", modes.V, chains1 - W1)
    z2 = (chains2 - W2)[:, 0, :] @ modes.A
    predicted = modes.D1 / (modes.D1 + modes.D2[0])
    return EnsembleModes(modes, unit, z1, z2, z2.var(axis=0, ddof=1) / unit, predicted)


def stacked_first(chains1: np.ndarray) -> np.ndarray:
    """Return vec(δW₁) of every chain, columns stacked, (chains, N_h·N_i)."""
    deviation = chains1.astype(float) - chains1.mean(axis=0, dtype=float)
    return deviation.transpose(0, 2, 1).reshape(len(chains1), -1)


def first_layer_spectra(found: EnsembleModes, chains1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return measured and predicted eigenvalues of cov δW₁, descending, in the unit of `found`."""
    measured = np.linalg.eigvalsh(np.cov(stacked_first(chains1).T))[::-1] / found.unit
    D1, D2 = found.modes.D1, found.modes.D2[0]
    rest = np.ones(found.z1.shape[1] - len(D1))
    return measured, np.sort(np.concatenate([rest, D2 / (D1 + D2)]))[::-1]


def draw_first_layer(axis: Axes, measured: np.ndarray, predicted: np.ndarray) -> None:
    """Draw the spectrum of δW₁, twice as far as the linear theory reaches."""
    shown = min(len(measured), 2 * len(predicted))
    label = r"$\delta W_1$, ensemble"
    axis.semilogy(
        np.arange(1, shown + 1), measured[:shown], "s", mfc="none", color=COLORS[1], label=label
    )
    label = r"$\delta W_1$, Eq. (3.30)"
    axis.semilogy(np.arange(1, len(predicted) + 1), predicted, "-", color=COLORS[1], label=label)
