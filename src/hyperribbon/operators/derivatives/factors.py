"""Per-sample gradients of one parameter, kept in the factors they are made of.

For rows R (m, n, …) of cotangents, the gradient of parameter W for sample n and row j is
G[n, j] = Σ_t left[n, j, t] ⊗ right[n, t] in a linear layer: what flows back into its output, times
what flowed into it, at every position t. All quantities that are sums over such gradients (Gram
matrix, squared columns) follow without writing G out when there is one position.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from hyperribbon.operators.derivatives.linearisation import Linearisation

_STRIPES = 6  # stripes a symmetric matrix is formed in, at least
_STRIPE_BYTES = 64 * 2**20  # a stripe takes no more than this
_BLOCK_BYTES = 8 * 2**20  # gradients of this size are written out at once
_CLOSE = 0.3  # how far gradients may be apart in half precisions; 1000 ε in others


class Factor(ABC):
    """Factored per-sample gradients G (n, m, *shape) of one parameter."""

    name: str
    samples: int
    rows: int

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield a factor's (range of flat entries, gradients (n·m, entries)) piece by piece."""

    @abstractmethod
    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return a factor's Σ_n w_n G[n], (m, entries), for one weight per sample."""

    def to(self, dtype: torch.dtype) -> Factor:
        """Return a factor in a precision, for models whose weights have several."""
        other = copy.copy(self)
        for key, value in vars(self).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                setattr(other, key, value.to(dtype))
        return other

    def add_gram(self, gram: torch.Tensor, selection: torch.Tensor | None) -> None:
        """Add the factor's G Gᵀ, over the selected entries, to a matrix (n·m, n·m)."""
        for window, block in self.blocks():
            chosen = _select(block, window, selection)
            gram.addmm_(chosen, chosen.T)
            del block, chosen  # gone before the next one is written

    def squared_columns(self, selection: torch.Tensor | None) -> torch.Tensor:
        """Return a factor's Σ G² over samples and rows, for the selected entries."""
        return torch.cat([_select(b, w, selection).square().sum(0) for w, b in self.blocks()])

    def squared_rows(self, selection: torch.Tensor | None) -> torch.Tensor:
        """Return a factor's Σ G² over the selected entries, (n·m,)."""
        return sum(
            (_select(b, w, selection).square().sum(1) for w, b in self.blocks()),
            start=torch.zeros((), device="cpu"),
        )


class Explicit(Factor):
    """A factor that is the per-sample gradients themselves, (n, m, *shape)."""

    def __init__(self, name: str, gradients: torch.Tensor) -> None:
        is_scalar = gradients.ndim == 2
        self.name, self.gradients = (
            name,
            gradients[..., None] if is_scalar else gradients.flatten(2),
        )
        self.samples, self.rows = gradients.shape[:2]

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return an explicit factor's Σ_n w_n G[n], (m, entries)."""
        return torch.tensordot(weights.to(self.gradients.dtype), self.gradients, 1)

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the factor's gradients, all entries at once."""
        flat = self.gradients.flatten(0, 1)
        yield slice(0, flat.shape[1]), flat


