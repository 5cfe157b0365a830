"""How an optimiser turns curvature into stability: 2/η, corrected for momentum and scaling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_positive

PerParameter = Mapping[str, "torch.Tensor | float"]


@dataclass(frozen=True)
class UpdateRule:
    r"""A linear update θ ← θ − D·(momentum average of g), seen by the curvature H.

    On a quadratic it is stable while the largest eigenvalue of D^{1/2} (H + W) D^{1/2} is below
    `limit`, where W is the weight decay that is added to gradients:

    $$\text{limit} = \frac{2(1+\beta)}{1-\tau},\qquad
      \text{limit}_\text{Nesterov} = \frac{2(1+\beta)}{1+2\beta},\qquad
      \text{limit}_\text{AdamW} = \frac{(2-\eta w)(1+\beta_1)}{1-\beta_1}$$

    with momentum β and dampening τ; Adam is the case τ = β = β₁ with D = η/(√v̂ + ε), RMSprop the
    case τ = 0 with D = η/(√v + ε), and AdamW shrinks the weights by its decay w beside that.

    Parameter groups may differ in everything. An eigenvalue z of the update leaves the unit circle
    only at z = −1: elsewhere on it the imaginary parts of what each group makes of z have one sign,
    and H + W is symmetric. At −1 each group contributes its own limit, so the update is stable
    while the largest eigenvalue of S^{1/2} (H + W) S^{1/2}, S = D/limit of the group, is below 1.

    Attributes:
        name: The optimiser.
        rates: D: one number for all coordinates, or numbers by parameter name; S where groups have
            different limits.
        limit: Largest stable eigenvalue; 1 where groups have different ones.
        weight_decay: W, in the same form.
        text: The rule in words.
    """

    name: str
    rates: float | PerParameter
    limit: float
    weight_decay: float | PerParameter
    text: str


class UnknownLimitError(ArgumentError):
    """Exception for an optimiser of the model whose stability limit cannot be computed."""


@dataclass(frozen=True)
class _Group:
    """The update rule of one parameter group: its numbers, and D by parameter name."""

    rates: PerParameter
    limit: float
    weight_decay: float
    text: str


def update_rule(optimizer: Any, model: nn.Module) -> UpdateRule:
    """Return the update rule of an optimiser, or of a plain learning rate.

    Args:
        optimizer: A torch SGD, Adam, AdamW or RMSprop, or a learning rate of gradient descent.
            Wrappers with the optimiser as `.optimizer`, as Trainers have them, are unwrapped.
        model: The model whose parameters it updates.

    Raises:
        UnknownLimitError: The optimiser is of another kind, or an adaptive one before its first
            step.
        ArgumentError: The optimiser updates nothing of the model, or maximises.
    """
    optimizer = unwrap_optimizer(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        rate = check_positive("optimizer", optimizer)
        return UpdateRule("gradient descent", rate, 2.0, 0.0, f"gradient descent, η = {rate:g}")
    kind = type(optimizer).__name__
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        members = {names[id(p)]: p for p in group["params"] if id(p) in names}
        if group.get("maximize"):
            reason = "it maximises its loss, which no curvature limits"
            remedy = "Give the optimiser of a loss that is minimised."
            raise ArgumentError("optimizer", kind, reason, remedy)
        if members:
            groups.append(_reader(optimizer)(optimizer, group, members))
    if not groups:
        remedy = "Give the optimiser that trained the model, or its learning rate."
        raise ArgumentError("optimizer", kind, "it updates no parameter of this model", remedy)
    return _join(kind, groups, set(names.values()))


def unwrap_optimizer(optimizer: Any) -> Any:
    """Return the torch optimiser inside a wrapper whose update rule is asked for; else itself."""
    wrapped = getattr(optimizer, "optimizer", None)
    return unwrap_optimizer(wrapped) if isinstance(wrapped, torch.optim.Optimizer) else optimizer


def preconditioned_limit(optimizer: torch.optim.Optimizer) -> float:
    r"""Return the limit of curvature under an adaptive update rule whose scaling P is unknown.

    $$ \lambda_{\max}\big(P^{-1/2} (H + W) P^{-1/2}\big) \le \frac{\text{limit}}{\eta},
    \qquad P_\text{Adam} = \operatorname{diag}(\sqrt{\hat v} + \epsilon), \quad
    P_\text{RMSprop} = \operatorname{diag}(\sqrt v + \epsilon) $$

    with W and the limit of `UpdateRule`; the smallest where parameter groups differ.
    """
    limit = _rmsprop_limit if isinstance(optimizer, torch.optim.RMSprop) else _adam_limit
    return min(limit(optimizer, group) / float(group["lr"]) for group in optimizer.param_groups)


def _adam_limit(optimizer: Any, group: dict[str, Any]) -> float:
    """Return (2 − ηw)(1 + β₁)/(1 − β₁), the limit of Adam's update rule."""
    beta, shrink = float(group["betas"][0]), _decoupled_decay(optimizer, group)
    return (2 - shrink) * (1 + beta) / (1 - beta)


