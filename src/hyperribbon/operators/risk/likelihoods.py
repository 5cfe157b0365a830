"""Likelihoods of a Fisher matrix: information, its root, and scores of drawn or given targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import distributions as td

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_choice,
    check_positive,
    check_readable,
)
from hyperribbon.core.checks import function as check_function
from hyperribbon.core.devices.gpus import gpu_numbers
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.operators.risk import softmax
from hyperribbon.operators.risk.loss import one_element_each, wide
from hyperribbon.operators.risk.torch_losses import CrossEntropyLoss

_GROUP = 64  # neighbouring samples whose random numbers come from one generator


class Likelihood(ABC):
    """p(y | f) of outputs f (n, …), for subclasses to define.

    Its parts are what a Fisher matrix needs in the space of the outputs: `information` and `root`
    for estimator="exact", `draw_scores` for "mc" and `score` for "empirical". Results have the
    precision of the outputs.

    Attributes:
        is_constant: Whether the noise on the outputs, or on their softmax, is the same for all.
    """

    is_constant: bool = False

    def rows(self, outputs: torch.Tensor) -> int:
        """Return the number of rows of a likelihood's `root`: a sample's outputs by default."""
        return outputs[0].numel()

    @abstractmethod
    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return a likelihood's I(f) u for a block u (k, n, …), I = E_y[∂log p ∂log pᵀ]."""

    @abstractmethod
    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return a likelihood's rows R (`rows`, n, …) with Σ_j R_j R_jᵀ = I(f_n)."""

    @abstractmethod
    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return a likelihood's score −∂log p(y|f)/∂f, shaped like the outputs."""

    @abstractmethod
    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return a likelihood's scores (samples, n, …) of targets drawn from p.

        The seed holds the number of the stream and the position of the first sample, so that a
        sample's draws do not depend on how the data are cut.
        """


def check_shape(targets: Any, outputs: torch.Tensor) -> None:
    """Raise when a likelihood's targets do not have the shape of the outputs."""
    if isinstance(targets, torch.Tensor) and targets.shape == outputs.shape:
        return
    reason = f"the outputs have shape {tuple(outputs.shape)}"
    raise ArgumentError("targets", targets, reason, "Give targets of the same shape.")


