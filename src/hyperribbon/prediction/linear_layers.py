"""The chain of linear layers at the end of a model, and the loss as a function of its outputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from torch import nn
from torch.nn.functional import linear

from hyperribbon.core.checks import ArgumentError, check_finite
from hyperribbon.core.devices.modes import preserve_random_state
from hyperribbon.operators import Risk
from hyperribbon.operators.risk.loss import wide
from hyperribbon.theory.linear_networks.moments import Moments

_Calls = list[tuple[str, nn.Module, Any, Any]]
_SHOWN = 16  # samples on which the layers are found
_ROWS = 1024  # samples evaluated at once


@dataclass(frozen=True)
class FoundChain:
    r"""Linear layers that follow each other, up to the model's output, under the user's loss.

    At the outputs f of the chain the loss of sample n has a gradient g_n and a curvature A_n. With
    the mean curvature $c = \langle \operatorname{Tr} A_n \rangle / d_L$, the squared loss

    $$ \frac{c}{2n} \|f - Y\|^2, \qquad Y = f - g / c $$

    has the same gradient; for a squared loss it is that loss, and Y its targets.

    Attributes:
        layers: Their names, first one first.
        weights: W1, …, WL in double precision.
        biases: b1, …, bL; None for a layer without one.
        moments: Of the inputs x of the first layer (with a 1 below them where there are biases) and
            the targets Y.
        target_moment: Y Yᵀ/n, (dL, dL).
        samples: n.
        deviation: ‖f(X) − chain(X)‖ / ‖f(X)‖, zero for a model that is linear from there on.
        curvature: c.
        spread: ‖A_n − c‖ over c, root mean square over samples and outputs.
        inputs: (n, d), the x (with 1).
    """

    layers: tuple[str, ...]
    weights: list[np.ndarray]
    biases: list[np.ndarray | None]
    moments: Moments
    target_moment: np.ndarray
    samples: int
    deviation: float
    curvature: float
    spread: float
    inputs: np.ndarray = field(repr=False)
    _curve: Callable[[np.ndarray], np.ndarray] = field(repr=False)

    @property
    def has_biases(self) -> bool:
        """Whether any of the linear layers found has a bias."""
        return any(bias is not None for bias in self.biases)

    def curve(self, block: np.ndarray) -> np.ndarray:
        """Return A_n u_n per sample, A_n the loss's curvature in the linear layers' outputs."""
        return self._curve(block)

    def augmented(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return linear layers that carry the constant 1 along, and which entries are trained."""
        if not self.has_biases:
            return self.weights, [np.ones(weight.shape, dtype=bool) for weight in self.weights]
        layers, trained = [], []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            column = np.zeros(len(weight)) if bias is None else bias
            layer = np.column_stack([weight, column])
            mask = np.ones(layer.shape, dtype=bool)
            mask[:, -1] = bias is not None
            if len(layers) < len(self.weights) - 1:
                last = np.eye(1, layer.shape[1], layer.shape[1] - 1)
                layer, mask = np.vstack([layer, last]), np.vstack([mask, np.zeros_like(last, bool)])
            layers.append(layer)
            trained.append(mask)
        return layers, trained


def find_layers(risk: Risk) -> dict[str, tuple[int, int]]:
    """Return the linear layers that end a model, with their shapes (outputs, inputs).

    The model is run on a few samples.

    Raises:
        ArgumentError: The last layer is not linear, its weights are frozen, shared, or computed
            from other parameters, or its output is joined with something else.
    """
    batch = risk.source.some(_SHOWN)
    calls, outputs, _ = record_layers(risk, batch)
    if outputs.ndim > 2:
        reason = f"its outputs have shape (n, {', '.join(map(str, outputs.shape[1:]))})"
        remedy = "The theory is about one vector of outputs for each sample."
        raise ArgumentError("model", type(risk.function.module).__name__, reason, remedy)
    if len(outputs) < 2:
        reason = "which layers follow each other shows from two samples on"
        raise ArgumentError("data", "1 sample", reason, "Give more samples.")
    chain = _connect(risk, batch, _last_chain(risk, calls), outputs)
    return {name: (layer.out_features, layer.in_features) for name, layer, *_ in chain}  # type: ignore[misc]


