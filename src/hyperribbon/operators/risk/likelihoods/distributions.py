"""Likelihoods that are torch distributions with the outputs as parameters."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import distributions as td

from hyperribbon.core.boundary import function as check_function
from hyperribbon.core.checks import ArgumentError, check_positive
from hyperribbon.core.devices.gpus import gpu_numbers
from hyperribbon.core.generators import derive_seed
from hyperribbon.operators.risk.likelihoods.base import Likelihood, draw
from hyperribbon.operators.risk.losses.base import one_element_each, wide

__all__ = ["Bernoulli", "FromDistribution", "Laplace", "Poisson", "StudentT"]

_TOGETHER = 2**14  # samples and draws whose scores are computed together
_Coordinates = list[tuple[torch.Tensor, torch.Tensor]]


class FromDistribution(Likelihood):
    """p(y | f) of a function f -> torch.distributions.Distribution.

    For instance `lambda f: Normal(f[:, 0], softplus(f[:, 1]))`, of a model that predicts mean and
    spread. The distribution's first batch axis counts samples; its other axes are independent
    observations.

    With parameters (or log-probabilities) θ(f) whose information is diagonal with entries w,
    I(f) = (∂θ/∂f)ᵀ diag(w) (∂θ/∂f). Such w are known for Normal, LogNormal, Laplace, StudentT (with
    a fixed ν), Bernoulli, Poisson, Exponential and Geometric, and for every distribution on
    finitely many values, where θ are their log-probabilities and w their probabilities. Others have
    the estimators "mc" and "empirical" only, from gradients of log p. Draws are by the inverse
    distribution function where torch has it, else sample by sample, which takes longer.

    Args:
        function: Takes outputs (n, …), in single or double precision.
    """

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        self._function = check_function("function", function)

    def rows(self, outputs: torch.Tensor) -> int:
        """Return the number of a sample's θ."""
        with torch.enable_grad():
            _, coordinates = self._coordinates(outputs[:1])
        return sum(weight[0].numel() for _, weight in coordinates)

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return (∂θ/∂f)ᵀ (w∘(∂θ/∂f)u)."""
        with torch.enable_grad():
            leaf, coordinates = self._coordinates(outputs)
            result = torch.zeros_like(wide(block))
            for theta, weight in coordinates:
                back = torch.zeros_like(theta, requires_grad=True)
                pulled = _grad(theta, leaf, back, create_graph=True)
                for u, total in zip(wide(block), result, strict=True):
                    along = _grad(pulled, back, u)
                    total += _grad(theta, leaf, weight * along)
        return result.to(block.dtype)

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return √w_j ∂θ_j/∂f, one row a θ."""
        with torch.enable_grad():
            leaf, coordinates = self._coordinates(outputs)
            rows = [
                _grad(theta, leaf, row)
                for theta, weight in coordinates
                for row in one_element_each(weight.sqrt())
            ]
        return torch.stack(rows).to(outputs.dtype)

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return −∂log p(y|f)/∂f."""
        with torch.enable_grad():
            leaf = wide(outputs.detach()).requires_grad_()
            try:
                with _validated():
                    chance = self._at(leaf).log_prob(targets)
            except (ValueError, RuntimeError) as error:
                reason = f"the likelihood's distribution does not take them: {error}"
                remedy = "Give values that it can have, one per sample."
                raise ArgumentError("targets", targets, reason, remedy) from None
            if chance.shape[:1] != outputs.shape[:1]:
                reason = f"log p has shape {tuple(chance.shape)} for {len(outputs)} samples"
                remedy = "Give targets of the shape that the distribution draws."
                raise ArgumentError("targets", targets, reason, remedy)
            return -_grad(chance.sum(), leaf, None).to(outputs.dtype)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return −∂log p(y|f)/∂f of drawn y."""
        with torch.no_grad():
            drawn = self._drawn(wide(outputs), samples, seed)
        scores: list[torch.Tensor] = []
        for targets in drawn.split(max(1, _TOGETHER // len(outputs))):
            every = outputs.expand(len(targets), *outputs.shape)
            found = self.score(every.flatten(0, 1), inputs, targets.flatten(0, 1))
            scores.append(found.reshape(every.shape))
        return torch.cat(scores)

    def _drawn(self, outputs: torch.Tensor, samples: int, seed: tuple[int, int]) -> torch.Tensor:
        """Return targets (samples, n, …), each from random numbers of its place in the data."""
        inner = _inside(self._at(outputs))
        uniform = draw(torch.rand, seed, samples, inner.batch_shape).to(outputs)
        tiny = torch.finfo(outputs.dtype).eps / 4
        uniform = uniform.clamp(tiny, 1 - torch.finfo(outputs.dtype).eps / 2)
        try:
            return inner.icdf(uniform)
        except NotImplementedError:
            pass
        if not inner.has_enumerate_support or inner.event_shape:
            return self._drawn_singly(outputs, samples, seed)
        values = inner.enumerate_support()
        below = inner.log_prob(values).exp().double().cumsum(0).unsqueeze(1) < uniform
        place = below.sum(0).clamp(max=len(values) - 1)
        return values.expand(len(values), *inner.batch_shape).gather(0, place)

    def _drawn_singly(
        self, outputs: torch.Tensor, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return targets drawn by the distribution itself, sample after sample."""
        stream, start = seed
        drawn: list[torch.Tensor] = []
        with torch.random.fork_rng(devices=gpu_numbers()):
            for place, output in enumerate(outputs.split(1)):
                torch.manual_seed(derive_seed(stream, "fisher", start + place))
                drawn.append(self._at(output).sample((samples,)))
        return torch.cat(drawn, dim=1)

    def _at(self, outputs: torch.Tensor) -> td.Distribution:
        try:
            with _validated():
                distribution = self._function(outputs)
        except ArgumentError:
            raise
        except ValueError as error:
            reason = f"its distribution does not take the outputs: {error}"
            remedy = (
                "Bring them to its parameters' range, as in Normal(f[:, 0], softplus(f[:, 1]))."
            )
            raise ArgumentError("likelihood", self._function, reason, remedy) from None
        shape = getattr(distribution, "batch_shape", None)
        if not isinstance(distribution, td.Distribution) or not shape or shape[0] != len(outputs):
            reason = f"it is no distribution with one entry for each of {len(outputs)} samples"
            remedy = (
                "Return a torch.distributions.Distribution whose first batch axis counts samples."
            )
            raise ArgumentError("likelihood", distribution, reason, remedy)
        return distribution

    def _coordinates(self, outputs: torch.Tensor) -> tuple[torch.Tensor, _Coordinates]:
        """Return a leaf f, and θ(f) with their information w, (n, …) each.

        Raises:
            ArgumentError: They are not known for this distribution.
        """
        leaf = wide(outputs.detach()).requires_grad_()
        inner = _inside(self._at(leaf))
        known = [pair for pair in _information(inner) if pair[0].requires_grad]
        if not known:
            reason = f"the information of {type(inner).__name__} has no closed form here"
            remedy = "Use estimator='mc', or 'empirical' with targets."
            raise ArgumentError("estimator", "exact", reason, remedy)
        return leaf, [(theta, weight.detach()) for theta, weight in known]


class Bernoulli(FromDistribution):
    """Coins y of probability σ(f); I = σ(f)σ(−f)."""

    def __init__(self) -> None:
        super().__init__(lambda f: td.Bernoulli(logits=f))


class Poisson(FromDistribution):
    """Counts y of rate e^f; I = e^f."""

    def __init__(self) -> None:
        super().__init__(lambda f: td.Poisson(f.exp()))


class Laplace(FromDistribution):
    """Noise with density e^(−|r|)/2 around the outputs; I = 1/scale².

    Args:
        scale: b, a number or one per output.
    """

    def __init__(self, scale: float | torch.Tensor = 1.0) -> None:
        _check_scale(scale)
        super().__init__(lambda f: td.Laplace(f, _scale_of(scale, f)))


class StudentT(FromDistribution):
    """Student's t noise of ν degrees of freedom; I = (ν + 1)/((ν + 3)·scale²).

    Args:
        df: ν.
        scale: A number or one per output.
    """

    def __init__(self, df: float, scale: float | torch.Tensor = 1.0) -> None:
        _check_scale(scale)
        info = torch.finfo(torch.float32)
        if not info.tiny <= check_positive("df", df) <= info.max:
            raise ArgumentError("df", df, "it is outside the range of float32", "Give df=4.")
        super().__init__(lambda f: td.StudentT(f.new_tensor(df), f, _scale_of(scale, f)))


def _check_scale(scale: float | torch.Tensor) -> None:
    if not isinstance(scale, torch.Tensor):
        check_positive("scale", scale)
    elif not bool((scale > 0).all()):
        raise ArgumentError("scale", scale, "a scale is positive", "Give positive numbers.")


def _scale_of(given: float | torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    scale = torch.as_tensor(given, dtype=outputs.dtype, device=outputs.device)
    if scale.ndim and scale.shape != outputs.shape[1:]:
        reason = f"the outputs of a sample have shape {tuple(outputs.shape[1:])}"
        raise ArgumentError("scale", scale, reason, "Give one scale for all, or one per output.")
    if not bool(scale.square().reciprocal().isfinite().all()):
        raise ArgumentError("scale", given, f"1/scale² overflows in {outputs.dtype}", "Give more.")
    return scale


def _inside(distribution: object) -> td.Distribution:
    """Return the distribution of single observations."""
    while type(distribution) is td.Independent:
        distribution = cast(Any, distribution).base_dist
    return cast(td.Distribution, distribution)


def _information(inner: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield parameters and the diagonal of their information; nothing where it is not known."""
    kind = type(cast(object, inner))
    if kind in (td.Normal, td.LogNormal):
        precision = inner.scale.square().reciprocal()
        yield inner.loc, precision
        yield inner.scale, 2 * precision
    elif kind is td.Laplace:
        precision = inner.scale.square().reciprocal()
        yield inner.loc, precision
        yield inner.scale, precision
    elif kind is td.StudentT and not inner.df.requires_grad:
        precision = 1 / ((inner.df + 3) * inner.scale.square())
        yield inner.loc, (inner.df + 1) * precision
        yield inner.scale, 2 * inner.df * precision
    elif kind is td.Bernoulli:
        yield inner.logits, torch.sigmoid(inner.logits) * torch.sigmoid(-inner.logits)
    elif kind is td.Poisson:
        yield inner.rate, 1 / inner.rate
    elif kind is td.Exponential:
        yield inner.rate, inner.rate.square().reciprocal()
    elif kind is td.Geometric:
        yield inner.probs, 1 / (inner.probs.square() * (1 - inner.probs))
    elif inner.has_enumerate_support:
        chances = inner.log_prob(inner.enumerate_support()).movedim(0, -1)
        yield chances, chances.exp()


def _grad(
    output: torch.Tensor, leaf: torch.Tensor, along: torch.Tensor | None, create_graph: bool = False
) -> torch.Tensor:
    (found,) = torch.autograd.grad(
        output, leaf, along, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )
    return found


@contextmanager
def _validated() -> Generator[None]:
    """Let distributions check their arguments; torch.compile turns that off for a whole process."""
    before = td.Distribution._validate_args
    td.Distribution.set_default_validate_args(True)
    try:
        yield
    finally:
        td.Distribution.set_default_validate_args(before)
