"""The answers of an inspection, the most asked-for first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from hyperribbon.inspection.answers.reference import Reference
from hyperribbon.inspection.engine.quantities import NOT_OVER_SAMPLES, PROBES, SPAN, Quantity
from hyperribbon.inspection.engine.sampling import is_lower_bound

__all__ = ["Answer", "answers"]

MOST = 6
"""Answers that a person is shown at once."""
_SAFE = 0.8
"""Part of the stability limit below which a step is safe."""
_MUCH, _LITTLE = 2.0, 0.5
"""Batch sizes over the noise scale beyond which the mean gradient or the noise leads."""

Numbers = Mapping[str, Quantity]
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One thing that was found, for a person.

    Attributes:
        term: Name of the explanation in `TERMS`.
        finding: The number with its uncertainty.
        meaning: What it means.
        usual: What trained networks usually have, or "".
        advice: What one might do, or "".
    """

    term: str
    finding: str
    meaning: str
    usual: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """Everything in one paragraph."""
        return " ".join(filter(None, (self.finding, self.beside)))

    @property
    def beside(self) -> str:
        """Everything but the number."""
        return " ".join(filter(None, (self.meaning, self.usual, self.advice)))


def answers(numbers: Numbers, kind: str, config: Mapping[str, Any]) -> list[Answer]:
    """Return at most six answers, from the numbers that were measured."""
    reference = Reference.stored()

    def usual(statistic: str, format: str = "") -> str:
        return reference.usual(statistic, kind, format)

    found = [make(numbers, usual, config) for make in _MAKERS]
    return [answer for answer in found if answer is not None][:MOST]


Usual = Callable[..., str]


def _sharpness(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    found, least = numbers.get("hessian.largest"), numbers.get("hessian.least")
    if found is None and least is None:
        return None
    if found is None:
        assert least is not None
        finding = f"The sharpness is at least {least.value:.3g}{_of(least)}."
        meaning = "the time did not suffice to find the sharpest."
        meaning = f"So much the loss bends along one direction; {meaning}"
        advice = "Give a larger budget=, or fewer weights with params=."
        return Answer("sharpness", finding, meaning, usual("sharpness"), advice)
    advice = ""
    if config.get("is_normalised") and config.get("mode") == "eval":
        advice = "Batch norm changes it in training mode, where the stability limit is measured"
        advice += "." if "stability.ratio" in numbers else ": pass optimizer= to have it."
    elif found.value > 0 and "stability.ratio" not in numbers:
        advice = (
            f"Plain gradient descent is stable up to a rate of 2/λ = {2 / found.value:.2g}; "
            "pass optimizer= to have the limit of yours."
        )
    number, unsure = found.text(), ""
    if found.certainty.endswith(NOT_OVER_SAMPLES):
        number = f"{found.value:.4g}"
        unsure = f"That is of these samples; {NOT_OVER_SAMPLES}. "
    finding, meaning = f"The sharpness is {number}{_of(found)}.", "No direction bends upwards."
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
            f"{growth}; training may settle in a flatter place (edge of stability)."
        )
    elif ratio.value > _SAFE:
        meaning = (
            "It is near the limit: displacements along the sharpest direction decay slowly, and "
            "the loss may fall unsteadily (edge of stability)."
        )
    else:
        meaning = "It is stable."
    return Answer("stability", f"{finding}{_of(ratio)}.", meaning, "", margin)


