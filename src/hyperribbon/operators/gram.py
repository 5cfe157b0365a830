"""Gram matrices and squared columns of the rows R·J, from factors and never from all of J.

Layers that are understood contribute through their factors; parameters of other operations through
per-sample gradients, written out for some samples at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch

from hyperribbon.core.parameters import ParameterSpace
from hyperribbon.operators.derivatives.factors import (
    Factor,
    Outer,
    add_layer_grams,
    concatenate_factors,
)
from hyperribbon.operators.risk import Chunk, Risk

Rows = Callable[[Chunk], torch.Tensor]

_ROWS_AT_ONCE = 64  # rows that are squared together: with more, batching gains nothing further


def structured_everywhere(risk: Risk) -> set[str]:
    """Return the parameters whose part of a Gram matrix comes from factors, on all ranks."""
    with risk.processes.together("an evaluation of the model"):
        found = [risk.structured(chunk) for chunk in risk.chunks()]
        own = set[str].intersection(*found) if found else None
    gathered: list[set[str]] = [names for names in risk.processes.gather(own) if names is not None]
    return set[str].intersection(*gathered)


class GramParts:
    """What a Gram matrix is made of: factors by parameter, and windows of the other parameters.

    Args:
        risk: The samples.
        rows: Gives R for a chunk of them.
        structured: Names of parameters whose gradients have factors.

    Attributes:
        size: Rows of R J.
        layers: Weights that are whole and have one position per sample.
        others: The other factors.
        windows: Samples and parameters whose gradients are written out.
        selections: Entries of each parameter that are coordinates.
    """

    def __init__(self, risk: Risk, rows: Rows, structured: set[str]) -> None:
        self._risk = risk
        self.selections = _selections(risk.space)
        self.layers: list[Outer] = []
        self.others: list[Factor] = []
        self.windows: list[Window] = []
        self.size = 0
        pieces: dict[str, list[Factor]] = {}
        for chunk in risk.chunks():
            seeds = rows(chunk)
            risk.check_in()
            for factor in chunk.point.factors(seeds, structured):
                pieces.setdefault(factor.name, []).append(factor.to(risk.dtype))
            self.windows += _windows(risk, chunk, seeds, structured, self.size)
            self.size += chunk.count * len(seeds)
        for name, found in pieces.items():
            factor, is_whole = concatenate_factors(found), self.selections[name] is None
            if isinstance(factor, Outer) and is_whole and factor.left.shape[2] == 1:
                self.layers.append(factor)
            else:
                self.others.append(factor)

    def matrix(self) -> torch.Tensor:
        """Return the Gram matrix R J Jᵀ Rᵀ of these samples."""
        risk = self._risk
        gram = torch.zeros(self.size, self.size, dtype=risk.dtype, device=risk.device)
        for factor in self.others:
            factor.add_gram(gram, self.selections[factor.name])
        if self.layers:
            add_layer_grams(gram, self.layers)
        _add_written(gram, self.windows, risk.memory)
        return gram


def squared_columns(risk: Risk, rows: Rows) -> torch.Tensor:
    """Return the column sums of (R J)², (P,), beside the Gram matrix: the diagonal of JᵀRᵀRJ."""
    slices, selections = risk.space.slices(), _selections(risk.space)
    total = torch.zeros(risk.space.dimension, dtype=risk.dtype, device=risk.device)
    with risk.processes.together("a diagonal"):
        for chunk in risk.chunks():
            structured = risk.structured(chunk)
            for some in _few_at_once(risk, rows(chunk)):
                for factor in chunk.point.factors(some, structured):
                    squares = factor.squared_columns(selections[factor.name])
                    total[slices[factor.name]] += squares
                for window in _windows(risk, chunk, some, structured, 0):
                    risk.check_in()
                    total[window.columns] += window.gradients().square().sum(0)
    return risk.processes.sum(total)


def centre_rows(matrix: torch.Tensor, samples: int) -> torch.Tensor:
    """Subtract from a Gram matrix's rows, ordered by sample, their mean over the samples.

    Returns:
        The centred rows.

    >>> centre_rows(torch.tensor([[1.0], [10.0], [3.0], [20.0]]), 2).T
    tensor([[-1., -5., 1., 5.]])
    """
    apart = matrix.unflatten(0, (samples, -1))
    return (apart - apart.mean(0)).flatten(0, 1)


def squared_norm(risk: Risk, rows: Rows) -> float:
    """Return the sum of all (R J)², the trace of a Gram matrix R J Jᵀ Rᵀ."""
    return float(squared_parts(risk, rows)[0].sum())


def squared_parts(risk: Risk, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Gram matrix's trace Σ(R J)² by parameter, and by sample (N,), in float64."""
    places = {name: place for place, name in enumerate(risk.space.names)}
    by_name = torch.zeros(len(places), dtype=torch.float64, device="cpu")
    by_sample: list[torch.Tensor] = []
    selections = _selections(risk.space)
    with risk.processes.together("a trace"):
        for chunk in risk.chunks():
            structured = risk.structured(chunk)
            own = torch.zeros(chunk.count, dtype=torch.float64, device="cpu")
            for some in _few_at_once(risk, rows(chunk)):
                for factor in chunk.point.factors(some, structured):
                    squares = factor.squared_rows(selections[factor.name]).double().cpu()
                    by_name[places[factor.name]] += squares.sum()
                    own += squares.reshape(chunk.count, -1).sum(1)
                for window in _windows(risk, chunk, some, structured, 0):
                    risk.check_in()
                    for name, gradients in window.named().items():
                        squares = gradients.square().sum(1, dtype=torch.float64).cpu()
                        by_name[places[name]] += squares.sum()
                        own[window.samples] += squares.reshape(-1, len(some)).sum(1)
            by_sample.append(own)
    gathered = risk.processes.gather(torch.cat(by_sample) if by_sample else by_name[:0])
    return risk.processes.sum(by_name), torch.cat(list(gathered))