def _rmsprop_limit(_optimizer: Any, group: dict[str, Any]) -> float:
    """Return 2(1 + β), the limit of RMSprop's update rule."""
    return 2 * (1 + float(group["momentum"]))


def _decoupled_decay(optimizer: Any, group: dict[str, Any]) -> float:
    """Return η·w of decoupled weight decay, for Adam's update rule."""
    decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")
    return float(group["lr"]) * float(group["weight_decay"]) if decoupled else 0.0


def _reader(optimizer: torch.optim.Optimizer) -> Callable[..., _Group]:
    """Return what reads an update rule from the parameter groups of such an optimiser."""
    for kind, reader in _READERS.items():
        if isinstance(optimizer, kind):
            return reader
    remedy = "Give SGD, Adam, AdamW or RMSprop, or a learning rate."
    reason = "its stability limit is not known"
    raise UnknownLimitError("optimizer", type(optimizer).__name__, reason, remedy)


def _read_sgd(optimizer: Any, group: dict[str, Any], members: dict[str, torch.Tensor]) -> _Group:
    beta, rate = float(group["momentum"]), float(group["lr"])
    limit = 2 * (1 + beta) / (1 - float(group["dampening"]) if beta else 1)
    nesterov = ""
    if group["nesterov"]:
        limit, nesterov = 2 * (1 + beta) / (1 + 2 * beta), "Nesterov "
    text = f"η = {rate:g}, {nesterov}momentum {beta:g}"
    return _Group(dict.fromkeys(members, rate), limit, float(group["weight_decay"]), text)


def _read_adam(optimizer: Any, group: dict[str, Any], members: dict[str, torch.Tensor]) -> _Group:
    decay = 0.0 if _decoupled_decay(optimizer, group) else float(group["weight_decay"])
    rates = {name: _adam_rates(optimizer, group, p) for name, p in members.items()}
    text = f"η = {float(group['lr']):g}, β₁ = {float(group['betas'][0]):g}"
    return _Group(rates, _adam_limit(optimizer, group), decay, text)


def _read_rmsprop(
    optimizer: Any, group: dict[str, Any], members: dict[str, torch.Tensor]
) -> _Group:
    beta, rate = float(group["momentum"]), float(group["lr"])
    rates = {name: _rmsprop_rates(optimizer, group, p) for name, p in members.items()}
    text = f"η = {rate:g}" + (f", momentum {beta:g}" if beta else "")
    return _Group(rates, _rmsprop_limit(optimizer, group), float(group["weight_decay"]), text)


def _rmsprop_rates(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    state = _state_of(optimizer, parameter, "square_avg")
    second = state["square_avg"] - (state["grad_avg"] ** 2 if group["centered"] else 0)
    return float(group["lr"]) / (second.clamp(min=0).sqrt() + group["eps"])


def _state_of(optimizer: Any, parameter: torch.Tensor, key: str) -> dict[str, Any]:
    """Return an adaptive optimiser's state of a parameter, which its update rule needs."""
    state = optimizer.state.get(parameter, {})
    if key not in state:
        reason = "it has taken no step, so its scaling is unknown"
        remedy = "Give the optimiser after training, or with its loaded state dict."
        raise UnknownLimitError("optimizer", type(optimizer).__name__, reason, remedy)
    return state


def _adam_rates(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> torch.Tensor:
    state = _state_of(optimizer, parameter, "exp_avg_sq")
    second = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    correction = 1 - group["betas"][1] ** float(state["step"])
    return float(group["lr"]) / ((second / correction).sqrt() + group["eps"])


_READERS: dict[type, Callable[..., _Group]] = {
    torch.optim.SGD: _read_sgd,
    torch.optim.Adam: _read_adam,
    torch.optim.RMSprop: _read_rmsprop,
}


def _join(kind: str, groups: list[_Group], names: set[str]) -> UpdateRule:
    """Return one update rule of all groups; plain numbers where parameters are treated alike."""
    limits = {group.limit for group in groups}
    decays = {group.weight_decay for group in groups}
    texts = list(
        dict.fromkeys(
            group.text + (f", decay {group.weight_decay:g}" if len(decays) > 1 else "")
            for group in groups
        )
    )
    text = f"{kind}, {texts[0]}" if len(texts) == 1 else f"{kind} with groups {'; '.join(texts)}"
    limit = limits.pop() if len(limits) == 1 else 1.0
    covered = {name for group in groups for name in group.rates}
    values = [rate for group in groups for rate in group.rates.values()]
    alike = all(isinstance(v, float) and v == values[0] for v in values)
    if alike and limit == groups[0].limit and len(decays) == 1 and covered == names:
        return UpdateRule(kind, float(values[0]), limit, decays.pop(), text)
    rates = {
        name: rate * (limit / group.limit) for group in groups for name, rate in group.rates.items()
    }
    decay = {name: group.weight_decay for group in groups for name in group.rates}
    return UpdateRule(kind, rates, limit, decay, text)