class Outer(Factor):
    """Factored gradients Σ_t left[n, j, t] ⊗ right[n, t] of a parameter (d_left, d_right).

    Args:
        name: The parameter.
        left: (n, m, T, d_left), what flows back.
        right: (n, T, d_right), what flowed in.
        is_transposed: Whether the parameter is (d_right, d_left) instead.
    """

    def __init__(
        self,
        name: str,
        left: torch.Tensor,
        right: torch.Tensor,
        is_transposed: bool = False,
    ) -> None:
        self.name, self.left, self.right = name, left, right
        self.is_transposed = is_transposed
        self.samples, self.rows = left.shape[:2]

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return an outer factor's Σ_n w_n G[n], (m, entries)."""
        left = (self.left * weights.reshape(-1, 1, 1, 1)).transpose(1, 2).flatten(0, 1)
        return self._ordered(torch.einsum("ajo,ai->joi", left, self.right.flatten(0, 1))).flatten(1)

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield an outer factor's gradients for some rows of the parameter at a time."""
        count, rows = self.samples, self.rows
        size, width = self.left.shape[3], self.right.shape[2]
        if self.is_transposed:
            size, width = width, size
        bytes_each = count * rows * width * self.left.element_size()
        step = max(1, min(size, _BLOCK_BYTES // bytes_each))
        for start in range(0, size, step):
            stop = min(start + step, size)
            gradients = self._materialize_rows(start, stop).reshape(count * rows, -1)
            yield slice(start * width, stop * width), gradients
            del gradients

    def _materialize_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return an outer factor's gradients of some rows of the parameter, (n, m, rows, width)."""
        left, right = self.left, self.right
        if self.is_transposed:
            return torch.einsum("njto,nti->njio", left, right[..., start:stop])
        return torch.einsum("njto,nti->njoi", left[..., start:stop], right)

    def _ordered(self, entries: torch.Tensor) -> torch.Tensor:
        """Return a factor's entries (…, d_left, d_right) in the order of the parameter."""
        return entries.transpose(-1, -2) if self.is_transposed else entries

    def squared_columns(self, selection: torch.Tensor | None) -> torch.Tensor:
        """Return the factor's Σ G² per entry: (B²)ᵀA² for one position per sample."""
        if self.left.shape[2] > 1:
            return super().squared_columns(selection)
        squares = self._ordered(self.left[:, :, 0].square().sum(1).T @ self.right[:, 0].square())
        return squares.reshape(-1) if selection is None else squares.reshape(-1)[selection]

    def squared_rows(self, selection: torch.Tensor | None) -> torch.Tensor:
        """Return a factor's Σ G² per sample: Σ_ts (b_t·b_s)(a_t·a_s).

        With many positions the gradients are written out instead, where that costs less.
        """
        _, rows, positions, size = self.left.shape
        width = self.right.shape[2]
        if selection is not None or positions * (rows * size + width) > rows * size * width:
            return super().squared_rows(selection)
        inner = self.right @ self.right.transpose(1, 2)
        squares = [((b @ b.transpose(1, 2)) * inner).sum((1, 2)) for b in self.left.unbind(1)]
        return torch.stack(squares, dim=1).reshape(-1)

    def compact(self) -> Factor:
        """Return an outer factor written out when that takes less memory."""
        count, rows, positions, size = self.left.shape
        entries = count * rows * size * self.right.shape[2]
        if positions == 1 or entries > self.left.numel() + self.right.numel():
            return self
        size = self.right.shape[2] if self.is_transposed else size
        return Explicit(self.name, self._materialize_rows(0, size))


class Lookup(Factor):
    """Factored gradients of a table (V, d) of which each sample reads rows, as in embeddings.

    Args:
        name: The parameter.
        left: (n, m, T, d), what flows back to the rows that were read.
        indices: (n, T), which they were.
        size: V.
    """

    def __init__(self, name: str, left: torch.Tensor, indices: torch.Tensor, size: int) -> None:
        self.name, self.left, self.indices, self.size = name, left, indices, size
        self.samples, self.rows = left.shape[:2]

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return a table factor's Σ_n w_n G[n], (m, entries)."""
        total = self.left.new_zeros(self.rows, self.size, self.left.shape[3])
        for weight, tokens, own in zip(weights, self.indices, self.left, strict=True):
            total.index_add_(1, tokens, weight * own)
        return total.flatten(1)

    def blocks(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield a table factor's gradients for some rows of the table at a time."""
        count, rows, _positions, width = self.left.shape
        step = max(1, _BLOCK_BYTES // (count * rows * width * self.left.element_size()))
        for start in range(0, self.size, step):
            stop = min(start + step, self.size)
            own = self.left.new_zeros(count, rows, stop - start, width)
            for sample, tokens in enumerate(self.indices):
                inside = (tokens >= start) & (tokens < stop)
                own[sample].index_add_(1, tokens[inside] - start, self.left[sample][:, inside])
            yield slice(start * width, stop * width), own.reshape(count * rows, -1)
            del own

    def add_gram(self, gram: torch.Tensor, selection: torch.Tensor | None) -> None:
        """Add a table factor's G Gᵀ, of the rows that some sample reads, a few at a time."""
        if selection is not None:
            super().add_gram(gram, selection)
            return
        read, places = self.indices.unique(return_inverse=True)
        few = Lookup(self.name, self.left, places, len(read))
        Factor.add_gram(few, gram, None)

    def squared_columns(self, selection: torch.Tensor | None) -> torch.Tensor:
        """Return a table factor's Σ G² over samples and rows, for the selected entries."""
        total = self.left.new_zeros(self.size, self.left.shape[3])
        for read, sums in self._read():
            total[read] += sums.square().sum(0)
        return total.reshape(-1) if selection is None else total.reshape(-1)[selection]

    def squared_rows(self, selection: torch.Tensor | None) -> torch.Tensor:
        """Return a table factor's Σ G² over the selected entries, (n·m,)."""
        if selection is not None:
            return super().squared_rows(selection)
        return torch.cat([sums.square().sum((1, 2)) for _, sums in self._read()])

    def _read(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield for every sample the table rows (r,) it reads and the factors of their gradient."""
        for tokens, own in zip(self.indices, self.left, strict=True):
            read, places = tokens.unique(return_inverse=True)
            sums = own.new_zeros(len(own), len(read), own.shape[2])
            yield read, sums.index_add_(1, places, own)


def add_layer_grams(gram: torch.Tensor, layers: list[Outer]) -> None:
    """Add the layers' factors Σ (B Bᵀ)∘(A Aᵀ), one position per sample, to a Gram matrix.

    A stripe of samples is summed over all layers, row by row of R so that A Aᵀ multiplies
    contiguous runs, before it is written; only stripes below the diagonal are formed.

    Args:
        gram: The matrix, ordered by sample, then by row; symmetric.
        layers: Factors of the weights.
    """
    count, rows = layers[0].samples, layers[0].rows
    inner = [factor.right[:, 0] @ factor.right[:, 0].T for factor in layers]
    lefts = [factor.left[:, :, 0].transpose(0, 1).contiguous() for factor in layers]
    blocks = gram.view(count, rows, count, rows)
    step = max(1, min(-(-count // _STRIPES), _STRIPE_BYTES // (gram.nbytes // count)))
    for start in range(0, count, step):
        stop = min(start + step, count)
        total = gram.new_zeros(rows, stop - start, rows, stop)
        for left, products in zip(lefts, inner, strict=True):
            own, before = left[:, start:stop].flatten(0, 1), left[:, :stop].flatten(0, 1)
            piece = (own @ before.T).view_as(total)
            total.addcmul_(piece, products[start:stop, None, :stop].expand_as(piece))
        blocks[start:stop, :, :stop] += total.permute(1, 0, 3, 2)
        own, before = slice(start * rows, stop * rows), slice(0, start * rows)
        gram[before, own] = gram[own, before].T


def concatenate_factors(pieces: list[Factor]) -> Factor:
    """Return the factor of all samples from those of the chunks, in order."""
    if len(pieces) == 1:
        return pieces[0]
    name = pieces[0].name
    outer = [piece for piece in pieces if isinstance(piece, Outer)]
    if len(outer) == len(pieces) and len({piece.left.shape[2:] for piece in outer}) == 1:
        left, right = (torch.cat([getattr(p, side) for p in outer]) for side in ("left", "right"))
        return Outer(name, left, right, outer[0].is_transposed)
    tables = [piece for piece in pieces if isinstance(piece, Lookup)]
    if len(tables) == len(pieces) and len({table.indices.shape[1] for table in tables}) == 1:
        left = torch.cat([table.left for table in tables])
        return Lookup(name, left, torch.cat([t.indices for t in tables]), tables[0].size)
    return Explicit(name, torch.cat([materialize(piece) for piece in pieces]))


def add_factors(pieces: list[Factor]) -> Factor:
    """Return the sum of the factors of a parameter that is used several times.

    Uses by linear layers are as many more positions.
    """
    if len(pieces) == 1:
        return pieces[0]
    outer = [piece for piece in pieces if isinstance(piece, Outer)]
    if len(outer) == len(pieces) and len({piece.is_transposed for piece in outer}) == 1:
        left = torch.cat([piece.left for piece in outer], dim=2)
        right = torch.cat([piece.right for piece in outer], dim=1)
        return Outer(outer[0].name, left, right, is_transposed=outer[0].is_transposed).compact()
    return Explicit(pieces[0].name, torch.stack([materialize(piece) for piece in pieces]).sum(0))


def materialize(factor: Factor) -> torch.Tensor:
    """Return the per-sample gradients of a factor written out, (n, m, entries)."""
    flat = torch.cat([block for _, block in factor.blocks()], dim=1)
    return flat.reshape(factor.samples, factor.rows, -1)


def check_factors(point: Linearisation, names: set[str]) -> set[str]:
    """Return the names whose factors are, when checked, the gradients of single samples.

    With G_n the gradients that the factors give for cotangents u_n, and random weights w_n of the
    samples, Σ_n w_n G_n is compared with Jᵀ(w·u): a gradient that is wrong, or another sample's,
    shows.

    Args:
        point: The derivatives on some samples.
        names: Names that are said to have factors.
    """
    outputs = point.outputs
    if not names:
        return set()
    generator = torch.Generator("cpu").manual_seed(2)
    drawn = torch.randn(outputs.shape, generator=generator, dtype=torch.float64, device="cpu")
    rows = drawn.to(outputs).unsqueeze(0)
    weights = torch.randn(len(outputs), generator=generator, dtype=torch.float64, device="cpu")
    weights = weights.to(outputs)
    ordered = sorted(names)
    expected = point.vjp(rows * weights.reshape(1, -1, *(1,) * (outputs.ndim - 1)), ordered)
    factors = {factor.name: factor for factor in _try_factors(point, rows, ordered)}
    limit = min(1e3 * torch.finfo(outputs.dtype).eps, _CLOSE)
    largest = max(float(expected[name].norm()) for name in ordered)
    right: set[str] = set()
    for name in ordered:
        difference = expected[name].reshape(-1)
        if name in factors:
            if factors[name].samples != len(outputs):
                continue
            difference = difference - factors[name].weighted_sum(weights)[0]
        if float(difference.norm()) <= limit * (float(expected[name].norm()) + 0.01 * largest):
            right.add(name)
    return right


def _try_factors(point: Linearisation, rows: torch.Tensor, names: list[str]) -> list[Factor]:
    """Return the factors, without those of uses that turn out not to be understood."""
    try:
        return point.factors(rows, set(names))
    except (RuntimeError, IndexError, ValueError, TypeError):
        if len(names) == 1:
            return []
    return [factor for name in names for factor in _try_factors(point, rows, [name])]


def _select(block: torch.Tensor, window: slice, selection: torch.Tensor | None) -> torch.Tensor:
    if selection is None:
        return block
    inside = selection[(selection >= window.start) & (selection < window.stop)]
    return block[:, inside - window.start]
