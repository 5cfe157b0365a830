"""A growing orthonormal basis with its images: Rayleigh–Ritz on any subspace."""

from __future__ import annotations

from math import isfinite

import torch

from hyperribbon.spectra.krylov.rows import make_rows
from hyperribbon.spectra.products import Products, asymmetry_error

__all__ = ["Basis"]

_CHECKED = 4  # earlier vectors each new one is checked against for symmetry


class Basis:
    """Orthonormal vectors Q, their products AQ, and the projection T = QᵀAQ.

    Keeping AQ beside Q costs memory but makes every residual A(Qs) − θ(Qs) = (AQ)s − θQs a true
    one, for any subspace, at no further product; and each symmetric pair of entries of T is
    computed from two different products, which shows an operator that is not symmetric.

    In half precision the vectors are what was stored: products, T and the Gram matrix G = QᵀQ ≈ I
    are those of the rounded vectors, so Ritz pairs solve T s = θ G s and Ritz values are exact
    Rayleigh quotients; images are rounded, so residuals are known to `eps`‖A‖ only.

    With an operator of several processes each rank keeps its part of every vector (see `Products`).

    Args:
        products: The operator.
        capacity: Vectors that fit.
        storage: Where they are kept: "memory", "half" or "disk".
    """

    def __init__(self, products: Products, capacity: int, storage: str = "memory") -> None:
        self.products = products
        shape = (capacity, products.length)
        self.vectors = make_rows(storage, *shape, products.dtype, products.device)
        self.images = make_rows(storage, *shape, products.dtype, products.device)
        self.projected = torch.zeros(capacity, capacity, dtype=torch.float64, device="cpu")
        self.gram = torch.eye(capacity, dtype=torch.float64, device="cpu")
        self.size = 0
        self._latest: torch.Tensor | None = None  # the last images before they were rounded
        self._scale = 0.0
        self._eps = torch.finfo(products.dtype).eps

    @property
    def capacity(self) -> int:
        """Vectors that fit."""
        return self.vectors.capacity

    @property
    def is_exact(self) -> bool:
        """Whether vectors are stored in the precision they are computed in."""
        return self.vectors.eps == self._eps

    @property
    def eps(self) -> float:
        """Relative rounding of the vectors."""
        return self.vectors.eps

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

    @property
    def _G(self) -> torch.Tensor:
        return self.gram[: self.size, : self.size]

    def release(self) -> None:
        """Give the memory of the vectors back; nothing can be read after that."""
        self.vectors = self.images = make_rows(
            "memory", 0, 0, self.products.dtype, self.products.device
        )
        self._latest = None

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
            direction, length = row, 1.0
            if not orthonormal:
                direction, length = self._clean(row, floor=10 * self._eps * self._norm(row))
            if length > 0:
                self.vectors.write(self.size, direction.unsqueeze(0))
                self.size += 1
        added = self.size - start
        if added:
            fresh = self.vectors.read(slice(start, self.size))
            images = self.products.images(fresh)
            self.images.write(start, images)
            self._latest = None if self.is_exact else images
            scale = float(self.products.norms(images).max())
            if not isfinite(scale):
                raise self.products.not_finite()
            self._scale = max(self._scale, scale)
            self._project(start, fresh, images)
        return added

    def remainder(self, *, noise: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the direction (1, P) of what the last image has outside the basis, and its size.

        Nothing is left, (0, P) and size zero, when the image lies in the basis up to rounding.

        Args:
            noise: Whether to go on with what rounding leaves. A direction that is too weak to show
                beside it grows along such a chain, while the noise does not.
        """
        last = slice(self.size - 1, self.size)
        image = self.images.read(last) if self._latest is None else self._latest[-1:]
        row = (image - self.vectors.combine(self._coefficients(self._T[:, last].T)))[0]
        floor = self._eps * self.rounding if noise else self.rounding
        direction, length = self._clean(row, floor=floor)
        size = torch.tensor(length, dtype=torch.float64, device="cpu")
        return direction.unsqueeze(0)[: int(length > 0)], size

    def _clean(self, row: torch.Tensor, floor: float) -> tuple[torch.Tensor, float]:
        """Orthogonalise against Q until a pass no longer shortens the vector.

        That makes it orthogonal to working precision.

        Returns:
            The unit vector (P,) and its length before scaling; 0.0 when nothing is left of it.
        """
        known = self.vectors
        length = self._norm(row)
        while length > floor:
            parts = self.products.summed(known.inner(slice(0, self.size), row.unsqueeze(0)))
            row = row - known.combine(self._coefficients(parts[:, 0]))
            shorter = self._norm(row)
            if shorter > 0.7 * length and shorter > floor:
                return row / shorter, shorter
            length = min(shorter, 0.7 * length)
        return row, 0.0

    def ritz(self, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Ritz values (ascending) and coefficients (columns) on the vectors from `start`."""
        T = self._T[start:, start:]
        if self.is_exact:
            return self.products.eigh(T)
        root = torch.linalg.cholesky(self._G[start:, start:])
        half = torch.linalg.solve_triangular(root, T, upper=False)
        whole = torch.linalg.solve_triangular(root, half.T, upper=False)
        values, turned = self.products.eigh((whole + whole.T) / 2)
        return values, torch.linalg.solve_triangular(root.T, turned, upper=True)

    def residual_rows(self, values: torch.Tensor, coefficients: torch.Tensor) -> torch.Tensor:
        """Return A v − θ v as rows for Ritz pairs given by their values and coefficients."""
        rows = self.images.combine(self._coefficients(coefficients.T))
        rows -= self.vectors.combine(self._coefficients(values.unsqueeze(1) * coefficients.T))
        return rows

    def combine(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the vectors Q s as rows, for coefficients as columns."""
        return self.vectors.combine(self._coefficients(coefficients.T))

    def compress(self, coefficients: torch.Tensor) -> None:
        """Replace the basis by the combinations given as orthonormal columns (a thick restart)."""
        weights = self._coefficients(coefficients.T)
        for stored in (self.vectors, self.images):
            stored.compress(weights)
        self.size = len(weights)
        everything = slice(0, self.size)
        self._T.copy_(self.products.summed(self.vectors.inner(everything, self.images)))
        if not self.is_exact:
            gram = self.vectors.inner(everything, self.vectors, double=True)
            self._G.copy_(self.products.summed(gram))
        self._T.copy_((self._T + self._T.T) / 2)

    def _coefficients(self, weights: torch.Tensor) -> torch.Tensor:
        """Return coefficients in the precision and place of the vectors."""
        return weights.to(self.products.device, self.products.dtype)

    def _norm(self, row: torch.Tensor) -> float:
        """Return the norm, summed in float64: in float32 it is off by 1e-5 for long rows."""
        return float(self.products.norms(row.unsqueeze(0)))

    def _project(self, start: int, fresh: torch.Tensor, images: torch.Tensor) -> None:
        """Fill the rows and columns of T from `start` on; check a part of it for symmetry."""
        added, near = slice(start, self.size), max(start - _CHECKED, 0)
        everything, last = slice(0, self.size), slice(near, self.size)
        columns = self.vectors.inner(everything, images)
        columns[near:] = self.vectors.inner(last, images, double=True)
        swapped = self.images.inner(last, fresh)
        both = self.products.summed(torch.cat([columns, swapped]))
        columns, swapped = both.split([len(columns), len(swapped)])
        self.projected[everything, added] = columns
        self.projected[added, everything] = columns.T
        self.projected[added, added] = (columns[start:] + columns[start:].T) / 2
        if not self.is_exact:
            gram = self.vectors.inner(everything, fresh, double=True)
            self.gram[everything, added] = self.products.summed(gram)
            self.gram[added, everything] = self.gram[everything, added].T.clone()
        gap = float((columns[near:] - swapped).abs().max())
        if gap > max(self.products.asymmetry_limit, 4 * self.eps) * self._scale:
            raise asymmetry_error(self.products.op, gap / self._scale)
