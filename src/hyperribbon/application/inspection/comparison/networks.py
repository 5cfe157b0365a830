"""One of two networks that are compared, on groups of the same samples, and numbers of both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.application.inspection.comparison.result import Difference, Shared, paired
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.evaluating import (
    class_axis,
    is_ignored,
    loss_at,
    outputs_at,
)
from hyperribbon.application.inspection.loading import matching_state, open_trajectory
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.core.states import load_state
from hyperribbon.operators import LinearOperator, Rescaled
from hyperribbon.operators.risk.batches import cut
from hyperribbon.operators.risk.objective import OwnLoss
from hyperribbon.recording.trajectory import Trajectory
from hyperribbon.spectra import alignment, eigsh
from hyperribbon.subnetworks import select


class Grouped:
    """A compared network's matrix D A D, over all samples and by group; D is diagonal.

    Args:
        whole: A = Σ_g share_g A_g, of all samples.
        groups: A_g, one for each group.
        shares: (G,) the groups' shares.
        scale: (P,) the diagonal of D, or None for the identity.
    """

    def __init__(
        self,
        whole: LinearOperator,
        groups: Sequence[LinearOperator],
        shares: np.ndarray,
        scale: torch.Tensor | None = None,
    ) -> None:
        self.shares = shares
        self.whole = whole if scale is None else Rescaled(whole, scale)
        self.groups = [g if scale is None else Rescaled(g, scale) for g in groups]

    def without(self, group: int, block: torch.Tensor) -> torch.Tensor:
        """Return the product with a compared network's matrix without a group of samples."""
        share = float(self.shares[group])
        return ((self.whole @ block) - share * (self.groups[group] @ block)) / (1 - share)


