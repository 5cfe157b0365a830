"""torch's losses in closed form, recognised also by their functional forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators.risk import softmax
from hyperribbon.operators.risk.loss import (
    CallableLoss,
    Loss,
    no_root,
    one_element_each,
    wide,
    zero_rows,
)

_FLAT = (nn.L1Loss, nn.KLDivLoss)


class ElementwiseLoss(Loss):
    """A loss Σ ℓ(f, y) over the elements of outputs f and targets y of one shape.

    ∂ℓ/∂f and ∂²ℓ/∂f² of each element follow from the sum by automatic differentiation.

    Args:
        module: The torch.nn loss; it is copied, and the copy returns sums.
    """

    def __init__(self, module: nn.Module) -> None:
        self.reduction = str(module.reduction)
        self.is_curved = not isinstance(module, _FLAT) and getattr(module, "beta", 1.0) > 0
        options = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        self._sum = type(module)()
        vars(self._sum).update({**options, "reduction": "sum"})
        self.weights = dict(module.named_buffers())
        self.is_convex = all(bool((weight >= 0).all()) for weight in self.weights.values())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when an elementwise torch loss's outputs and targets differ in shape."""
        for weight in self.weights.values():
            _check_shared(weight, outputs)
        if isinstance(targets, torch.Tensor) and targets.shape == outputs.shape:
            if isinstance(self._sum, nn.PoissonNLLLoss) and bool((targets < 0).any()):
                remedy = "Use another loss for such targets."
                raise ArgumentError("targets", targets, "counts are not negative", remedy)
            return
        remedy = "Give targets of the same shape."
        if targets is None:
            remedy = "Give data with targets, or return them from forward=."
        elif isinstance(targets, torch.Tensor) and targets.numel() == outputs.numel():
            shape = -1, *targets.shape[1:]
            remedy = (
                f"Reshape one of them, for example the outputs: forward=lambda model, batch: "
                f"(model(batch[0]).reshape({', '.join(map(str, shape))}), batch[1])."
            )
        raise ArgumentError(
            "targets", targets, f"the outputs have shape {tuple(outputs.shape)}", remedy
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the number of elements of an elementwise loss."""
        return float(outputs.numel())

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed elementwise loss Σ ℓ(f, y)."""
        outputs = wide(outputs)
        for name, weight in self.weights.items():
            self._sum.register_buffer(name, weight.to(outputs))
        return self._sum(outputs, targets.to(outputs.dtype))

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return ∂²ℓ/∂f² of every element, of an elementwise torch loss that is curved."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            total = self.total(leaf, targets)
            (slope,) = torch.autograd.grad(total, leaf, create_graph=True)
            return torch.autograd.grad(slope.sum(), leaf, materialize_grads=True)[0]

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the elementwise loss's second derivatives times u."""
        if not self.is_curved:
            return torch.zeros_like(block)
        return (self.second(wide(outputs), targets) * block).to(block.dtype)

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return an elementwise loss's root: square roots of second derivatives, a row per element.

        Raises:
            ArgumentError: One of them is negative.
        """  # noqa: DOC501 - no_root() returns one
        if not self.is_curved:
            return zero_rows(outputs)
        second = self.second(wide(outputs), targets)
        if bool((second < 0).any()):
            raise no_root(self)
        return one_element_each(second.sqrt().to(outputs.dtype))


class MSELoss(ElementwiseLoss):
    """Σ (f − y)², whose curvature is 2."""

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the second derivative of the MSE loss, 2."""
        return torch.full_like(outputs, 2.0)


class BCEWithLogitsLoss(ElementwiseLoss):
    """Cross-entropy of independent sigmoids, with optional weights; exact where σ rounds to one."""

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the gradient of BCEWithLogitsLoss: w·((1 − y)·σ(f) − pos_weight·y·σ(−f))."""
        f = wide(outputs)
        y = targets.to(f.dtype)
        positive = y * self._weight("pos_weight", f)
        slope = (1 - y) * torch.sigmoid(f) - positive * torch.sigmoid(-f)
        return (slope * self._weight("weight", f)).to(outputs.dtype)

    def second(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return BCEWithLogitsLoss's second derivative w·(1 + (pos_weight − 1)·y)·σ(f)σ(−f)."""
        second = torch.sigmoid(outputs) * torch.sigmoid(-outputs)
        second = second * (1 + (self._weight("pos_weight", outputs) - 1) * targets)
        return second * self._weight("weight", outputs)

    def _weight(self, name: str, like: torch.Tensor) -> torch.Tensor | float:
        return self.weights[name].to(like) if name in self.weights else 1.0


class BCELoss(ElementwiseLoss):
    """Binary cross-entropy of outputs that are probabilities."""

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when BCELoss's shapes differ, or where it is infinite and torch cuts it off."""
        super().check(outputs, targets)
        remedy = "Return logits and use BCEWithLogitsLoss, which is exact there too."
        if bool(((outputs < 0) | (outputs > 1)).any()):
            raise ArgumentError(
                "model", outputs, "BCELoss takes probabilities, and some are not", remedy
            )
        if bool((((outputs == 0) & (targets > 0)) | ((outputs == 1) & (targets < 1))).any()):
            reason = "a probability is exactly 0 or 1 against its target, where BCELoss is infinite"
            raise ArgumentError("model", outputs, reason, remedy)


class KLDivLoss(ElementwiseLoss):
    """Σ y (log y − f) of log-probabilities f, linear in them; y may be given as its logarithm."""

    def __init__(self, module: nn.KLDivLoss) -> None:
        super().__init__(module)
        self._per_sample = module.reduction == "batchmean"
        self.reduction = "mean" if self._per_sample else module.reduction

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the divisor of KLDivLoss: the number of samples, or of elements."""
        return float(len(outputs) if self._per_sample else outputs.numel())


def _check_shared(weight: torch.Tensor, outputs: torch.Tensor) -> None:
    """Raise when a torch loss has weights that differ between samples."""
    if weight.ndim < outputs.ndim or (weight.ndim and weight.shape[0] == 1):
        return
    raise ArgumentError(
        "loss",
        weight,
        "its weights belong to single samples, so they would not follow the samples when the data "
        "are cut",
        "Put the weights beside the targets: data=(x, (y, w)) and "
        "loss=lambda f, t: F.mse_loss(f, t[0], weight=t[1], reduction='sum').",
    )


_PIECE = 1 << 23  # entries of outputs that are worked on together


class CrossEntropyLoss(Loss):
    """Cross-entropy with class weights, label smoothing and an ignored index.

    With target distributions q (weights and smoothing included) the loss is −Σ_c q_c log p_c, its
    gradient p·Σq − q and its curvature Σq·(diag p − ppᵀ).
    """

    def __init__(self, module: nn.CrossEntropyLoss) -> None:
        self.reduction = module.reduction
        self._weight, self.ignore_index = module.weight, module.ignore_index
        self._smoothing = module.label_smoothing
        self.is_convex = self._weight is None or bool((self._weight >= 0).all())

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when a label of CrossEntropyLoss names no class or shapes differ."""
        if not isinstance(targets, torch.Tensor) or not targets.is_floating_point():
            check_labels("CrossEntropyLoss", outputs, targets, self.ignore_index)
        elif targets.shape != outputs.shape or outputs.ndim < 2:
            reason = f"probabilities must have the outputs' shape {tuple(outputs.shape)}"
            remedy = "Give integer labels or one probability per class, along the second axis."
            raise ArgumentError("targets", targets, reason, remedy)
        elif self.ignore_index >= 0:
            reason = "targets that are probabilities have no index to ignore"
            remedy = "Give integer labels, or omit ignore_index."
            raise ArgumentError("loss", f"ignore_index={self.ignore_index}", reason, remedy)

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed CrossEntropyLoss."""
        outputs = wide(outputs)
        return F.cross_entropy(
            outputs,
            targets.to(outputs.dtype) if targets.is_floating_point() else targets.long(),
            weight=self._class_weight(outputs),
            ignore_index=self.ignore_index,
            label_smoothing=self._smoothing,
            reduction="sum",
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return CrossEntropyLoss's divisor: total weight of labels, or number of distributions."""
        if targets.is_floating_point():
            return outputs.numel() / outputs.shape[1]
        return label_amount(targets, self._weight, self.ignore_index)

    def gradient(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the gradient of CrossEntropyLoss, p·Σq − q."""
        p = softmax.probabilities(outputs)
        return softmax.residual(p, self._masses(wide(outputs), targets)).to(outputs.dtype)

    def curvature(self, outputs: torch.Tensor, targets: Any, block: torch.Tensor) -> torch.Tensor:
        """Return CrossEntropyLoss's curvature Σq·(diag p − ppᵀ) u, a few samples at a time.

        Beside the result nothing as large as the outputs is made: for a vocabulary of 50,000
        classes these are what fills the memory.
        """
        mass = self._total_mass(wide(outputs), targets)
        result = torch.empty_like(block)
        for part in _pieces(outputs, len(block)):
            some = (slice(None), *part)
            p = softmax.probabilities(outputs[part])
            result[some] = mass[part] * softmax.covariance_product(p, block[some])
        return result

    def curvature_at(self, outputs: torch.Tensor, targets: Any) -> Callable[..., torch.Tensor]:
        """Return CrossEntropyLoss's `curvature` as a function of the block alone."""
        if outputs.numel() > _PIECE:
            return super().curvature_at(outputs, targets)
        p, mass = softmax.probabilities(outputs), self._total_mass(wide(outputs), targets)
        top = p.argmax(1, keepdim=True)

        def curvature(block: torch.Tensor) -> torch.Tensor:
            if block.numel() > _PIECE:
                return self.curvature(outputs, targets, block)
            return (mass * softmax.covariance_product(p, block, top)).to(block.dtype)

        return curvature

    def root(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the root of CrossEntropyLoss's curvature, of C − 1 rows.

        Raises:
            ArgumentError: A sample's total mass is negative.
        """  # noqa: DOC501 - no_root() returns one
        mass = self._total_mass(wide(outputs), targets)
        if bool((mass < 0).any()):
            raise no_root(self)
        rows = mass.sqrt() * softmax.covariance_root(softmax.probabilities(outputs))
        return softmax.one_position_each(rows.to(outputs.dtype))

    def _class_weight(self, outputs: torch.Tensor) -> torch.Tensor | None:
        return None if self._weight is None else self._weight.to(outputs)

    def _total_mass(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the targets' total mass Σq over the classes of CrossEntropyLoss, (n, 1, …)."""
        if targets.is_floating_point():
            return self._masses(outputs, targets).sum(1, keepdim=True)
        kept = targets != self.ignore_index
        mass = kept.to(outputs.dtype)
        weight = self._class_weight(outputs)
        if weight is not None:
            own = weight[targets.where(kept, 0).long()]
            mass = mass * ((1 - self._smoothing) * own + self._smoothing * weight.mean())
        return mass.unsqueeze(1)

    def _masses(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return CrossEntropyLoss's target distributions q (n, C, …), smoothed and weighted."""
        classes = outputs.shape[1]
        if targets.is_floating_point():
            present = 1.0
            masses = targets.to(outputs)
        else:
            kept = targets != self.ignore_index
            present = kept.unsqueeze(1).to(outputs.dtype)
            masses = softmax.one_hot(targets.where(kept, 0).long(), outputs) * present
        if self._smoothing:
            masses = (1 - self._smoothing) * masses + self._smoothing * present / classes
        weight = self._class_weight(outputs)
        if weight is not None:
            masses = masses * weight.reshape(1, -1, *(1,) * (outputs.ndim - 2))
        return masses


def _pieces(outputs: torch.Tensor, rows: int) -> Iterator[tuple[slice, ...]]:
    """Yield parts of outputs (n, C, …) for a torch loss, of about `_PIECE` entries each."""
    sample = max(1, rows * outputs[0].numel())
    samples = max(1, _PIECE // sample)
    positions = outputs.shape[2] if outputs.ndim > 2 else 1
    step = positions if samples > 1 else max(1, positions * _PIECE // sample)
    for start in range(0, len(outputs), samples):
        part = slice(start, start + samples)
        if step >= positions:
            yield (part,)
            continue
        for first in range(0, positions, step):
            yield part, slice(None), slice(first, first + step)


class NLLLoss(Loss):
    """−Σ w_y f_y of log-probabilities f (n, C, …), linear in them."""

    is_curved = False

    def __init__(self, module: nn.NLLLoss) -> None:
        self.reduction = module.reduction
        self._weight, self.ignore_index = module.weight, module.ignore_index

    def of_logits(self) -> CrossEntropyLoss:
        """Return the cross-entropy, which NLLLoss is where Σ_c exp f_c = 1."""
        options = {"weight": self._weight, "ignore_index": self.ignore_index}
        return CrossEntropyLoss(nn.CrossEntropyLoss(**options, reduction=self.reduction))

    def check(self, outputs: torch.Tensor, targets: Any) -> None:
        """Raise when a label of NLLLoss names no class or shapes differ."""
        check_labels("NLLLoss", outputs, targets, self.ignore_index)

    def total(self, outputs: torch.Tensor, targets: Any) -> torch.Tensor:
        """Return the summed NLLLoss −Σ w_y f_y."""
        outputs = wide(outputs)
        weight = None if self._weight is None else self._weight.to(outputs)
        return F.nll_loss(
            outputs, targets.long(), weight=weight, ignore_index=self.ignore_index, reduction="sum"
        )

    def amount(self, outputs: torch.Tensor, targets: Any) -> float:
        """Return the divisor of NLLLoss: the total weight of the labels."""
        return label_amount(targets, self._weight, self.ignore_index)


def check_labels(name: str, outputs: torch.Tensor, targets: Any, ignored: int | None) -> None:
    """Raise when integer labels (n, …) do not fit a torch loss's outputs (n, C, …).

    Args:
        name: Of the loss.
        outputs: Of the model.
        targets: The labels.
        ignored: The label that counts for nothing.

    Raises:
        ArgumentError: The shapes do not fit, or a label names no class.
    """
    if outputs.ndim < 2 or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        reason = f"{name} needs outputs (n, C, …), here {tuple(outputs.shape)}, and integer labels"
        remedy = (
            "Check both; targets are the last item of a batch or under 'labels', or returned by "
            "forward=."
        )
        raise ArgumentError("targets", targets, reason, remedy)
    expected = (outputs.shape[0], *outputs.shape[2:])
    if targets.shape != expected:
        given, classes = tuple(targets.shape), outputs.shape[-1]
        wanted = (*given[:1], classes if given == outputs.shape[:-1] else "C", *given[1:])
        reason = (
            f"the model returns shape {tuple(outputs.shape)} but {name} expects "
            f"({', '.join(map(str, wanted))}) for targets {given}"
        )
        remedy = (
            "Use loss=None where the model has a loss of its own, or move the class axis: "
            "loss=lambda z, y: F.cross_entropy(z.transpose(1, 2), y)."
        )
        raise ArgumentError("loss", name, reason, remedy)
    kept = targets if ignored is None else targets[targets != ignored]
    classes = outputs.shape[1]
    if kept.is_complex():
        raise ArgumentError("targets", targets, "labels are integers", "Give integer labels.")
    if kept.numel() and (int(kept.min()) < 0 or int(kept.max()) >= classes):
        wrong = kept[(kept < 0) | (kept >= classes)][0]
        reason = f"a label is out of range: the model has {classes} outputs"
        raise ArgumentError("targets", int(wrong), reason, f"Labels run from 0 to {classes - 1}.")


def label_amount(targets: torch.Tensor, weight: torch.Tensor | None, ignored: int) -> float:
    """Return the divisor of torch's cross-entropy and NLL losses: the weight of the labels."""
    kept = targets[targets != ignored].long()
    if weight is None:
        return float(kept.numel())
    return float(weight.to(kept.device)[kept].sum(dtype=torch.float64))


_CLOSED: dict[type, Callable[[Any], Loss]] = {
    nn.CrossEntropyLoss: CrossEntropyLoss,
    nn.NLLLoss: NLLLoss,
    nn.MSELoss: MSELoss,
    nn.BCEWithLogitsLoss: BCEWithLogitsLoss,
    nn.BCELoss: BCELoss,
    nn.KLDivLoss: KLDivLoss,
    nn.L1Loss: ElementwiseLoss,
    nn.SmoothL1Loss: ElementwiseLoss,
    nn.HuberLoss: ElementwiseLoss,
    nn.PoissonNLLLoss: ElementwiseLoss,
    nn.SoftMarginLoss: ElementwiseLoss,
}
_FUNCTIONAL: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.mse_loss: nn.MSELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.poisson_nll_loss: nn.PoissonNLLLoss,
    F.soft_margin_loss: nn.SoftMarginLoss,
    F.gaussian_nll_loss: nn.GaussianNLLLoss,
    F.multi_margin_loss: nn.MultiMarginLoss,
    F.nll_loss: nn.NLLLoss,
    F.kl_div: nn.KLDivLoss,
}
_OF_MORE = (
    nn.CTCLoss,
    nn.CosineEmbeddingLoss,
    nn.MarginRankingLoss,
    nn.TripletMarginLoss,
    nn.TripletMarginWithDistanceLoss,
)


def recognise(loss: Any) -> Loss:
    """Return a torch loss in closed form, or any other function as a sum over samples.

    The torch.nn losses of outputs and targets have closed forms, also when they are given by their
    functional form or a `functools.partial` of it; GaussianNLLLoss takes targets that are a pair
    (values, variances). A subclass of one, and any other callable, is taken as the function that it
    is.

    Args:
        loss: A torch.nn loss, its functional form, or any callable (outputs, targets) -> number
            that is a mean or a sum over samples.

    Raises:
        ArgumentError: It is not callable, has reduction "none", or takes more than outputs and
            targets.
    """
    if isinstance(loss, Loss):
        return loss
    if not callable(loss) or isinstance(loss, type):
        raise ArgumentError(
            "loss", loss, "it is not a function of outputs and targets", "Give nn.MSELoss()."
        )
    if isinstance(loss, _OF_MORE):
        remedy = (
            "Give a function, loss=lambda outputs, targets: ..., and pass what else it needs "
            "in the targets or through forward=."
        )
        raise ArgumentError("loss", loss, "it takes more than outputs and targets", remedy)
    module = _as_module(loss)
    if type(module) is nn.GaussianNLLLoss:
        return CallableLoss(partial(_gaussian, module))
    if type(module) is nn.MultiMarginLoss:
        return CallableLoss(partial(_multi_margin, module))
    reduction = getattr(module, "reduction", "mean")
    known = ("mean", "sum", "batchmean") if isinstance(module, nn.KLDivLoss) else ("mean", "sum")
    if reduction == "none" or (type(module) in _CLOSED and reduction not in known):
        raise ArgumentError(
            "loss", loss, f"it has reduction={reduction!r}", "Use reduction='mean' or 'sum'."
        )
    closed = _CLOSED.get(type(module))
    return CallableLoss(loss) if closed is None else closed(module)


def _gaussian(module: nn.Module, f: torch.Tensor, y: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return module(f, *y)


def _multi_margin(module: nn.MultiMarginLoss, f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Torch's loss MultiMarginLoss (w_y/C) Σ_{c≠y} max(0, margin − f_y + f_c)^p."""
    own = y.unsqueeze(1)
    excess = (module.margin - f.gather(1, own) + f).clamp(min=0).pow(module.p)
    losses = excess.scatter(1, own, 0.0).mean(1)
    losses = losses if module.weight is None else losses * module.weight.to(f)[y]
    return losses.mean() if module.reduction == "mean" else losses.sum()


def _as_module(loss: Any) -> Any:
    """Return the torch loss module that a functional form stands for, else the loss itself."""
    function: Any = loss
    keywords: dict[str, Any] = {}
    if isinstance(loss, partial) and not loss.args:
        function, keywords = loss.func, loss.keywords
    try:
        module = _FUNCTIONAL.get(function)
    except TypeError:  # it has no hash
        return loss
    if module is None:
        return loss
    try:
        return module(**keywords)
    except TypeError:  # options that only the function has, such as weight= of mse_loss
        return loss
