"""`predict_sharpness`: how sharp a network becomes, from its start, before it is trained."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
import torch
from scipy.stats import t as student
from torch import nn

from hyperribbon.core import html
from hyperribbon.core.checks import ArgumentError, count, torch_module, validate
from hyperribbon.core.devices.modes import plain_arithmetic, preserve_random_state
from hyperribbon.core.generators import torch_generator
from hyperribbon.core.result import Result, Summary
from hyperribbon.operators import Hessian, Risk
from hyperribbon.operators.risk.batches import batch_size
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.prediction.linear_layers import FoundChain, find_chain, names_of, record_layers
from hyperribbon.prediction.surrogate import (
    ChainSurrogate,
    LinearSurrogate,
    beyond_the_models_outputs,
    squares,
    stand_in_data,
)
from hyperribbon.prediction.update_rules import (
    preconditioned_limit,
    unwrap_optimizer,
    update_rule,
)
from hyperribbon.spectra import eigsh

if TYPE_CHECKING:
    import pandas as pd

_STUDY = "sharpness_study.json"
_SAMPLES = 1024  # on which a surrogate is trained that does not reduce to moments
_POINTS = 9  # of the path
_SQUARED = 1e-6  # spread of a loss's curvature below which it is squared
_DOMINANT = 0.5  # share of one direction in the squared inputs above which it dominates
_COVERAGE = 0.95
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_LEAST = 0.02  # relative width of every band: sharpness is measured to a hundredth


@dataclass(frozen=True, repr=False)
class SharpnessPrediction(Result, plot="plot_sharpness_forecast"):
    """The sharpness after training, as forecast from the start.

    Attributes:
        value: Largest Hessian eigenvalue of the loss after `steps` steps, expected.
        low: Lower end of the band.
        high: Upper end: 95% of trainings of this kind lie between both.
        initial: Sharpness at the start, measured.
        ceiling: Largest sharpness at which the optimiser is stable; infinite for Adam and RMSprop,
            whose limit is one of the preconditioned Hessian, see `limit`.
        limit: The stability limit in words.
        steps: (m,), steps of the path.
        path: (m,), predicted sharpness at these steps.
        method: "exact" for a linear network, "linear surrogate" for one with activations; "the
            network itself" where there are none to replace, so that a copy was trained.
        kind: Kind of network, loss and inputs, by which the band was chosen.
        studied: Trainings of this kind in the study behind the band; 0 if there are none.
        samples: Samples the forecast is of.
    """

    value: float
    low: float
    high: float
    initial: float
    ceiling: float
    limit: str
    steps: Float[np.ndarray, "m"]
    path: Float[np.ndarray, "m"]
    method: str
    kind: str
    studied: int
    samples: int

    def summary(self) -> Summary:
        """Return the forecast of the sharpness in plain words."""
        last = int(self.steps[-1])
        lines = [
            f"Sharpness {self.initial:.3g} at the start; {self.value:.3g} is expected after "
            f"{last:,} full-batch steps, between {self.low:.3g} and {self.high:.3g}.",
            f"Stability limit: {self.limit}.",
        ]
        if self.value >= 0.99 * self.ceiling:
            lines.append(
                "Training reaches the limit: it stays there, at the edge of stability, or diverges."
            )
        if self.method == "exact":
            lines.append("The network is linear, so its training is known exactly.")
        elif self.method != "linear surrogate":
            lines.append(
                f"There is no activation to replace: a copy of the network itself was trained, on "
                f"{self.samples:,} samples."
            )
        elif self.studied:
            lines.append(
                f"Activations are taken as linear. The band is that of {self.studied} trainings "
                f"({self.kind})."
            )
        if not self.studied and self.method != "exact":
            lines.append(
                f"No network of this kind was studied ({self.kind}): the band is of all others."
            )
        elif self.high > 100 * self.low:
            lines.append("For this kind the study finds no useful forecast.")
        elif self.high > 4 * self.low:
            lines.append("For this kind the forecast is an order of magnitude only.")
        return Summary("\n".join(lines))

    def to_frame(self) -> pd.DataFrame:
        """Return the predicted path of the sharpness, one row per step."""
        import pandas as pd

        low, high = self.path * self.low / self.value, self.path * self.high / self.value
        columns = {"step": self.steps, "sharpness": self.path, "low": low, "high": high}
        return pd.DataFrame(columns).set_index("step")

    def __repr__(self) -> str:
        band = f"{self.low:.3g} to {self.high:.3g}"
        return f"SharpnessPrediction({self.value:.3g}, {band}, limit {self.ceiling:.3g})"

    def _repr_html_(self) -> str:
        return html.card("Sharpness forecast", html.bullets(self.summary().split("\n")))


@validate(model=torch_module, steps=count)
@plain_arithmetic()
@preserve_random_state()
def predict_sharpness(
    model: nn.Module,
    loss: Any,
    data: Any,
    *,
    optimizer: Any,
    steps: int = 1000,
    memory: float | None = None,
    seed: int = 0,
) -> SharpnessPrediction:
    r"""Forecast the sharpness of a network after training, without training it.

    Every activation φ is replaced by its gain at the start, $\phi(x) \to \kappa x$ with
    $\kappa = \|\phi(x)\| / \|x\|$, and the linear network that is left is trained from the model's
    own weights with the given optimiser. Its growth of sharpness, times the measured sharpness at
    the start, is the forecast, never above the optimiser's limit:

    $$ \lambda = \min\Big(\lambda_0 \frac{\lambda^\text{lin}_T}{\lambda^\text{lin}_0},\;
    \frac{2(1+\beta)}{\eta}\Big) $$

    A linear network in series under squared loss depends on its data through their second moments
    alone ([linear_networks]), so it is followed exactly, at a cost that does not depend on the
    number of samples. The band is that of a stored study of trainings of the same kind
    (`benchmarks/sharpness.py`).

    Args:
        model: The network before training, in evaluation mode; it is not changed.
        loss: As for `Risk`; None for the model's own.
        data: As for `Risk`; steps are full batches. At most 1,024 samples are used where the
            network or the loss does not reduce to moments.
        optimizer: A torch SGD, Adam, AdamW or RMSprop, or a learning rate of gradient descent.
        steps: Steps of training.
        memory: Bytes to stay below.
        seed: Seed of the samples and the eigensolver.

    Returns:
        The forecast: `.summary()`, `.plot()`, `.to_frame()`.

    Raises:
        ArgumentError: The optimiser is of another kind, or training a linear network diverges.

    >>> model = nn.Linear(3, 1, bias=False)
    >>> data = torch.eye(3), torch.ones(3, 1)
    >>> predict_sharpness(model, nn.MSELoss(), data, optimizer=0.1, steps=10)
    SharpnessPrediction(0.667, 0.653 to 0.68, limit 20)
    """
    optimizer = unwrap_optimizer(optimizer)
    ceiling, limit = _ceiling(optimizer, model)
    risk = Risk(model, loss, data, memory=memory)
    with beyond_the_models_outputs(loss):
        chain = _whole_chain(risk)
    if chain is None:
        risk = Risk(model, loss, risk.source.few(_SAMPLES, seed), memory=memory)
    risk.take_logits()
    measured = Hessian(risk)
    initial = _sharpness(measured, seed)
    with beyond_the_models_outputs(loss):
        run = _Run(model, loss, risk, chain)
    kind = _kind(risk, run.activations)
    if isinstance(optimizer, torch.optim.RMSprop) and kind != "linear":
        kind += ", RMSprop"  # which the study does not have
    with beyond_the_models_outputs(loss):
        times, path = run.follow(_same_optimizer(optimizer, model, run.parameters), steps, seed)
    if not np.isfinite(path).all() and (kind == "linear" or math.isinf(ceiling)):
        reason = "training by this optimiser diverges"
        remedy = f"Choose a smaller learning rate; the limit is {limit}."
        raise ArgumentError("optimizer", str(optimizer).split("\n")[0], reason, remedy)
    scale = initial / path[0] if path[0] > 0 else 1.0
    # A linear network that passes the limit diverges; others stay there.
    path = np.minimum(np.nan_to_num(scale * path, nan=math.inf), max(ceiling, initial))
    low, high, studied = _band(kind)
    method = "linear surrogate" if run.activations else "the network itself"
    if kind == "linear":
        method = "exact"
    return SharpnessPrediction(
        value=float(path[-1]),
        low=float(path[-1]) * low,
        high=float(path[-1]) * high,
        initial=initial,
        ceiling=ceiling,
        limit=limit,
        steps=times,
        path=path,
        method=method,
        kind=kind,
        studied=studied,
        samples=risk.samples,
    )


class _Run:
    """The linear network whose sharpness is followed, on samples or their stand-ins."""

    def __init__(self, model: nn.Module, loss: Any, risk: Risk, chain: FoundChain | None) -> None:
        objective, first = Objective(loss), next(iter(risk.source.batches()))
        surrogate = LinearSurrogate(model, lambda inner: objective.outputs(inner, first))
        self.activations = surrogate.activations
        if chain is None:
            self.module: nn.Module = surrogate
            self._loss, self._data = loss, risk.source
            self._objective, self._batches = objective, list(risk.source.batches())
            self._is_sum = risk.criterion.reduction == "sum"
            inner = dict(surrogate.inner.named_parameters())
            self.parameters = {name: inner[name] for name in risk.space.names}
            return
        self.module = chained = ChainSurrogate(chain, _gains(risk, chain))
        self._data = stand_in_data(chain)
        self._loss = squares(chain.curvature)
        self._objective, self._batches, self._is_sum = Objective(self._loss), [self._data], False
        self.parameters = {}
        for place, name in enumerate(chain.layers):
            layer = risk.function.module.get_submodule(name)
            own = [chained.weights[place], getattr(chained, f"bias{place}")]
            self.parameters |= dict(zip(names_of(name, layer), own, strict=False))

    def follow(
        self, optimizer: torch.optim.Optimizer, steps: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the forecast's steps and the sharpness taken at them."""
        times = sorted({0, steps, *np.geomspace(1, steps, _POINTS - 1).round().astype(int)})
        path = []
        for step in range(steps + 1):
            if step in times:
                path.append(self._sharpness(seed))
                if not math.isfinite(path[-1]):
                    break
            if step < steps:
                optimizer.zero_grad()
                self._value().backward()
                optimizer.step()
        return np.array(times), np.array(path + [math.nan] * (len(times) - len(path)))

    @torch.enable_grad()
    def _value(self) -> torch.Tensor:
        values = torch.stack([self._objective(self.module, batch) for batch in self._batches])
        sizes = [1.0 if self._is_sum else float(batch_size(batch)) for batch in self._batches]
        weights = values.new_tensor(sizes)
        return (values * weights).sum() / (1.0 if self._is_sum else weights.sum())

    def _sharpness(self, seed: int) -> float:
        if not all(bool(p.isfinite().all()) for p in self.parameters.values()):
            return math.nan
        try:
            return _sharpness(Hessian(self.module, self._loss, self._data), seed)
        except ArgumentError:  # outputs that are no longer finite
            return math.nan


