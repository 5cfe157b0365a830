"""The answers of an inspection, the most frequently needed first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from hyperribbon.application.inspection.answers.reference import Reference
from hyperribbon.application.inspection.quantities import (
    NOT_OVER_SAMPLES,
    PROBES,
    SPAN,
    Quantity,
)
from hyperribbon.application.inspection.sampling import is_lower_bound
from hyperribbon.subnetworks.pruning import describe_change

MOST = 6
"""Answers shown at once."""
_SAFE = 0.8
"""Part of the stability limit below which a step is safe."""
_THIN = 0.1
"""Part of the distances outside three dimensions below which a path is a thin ribbon."""
_MUCH, _LITTLE = 2.0, 0.5
"""Batch sizes over the noise scale beyond which the mean gradient or the noise leads."""

Numbers = Mapping[str, Quantity]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer of an inspection: one finding in sentences.

    Attributes:
        term: Name of the explanation in `TERMS`.
        finding: The number with its uncertainty.
        meaning: What it means.
        usual: The range of similar trained networks, or "".
        advice: What one might do, or "".
    """

    term: str
    finding: str
    meaning: str
    usual: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """All sentences of an answer in one paragraph."""
        return " ".join(filter(None, (self.finding, self.beside)))

    @property
    def beside(self) -> str:
        """The answer's sentences without its number."""
        usual = f"Usual: {self.usual}." if self.usual else ""
        return " ".join(filter(None, (self.meaning, usual, self.advice)))


def answers(numbers: Numbers, kind: str, config: Mapping[str, Any]) -> list[Answer]:
    """Write at most six answers in sentences, from the numbers that were measured."""
    reference, like = Reference.stored(), _like(numbers, kind, config)

    def usual(statistic: str, format: str = "") -> str:
        return reference.usual(statistic, *like, format)

    found = [make(numbers, usual, config) for make in _MAKERS]
    return [answer for answer in found if answer is not None][:MOST]


def describe_usual(numbers: Numbers, kind: str, config: Config) -> str:
    """Write the sentence on the networks whose range is called usual; "" where none is."""
    if not any(answer.usual for answer in answers(numbers, kind, config)):
        return ""
    return Reference.stored().describe(*_like(numbers, kind, config))


def _like(numbers: Numbers, kind: str, config: Config) -> tuple[str, int, float | None]:
    """Return for a sentence the kind, size and accuracy that similar networks share."""
    accuracy = numbers.get("model.accuracy")
    size = int(config.get("parameters", 0)) if config.get("is_like_reference") else 0
    return kind, size, None if accuracy is None else accuracy.value


Usual = Callable[..., str]


