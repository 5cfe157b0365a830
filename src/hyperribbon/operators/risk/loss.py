"""A loss as a sum over samples, with gradient, curvature and root in the outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.generators import torch_generator
from hyperribbon.operators.derivatives.graphs import graph_leaves, graph_nodes
from hyperribbon.operators.risk.batches import pick, to_precision
from hyperribbon.operators.risk.forward import Packing


class Loss(ABC):
    """A loss Σ_n ℓ(f_n, y_n)/amount of outputs f (n, …).

    Outputs in half precision are worked on in single precision; what has the shape of the outputs
    comes back in their precision.

    Attributes:
        reduction: "mean", or "sum" for which the amount is one.
        is_convex: Whether the loss is known to be convex in the outputs.
        is_curved: Whether its second derivative is not zero throughout.
        ignore_index: The label that counts for nothing.
    """

    ignore_index: int = -100
    reduction: str = "mean"
    is_convex: bool = True
    is_curved: bool = True

    def __repr__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return any loss's Σ_n ℓ(f_n, y_n), differentiable in the outputs."""

    @abstractmethod
    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return what a batch adds to the divisor of a loss that is a mean."""

    def check(self, outputs: torch.Tensor, targets: Any) -> None:  # noqa: B027
        """Raise when the loss's targets do not fit the outputs."""

    def check_factored(self, matrix: str) -> None:  # noqa: B027
        """Raise when the loss is not known as a function of the outputs, which a matrix needs."""

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the loss's gradient ∂ℓ/∂f, shaped like the outputs."""
        with torch.enable_grad():
            leaf = wide(outputs.detach()).requires_grad_()
            total = self.total(leaf, targets)
            slope = torch.autograd.grad(total, leaf, materialize_grads=True)[0]
        return slope.to(outputs.dtype)

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the loss's curvature ∂²ℓ/∂f² u for a block u (k, n, …).

        Raises:
            ArgumentError: An operation in the loss has no second derivative in torch.
        """  # noqa: DOC501 - torch's own RuntimeError passes through
        if not self.is_curved:
            return torch.zeros_like(block)
        with torch.enable_grad():
            leaf = wide(outputs.detach()).requires_grad_()
            (slope,) = torch.autograd.grad(
                self.total(leaf, targets), leaf, create_graph=True, materialize_grads=True
            )
            if not slope.requires_grad:
                return torch.zeros_like(block)
            try:
                how = {"retain_graph": True, "materialize_grads": True}
                vectors = block.to(leaf.dtype)
                rows = [torch.autograd.grad(slope, leaf, u, **how)[0] for u in vectors]
            except RuntimeError as error:
                if "is not implemented" not in str(error):
                    raise
                reason = f"an operation in it cannot be differentiated twice: {error}"
                remedy = "Write that operation with others, or give the torch.nn loss itself."
                raise ArgumentError("loss", self, reason, remedy) from None
        return torch.stack(rows).to(block.dtype)

    def curvature_at(self, outputs: torch.Tensor, targets: Any) -> Callable[..., torch.Tensor]:
        """Return the loss's curvature as a function of the block alone, for many blocks."""
        return partial(self.curvature, outputs, targets)

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return a loss's rows R (D, n, …) with Σ_j R_j R_jᵀ = ∂²ℓ_n/∂f_n² for every sample n.

        D is at most the number of outputs per sample.

        Raises:
            ArgumentError: The loss is not convex in the outputs.
        """  # noqa: DOC501 - no_root() returns one
        if not self.is_curved:
            return zero_rows(outputs)
        count, size, dtype = len(outputs), outputs[0].numel(), outputs.dtype
        outputs = wide(outputs)
        units = torch.eye(size, dtype=outputs.dtype, device=outputs.device)
        units = units.reshape(size, 1, *outputs.shape[1:]).expand(size, *outputs.shape)
        curved = self.curvature(outputs, targets, units).reshape(size, count, size).transpose(0, 1)
        values, vectors = torch.linalg.eigh((curved + curved.mT) / 2)
        largest = values.abs().amax(1, keepdim=True)
        rounding = size * torch.finfo(values.dtype).eps * 10
        if bool((values < -rounding * largest).any()):
            raise no_root(self)
        rows = (vectors * values.clamp(min=0).sqrt().unsqueeze(1)).permute(2, 0, 1)
        return rows.reshape(size, *outputs.shape).to(dtype)

    def reaches(
        self, outputs: torch.Tensor, targets: Any, parameters: Mapping[str, torch.Tensor]
    ) -> list[str]:
        """Return the names of the tensors on which a loss depends beside the outputs.

        A penalty on the weights inside the loss is found this way: a risk that differentiates
        through the outputs alone would miss it. The graph of the loss at detached outputs is
        followed to its leaves; tensors that require no gradient, and so are in no graph, are found
        when they are used.

        Args:
            outputs: Of some samples.
            targets: Of these.
            parameters: The model's own tensors, by name.
        """
        frozen = {id(tensor) for tensor in parameters.values() if not tensor.requires_grad}
        with torch.enable_grad(), _TensorWatcher(frozen) as watching:
            total = self.total(outputs.detach().requires_grad_(), targets)
        found = {id(leaf) for leaf in graph_leaves(graph_nodes(total))} | watching.used
        return [name for name, tensor in parameters.items() if id(tensor) in found]


def additive_kinds(
    whole: float, parts: tuple[float, float], sizes: tuple[int, int], tolerance: float
) -> set[str]:
    """Return whether a loss is the "mean" or the "sum" of its values on two parts of the samples.

    Args:
        whole: The loss of all samples.
        parts: The losses of the parts.
        sizes: The samples of the parts.
        tolerance: Rounding, relative to the largest value.
    """
    (first, second), (a, b) = parts, sizes
    limit = tolerance * max(abs(whole), abs(first), abs(second))
    gaps = {"mean": whole - (a * first + b * second) / (a + b), "sum": whole - first - second}
    return {kind for kind, gap in gaps.items() if abs(gap) <= limit}


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return a loss's tensor in single precision when it has less."""
    return tensor.float() if tensor.dtype.itemsize < torch.float32.itemsize else tensor