def _few_at_once(risk: Risk, seeds: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield rows of a Gram matrix in pieces that fit, with interruptions between them."""
    for some in seeds.split(min(risk.columns_at_once(), _ROWS_AT_ONCE)):
        risk.check_in()
        yield some


@dataclass(frozen=True)
class Window:
    """Some samples of a Gram matrix and the parameters that have no factors."""

    risk: Risk
    chunk: Chunk
    seeds: torch.Tensor
    names: tuple[str, ...]
    samples: slice
    place: slice

    @property
    def columns(self) -> torch.Tensor:
        """Coordinates of the parameters of a Gram matrix's window."""
        slices = self.risk.space.slices()
        every = torch.arange(self.risk.space.dimension, device=self.risk.device)
        return torch.cat([every[slices[name]] for name in self.names])

    def gradients(self) -> torch.Tensor:
        """Return a Gram matrix's rows R J over these samples and parameters."""
        return torch.cat(list(self.named().values()), dim=1)

    def named(self) -> dict[str, torch.Tensor]:
        """Return a Gram matrix's rows R J over these samples by parameter, (samples·m, columns)."""
        found = self.chunk.point.sample_gradients(self.seeds, self.names, self.samples)
        selections = _selections(self.risk.space)
        flat: dict[str, torch.Tensor] = {}
        for name in self.names:
            gradients, selection = found[name].flatten(0, 1), selections[name]
            gradients = gradients.reshape(len(gradients), -1)
            flat[name] = gradients if selection is None else gradients[:, selection]
        return flat


def _windows(
    risk: Risk, chunk: Chunk, seeds: torch.Tensor, structured: set[str], start: int
) -> list[Window]:
    shapes = dict(zip(risk.space.names, risk.space.shapes, strict=True))
    names = tuple(name for name in risk.space.names if name not in structured)
    if not names:
        return []
    rows = len(seeds)
    bytes_each = rows * sum(prod(shapes[name]) for name in names) * seeds.element_size()
    step = max(1, int(risk.memory / 8 // bytes_each))
    return [
        Window(
            risk,
            chunk,
            seeds,
            names,
            slice(begin, min(begin + step, chunk.count)),
            slice(start + begin * rows, start + min(begin + step, chunk.count) * rows),
        )
        for begin in range(0, chunk.count, step)
    ]


def _add_written(gram: torch.Tensor, windows: list[Window], memory: float) -> None:
    """Add G Gᵀ of written-out gradients to the Gram matrix, window by window."""
    kept: dict[int, torch.Tensor] = {}
    used = 0.0
    for i, first in enumerate(windows):
        first.risk.check_in()
        own = first.gradients()
        if used + own.nbytes <= memory / 2:
            kept[i] = own
            used += own.nbytes
        gram[first.place, first.place] += own @ own.T
        for j, second in enumerate(windows[:i]):
            other = kept[j] if j in kept else second.gradients()
            product = own @ other.T
            gram[first.place, second.place] += product
            gram[second.place, first.place] += product.T


def _selections(space: ParameterSpace) -> dict[str, torch.Tensor | None]:
    return dict(zip(space.names, space.selections, strict=True))
