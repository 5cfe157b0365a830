"""A growing orthonormal basis with its images: Rayleigh–Ritz on any subspace."""

from __future__ import annotations

import torch

from hyperribbon.spectra.products import Products, asymmetry_error, asymmetry_limit

__all__ = ["Basis"]

_CHECKED = 4  # earlier vectors each new one is checked against for symmetry
_CHUNK = 8192  # terms of an inner product that are summed in the operator's own precision


class Basis:
    """Orthonormal vectors Q, their products AQ, and the projection T = QᵀAQ.

    Keeping AQ beside Q costs memory but makes every residual A(Qs) − θ(Qs) = (AQ)s − θQs a true
    one, for any subspace, at no further product; and each symmetric pair of entries of T is
    computed from two different products, which shows an operator that is not symmetric.

    Vectors are rows of the buffers, so that each is contiguous.

    Args:
        products: The operator.
        capacity: Vectors that fit.
    """

    def __init__(self, products: Products, capacity: int) -> None:
        self.products = products
        shape = (capacity, products.size)
        self.vectors = torch.empty(shape, dtype=products.dtype, device=products.device)
        self.images = torch.empty(shape, dtype=products.dtype, device=products.device)
        self.projected = torch.zeros(capacity, capacity, dtype=torch.float64)
        self.size = 0
        self._scale = 0.0
        self._eps = torch.finfo(products.dtype).eps

    @property
    def capacity(self) -> int:
        """Vectors that fit."""
        return len(self.vectors)

    @property
    def is_complete(self) -> bool:
        """Whether the basis spans the whole space."""
        return self.size == self.products.size

    @property
    def rounding(self) -> float:
        """Norm below which the part of an image outside the basis is taken for rounding."""
        return 10 * self._eps * self._scale

    @property
    def _T(self) -> torch.Tensor:
        return self.projected[: self.size, : self.size]

    def expand(self, rows: torch.Tensor, *, orthonormal: bool = False) -> int:
        """Add the parts of rows (b, P) that are new and multiply them by A.

        Args:
            rows: Directions, of any length.
            orthonormal: Whether they are known to be orthonormal to each other and to the basis.

        Returns:
            How many vectors were added.
        """
        start = self.size
        for row in rows[: min(self.capacity, self.products.size) - start]:
            direction, length = (row, 1.0) if orthonormal else self.orthogonalize(row)
            if length > 0:
                self.vectors[self.size] = direction
                self.size += 1
        added = self.size - start
        if added:
            fresh = self.vectors[start : self.size]
            images = (
                self.products(fresh[0]).unsqueeze(0) if added == 1 else self.products(fresh.T).T
            )
            self.images[start : self.size] = images
            self._scale = max(self._scale, max(_norm(image) for image in images))
            self._project(start)
        return added

    def orthogonalize(self, row: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return the unit vector along the part of `row` orthogonal to Q, and that part's norm.

        The norm is 0 when nothing but rounding is left.
        """
        return self._clean(row, [], floor=10 * self._eps * _norm(row))

    def remainder(self, width: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the images of the last `width` vectors have outside the basis.

        Returns:
            Orthonormal rows (r, P) that span it, r ≤ width, and coefficients C (width, r) with
            A q_i = (part in the basis) + Σ_j C_ij row_j. None are left (r = 0) when the images lie
            in the basis up to rounding.
        """
        last = slice(self.size - width, self.size)
        block = self.images[last] - self._T[:, last].T.to(self.images) @ self.vectors[: self.size]
        found: list[torch.Tensor] = []
        for row in block:
            direction, length = self._clean(row, found, floor=self.rounding)
            if length > 0:
                found.append(direction)
        rows = torch.stack(found) if found else block[:0]
        return rows, (block @ rows.T).double().cpu()

    def _clean(
        self, row: torch.Tensor, found: list[torch.Tensor], floor: float
    ) -> tuple[torch.Tensor, float]:
        """Orthogonalise against Q and `found`, until a pass no longer shortens the vector.

        That makes it orthogonal to working precision.
        """
        known = self.vectors[: self.size]
        length = _norm(row)
        while length > floor:
            row = row - (known @ row) @ known
            for other in found:
                row = row - (other @ row) * other
            shorter = _norm(row)
            if shorter > 0.7 * length and shorter > floor:
                return row / shorter, shorter
            length = min(shorter, 0.7 * length)
        return row, 0.0

    def ritz(self, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Ritz values (ascending) and coefficients (columns) on the vectors from `start`."""
        return torch.linalg.eigh(self._T[start:, start:])

    def residual_rows(self, values: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
        """Return A v − θ v as rows for Ritz pairs given by their values and coefficients."""
        weights = coefficients.T.to(self.vectors)
        scaled = (values.unsqueeze(1) * coefficients.T).to(self.vectors)
        return weights @ self.images[: self.size] - scaled @ self.vectors[: self.size]

    def combine(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the vectors Q s as rows, for coefficients as columns."""
        return coefficients.T.to(self.vectors) @ self.vectors[: self.size]

    def compress(self, coefficients: torch.Tensor) -> None:
        """Replace the basis by the combinations given as orthonormal columns (a thick restart)."""
        kept = coefficients.shape[1]
        weights = coefficients.T.to(self.vectors)
        for buffer in (self.vectors, self.images):
            buffer[:kept] = weights @ buffer[: self.size]
        self.size = kept
        self._project(0)

    def _project(self, start: int) -> None:
        """Fill the rows and columns of T from `start` on; check a part of it for symmetry."""
        fresh = slice(start, self.size)
        Q, AQ = self.vectors[: self.size], self.images[: self.size]
        near = max(start - _CHECKED, 0)
        images = AQ[fresh].double()
        columns = _inner_products(Q, AQ[fresh])
        columns[near:] = (Q[near:].double() @ images.T).cpu()
        self.projected[: self.size, fresh] = columns
        self.projected[fresh, : self.size] = columns.T
        self.projected[fresh, fresh] = (columns[start:] + columns[start:].T) / 2
        gap = float((columns[near:] - _inner_products(AQ[near:], Q[fresh])).abs().max())
        if gap > asymmetry_limit(self.products.dtype) * self._scale:
            raise asymmetry_error(self.products.op, gap / self._scale)


def _norm(row: torch.Tensor) -> float:
    """Return the norm, summed in float64: in float32 it is off by 1e-5 for long rows."""
    return float(torch.linalg.vector_norm(row, dtype=torch.float64))


def _inner_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return left @ right.T for long rows, summed in float64 over chunks of the columns."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    for start in range(0, left.shape[1], _CHUNK):
        chunk = slice(start, start + _CHUNK)
        total += left[:, chunk] @ right[:, chunk].T
    return total.cpu()