def one_element_each(values: torch.Tensor) -> torch.Tensor:
    """Return a loss's rows (D, n, …): row j holds entry j of each sample's D values, else zero."""
    flat = values.reshape(len(values), -1)
    return torch.diag_embed(flat).transpose(0, 1).reshape(flat.shape[1], *values.shape)


def zero_rows(outputs: torch.Tensor) -> torch.Tensor:
    """Return the root (D, n, …) of a loss without curvature, which takes the memory of one row."""
    return torch.zeros_like(outputs).expand(outputs[0].numel(), *outputs.shape)


def no_root(loss: Loss) -> ArgumentError:
    """Return the error of a loss whose curvature has negative eigenvalues."""
    reason = "it is not convex in the outputs, so its Gauss-Newton matrix has no real root"
    remedy = "Use products (method='lanczos') instead of the Gram matrix."
    return ArgumentError("loss", loss, reason, remedy)


class _TensorWatcher(TorchFunctionMode):
    """Notes which of some tensors a loss uses."""

    def __init__(self, wanted: set[int]) -> None:
        super().__init__()
        self._wanted = wanted
        self.used: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named: dict[str, Any] = kwargs or {}
        for argument in (*args, *named.values()):
            parts = argument if isinstance(argument, list | tuple) else (argument,)
            self.used |= {id(part) for part in parts} & self._wanted
        return func(*args, **named)


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
        """Find out whether a callable loss is the mean or the sum of its samples' losses.

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
            outputs, targets = self._widen_for_judging(outputs, targets)
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
        """Raise when a callable loss does not return one number; judge it when nobody has.

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
        """Return a callable loss's value, times the samples when it is not a sum."""
        value = self._value(outputs, targets).squeeze()
        return value if self.reduction == "sum" else value * len(outputs)

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return a callable loss's number of samples."""
        return float(len(outputs))

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return a callable loss's rows R (D, n, …) with Σ_j R_j R_jᵀ = ∂²ℓ_n/∂f_n².

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
        """Return the kinds ("mean", "sum") that a callable loss's values on two parts allow.

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
        return additive_kinds(whole, (one, other), (len(first), len(second)), _ROUNDING * eps)

    def _widen_for_judging(self, outputs: torch.Tensor, targets: Any) -> tuple[torch.Tensor, Any]:
        """Return outputs and targets in the highest precision a callable loss takes."""
        for dtype in (torch.float64, torch.float32):
            if dtype.itemsize < outputs.dtype.itemsize:
                break
            raised = outputs.to(dtype), to_precision(targets, dtype)
            try:
                self._call(*raised)
            except (RuntimeError, TypeError):
                continue
            return raised
        return outputs, targets

    def value(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return a callable loss's value as a number."""
        with torch.no_grad():
            return _number(self._value(outputs, targets))

    def _call(self, outputs: torch.Tensor, targets: Any) -> Any:
        return self.function(self.packing.unpack(outputs) if self.packing else outputs, targets)

    def _value(self, outputs: torch.Tensor, targets: Any) -> Any:
        """Return a callable loss's value, of half-precision outputs in single precision."""
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
    """Yield two parts of the samples on which a loss is judged to be a mean or a sum."""
    yield torch.arange(count // 2, device="cpu"), torch.arange(count // 2, count, device="cpu")
    for place in range(_CUTS + _GROUPS):
        order = torch.randperm(count, generator=generator, device="cpu")
        if place >= _CUTS:
            most = min(count, _GROUP)
            order = order[: int(torch.randint(2, most + 1, (), generator=generator, device="cpu"))]
        size = int(torch.randint(1, len(order), (), generator=generator, device="cpu"))
        yield order[:size].sort().values, order[size:].sort().values


def _eps(value: Any, outputs: torch.Tensor) -> float:
    """Return the rounding of a callable loss, which may work in less precision than given."""
    tensors = [outputs, value] if isinstance(value, torch.Tensor) else [outputs]
    return max(torch.finfo(x.dtype).eps if x.is_floating_point() else 0.0 for x in tensors)


def _number(value: Any) -> float:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise ArgumentError(
            "loss", value, "it does not return one number", "Use reduction='mean' or 'sum'."
        )
    return float(value.detach())
