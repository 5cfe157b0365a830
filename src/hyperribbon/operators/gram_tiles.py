"""Gram matrices of samples that are spread over processes, tile by tile.

Every rank has the factors of its own samples. They are sent round, one parameter and one rank at a
time, and each pair of ranks' tile is computed once: by the rank that comes first round the circle,
or half by each when they are opposite.
"""

from __future__ import annotations

import torch

from hyperribbon.core.devices.processes import Processes
from hyperribbon.operators.derivatives.factors import Explicit, Factor, Outer, materialize
from hyperribbon.operators.gram import GramParts, Rows, Window, structured_everywhere
from hyperribbon.operators.risk import Risk

_BLOCK_BYTES = 64 * 2**20  # gradients of this size are written out at once


def tiled_gram_matrix(risk: Risk, rows: Rows) -> torch.Tensor:
    """Return R J Jᵀ Rᵀ over all ranks' samples, from Gram tiles, by rank, sample and row.

    Args:
        risk: The samples of this rank.
        rows: Gives R for a chunk of them.
    """
    processes = risk.processes
    structured = structured_everywhere(risk)
    if not processes.is_parallel:
        return GramParts(risk, rows, structured).matrix()
    with processes.together("a tile of a Gram matrix"):
        parts = GramParts(risk, rows, structured)
        own = parts.matrix()
    sizes = processes.gather(parts.size)
    starts = [sum(sizes[:rank]) for rank in range(processes.size)]
    gram = torch.zeros(sum(sizes), sum(sizes), dtype=risk.dtype, device=risk.device)
    place = slice(starts[processes.rank], starts[processes.rank] + parts.size)
    gram[place, place] = own
    tiles = _Tiles(processes, gram, starts)
    factors = {factor.name: factor for factor in (*parts.layers, *parts.others)}
    names = sorted({name for found in processes.gather(list(factors)) for name in found})
    for name in names:
        factor = factors.pop(name, None)
        for source in range(processes.size):
            other = _send_factor(processes, factor, source, gram)
            with processes.together("a tile of a Gram matrix"):
                if other is not None and factor is not None:
                    tiles.add(factor, other, source, parts.selections[name])
    tiles.add_written(parts.windows)
    return processes.sum(gram)