def _sharpness(hessian: Hessian, seed: int) -> float:
    found = eigsh(hessian, 1, tol=1e-3, eigenvectors=False, seed=seed)
    return float(found.eigenvalues[0])


def _whole_chain(risk: Risk) -> FoundChain | None:
    """Return linear layers for a sharpness forecast, if they are the whole model; or None."""
    try:
        chain = find_chain(risk)
    except ArgumentError:
        return None
    module = risk.function.module
    names = {n for layer in chain.layers for n in names_of(layer, module.get_submodule(layer))}
    is_all = names == set(risk.space.names) and chain.spread < _SQUARED
    return chain if is_all else None


def _gains(risk: Risk, chain: FoundChain) -> list[float]:
    """Return each layer's gain κ for the sharpness's forecast: next input over its output."""
    given: dict[str, float] = dict.fromkeys(chain.layers, 0.0)
    put = dict(given)
    for batch in risk.source.batches():
        for name, _, inputs, output in record_layers(risk, batch)[0]:
            if name in given:
                given[name] += float(inputs.double().square().sum())
                put[name] += float(output.double().square().sum())
    pairs = zip(chain.layers, chain.layers[1:], strict=False)
    gains = [
        math.sqrt(given[after] / put[before]) if put[before] else 1.0 for before, after in pairs
    ]
    return [1.0 if abs(gain - 1) < _SQUARED else gain for gain in gains]


