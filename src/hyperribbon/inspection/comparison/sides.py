"""One of two networks that are compared: its operators on groups of the same samples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.states import load_state
from hyperribbon.inspection.engine.subject import Subject
from hyperribbon.inspection.loading import matching_state
from hyperribbon.operators import LinearOperator, Rescaled
from hyperribbon.recording.trajectory import Trajectory

__all__ = ["Grouped", "Side", "as_model"]


class Grouped:
    """A matrix D A D that is a mean over samples, and the same of groups of them; D is diagonal.

    Args:
        whole: A = Σ_g share_g A_g, of all samples.
        groups: A_g, one for each group.
        shares: (G,) the groups' shares.
        scale: (P,) the diagonal of D, or None for the identity.
    """

    def __init__(
        self,
        whole: LinearOperator,
        groups: list[LinearOperator],
        shares: np.ndarray,
        scale: torch.Tensor | None = None,
    ) -> None:
        self.shares = shares
        self.whole = whole if scale is None else Rescaled(whole, scale)
        self.groups = [g if scale is None else Rescaled(g, scale) for g in groups]

    def without(self, group: int, block: torch.Tensor) -> torch.Tensor:
        """Return the product with the matrix of all samples but those of a group."""
        share = float(self.shares[group])
        return ((self.whole @ block) - share * (self.groups[group] @ block)) / (1 - share)


class Side:
    """A network on disjoint groups of samples.

    Args:
        subject: The network on all samples.
        groups: How many groups.
        seed: Seed of their draw.
        where: Which samples these are.
    """

    def __init__(self, subject: Subject, groups: int, seed: int, where: str) -> None:
        self.subject, self.where = subject, where
        self.groups = list(subject.groups(groups, seed))

    @cached_property
    def shares(self) -> np.ndarray:
        """(G,) shares of the groups in what the mean loss divides by."""
        amounts = np.array([group.risk.amount for group in self.groups])
        return amounts / amounts.sum()

    @property
    def vector(self) -> torch.Tensor:
        """The weights as coordinates (P,)."""
        return self.groups[0].vector

    def grouped(self, matrix: str, scale: torch.Tensor | None = None) -> Grouped:
        """Return a matrix of all samples and of groups: "hessian", "ggn" or "covariance"."""
        parts = [getattr(group, matrix) for group in self.groups]
        return Grouped(getattr(self.subject, matrix), parts, self.shares, scale)

    def each(self, measure: Callable[[Subject], float]) -> np.ndarray:
        """Return (G,) a number of each group."""
        return np.array([measure(group) for group in self.groups])


def as_model(argument: str, given: Any, model: nn.Module | None) -> nn.Module:
    """Return the network that a model, a state dict, a checkpoint, or a recorded run stands for.

    Args:
        argument: Its name, for messages.
        given: A module; or a state dict, a file, a Trajectory or its folder (its last weights),
            which need `model`.
        model: The module that such weights belong to; it is copied.

    Raises:
        ArgumentError: It is none of these, or its weights do not fit.
    """
    if isinstance(given, nn.Module):
        return given
    if not isinstance(given, Mapping | str | Path | Trajectory):
        raise ArgumentError(
            argument, given, "expected a network", "Give a module, a state dict, a file or a run."
        )
    if model is None:
        shown = given if isinstance(given, str | Path) else type(given).__name__
        reason = "these are weights, and the network they belong to is not known"
        raise ArgumentError(argument, shown, reason, "Give model= too.")
    state = matching_state(model, _weights(argument, given), argument)
    filled = copy.deepcopy(model)
    try:
        filled.load_state_dict(state)
    except RuntimeError as error:
        reason = f"it does not fit ({' '.join(str(error).split())})"
        remedy = "Give weights of `model`."
        raise ArgumentError(argument, type(given).__name__, reason, remedy) from None
    return filled


def _weights(argument: str, given: Any) -> dict[str, torch.Tensor]:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str | Path) and not Path(given).is_dir():
        return load_state(given)
    if not isinstance(given, Trajectory):
        folder = Path(given)
        is_recorded = (folder / "trajectory.json").is_file()
        given = Trajectory.open(folder) if is_recorded else Trajectory.from_checkpoints(folder)
    stored = [record.index for record in given if record.weights is not None]
    if not stored:
        reason = "no record of this run has weights"
        remedy = "Record with weights, or give a checkpoint."
        raise ArgumentError(argument, str(given.folder), reason, remedy)
    return given.weights(stored[-1])
