"""Losses that are only known as functions: judged on data whether they are sums over samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.operators.risk.batches import brought, pick
from hyperribbon.operators.risk.calling import Packing
from hyperribbon.operators.risk.losses.base import Loss, wide

__all__ = ["CallableLoss"]

_CUTS = 2  # random cuts of all samples in two
_GROUPS = 16  # groups of some samples that are cut in two
_GROUP = 16  # samples of such a group, at most
_ROUNDING = 1e3  # rounding errors of a sum, in units of eps times the largest value


class CallableLoss(Loss):
    """Any function loss(outputs, targets).

    Attributes:
        function: The function.
        packing: How several outputs of the model are packed; None where there is one.
        reduction: "mean" or "sum" of the samples' losses, "whole" when it is neither and so right
            only on all the data at once, "undetermined" before `judge` or `check`.
    """

    is_convex = False

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.packing: Packing | None = None
        self._takes_wide = True
        self.reduction = "undetermined"

    def __repr__(self) -> str:
        return repr(self.function)

    def judge(self, outputs: torch.Tensor, targets: Any, generator: torch.Generator) -> str:
        """Find out whether the function is the mean or the sum of its samples' losses.

        For samples in two parts A and B, of a and b samples, a mean has L = (a·L_A + b·L_B)/(a + b)
        and a sum L = L_A + L_B, to rounding. This must hold when all samples are cut in the middle
        and at random, and for small random parts, which show differences between samples that even
        out in large ones; with the targets at their own outputs and, so that a loss that is zero is
        judged too, at those of other samples. A masked mean or a mean over class weights passes
        where all samples have the same weight and nowhere else, so the more samples the better. The
        function is evaluated in double precision where it takes that.

        Args:
            outputs: Of real samples, (n, …), detached.
            targets: Of these.
            generator: Of the cuts.

        Returns:
            `reduction`: "mean", "sum", or "whole", also for a single sample.
        """
        kinds: set[str] = {"mean", "sum"} if len(outputs) > 1 else set()
        with torch.no_grad():
            outputs, targets = self._judged_in(outputs, targets)
            value = self._call(outputs, targets)
            eps = _eps(value, outputs)
            if not isfinite(_number(value)) or eps > torch.finfo(torch.float32).eps:
                kinds.clear()  # sums in half precision tell nothing
            turned = pick(outputs, torch.randperm(len(outputs), generator=generator, device="cpu"))
            for parts in _cuts(len(outputs), generator) if kinds else ():
                for shown in (outputs, turned):
                    kinds &= self._kinds(shown, targets, parts, eps)
        self.reduction = kinds.pop() if len(kinds) == 1 else "whole"
        return self.reduction

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when the function does not return one number; judge it when nobody has.

        Raises:
            ArgumentError: It does not take these arguments or does not return one number, or it is
                judged here, on this batch, and neither a mean nor a sum.
        """
        value = _number(self._value(outputs, targets))
        if self.reduction != "undetermined" or len(outputs) < 2 or not isfinite(value):
            return
        if self.judge(outputs.detach(), targets, torch_generator(0, "judge")) == "whole":
            self.reduction = "undetermined"
            reason = "it is neither the mean nor the sum of its samples' losses"
            remedy = "Return the sum over samples (then batches add up), or use a torch.nn loss."
            raise ArgumentError("loss", self, reason, remedy)

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the function's value, times the samples when it is not a sum."""
        value = self._value(outputs, targets).squeeze()
        return value if self.reduction == "sum" else value * len(outputs)

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of samples."""
        return float(len(outputs))

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return rows R (D, n, …) with Σ_j R_j R_jᵀ = ∂²ℓ_n/∂f_n² for every sample n.

        Raises:
            ArgumentError: The loss is not convex in the outputs, or no sum over samples.
        """
        if self.reduction == "whole":
            reason = "it is no sum over samples, so its curvature has no root sample by sample"
            remedy = "Use products (method='lanczos') instead of the Gram matrix."
            raise ArgumentError("loss", self, reason, remedy)
        return super().root(outputs, targets)

    def _kinds(
        self, outputs: torch.Tensor, targets: Any, parts: tuple[torch.Tensor, ...], eps: float
    ) -> set[str]:
        """Return the kinds that the values on two parts allow; both where there is no value.

        A function that takes all samples and fails on a part of them (pairs of samples are its
        classes, say) does not add up.
        """  # noqa: DOC501 - an ArgumentError of the function passes through
        first, second = parts
        both = torch.cat([first, second]).sort().values
        try:
            whole, one, other = (
                _number(self._call(pick(outputs, part), pick(targets, part)))
                for part in (both, first, second)
            )
        except ArgumentError:
            raise
        except Exception:
            return set()
        if not isfinite(whole):
            return {"mean", "sum"}
        scale = max(abs(whole), abs(one), abs(other))
        tolerance = _ROUNDING * eps * scale
        mean = (len(first) * one + len(second) * other) / len(both)
        kinds: set[str] = set()
        if abs(whole - mean) <= tolerance:
            kinds.add("mean")
        if abs(whole - one - other) <= tolerance:
            kinds.add("sum")
        return kinds

    def _judged_in(self, outputs: torch.Tensor, targets: Any) -> tuple[torch.Tensor, Any]:
        """Return outputs and targets in the highest precision that the function takes."""
        for dtype in (torch.float64, torch.float32):
            if dtype.itemsize < outputs.dtype.itemsize:
                break
            raised = outputs.to(dtype), brought(targets, dtype)
            try:
                self._call(*raised)
            except (RuntimeError, TypeError):
                continue
            return raised
        return outputs, targets

    def value(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the function's value as a number."""
        with torch.no_grad():
            return _number(self._value(outputs, targets))

    def _call(self, outputs: torch.Tensor, targets: Any) -> Any:
        return self.function(self.packing.unpack(outputs) if self.packing else outputs, targets)

    def _value(self, outputs: torch.Tensor, targets: Any) -> Any:
        """Return the function's value, of half-precision outputs in single precision."""
        raised = wide(outputs)
        if raised is outputs or not self._takes_wide:
            return self._call(outputs, targets)
        try:
            return self._call(raised, targets)
        except (RuntimeError, TypeError):
            value = self._call(outputs, targets)
            self._takes_wide = False
            return value


def _cuts(count: int, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the places of two parts: of all samples in order and mixed, then of small groups."""
    yield torch.arange(count // 2, device="cpu"), torch.arange(count // 2, count, device="cpu")
    for place in range(_CUTS + _GROUPS):
        order = torch.randperm(count, generator=generator, device="cpu")
        if place >= _CUTS:
            most = min(count, _GROUP)
            order = order[: int(torch.randint(2, most + 1, (), generator=generator, device="cpu"))]
        size = int(torch.randint(1, len(order), (), generator=generator, device="cpu"))
        yield order[:size].sort().values, order[size:].sort().values


def _eps(value: Any, outputs: torch.Tensor) -> float:
    """Return the rounding of a function that may work in less precision than it is given."""
    tensors = [outputs, value] if isinstance(value, torch.Tensor) else [outputs]
    return max(torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0 for x in tensors)


def _number(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ArgumentError(
            "loss", value, "it does not return one number", "Use reduction='mean' or 'sum'."
        )
    return float(value.detach())