def draw(
    sampler: Callable[..., torch.Tensor], seed: tuple[int, int], samples: int, shape: torch.Size
) -> torch.Tensor:
    """Draw random numbers (samples, *shape) of a likelihood for data positions from seed[1] on."""
    stream, start = seed
    groups = range(start // _GROUP, (start + shape[0] - 1) // _GROUP + 1)
    drawn = [
        sampler(
            _GROUP,
            samples,
            *shape[1:],
            generator=torch_generator(stream, "fisher", group),
            dtype=torch.float64,
            device="cpu",
        )
        for group in groups
    ]
    offset = start - groups.start * _GROUP
    return torch.cat(drawn)[offset : offset + shape[0]].transpose(0, 1)


class Categorical(Likelihood):
    """Classes with probabilities softmax(f), over the second axis of the outputs.

    Every position of outputs (n, C, …) is one observation.
    """

    def __init__(self) -> None:
        self._loss = CrossEntropyLoss(torch.nn.CrossEntropyLoss(reduction="sum"))

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the categorical likelihood's information (diag p − ppᵀ) u."""
        return softmax.covariance_product(class_probabilities(outputs), block).to(block.dtype)

    def rows(self, outputs: torch.Tensor) -> int:
        """Return the number of rows of the categorical likelihood's root: C − 1 per position."""
        return outputs[0, 1:].numel()

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return the root of the categorical likelihood's information, of C − 1 rows."""
        rows = softmax.covariance_root(class_probabilities(outputs))
        return softmax.one_position_each(rows.to(outputs.dtype))

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return the categorical likelihood's score p − e_y."""
        self._loss.check(outputs, targets)
        return self._loss.gradient(outputs, targets)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return the categorical likelihood's scores p − e_y of drawn classes y."""
        p = class_probabilities(outputs)
        uniform = draw(torch.rand, seed, samples, p[:, 0].shape)
        below = p.double().cumsum(1).unsqueeze(0) < uniform.to(p.device).unsqueeze(2)
        drawn = below.sum(2).clamp(max=p.shape[1] - 1)
        every = p.expand(samples, *p.shape).flatten(0, 1)
        scores = softmax.residual(every, softmax.one_hot(drawn.flatten(0, 1), every))
        return scores.reshape(samples, *p.shape).to(outputs.dtype)


def class_probabilities(outputs: torch.Tensor) -> torch.Tensor:
    """Return the categorical likelihood's softmax of outputs (n, C, …), in float32 at least."""
    if outputs.ndim < 2:
        raise ArgumentError(
            "model", outputs, "its outputs have no class axis", "Return logits of shape (n, C, …)."
        )
    return softmax.probabilities(outputs)


class Gaussian(Likelihood):
    """Normal noise of covariance Σ on the outputs, or on their softmax.

    Args:
        variance: σ², variances (D,) or Σ (D, D) of the D outputs of a sample, or a function of the
            inputs returning (n,), (n, D) or (n, D, D).
        space: "model" or "softmax".
    """

    def __init__(
        self,
        variance: float | torch.Tensor | Callable[[Any], torch.Tensor] = 1.0,
        space: str = "model",
    ) -> None:
        check_choice("space", space, ("model", "softmax"))
        if not isinstance(variance, torch.Tensor) and not callable(variance):
            variance = torch.from_numpy(check_array("variance", variance).copy())
            if not variance.ndim:
                check_positive("variance", float(variance))
        self._variance, self._space = variance, space
        self.is_constant = not callable(variance)

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return the Gaussian likelihood's Σ⁻¹u, or SΣ⁻¹S u with the softmax Jacobian S."""
        factor = self._factor(outputs, inputs)
        inner = _rows(self._through_softmax(outputs, wide(block)))
        solved = _solve_both(factor, inner).reshape(block.shape)
        return self._through_softmax(outputs, solved).to(block.dtype)

    def root(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return the root of the Gaussian likelihood's information: L⁻¹, Σ = LLᵀ, or L⁻¹S."""
        units = one_element_each(torch.ones_like(outputs))
        return self._whiten(outputs, inputs, units)

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return the Gaussian likelihood's score Σ⁻¹(f − y), or SΣ⁻¹(p − y)."""
        means = wide(outputs) if self._space == "model" else class_probabilities(outputs)
        if self._space == "softmax" and not targets.is_floating_point():
            difference = softmax.residual(means, softmax.one_hot(targets, means))
        else:
            check_shape(targets, outputs)
            difference = means - targets
        factor = self._factor(outputs, inputs)
        solved = _solve_both(factor, _rows(difference.unsqueeze(0)))
        scores = self._through_softmax(outputs, solved.reshape(1, *outputs.shape))
        return scores[0].to(outputs.dtype)

    def draw_scores(
        self, outputs: torch.Tensor, inputs: Any, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return the Gaussian likelihood's −L⁻ᵀz of standard normal z: Σ⁻¹(f − y) of drawn y."""
        normal = draw(torch.randn, seed, samples, outputs.shape)
        return self._whiten(outputs, inputs, normal.to(wide(outputs)))

    def _whiten(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return L⁻ᵀu (times S) of the Gaussian likelihood, for a block u (k, n, …)."""
        factor = self._factor(outputs, inputs)
        solved = _solve(factor, _rows(wide(block)), transposed=True).reshape(block.shape)
        return self._through_softmax(outputs, solved).to(outputs.dtype)

    def _through_softmax(self, outputs: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        if self._space == "model":
            return block
        return softmax.covariance_product(class_probabilities(outputs), block)

    def _factor(self, outputs: torch.Tensor, inputs: Any) -> torch.Tensor:
        """Return L of the Gaussian likelihood's Σ = LLᵀ: diagonal (n or 1, D or 1), or all of it.

        Raises:
            ArgumentError: Σ has another shape or is not positive definite.
        """
        size = outputs[0].numel()
        variance = self._variance(inputs) if callable(self._variance) else self._variance
        check_readable("variance", variance)
        dtype = wide(outputs[:0]).dtype
        sigma = torch.as_tensor(variance, dtype=dtype, device=outputs.device)
        if not callable(self._variance):
            sigma = sigma.unsqueeze(0)
        sigma = sigma.unsqueeze(1) if sigma.ndim == 1 else sigma
        fits = sigma.shape[1:] in ((1,), (size,), (size, size))
        if not fits or len(sigma) not in (1, len(outputs)):
            remedy = (
                f"Give σ², Σ of shape ({size}, {size}), or a function returning (n, …) of them."
            )
            raise ArgumentError("variance", sigma, f"a sample has {size} outputs", remedy)
        if sigma.ndim == 2:
            factor, right = sigma.sqrt(), bool((sigma > 0).all())
        else:
            factor, info = torch.linalg.cholesky_ex(sigma)
            right = not bool((info != 0).any())
        if not right:
            raise ArgumentError(
                "variance", sigma, "Σ is not positive definite", "Give a covariance matrix."
            )
        return factor


def _rows(block: torch.Tensor) -> torch.Tensor:
    """Return a block (k, n, …) with one axis of outputs, as Gaussian likelihoods take it."""
    return block.reshape(*block.shape[:2], -1)


def _solve(factor: torch.Tensor, block: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    """Return L⁻¹u, or L⁻ᵀu, of a Gaussian likelihood's Σ = LLᵀ, for a block u (k, n, D)."""
    if factor.ndim == 2:
        return block / factor
    matrix, flat = factor.mT if transposed else factor, block.permute(1, 2, 0)
    return torch.linalg.solve_triangular(matrix, flat, upper=transposed).permute(2, 0, 1)


def _solve_both(factor: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Return a Gaussian likelihood's Σ⁻¹u = L⁻ᵀL⁻¹u for a block u (k, n, D)."""
    return _solve(factor, _solve(factor, block, transposed=False), transposed=True)


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
        """Return the number of parameters θ of a likelihood's distribution."""
        with torch.enable_grad():
            _, coordinates = self._coordinates(outputs[:1])
        return sum(weight[0].numel() for _, weight in coordinates)

    def information(self, outputs: torch.Tensor, inputs: Any, block: torch.Tensor) -> torch.Tensor:
        """Return a likelihood's information (∂θ/∂f)ᵀ (w∘(∂θ/∂f)u) of its parameters θ."""
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
        """Return a likelihood's root: √w_j ∂θ_j/∂f, one row per parameter θ of a distribution."""
        with torch.enable_grad():
            leaf, coordinates = self._coordinates(outputs)
            rows = [
                _grad(theta, leaf, row)
                for theta, weight in coordinates
                for row in one_element_each(weight.sqrt())
            ]
        return torch.stack(rows).to(outputs.dtype)

    def score(self, outputs: torch.Tensor, inputs: Any, targets: Any) -> torch.Tensor:
        """Return the score −∂log p(y|f)/∂f of a likelihood given as a distribution."""
        with torch.enable_grad():
            leaf = wide(outputs.detach()).requires_grad_()
            try:
                with _validate_arguments():
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
        """Return scores −∂log p(y|f)/∂f of y drawn from a likelihood's distribution."""
        with torch.no_grad():
            drawn = self._draw_values(wide(outputs), samples, seed)
        scores: list[torch.Tensor] = []
        for targets in drawn.split(max(1, _TOGETHER // len(outputs))):
            every = outputs.expand(len(targets), *outputs.shape)
            found = self.score(every.flatten(0, 1), inputs, targets.flatten(0, 1))
            scores.append(found.reshape(every.shape))
        return torch.cat(scores)

    def _draw_values(
        self, outputs: torch.Tensor, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return targets drawn from a likelihood, each from random numbers of its place."""
        inner = _inside(self._at(outputs))
        uniform = draw(torch.rand, seed, samples, inner.batch_shape).to(outputs)
        tiny = torch.finfo(outputs.dtype).eps / 4
        uniform = uniform.clamp(tiny, 1 - torch.finfo(outputs.dtype).eps / 2)
        try:
            return inner.icdf(uniform)
        except NotImplementedError:
            pass
        if not inner.has_enumerate_support or inner.event_shape:
            return self._draw_singly(outputs, samples, seed)
        values = inner.enumerate_support()
        below = inner.log_prob(values).exp().double().cumsum(0).unsqueeze(1) < uniform
        place = below.sum(0).clamp(max=len(values) - 1)
        return values.expand(len(values), *inner.batch_shape).gather(0, place)

    def _draw_singly(
        self, outputs: torch.Tensor, samples: int, seed: tuple[int, int]
    ) -> torch.Tensor:
        """Return targets that a likelihood's distribution draws itself, sample after sample."""
        stream, start = seed
        drawn: list[torch.Tensor] = []
        with torch.random.fork_rng(devices=gpu_numbers()):
            for place, output in enumerate(outputs.split(1)):
                torch.manual_seed(derive_seed(stream, "fisher", start + place))
                drawn.append(self._at(output).sample((samples,)))
        return torch.cat(drawn, dim=1)

    def _at(self, outputs: torch.Tensor) -> td.Distribution:
        try:
            with _validate_arguments():
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
            reason = (
                "its function returned no distribution with one entry for each of "
                f"{len(outputs)} samples"
            )
            remedy = (
                "Return a torch.distributions.Distribution whose first batch axis counts samples."
            )
            raise ArgumentError("likelihood", distribution, reason, remedy)
        return distribution

    def _coordinates(self, outputs: torch.Tensor) -> tuple[torch.Tensor, _Coordinates]:
        """Return a leaf f, and a likelihood's θ(f) with their information w, (n, …) each.

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
    check_readable("scale", scale)
    if not isinstance(scale, torch.Tensor):
        check_positive("scale", scale)
    elif not bool((scale > 0).all()):
        raise ArgumentError("scale", scale, "expected positive scales", "Give positive numbers.")


def _scale_of(given: float | torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    scale = torch.as_tensor(given, dtype=outputs.dtype, device=outputs.device)
    if scale.ndim and scale.shape != outputs.shape[1:]:
        reason = f"the outputs of a sample have shape {tuple(outputs.shape[1:])}"
        raise ArgumentError("scale", scale, reason, "Give one scale for all, or one per output.")
    if not bool(scale.square().reciprocal().isfinite().all()):
        raise ArgumentError(
            "scale", given, f"1/scale² overflows in {outputs.dtype}", "Give a larger scale."
        )
    return scale


def _inside(distribution: object) -> td.Distribution:
    """Return the likelihood's distribution of single observations."""
    while type(distribution) is td.Independent:
        distribution = cast(Any, distribution).base_dist
    return cast(td.Distribution, distribution)


def _information(inner: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield a likelihood's parameters and the diagonal of their information, where known."""
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
def _validate_arguments() -> Generator[None]:
    """Let likelihoods' distributions check arguments, which torch.compile turns off."""
    before = td.Distribution._validate_args
    td.Distribution.set_default_validate_args(True)
    try:
        yield
    finally:
        td.Distribution.set_default_validate_args(before)