def _concentration(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    few, many = numbers.get("gauss_newton.share10"), numbers.get("gauss_newton.share50")
    if few is None:
        return None
    beside = "" if many is None else f", and 50 hold {_percent(many)}"
    held = f"{_percent(few)} of the curvature{beside}{_of(few)}"
    finding = f"10 of {config.get('parameters', 0):,} directions hold {held}."
    meaning, advice = "The curvature is spread over many more directions.", ""
    if few.value > 0.5:
        meaning = "The loss feels these and is nearly flat along the rest."
        use = "as in Laplace approximations or preconditioners."
        advice = f"Few directions suffice for a low-rank picture of the curvature, {use}"
    _, said, directions = few.certainty.partition(f"{SPAN} ")
    if said:
        meaning = f"These samples span at most {directions}: more samples would spread it further."
        advice = ""
    return Answer("concentration", finding, meaning, usual("share10", ".0%"), advice)


def _layers(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    first = numbers.get("layers.first_share")
    if first is None:
        return None
    layer = first.name.partition("first layer, ")[2]
    held = f"{_percent(first)} of the curvature, more than any other layer{_of(first)}"
    advice = "If training is unsteady, lower the learning rate of this layer first; "
    advice = advice + "keep it out of pruning and low precision." if first.value > 0.5 else ""
    meaning = "A step there changes the outputs most."
    return Answer("layers", f"{layer} holds {held}.", meaning, "", advice)


def _noise(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    scale = numbers.get("noise.scale")
    if scale is None:
        return None
    if not isfinite(scale.value):
        return Answer("noise", "The mean gradient is zero.", "All that moves the weights is noise.")
    number = f"{scale.value:,.0f}" if scale.value >= 10 else f"{scale.value:.2g}"
    error = f" ± {scale.error:,.2g}" if scale.error > 0 else ""
    finding = f"At a batch of {number}{error} samples noise and signal are alike{_of(scale)}."
    batch = config.get("batch_size")
    if is_lower_bound(scale.value, scale.samples):
        # The mean gradient of so few samples is partly noise itself, and too long for that.
        finding = f"At a batch of {number} samples or more noise and signal are alike{_of(scale)}."
        few = "these samples are too few to say from where on larger ones buy little."
        larger = "larger batches would take fewer, steadier steps."
        leads = bool(batch) and batch <= scale.value
        advice = f"With {batch} samples noise leads: {larger}" if leads else ""
        return Answer("noise", finding, f"Smaller batches are mostly noise; {few}", "", advice)
    if not batch:
        meaning = "Smaller batches are mostly noise; larger ones buy little."
        advice = "Pass batch_size= to have yours judged."
        return Answer("noise", finding, meaning, usual("noise_scale", ",.0f"), advice)
    ratio = batch / scale.value if scale.value else float("inf")
    if ratio > _MUCH:
        meaning = f"With {batch} samples the mean gradient leads."
        advice = "Smaller batches would cost little in steps."
    elif ratio < _LITTLE:
        meaning = f"With {batch} samples noise leads."
        advice = "Larger batches would take fewer, steadier steps."
    else:
        meaning, advice = f"With {batch} samples both are alike.", "There is little to gain."
    return Answer("noise", finding, meaning, usual("noise_scale", ",.0f"), advice)


def _pruning(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    share = numbers.get("subnetworks.prunable")
    if share is None:
        return None
    finding = f"{share.value:.0%} of the weights can be zero, the smallest first: {share.method}."
    meaning = "Without any training afterwards, on these samples."
    advice = "Prune with retraining only."
    if share.value >= _LITTLE:
        advice = "Prune by magnitude and check on held-out data; retraining allows more."
    return Answer("pruning", finding, meaning, usual("prunable", ".0%"), advice)


def _negative(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    ratio, smallest = numbers.get("hessian.negativity"), numbers.get("hessian.smallest")
    if ratio is None or smallest is None:
        return None
    if smallest.value + smallest.error >= 0:
        finding = f"No direction bends downwards{_of(smallest)}."
        return Answer("negative", finding, "The weights lie in a minimum, as far as was seen.")
    part = f"{abs(ratio.value):.1%} of the sharpness{_of(smallest)}"
    finding = f"The lowest curvature is {smallest.text()}, {part}."
    meaning = "Along it the loss still falls on both sides: the weights are not at a minimum."
    advice = "Training on would lower the loss." if ratio.value < -0.1 else ""
    return Answer("negative", finding, meaning, usual("negativity", ".0%"), advice)


def _trace(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    trace, top = numbers.get("gauss_newton.trace"), numbers.get("hessian.largest")
    if trace is None:
        return None
    meaning = "It is the sum of the curvature along all weights."
    if top is not None and 0 < top.value <= trace.value and top.samples == trace.samples:
        meaning += f" It equals {trace.value / top.value:.3g} directions of the sharpest kind."
    if trace.certainty == PROBES:
        meaning = f"The ± is that of random probes; {NOT_OVER_SAMPLES}. {meaning}"
    finding = f"The trace of the Gauss-Newton matrix is {trace.text()}{_of(trace)}."
    return Answer("trace", finding, meaning, usual("trace"))


def _loss(numbers: Numbers, usual: Usual, config: Config) -> Answer | None:
    loss = numbers.get("model.loss")
    if loss is None:
        return None
    accuracy, gradient = numbers.get("model.accuracy"), numbers.get("model.gradient")
    right = "" if accuracy is None else f" and the accuracy {_percent(accuracy)}"
    slope = "" if gradient is None else f"The gradient has norm {gradient.value:.3g}."
    return Answer("loss", f"The loss is {loss.text()}{right}{_of(loss)}.", slope)


_MAKERS = (_sharpness, _stability, _concentration, _layers, _noise, _pruning, _negative)
_MAKERS += (_trace, _loss)
"""The answers, the most asked-for first."""


def _of(quantity: Quantity) -> str:
    """Say on how many samples a number is, and in which mode where that matters."""
    some = f" on {quantity.samples:,} samples" if quantity.samples else ""
    return f"{some}, {quantity.mode}" if quantity.mode else some


def _percent(quantity: Quantity) -> str:
    digits = 0 if quantity.error == 0 or quantity.error > 0.005 else 1
    if not quantity.error > 5e-4:
        return f"{quantity.value:.0%}"
    value, error = 100 * quantity.value, 100 * quantity.error
    return f"{value:.{digits}f} ± {error:.{digits}f}%"