def find_chain(risk: Risk) -> FoundChain:
    """Return the linear layers that end a model, and what the theory needs of loss and data.

    Raises:
        ArgumentError: As for `find_layers`; or the loss is no sum over samples, or not curved.
    """
    if risk.must_be_whole or risk.criterion.reduction == "whole":
        reason = "its value for one sample depends on the other samples"
        remedy = "The theory is about a mean or a sum over samples."
        raise ArgumentError("loss", risk.criterion, reason, remedy)
    names = tuple(find_layers(risk))
    modules: list[Any] = [risk.function.module.get_submodule(name) for name in names]
    weights = [_double(layer.weight) for layer in modules]
    biases = [None if layer.bias is None else _double(layer.bias) for layer in modules]
    features, outputs, pieces = [], [], []
    for _, batch in risk.source.chunks(_ROWS):
        calls, values, targets = record_layers(risk, batch)
        features.append(_double(_given(calls, names[0])))
        x = features[-1]
        for weight, bias in zip(weights, biases, strict=True):
            x = x @ weight.T + (0 if bias is None else bias)
        given = _double(values).reshape(len(x), -1)
        if risk.ends_in_log_softmax:  # log-probabilities are logits but for one number per sample
            given = given + logsumexp(x, axis=1, keepdims=True)
        outputs.append((given, x))
        at = torch.from_numpy(x).to(values.device, wide(values).dtype).reshape(values.shape)
        pieces.append((at, targets, risk.criterion.curvature_at(at, targets)))
    return _assemble(risk, names, weights, biases, features, outputs, pieces)


def _assemble(
    risk: Risk,
    names: tuple[str, ...],
    weights: list[np.ndarray],
    biases: list[np.ndarray | None],
    features: list[np.ndarray],
    outputs: list[tuple[np.ndarray, np.ndarray]],
    pieces: list[tuple[torch.Tensor, Any, Callable[..., torch.Tensor]]],
) -> FoundChain:
    inputs = check_finite("inputs", np.concatenate(features))
    values, linear_values = (np.concatenate(part) for part in zip(*outputs, strict=True))
    samples, width = linear_values.shape
    scale = samples / risk.amount  # of the risk as a mean over samples

    def curve(block: np.ndarray) -> np.ndarray:
        found, start = np.empty_like(block), 0
        for at, _, curvature in pieces:
            some = slice(start, start := start + len(at))
            u = torch.from_numpy(block[some]).to(at.device, at.dtype).reshape(1, *at.shape)
            found[some] = scale * _double(curvature(u)).reshape(len(at), -1)
        return found

    trace = squares = 0.0
    for column in np.eye(width):
        curved = curve(np.broadcast_to(column, (samples, width)).copy())
        trace, squares = trace + float(np.sum(curved @ column)), squares + float(np.sum(curved**2))
    mean = trace / (samples * width)
    if not mean > 0:
        reason = "its curvature in the outputs is not positive on average"
        remedy = "Use a loss that is convex in the outputs, as squares and cross-entropy are."
        raise ArgumentError("loss", risk.criterion, reason, remedy)
    slopes = [
        _double(risk.criterion.gradient(at, targets)).reshape(len(at), -1)
        for at, targets, _ in pieces
    ]
    targets = check_finite("targets", linear_values - scale * np.concatenate(slopes) / mean)
    for name, array in (("inputs", inputs), ("targets", targets)):
        if not array.any():
            reason = "every one of them is zero, so there is nothing to compare"
            remedy = "Check the data, and that the layers before the linear ones are not dead."
            raise ArgumentError(name, 0.0, reason, remedy)
    if any(bias is not None for bias in biases):
        inputs = np.column_stack([inputs, np.ones(samples)])
    covariance, target_moment = (part.T @ part / samples for part in (inputs, targets))
    size = np.linalg.norm(values)
    return FoundChain(
        layers=names,
        weights=weights,
        biases=biases,
        moments=Moments(covariance, targets.T @ inputs / samples, float(np.trace(target_moment))),
        target_moment=target_moment,
        samples=samples,
        deviation=float(np.linalg.norm(values - linear_values) / size) if size else 0.0,
        curvature=mean,
        spread=float(np.sqrt(max(squares / (samples * width) - mean**2, 0.0)) / mean),
        inputs=inputs,
        _curve=curve,
    )