def _ceiling(optimizer: Any, model: nn.Module) -> tuple[float, str]:
    """Return the largest stable sharpness that a forecast may reach, and the limit in words."""
    if isinstance(optimizer, torch.optim.Adam | torch.optim.RMSprop):
        value = preconditioned_limit(optimizer)
        return math.inf, f"{value:.4g} for the Hessian preconditioned by {type(optimizer).__name__}"
    rule = update_rule(optimizer, model)
    if isinstance(rule.rates, Mapping) or isinstance(rule.weight_decay, Mapping):
        return math.inf, f"1 for the Hessian scaled by the rates of the groups ({rule.text})"
    value = rule.limit / rule.rates - rule.weight_decay
    return value, f"{value:.4g} ({rule.text})"


def _same_optimizer(
    optimizer: Any, model: nn.Module, parameters: Mapping[str, nn.Parameter]
) -> torch.optim.Optimizer:
    """Return for a sharpness forecast an optimiser of other tensors with the same settings."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return torch.optim.SGD(parameters.values(), lr=float(optimizer))
    names = {id(tensor): name for name, tensor in model.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        own = [parameters[n] for p in group["params"] if (n := names.get(id(p), "")) in parameters]
        if own:
            options = {k: v for k, v in group.items() if k not in ("params", "initial_lr")}
            groups.append({**copy.deepcopy(options), "params": own})
    make: Any = type(optimizer)
    return make(groups, lr=float(groups[0]["lr"]))


def _kind(risk: Risk, activations: list[str]) -> str:
    """Return which kind of network, loss and inputs a sharpness forecast is for."""
    layers = [m for m in risk.function.module.modules() if any(True for _ in m.parameters(False))]
    if not all(isinstance(layer, _LINEAR) for layer in layers):
        network = "other layers"
    elif not activations:
        return "linear"
    elif not all(isinstance(layer, nn.Linear) for layer in layers):
        network = "convolutional"
    else:
        network = "ReLU" if any("relu" in name for name in activations) else "smooth"
    loss = "squared loss" if _is_squared(risk) else str(risk.criterion)
    inputs = "one direction dominates the inputs" if _dominance(risk) > _DOMINANT else "even inputs"
    return f"{network}, {loss}, {inputs}"


def _is_squared(risk: Risk) -> bool:
    """Whether sharpness is forecast for a squared loss: one curvature for all outputs."""
    outputs, targets = risk.evaluate(risk.source.some(16))
    generator = torch_generator(0, "curvature")
    drawn = torch.randn(1, *outputs.shape, generator=generator, device="cpu")
    block = drawn.to(outputs)
    curved = risk.criterion.curvature(outputs, targets, block)
    c = float((curved * block).sum() / block.square().sum())
    return c > 0 and torch.allclose(curved, c * block, rtol=1e-3, atol=1e-6 * c)


def _dominance(risk: Risk) -> float:
    """Return the first direction's share in the squared inputs, for the sharpness forecast."""
    rows = []
    for batch in risk.source.batches():
        first = batch[0] if isinstance(batch, tuple | list) else next(iter(batch.values()))
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return 0.0
        rows.append(first.detach().reshape(len(first), -1).double().cpu())
    squared = torch.linalg.svdvals(torch.cat(rows)[:_SAMPLES]).square()
    return float(squared[0] / squared.sum()) if squared.sum() > 0 else 0.0