class Side:
    """One of two compared networks, on disjoint groups of samples.

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
        """Shares (G,) of the groups in what the mean loss of a compared network divides by."""
        amounts = np.array([group.risk.amount for group in self.groups])
        return amounts / amounts.sum()

    @property
    def vector(self) -> torch.Tensor:
        """The weights of a compared network as coordinates (P,)."""
        return self.groups[0].vector

    def hessians(self, scale: torch.Tensor | None = None) -> Grouped:
        """Return the Hessian of a compared network on all samples and on each group."""
        parts = [group.hessian for group in self.groups]
        return Grouped(self.subject.hessian, parts, self.shares, scale)

    def each(self, measure: Callable[[Subject], float]) -> np.ndarray:
        """Return a number of each group of samples of a compared network, (G,)."""
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
            argument, given, "expected a network", "Give a module, a state dict, a file, or a run."
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
    given = open_trajectory(given)
    stored = [record.index for record in given if record.weights is not None]
    if not stored:
        reason = "no record of this run has weights"
        remedy = "Record with weights, or give a checkpoint."
        raise ArgumentError(argument, str(given.folder), reason, remedy)
    return given.weights(stored[-1])


PROBES = 16


def magnitudes(side: Side) -> torch.Tensor:
    """Return D = |θ| (P,), for the adaptive sharpness λ_max(DHD) that networks are compared by.

    A positive factor on any weight that another weight takes back leaves it unchanged: with
    θ' = Tθ and H' = T⁻¹HT⁻¹ for a diagonal T, D'H'D' = DHD. So it is for ReLU units whose incoming
    weights are scaled up and outgoing ones down.
    """
    return side.vector.abs()


def filter_norms(side: Side) -> torch.Tensor:
    """Return D (P,) with each weight's filter norm, by which networks are compared.

    The filter of a matrix or a convolution is the row of weights of one output; a bias or a scale
    counts by its own magnitude. λ_max(DHD) does not change when whole layers are scaled.
    """
    space = side.groups[0].risk.space
    return _by_parameter(space, side.vector, _row_norms)


def relative_flatness(side: Side, seed: int) -> np.ndarray:
    """Return (WR)ᵀ G (WR) of a compared network, for each group and random R: (G, probes).

    R is a matrix of independent standard normals, so that W moves in proportion to itself, and G
    the Gauss-Newton matrix. The expectation is Σ_{s,s'} ⟨w_s, w_s'⟩ Tr G_{s,s'} over the rows of W,
    the relative flatness of Petzka et al. (2021), summed over layers; scaling layers against each
    other does not change it.
    """
    space = side.groups[0].risk.space
    generator = torch_generator(seed, "relative flatness")
    probes = [
        _by_parameter(space, side.vector, lambda weight: _proportional(weight, generator))
        for _ in range(PROBES)
    ]
    block = torch.stack(probes, dim=1)
    return np.array([(block * (g.ggn @ block)).sum(0).double().tolist() for g in side.groups])


def _by_parameter(
    space: ParameterSpace, vector: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    return space.flatten({name: change(w) for name, w in space.unflatten(vector).items()})


def _row_norms(weight: torch.Tensor) -> torch.Tensor:
    if weight.ndim < 2:
        return weight.abs()
    norms = torch.linalg.vector_norm(weight.flatten(1), dim=1)
    return norms.view(-1, *[1] * (weight.ndim - 1)).expand_as(weight).contiguous()


def _proportional(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if weight.ndim < 2:
        return torch.zeros_like(weight)
    rows = weight.flatten(1)
    size = rows.shape[1]
    random = torch.randn(size, size, generator=generator, device="cpu", dtype=torch.float32)
    return (rows @ random.to(rows.device, rows.dtype)).view_as(weight)


TOLERANCE = 1e-3
_STEPS = 3


@dataclass(frozen=True)
class Sharpness:
    """The largest eigenvalue of a mean over samples, and what each group of them says of it.

    Attributes:
        basis: (P, k) leading eigenvectors on all samples.
        groups: (G,) one number per group, whose mean estimates the eigenvalue for endless data.
        rounding: Bound of the eigenvalue's error on the data at hand.
    """

    basis: torch.Tensor
    groups: np.ndarray
    rounding: float


def measure_sharpness(matrix: Grouped, k: int, seed: int) -> Sharpness:
    """Return a compared network's sharpness, with the numbers of the groups.

    The eigenvector v of all samples fits their noise, so λ = vᵀHv is too high by some b for
    endless data, and the curvature of a group of samples along the eigenvector of all the others is
    too low by about the same b. Each group counts with the mean of the two,

        x_g = ½ (vᵀH_g v + v_gᵀH_g v_g),    v_g: top eigenvector without group g.

    v_g comes from three steps of Lanczos that start at v.
    """
    k = min(k, matrix.whole.shape[0])
    spectrum = eigsh(matrix.whole, k, tol=TOLERANCE, certificate="full", seed=seed)
    assert spectrum.eigenvectors is not None
    v = spectrum.eigenvectors[:, 0]
    inside = np.array([float(v @ (group @ v)) for group in matrix.groups])
    outside = np.empty_like(inside)
    for g, group in enumerate(matrix.groups):
        other = _top_vector(matrix, g, v)
        outside[g] = float(other @ (group @ other))
    bounds = spectrum.residuals if spectrum.bounds is None else spectrum.bounds
    rounding = float(bounds[0])
    if not np.isfinite(rounding):
        rounding = float(spectrum.residuals[0])
    return Sharpness(spectrum.eigenvectors, (inside + outside) / 2, rounding)


def _top_vector(matrix: Grouped, group: int, start: torch.Tensor) -> torch.Tensor:
    """Return a compared network's sharpest direction without a group of samples, by Lanczos."""
    basis = start[:, None]
    images = matrix.without(group, start)[:, None]
    for _ in range(_STEPS - 1):
        rest = images[:, -1]
        for _ in range(2):
            rest = rest - basis @ (basis.T @ rest)
        norm = float(torch.linalg.vector_norm(rest))
        if norm <= 1e-5 * float(torch.linalg.vector_norm(images[:, -1])):
            break
        basis = torch.cat([basis, rest[:, None] / norm], dim=1)
        images = torch.cat([images, matrix.without(group, basis[:, -1])[:, None]], dim=1)
    small = (basis.T @ images).double()
    weights = torch.linalg.eigh((small + small.T) / 2).eigenvectors[:, -1]
    vector = basis @ weights.to(basis.dtype)
    return vector / torch.linalg.vector_norm(vector)


REMOVED = (0.5, 0.8, 0.9)
_EQUAL = 1e-4


def compare_predictions(a: Side, b: Side) -> tuple[list[Shared], str]:
    """Return how far the outputs are apart on the same samples; or why they cannot be compared.

    Scores of classes: the share of samples with the same label, and the Bhattacharyya distance
    −log Σ_c √(p_c q_c) of their probabilities, by which inPCA places networks. Other outputs: the
    root mean square of their difference over that of the outputs.
    """
    pairs, axis = _pairs(a, b), class_axis(a.subject)
    if pairs is None:
        return [], "the model's own loss is not recognised as a function of outputs"
    for p, q, _ in pairs:
        if p.shape != q.shape:
            return [], f"outputs have shapes {tuple(p.shape[1:])} and {tuple(q.shape[1:])}"
    if axis is None:
        p, q = (torch.cat([pair[side].reshape(-1) for pair in pairs]) for side in (0, 1))
        size = (p.square().mean().sqrt() + q.square().mean().sqrt()) / 2
        apart = float((p - q).square().mean().sqrt() / size.clamp(min=1e-30))
        name = "root mean square of the outputs' difference, over that of the outputs"
        return [Shared("predictions.distance", name, apart, float("nan"))], ""
    same, distance = [], []
    for p, q, targets in pairs:
        counted = ~is_ignored(a.subject, targets).cpu()
        if bool(counted.any()):
            p, q = (scores.movedim(axis, -1)[counted] for scores in (p, q))
            same.append((p.argmax(-1) == q.argmax(-1)).double().mean())
            halves = (p.log_softmax(-1) + q.log_softmax(-1)) / 2
            distance.append(-torch.logsumexp(halves, dim=-1).mean())
    return [
        _mean("predictions.agreement", "share of samples with the same label", same),
        _mean("predictions.distance", "Bhattacharyya distance of the predictions", distance),
    ], ""


def same_function(a: Side, b: Side) -> bool:
    """Whether two compared networks' outputs are equal but for rounding on all samples."""
    pairs = _pairs(a, b)
    if pairs is None or any(p.shape != q.shape for p, q, _ in pairs):
        return False
    scale = max(float(p.abs().max()) for p, *_ in pairs)
    return all(float((p - q).abs().max()) <= _EQUAL * max(scale, 1e-30) for p, q, _ in pairs)


def pruned_losses(a: Side, b: Side) -> list[Difference]:
    """Return the loss of each compared network without its smallest weights, by their share."""
    found = []
    for removed in REMOVED:
        key, name = f"pruned.{removed:g}", f"loss without the {removed:.0%} smallest weights"
        losses = [_losses(side, _without_smallest(side, removed)) for side in (a, b)]
        found.append(paired(key, name, losses[0], losses[1], a.shares))
    return found


def compare_weights(a: Side, b: Side, bases: Sequence[torch.Tensor]) -> tuple[list[Shared], str]:
    """Return how far weights and sharpest directions are apart; or why they cannot be compared."""
    spaces = [side.groups[0].risk.space for side in (a, b)]
    if (spaces[0].names, spaces[0].shapes) != (spaces[1].names, spaces[1].shapes):
        return [], "weights have other names or shapes"
    norms = [float(torch.linalg.vector_norm(side.vector)) for side in (a, b)]
    distance = float(torch.linalg.vector_norm(a.vector - b.vector))
    relative = distance / max((norms[0] * norms[1]) ** 0.5, 1e-30)
    name = "distance of the weights over their norm"
    found = [Shared("weights.distance", name, relative, 0.0)]
    if bases:
        k = min(basis.shape[1] for basis in bases)
        overlap = alignment(*(basis[:, :k] for basis in bases)).overlap
        name = f"overlap of the {k} sharpest directions (mean squared cosine)"
        found.append(Shared("weights.overlap", name, overlap, 0.0))
    return found, ""


def _pairs(a: Side, b: Side) -> list[tuple[torch.Tensor, torch.Tensor, Any]] | None:
    """Return two compared networks' outputs and the targets, sample by sample."""
    if any(isinstance(side.subject.risk.loss, OwnLoss) for side in (a, b)):
        return None
    first, second = (
        [
            (outputs[i : i + 1].double().cpu(), cut(targets, i, i + 1))
            for outputs, targets in outputs_at(side.subject)
            for i in range(len(outputs))
        ]
        for side in (a, b)
    )
    return [(p, q, targets) for (p, targets), (q, _) in zip(first, second, strict=True)]


def _losses(side: Side, vector: torch.Tensor) -> np.ndarray:
    return side.each(lambda group: loss_at(group, vector))


def _without_smallest(side: Side, removed: float) -> torch.Tensor:
    space = side.groups[0].risk.space
    tensors = space.unflatten(side.vector)
    mask = select(tensors, fraction=removed)
    kept: dict[str, Any] = {
        name: tensor.masked_fill(mask[name].to(tensor.device), 0.0) if name in mask else tensor
        for name, tensor in tensors.items()
    }
    return space.flatten(kept)


def _mean(key: str, name: str, found: list[torch.Tensor]) -> Shared:
    values = torch.stack(found)
    return Shared(key, name, float(values.mean()), float(values.std() / max(len(values), 1) ** 0.5))