def record_layers(risk: Risk, batch: Any) -> tuple[_Calls, torch.Tensor, Any]:
    """Return the calls of a model's linear layers on a batch, its outputs and the targets."""
    calls: _Calls = []

    def record(name: str, layer: nn.Module, given: Any, named: Any, output: Any) -> None:
        calls.append((name, layer, given[0] if given else named.get("input"), output))

    with ExitStack() as hooks, preserve_random_state():
        for name, module in risk.function.module.named_modules():
            if isinstance(module, nn.Linear) or any(True for _ in module.parameters(recurse=False)):
                hook = partial(record, name)
                hooks.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        return calls, *risk.evaluate(batch)


def _last_chain(risk: Risk, calls: _Calls) -> _Calls:
    used = [name for name, *_ in calls]
    chain: _Calls = []
    for call in reversed(calls):
        name, layer, given, output = call
        reason = _why_not(risk, name, layer, given, output, used.count(name))
        if reason and not chain:
            kind = type(layer).__name__
            remedy = "The theory is about layers nn.Linear, each used once; give a model that ends "
            raise ArgumentError("model", f"{name} ({kind})", reason, remedy + "in one of them.")
        if reason or (chain and output.shape != chain[0][2].shape):
            break
        chain.insert(0, call)
    if not chain:
        reason, remedy = "it has no layer with weights", "Give a model that ends in nn.Linear."
        raise ArgumentError("model", type(risk.function.module).__name__, reason, remedy)
    return chain


def _why_not(risk: Risk, name: str, layer: nn.Module, given: Any, output: Any, uses: int) -> str:
    """Return why a layer cannot be one of the linear layers that end a model, or ""."""
    if not isinstance(layer, nn.Linear) or not isinstance(given, torch.Tensor) or given.ndim != 2:
        return "its last layer with weights is not a linear layer on vectors (n, d)"
    own = dict(risk.function.module.named_parameters(remove_duplicate=False))
    first = dict(risk.function.module.named_parameters())
    for key in names_of(name, layer):
        if key not in own:
            return f"{key} is computed from other parameters, as weight_norm and spectral_norm do"
        if uses > 1 or sum(tensor is own[key] for tensor in own.values()) > 1 or key not in first:
            return "this layer is used more than once, or shares its weights"
        if key not in risk.space.names:
            return f"{key} is not among the parameters that are trained"
        if risk.space.selections[risk.space.names.index(key)] is not None:
            return f"a mask selects some entries of {key} only"
    if not torch.allclose(output, linear(given, layer.weight, layer.bias), rtol=1e-3, atol=1e-6):
        return f"its {type(layer).__name__} does more than W x + b"
    return ""


def names_of(name: str, layer: Any) -> list[str]:
    """Return the names of a linear layer's parameters."""
    parts = ("weight",) if layer.bias is None else ("weight", "bias")
    return [f"{name}.{part}" if name else part for part in parts]


def _connect(risk: Risk, batch: Any, chain: _Calls, outputs: torch.Tensor) -> _Calls:
    """Return the end of the linear layers in which each is given the output of the one before.

    Where samples are exchanged in a layer's output, and in nothing else, what follows it alone has
    them exchanged too; a parallel map or a skip connection does not.

    Raises:
        ArgumentError: The model's outputs do not follow from the last layer alone.
    """
    followers: list[str | None] = [name for name, *_ in chain[1:]]
    kept: _Calls = []
    for call, follower in zip(reversed(chain), [None, *reversed(followers)], strict=True):
        layer = call[1]
        with layer.register_forward_hook(lambda module, given, output: output.roll(1, 0)):
            calls, exchanged, _ = record_layers(risk, batch)
        before, after = outputs, exchanged
        if follower is not None:
            before, after = kept[0][2], _given(calls, follower)
        close = 1e3 * torch.finfo(before.dtype).eps * float(before.abs().max())
        if before.shape != after.shape or float((after - before.roll(1, 0)).abs().max()) > close:
            break
        kept.insert(0, call)
    if not kept:
        reason = "its outputs do not follow from this last linear layer alone: a parallel or a "
        reason += "residual path joins them"
        remedy = "The theory is about layers in series; give a model that ends in one of them."
        raise ArgumentError("model", chain[-1][0], reason, remedy)
    return kept


def _given(calls: _Calls, wanted: str) -> torch.Tensor:
    return next(given for name, _, given, _ in calls if name == wanted)


def _double(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().cpu().numpy()
