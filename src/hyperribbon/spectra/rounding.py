"""What rounding hides from a residual, measured by one more product in a higher precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hyperribbon.core.devices.tensors import tensor_of
from hyperribbon.core.generators import torch_generator
from hyperribbon.spectra.products import Products

_SAFETY = 4.0  # signs may let errors cancel in part
_NEAR = 1000.0  # units of rounding below which a tolerance comes near it
_LEAST = 4.0  # units of rounding of ‖A‖ that are allowed for in any case


def is_near_rounding(products: Products, tol: float) -> bool:
    """Whether a tolerance is so small that rounding has to be measured, see `Audit`."""
    return tol < _NEAR * torch.finfo(products.dtype).eps


def random_signs(count: int) -> torch.Tensor:
    """Return random signs (count,) for the `Audit` of rounding."""
    bits = torch.randint(0, 2, (count,), generator=torch_generator(0, "audit"), device="cpu")
    return (2 * bits - 1).double()


class Audit:
    """One product that checks the claims A vᵢ ≈ λᵢvᵢ + rᵢ of all pairs together.

    With random signs gᵢ, the sum z = Σ gᵢvᵢ of the vectors as they are returned has

        A z − Σ gᵢ(λᵢvᵢ + rᵢ) = Σ gᵢeᵢ,    E‖Σ gᵢeᵢ‖² = Σ‖eᵢ‖²,

    with the errors eᵢ of the claims: rounding of products, of what is kept, of combinations and of
    the vectors themselves. The product is taken in float64 where the operator can (see
    `precise_images`), so that errors which an operator in float32 repeats in all its products show.

    Args:
        products: The operator.
        signs: (k,), from `random_signs`.
        rows: (k, ·), the vectors as they are returned.
        values: (k,), their values λ.
        residual: (1, ·), the sum Σ gᵢrᵢ of the residuals that were computed for them; it may be
            changed.
        is_wide: Whether float64 may be used. Otherwise all is in the operator's own precision,
            with its vectors: errors that all its products repeat do not show.
    """

    def __init__(
        self,
        products: Products,
        signs: torch.Tensor,
        rows: torch.Tensor,
        values: torch.Tensor,
        residual: torch.Tensor,
        *,
        is_wide: bool = True,
    ) -> None:
        self._products, self._is_wide = products, is_wide
        precision = wide(products.device) if is_wide else products.dtype
        self._vector = torch.zeros(1, products.length, dtype=precision, device=products.device)
        self._claim = residual.to(self._vector)
        for sign, value, row in zip(signs.tolist(), values.tolist(), rows, strict=True):
            self._vector[0].add_(row, alpha=sign)
            self._claim[0].add_(row, alpha=sign * value)

    def floor(self, norm: float) -> float:
        """Return what rounding may hide from each of the residuals.

        Args:
            norm: ‖A‖.
        """
        images = precise_images if self._is_wide else Products.images
        image = images(self._products, self._vector)
        error = float(self._products.norms(self._claim.sub_(image)))
        return _SAFETY * error + least_floor(self._products, norm)


def least_floor(products: Products, norm: float) -> float:
    """Return the rounding of values and of unit lengths, which no product shows."""
    return _LEAST * torch.finfo(products.dtype).eps * norm


def rounded_up(bounds: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round bounds up to a lower precision, none of them smaller."""
    return (bounds * (1 + 2 * torch.finfo(dtype).eps)).to(dtype)


def wide(device: torch.device) -> torch.dtype:
    """Return the highest precision of a device, against which rounding is audited."""
    return torch.float32 if device.type == "mps" else torch.float64


def precise_images(products: Products, parts: torch.Tensor) -> torch.Tensor:
    """Return A v in the highest precision, to see the rounding of products.

    That is float64 for matrices, for numpy operators that take float64 vectors, and for operators
    whose `in_precision(torch.float64)` returns them in it. Others multiply in their own.
    """
    exact = in_float64(products)
    if exact is not None:
        try:
            image = _images(products, exact, parts)
        except Exception:  # some models and losses run in one precision only
            pass
        else:
            if bool(torch.isfinite(image).all()):
                products.matvecs += len(parts)
                return image
    return products.images(parts.to(products.dtype)).to(parts.dtype)


def in_float64(products: Products) -> Any:
    """Return the operator in float64, to see its rounding; None where there is nothing."""
    op = products.op
    if products.dtype == torch.float64 or wide(products.device) != torch.float64:
        return None
    if products.is_explicit:
        return tensor_of(op).to(products.device, torch.float64)
    if hasattr(op, "in_precision"):
        try:
            return op.in_precision(torch.float64)
        except Exception:  # such as tensors that cannot be converted
            return None
    return op if products.takes_arrays else None


def _images(products: Products, exact: Any, parts: torch.Tensor) -> torch.Tensor:
    if products.is_parted:
        return exact.multiply_rows(parts.T).detach().T
    if not products.takes_arrays or products.is_explicit:
        return (exact @ parts.T).detach().T
    image = np.asarray(exact @ np.ascontiguousarray(parts.T.numpy()))
    if image.dtype != np.float64:
        raise TypeError("the operator multiplies in its own precision only")
    return torch.from_numpy(image).T