class _Tiles:
    """The Gram matrix of all ranks' rows, into which this rank writes the tiles it is to do."""

    def __init__(self, processes: Processes, gram: torch.Tensor, starts: list[int]) -> None:
        self._processes, self._gram, self._starts = processes, gram, starts

    def add(
        self,
        own: Factor,
        other: Factor,
        source: int,
        selection: torch.Tensor | None,
    ) -> None:
        """Add the Gram tile of this rank's gradients with another's, and its transpose."""
        mine, theirs = self._share(source, own.samples, other.samples)
        if len(mine) and len(theirs):
            product = _cross(_cut(own, mine), _cut(other, theirs), selection)
            self._write(product, source, mine.start * own.rows, theirs.start * other.rows)

    def add_written(self, windows: list[Window]) -> None:
        """Add Gram tiles of written-out gradients, which are sent round window by window."""
        processes = self._processes
        places = processes.gather([(w.place.start, w.place.stop) for w in windows])
        width = max(processes.gather(len(windows[0].columns) if windows else 0))
        for source in range(processes.size):
            for index, (start, stop) in enumerate(places[source]):
                with processes.together("the writing out of gradients"):
                    sent = (
                        windows[index].gradients()
                        if source == processes.rank
                        else self._gram.new_empty(stop - start, width)
                    )
                sent = processes.broadcast(sent, source)
                with processes.together("a tile of a Gram matrix"):
                    mine, theirs = self._share(source, len(windows), len(places[source]))
                    for window in windows[mine.start : mine.stop] if index in theirs else ():
                        self._write(window.gradients() @ sent.T, source, window.place.start, start)

    def _share(self, source: int, own: int, other: int) -> tuple[range, range]:
        """Return which Gram tiles this rank does of those it shares with another rank."""
        rank, size = self._processes.rank, self._processes.size
        distance = (source - rank) % size
        if distance == 0 or 2 * distance > size:
            return range(0), range(0)
        if 2 * distance < size:
            return range(own), range(other)
        if rank < source:
            return range((own + 1) // 2), range(other)
        return range(own), range((other + 1) // 2, other)

    def _write(self, product: torch.Tensor, source: int, row: int, column: int) -> None:
        row += self._starts[self._processes.rank]
        column += self._starts[source]
        height, width = product.shape
        self._gram[row : row + height, column : column + width] += product
        self._gram[column : column + width, row : row + height] += product.T


def _send_factor(
    processes: Processes, factor: Factor | None, source: int, like: torch.Tensor
) -> Factor | None:
    """Send a rank's factor to every rank for its Gram tiles; None when it has no samples."""
    tensors: dict[str, torch.Tensor] = {}
    if isinstance(factor, Outer) and not factor.is_transposed:
        tensors = {"left": factor.left, "right": factor.right}
    elif factor is not None:
        tensors = {"gradients": materialize(factor)}
    forms = processes.gather({key: tensor.shape for key, tensor in tensors.items()})[source]
    if source != processes.rank:
        tensors = {key: like.new_empty(shape) for key, shape in forms.items()}
    sent = {key: processes.broadcast(tensors[key], source) for key in forms}
    if "left" in sent:
        return Outer("", sent["left"], sent["right"])
    return Explicit("", sent["gradients"]) if sent else None


def _cross(first: Factor, second: Factor, selection: torch.Tensor | None) -> torch.Tensor:
    """Return the Gram tile G₁G₂ᵀ of two ranks' gradients, over the selected entries."""
    if isinstance(first, Outer) and isinstance(second, Outer):
        if selection is None and first.left.shape[2] == second.left.shape[2] == 1:
            return _cross_of_layers(first, second)
        return _cross_in_blocks(first, second, selection)
    ours, theirs = (materialize(factor).flatten(0, 1) for factor in (first, second))
    if selection is not None:
        ours, theirs = ours[:, selection], theirs[:, selection]
    return ours @ theirs.T


def _cross_of_layers(first: Outer, second: Outer) -> torch.Tensor:
    """Return the Gram tile (B₁B₂ᵀ)∘(A₁A₂ᵀ) of two ranks' samples in one layer."""
    inner = first.right[:, 0] @ second.right[:, 0].T
    product = first.left.flatten(0, 2) @ second.left.flatten(0, 2).T
    shape = (first.samples, first.rows, second.samples, second.rows)
    product.view(shape).mul_(inner[:, None, :, None])
    return product


def _cross_in_blocks(first: Outer, second: Outer, selection: torch.Tensor | None) -> torch.Tensor:
    """Return the Gram tile G₁G₂ᵀ with the gradients of some left entries written out at a time."""
    size, width = first.left.shape[3], first.right.shape[2]
    most = max(first.samples * first.rows, second.samples * second.rows)
    step = max(1, _BLOCK_BYTES // (most * width * first.left.element_size()))
    total = first.left.new_zeros(first.samples * first.rows, second.samples * second.rows)
    for start in range(0, size, step):
        ours, theirs = (
            torch.einsum("njto,nti->njoi", f.left[..., start : start + step], f.right)
            .flatten(2)
            .flatten(0, 1)
            for f in (first, second)
        )
        if selection is not None:
            low, high = start * width, start * width + ours.shape[1]
            inside = selection[(selection >= low) & (selection < high)] - low
            ours, theirs = ours[:, inside], theirs[:, inside]
        total.addmm_(ours, theirs.T)
    return total


def _cut(factor: Factor, samples: range) -> Factor:
    window = slice(samples.start, samples.stop)
    if isinstance(factor, Outer) and not factor.is_transposed:
        return Outer(factor.name, factor.left[window], factor.right[window])
    return Explicit(factor.name, materialize(factor)[window])
