"""A growing orthonormal basis V with T = VᵀAV and what A V has outside it: Rayleigh–Ritz."""

from __future__ import annotations

from math import isfinite

import torch

from hyperribbon.spectra.krylov.rows import make_rows
from hyperribbon.spectra.products import Products, StoppedError, asymmetry_error

_PIECE = 1 << 20  # numbers multiplied at once in an inner product
_KEPT = 0.7  # part of its length that a vector keeps when it was orthogonal already


class Basis:
    """Orthonormal vectors V, the projection T, and the part of the images outside the basis.

    With orthonormal directions U outside the basis, mostly one,

        A V = V T + U W,

    so a Ritz pair (θ, V s) has the residual A V s − θ V s = U W s, whose norm is ‖W s‖: no image
    is kept. Lanczos adds the direction in which the last image leaves the basis. Vectors are
    orthogonalised by classical Gram–Schmidt in the operator's precision, once more where a pass
    shortens them; norms and the diagonal of T are summed in float64.

    With an operator of several processes each rank keeps its part of every vector (see `Products`).

    Args:
        products: The operator.
        capacity: Vectors that fit.
        storage: Where they are kept: "memory" or "disk".

    Attributes:
        size: Vectors so far, m.
        outside: (c, P), the directions U as rows.
        weights: (c, m), W.
        projected: (m, m), T.
    """

    def __init__(self, products: Products, capacity: int, storage: str = "memory") -> None:
        self.products = products
        shape = (capacity, products.length)
        self.vectors = make_rows(storage, *shape, products.dtype, products.device)
        self.capacity, self.size = capacity, 0
        self.projected = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
        self.weights = torch.zeros(0, 0, dtype=torch.float64, device="cpu")
        self.outside = torch.zeros(0, products.length, dtype=products.dtype, device=products.device)
        self._eps = torch.finfo(products.dtype).eps
        self._scale = 0.0  # largest norm of an image

    @property
    def is_complete(self) -> bool:
        """Whether the Krylov basis spans the whole space."""
        return self.size == self.products.size

    @property
    def rounding(self) -> float:
        """Norm below which the part of an image outside the Krylov basis is rounding."""
        return 10 * self._eps * self._scale

    @property
    def coupling(self) -> torch.Tensor:
        """How far the last image leaves the Krylov basis, ‖A v − V Vᵀ A v‖."""
        return torch.linalg.vector_norm(self.weights[:, -1])

    def release(self) -> None:
        """Free the memory of the Krylov basis vectors."""
        self.vectors = make_rows("memory", 0, 0, self.products.dtype, self.products.device)
        self.outside = self.outside.new_zeros(0, self.products.length)

    def give_up(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the residual of the Krylov basis's Ritz pair, in the memory that it gives back."""
        weights, outside = self._in_precision(self.weights @ coefficients), self.outside
        self.release()
        return outside.mul_(weights) if len(outside) == 1 else weights.unsqueeze(0) @ outside

    def add(self, row: torch.Tensor) -> bool:
        """Add what a vector (1, P) has outside the Krylov basis; return whether it has anything."""
        floor = 10 * self._eps * float(self.products.norms(row))
        row, length, _ = self._orthogonalise(row.clone(), floor)
        if length == 0:
            return False
        before, inner = self.mark(), self._inner(self.outside, row)
        coupling = inner @ self.weights
        self._write(row)
        if len(inner):
            self._take_out(row, inner)
        del row  # a product needs the room
        try:
            image = self.products.images(self._last())
        except StoppedError:  # the basis stays as it was
            self.rewind(before)
            raise
        self._project(image, coupling)
        return True

    def extend(self, direction: torch.Tensor) -> None:
        """Extend the Krylov basis by a combination (c,) of directions outside, or by the first.

        The last image leaves the basis along `weights[:, -1]`. Where a product is refused (see
        `StoppedError`), the basis stays as it was.
        """  # noqa: DOC501 - it is the products' own
        direction = torch.nn.functional.pad(direction, (0, len(self.outside) - len(direction)))
        turned, weights = self.outside, self.weights
        if len(direction) > 1:
            others = torch.eye(len(direction), dtype=torch.float64, device="cpu")
            rotation = torch.linalg.qr(torch.cat([direction.unsqueeze(1), others], 1)).Q.T
            turned, weights = self._in_precision(rotation) @ turned, rotation @ weights
        self.outside, self.weights = turned[1:].clone(), weights[1:]
        self._write(turned[:1])
        del turned  # a product needs the room
        try:
            image = self.products.images(self._last())
        except StoppedError:  # it is outside again
            self.outside, self.weights = torch.cat([self._last(), self.outside]), weights
            self.size -= 1
            raise
        self._project(image, weights[0])

    def mark(self) -> tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return a mark of the Krylov basis, for `rewind` to drop what is added from now on."""
        return self.size, self.projected, self.weights, self.outside

    def rewind(self, mark: tuple[int, torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
        """Return the Krylov basis to a mark; the vectors before it are still there."""
        self.size, self.projected, self.weights, self.outside = mark

    def ritz(self, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Ritz values (ascending) and their coefficients on the basis from `start`."""
        return self.products.eigh(self.projected[start:, start:])

    def combine(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return combinations V s of the basis vectors as rows, for coefficients as columns."""
        return self.vectors.combine(self._in_precision(coefficients.T))

    def residual(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the residual U W s (1, P) of the basis's Ritz pair with coefficients s (m,)."""
        return self._in_precision(self.weights @ coefficients).unsqueeze(0) @ self.outside

    def image(self, index: int) -> torch.Tensor:
        """Return the image A v (1, P) of one of the basis vectors."""
        inside = self.combine(self.projected[:, index : index + 1])
        return inside + self._in_precision(self.weights[:, index]).unsqueeze(0) @ self.outside

    def compress(self, kept: torch.Tensor, dropped: torch.Tensor) -> None:
        """Replace the basis by some combinations and drop others (a thick restart).

        What the images of the kept vectors have along the dropped ones comes to lie outside. There
        is none when all are Ritz vectors of the whole basis.

        Args:
            kept: (m, ·), orthonormal columns.
            dropped: (m, ·), orthonormal columns that span the rest.
        """
        left, lengths, right = torch.linalg.svd(dropped.T @ self.projected @ kept)
        count = int((lengths > self.rounding).sum())
        lost = self.combine(dropped @ left[:, :count])
        self.outside = torch.cat([self.outside, lost]) if count else self.outside
        self.weights = torch.cat([self.weights @ kept, lengths[:count, None] * right[:count]])
        self.vectors.compress(self._in_precision(kept.T))
        self.projected = kept.T @ self.projected @ kept
        self.size = kept.shape[1]

    def _last(self) -> torch.Tensor:
        """Return the Krylov basis's last vector (1, P), where it is kept if that is in memory."""
        return self.vectors.read(slice(self.size - 1, self.size))

    def _write(self, row: torch.Tensor) -> None:
        self.vectors.write(self.size, row)
        self.size += 1

    def _project(self, image: torch.Tensor, coupling: torch.Tensor) -> None:
        """Update the basis's T, U and W for the last vector v, given A v (1, P) and VᵀA v."""
        products = self.products
        scale = float(products.norms(image))
        if not isfinite(scale):
            raise products.not_finite()
        self._scale = max(self._scale, scale)
        column = torch.cat([coupling, self._inner(self._last(), image)])
        first = int(column.nonzero()[0]) if bool(column.any()) else self.size - 1
        self.vectors.subtract(image, self._in_precision(column[None, first:]), first)
        floor = self._eps * self.rounding
        image, length, removed = self._orthogonalise(image, floor, against_outside=True)
        inside, outside = removed.split([self.size, len(self.outside)])
        asymmetry = float(inside[:-1].abs().max()) if len(coupling) else 0.0
        if asymmetry > products.asymmetry_limit * self._scale:
            raise asymmetry_error(products.op, asymmetry / self._scale)
        self.projected = torch.nn.functional.pad(self.projected, (0, 1, 0, 1))
        self.projected[:, -1] = self.projected[-1, :] = column + inside
        self.weights = torch.cat([self.weights, outside.unsqueeze(1)], 1)
        if length:
            self.weights = torch.nn.functional.pad(self.weights, (0, 0, 0, 1))
            self.weights[-1, -1] = length
            self.outside = torch.cat([self.outside, image]) if len(self.outside) else image

    def _take_out(self, row: torch.Tensor, inner: torch.Tensor) -> None:
        """Remove a new vector of the Krylov basis from the directions outside it."""
        outside = self.outside - self._in_precision(inner).unsqueeze(1) * row
        gram = self.products.summed((outside @ outside.T).double().cpu())
        squares, turns = self.products.eigh(gram)
        kept = squares > (10 * self._eps) ** 2
        roots, turns = squares[kept].sqrt().unsqueeze(1), turns[:, kept].T
        self.outside = self._in_precision(turns / roots) @ outside
        for index in range(len(roots)):
            self._orthogonalise(self.outside[index : index + 1], 0.0)
        self.weights = roots * turns @ self.weights

    def _orthogonalise(
        self, row: torch.Tensor, floor: float, *, against_outside: bool = False
    ) -> tuple[torch.Tensor, float, torch.Tensor]:
        """Orthogonalise a vector (1, P) against the Krylov basis V, or V and U, until done.

        That makes it orthogonal to working precision. It is changed in place.

        Returns:
            The unit vector, its length before scaling (0.0 when nothing is left of it), and what
            was removed, (m,) or (m + c,).
        """
        outside = self.outside if against_outside else self.outside[:0]
        removed = torch.zeros(self.size + len(outside), dtype=torch.float64, device="cpu")
        length = float(self.products.norms(row))
        while length > floor:
            inner = self.products.summed(self.vectors.inner(self.size, row))
            self.vectors.subtract(row, self._in_precision(inner.unsqueeze(0)))
            along = self._inner(outside, row)
            if len(along):
                row -= self._in_precision(along.unsqueeze(0)) @ outside
            removed += torch.cat([inner, along])
            shorter = float(self.products.norms(row))
            if shorter > _KEPT * length and shorter > floor:
                return row.div_(shorter), shorter, removed
            length = min(shorter, _KEPT * length)
        return row, 0.0, removed

    def _inner(self, rows: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """Return inner products (b,) of basis rows with one vector, in float64 on the CPU."""
        total = torch.zeros(len(rows), dtype=torch.float64, device=row.device)
        for left, right in zip(rows.split(_PIECE, 1), row.split(_PIECE, 1), strict=True):
            total += (left * right).sum(1, dtype=torch.float64)
        return self.products.summed(total.cpu())

    def _in_precision(self, weights: torch.Tensor) -> torch.Tensor:
        """Return coefficients in the precision and place of the basis vectors."""
        return weights.to(self.products.device, self.products.dtype)