@cache
def _study() -> dict[str, list[float]]:
    """Return log(measured / predicted) sharpness of the stored trainings, by kind."""
    stored = json.loads(files("hyperribbon.prediction").joinpath(_STUDY).read_text())
    kinds: dict[str, list[float]] = {}
    for row in stored["trainings"]:
        if row.get("measured") is None:  # training diverged
            continue
        kinds.setdefault(row["kind"], []).append(math.log(row["measured"] / row["predicted"]))
    return kinds


def _band(kind: str) -> tuple[float, float, int]:
    """Return the band of measured over predicted sharpness, and the trainings it is of."""
    ratios = _study().get(kind, [])
    if kind == "linear" and not ratios:
        return 1 - _LEAST, 1 + _LEAST, 0
    if len(ratios) < 3:
        others = [r for name, some in _study().items() if name != "linear" for r in some]
        return (*interval(others), 0) if others else (0.0, math.inf, 0)
    low, high = interval(ratios)
    return low, high, len(ratios)


def interval(ratios: list[float]) -> tuple[float, float]:
    """Return Student's 95% interval of one more ratio of measured to predicted sharpness."""
    size = len(ratios)
    spread = float(np.std(ratios, ddof=1)) * math.sqrt(1 + 1 / size)
    reach = float(student.ppf((1 + _COVERAGE) / 2, size - 1)) * spread
    mean = float(np.mean(ratios))
    return min(math.exp(mean - reach), 1 - _LEAST), max(math.exp(mean + reach), 1 + _LEAST)