def _sharpness(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    found, least = numbers.get("hessian.largest"), numbers.get("hessian.least")
    if found is None and least is None:
        return None
    if found is None:
        assert least is not None
        finding = f"The sharpness is at least {least.value:.3g}{_of(least, config)}."
        meaning = "This is a lower bound: the eigensolver ran out of time."
        advice = "Give a larger budget=, or fewer weights with params=."
        return Answer("sharpness", finding, meaning, usual("sharpness"), advice)
    advice = ""
    if config.get("is_normalised") and config.get("mode") == "eval":
        advice = "Batch norm changes it in training mode, where the stability limit is measured"
        advice += "." if "stability.ratio" in numbers else ": pass optimizer= to include it."
    elif found.value > 0 and "stability.ratio" not in numbers:
        advice = (
            f"Gradient descent is stable up to a learning rate of 2/λ₁ = {2 / found.value:.2g}"
        ) + ("." if config.get("optimizer") else "; pass optimizer= for its own limit.")
    number, unsure = found.text(), ""
    if found.certainty.endswith(NOT_OVER_SAMPLES):
        number = f"{found.value:.4g}"
        unsure = f"This holds for these samples; {NOT_OVER_SAMPLES}. "
    finding, meaning = (
        f"The sharpness is {number}{_of(found, config)}.",
        "The Hessian has no positive eigenvalue.",
    )
    if found.value > 0:
        rise = f"raises the loss by about {found.value / 2:.2g}·d²."
        meaning = f"Moving the weights by a distance d along the sharpest direction {rise}"
    return Answer("sharpness", finding, unsure + meaning, usual("sharpness"), advice)


def _stability(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    ratio, best = numbers.get("stability.ratio"), numbers.get("stability.rate")
    if ratio is None:
        return None
    own, part = numbers.get("stability.own_rate"), _percent(ratio)
    finding = f"The step of {config.get('optimizer', '')} is at {part} of its stability limit"
    if own is not None and best is not None:
        largest = f"({best.method} = {best.value:.3g}, full batch)"
        finding = f"Learning rate {own.value:g} is at {part} of the largest stable one {largest}"
    margin = "" if best is None else f"{_SAFE * best.value:.3g} would keep a 20% margin."
    if ratio.value - max(ratio.error, 0.0) > 1:
        limit, growth = numbers.get("stability.limit"), "from step to step"
        if limit is not None and limit.value == 2:  # without momentum
            growth = f"by |1 − ηλ₁| = {2 * ratio.value - 1:.3g} per step"
        meaning = (
            "It is above the largest stable one: displacements along the sharpest direction grow "
            f"{growth}; training may settle at a flatter minimum (edge of stability)."
        )
    elif ratio.value > _SAFE:
        meaning = (
            "It is near the limit: displacements along the sharpest direction decay slowly, and "
            "the loss may decrease non-monotonically (edge of stability)."
        )
    else:
        meaning = "It is stable."
    return Answer("stability", f"{finding}{_of(ratio, config)}.", meaning, "", margin)


def _concentration(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    few, many = numbers.get("gauss_newton.share10"), numbers.get("gauss_newton.share50")
    if few is None:
        return None
    beside = "" if many is None else f", and 50 hold {_percent(many)}"
    held = f"{_percent(few)} of the curvature{beside}{_of(few, config)}"
    finding = f"10 of {config.get('parameters', 0):,} directions hold {held}."
    meaning, advice = "The curvature is spread over many more directions.", ""
    if few.value > 0.5:
        meaning = "The loss is nearly flat in all other directions."
        kept = f"A rank-10 approximation keeps {few.value:.0%} of the curvature"
        kept = kept if many is None else f"{kept}, rank 50 keeps {many.value:.0%}"
        advice = f"{kept}, as Laplace approximations and preconditioners use it."
    _, said, directions = few.certainty.partition(f"{SPAN} ")
    if said:
        meaning = f"These samples span at most {directions}: more samples would spread it further."
        advice = ""
    return Answer("concentration", finding, meaning, usual("share10", ".0%"), advice)


def _layers(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    first, second = numbers.get("layers.first_share"), numbers.get("layers.second_share")
    if first is None or second is None:
        return None
    names = (q.name.partition("layer, ")[2] for q in (first, second))
    layer, next_layer = (f"Layer {n}" if n[:1].isdigit() else n for n in names)
    finding = f"{layer} holds {_percent(first)} of the curvature{_of(first, config)}."
    if second.value > _LITTLE * first.value:
        meaning = f"{next_layer} is second with {_percent(second)}: no layer stands out."
        return Answer("layers", finding, meaning)
    meaning = f"A step there changes the outputs most; {next_layer} is second ({_percent(second)})."
    advice = "If training is unstable, lower the learning rate of this layer first; "
    advice = advice + "exclude it from pruning and low precision." if first.value > 0.5 else ""
    return Answer("layers", finding, meaning, "", advice)


def _noise(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    scale = numbers.get("noise.scale")
    if scale is None:
        return None
    if not isfinite(scale.value):
        return Answer("noise", "The mean gradient is zero.", "SGD moves by gradient noise alone.")
    number = f"{scale.value:,.0f}" if scale.value >= 10 else f"{scale.value:.2g}"
    error = f" ± {scale.error:,.2g}" if scale.error > 0 else ""
    finding = f"The critical batch size is {number}{error}{_of(scale, config)}."
    batch = config.get("batch_size")
    if is_lower_bound(scale.value, scale.samples):
        # The mean gradient of so few samples is partly noise itself, which biases it upwards.
        finding = f"The critical batch size is at least {number}{_of(scale, config)}."
        meaning = f"{scale.samples:,} samples are too few for an upper bound."
        leads = bool(batch) and batch <= scale.value
        advice = f"At batch size {batch}, gradient noise dominates." if leads else ""
        return Answer("noise", finding, meaning, "", advice)
    if not batch:
        meaning = "Gradient noise dominates smaller batches; larger ones gain little."
        advice = "Pass batch_size= to compare yours."
        return Answer("noise", finding, meaning, usual("noise_scale", ",.0f"), advice)
    ratio = batch / scale.value if scale.value else float("inf")
    if ratio > _MUCH:
        meaning = f"At your batch size of {batch}, the mean gradient dominates."
        advice = "A smaller batch would need few more steps."
    elif ratio < _LITTLE:
        meaning = f"At your batch size of {batch}, gradient noise dominates."
        advice = "A larger batch would need fewer steps."
    else:
        meaning = f"Your batch size of {batch} is close to it."
        advice = "Changing it would gain little."
    return Answer("noise", finding, meaning, usual("noise_scale", ",.0f"), advice)


def _pruning(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    share, pruned = numbers.get("subnetworks.prunable"), numbers.get("subnetworks.pruned")
    whole = numbers.get("subnetworks.baseline")
    if share is None or pruned is None or whole is None:
        return None
    metric = "accuracy" if "Accuracy" in whole.name else "loss"
    change = describe_change(metric, whole.value, pruned.value)
    some = f"{share.samples:,} samples, no retraining"
    if share.value == 1:
        finding = f"Zeroing all weights {change} ({some})."
        meaning = "By this metric the network has not learned anything on these samples."
        return Answer("pruning", finding, meaning, "", "Train it before you prune it.")
    finding = f"Zeroing the smallest {share.value:.0%} of the weights {change} ({some})."
    meaning = f"{share.certainty}."
    advice = "Prune with retraining only."
    if share.value >= _LITTLE:
        advice = "Check on held-out data with hr.prunable; retraining allows more."
    return Answer("pruning", finding, meaning, "", advice)


def _negative(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    ratio, smallest = numbers.get("hessian.negativity"), numbers.get("hessian.smallest")
    if ratio is None or smallest is None:
        return None
    if smallest.value + smallest.error >= 0:
        finding = f"No negative curvature found{_of(smallest, config)}."
        return Answer("negative", finding, "This is consistent with a local minimum.")
    part = f"{abs(ratio.value):.1%} of the sharpness{_of(smallest, config)}"
    finding = f"The smallest Hessian eigenvalue is {smallest.text()}, {part}."
    meaning = "The loss decreases along its eigenvector: the weights are not at a minimum."
    advice = "Further training would lower the loss." if ratio.value < -0.1 else ""
    return Answer("negative", finding, meaning, usual("negativity", ".0%"), advice)


def _trace(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    trace, top = numbers.get("gauss_newton.trace"), numbers.get("hessian.largest")
    if trace is None:
        return None
    meaning = "It is the sum of the curvatures along all weights."
    if top is not None and 0 < top.value <= trace.value and top.samples == trace.samples:
        meaning += f" That is {trace.value / top.value:.2g} times the sharpness."
    if trace.certainty == PROBES:
        meaning = f"The ± is that of random probes; {NOT_OVER_SAMPLES}. {meaning}"
    finding = f"The trace of the Gauss-Newton matrix is {trace.text()}{_of(trace, config)}."
    return Answer("trace", finding, meaning, usual("trace"))


def _loss(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    loss = numbers.get("model.loss")
    if loss is None:
        return None
    accuracy, gradient = numbers.get("model.accuracy"), numbers.get("model.gradient")
    right = "" if accuracy is None else f" and the accuracy {_percent(accuracy)}"
    slope = "" if gradient is None else f"The gradient has norm {gradient.value:.3g}."
    return Answer("loss", f"The loss is {loss.text()}{right}{_of(loss, config)}.", slope)


def _path(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    rest = numbers.get("manifold.stress")
    if rest is None:
        return None
    finding = f"Three dimensions hold {1 - rest.value:.1%} of the path of the predictions."
    meaning = "The predictions moved along few directions during training."
    if rest.value < _THIN:
        meaning = "Training followed a thin ribbon in the space of predictions."
    return Answer("path", finding, meaning)


_MAKERS = (_sharpness, _stability, _layers, _noise, _pruning, _path, _concentration, _negative)
_MAKERS += (_trace, _loss)
"""The answers, the most frequently needed first."""


def _of(quantity: Quantity, config: Config) -> str:
    """Return the mode behind a value, and its samples unless they are all, for its sentence."""
    if quantity.samples in (0, config.get("total")):
        return f" ({quantity.mode})" if quantity.mode else ""
    some = f" on {quantity.samples:,} samples"
    return f"{some}, {quantity.mode}" if quantity.mode else some


def _percent(quantity: Quantity) -> str:
    digits = 0 if quantity.error == 0 or quantity.error > 0.005 else 1
    if not quantity.error > 5e-4:
        return f"{quantity.value:.0%}"
    value, error = 100 * quantity.value, 100 * quantity.error
    solver = " (solver)" if "residual" in quantity.certainty else ""
    return f"{value:.{digits}f} ± {error:.{digits}f}%{solver}"
