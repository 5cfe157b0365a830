"""Curvature and gradient of the loss followed through a training, on a fixed small sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from math import inf
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.application.inspection.copies import TRAINED
from hyperribbon.application.inspection.engine.subject import GradientRows, Subject
from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators import Hessian, Risk
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.prediction.update_rules import update_rule
from hyperribbon.recording import Measurement
from hyperribbon.spectra import Tracker

_FEWEST = 8  # samples
_COLD, _WARM = 20.0, 10.0  # products that a first spectrum and later ones usually take


class Curvature:
    """The k largest eigenvalues of the Hessian at every record, each started from the last ones.

    The loss is that of a fixed sample, drawn once: numbers of one run compare with each other to
    the accuracy of the solver, and with the loss of all data to the accuracy of so many samples.
    Where a Recorder limits the time and so many samples would leave a run with few points, the
    sample is halved, to eight at the least, before the first measurement; not where the loss of
    fewer samples is another objective, as with batch norm and contrastive losses.
    Batch norm has the statistics of the sample, as in training, and dropout is off. With an
    optimiser whose limit is one number (SGD with one learning rate, momentum and decay), the
    largest curvature at which its step is stable stands beside it: 2/η, with momentum
    2(1 + β)/η; see `hr.prediction.update_rules`.

    As a measurement of a Recorder it gives "name" (the largest eigenvalue), "name.error" (how far
    the solver may be off), "name.samples" (those of the sample), "name.limit", and for several
    eigenvalues "name.eigenvalues". Eigenvalues that did not converge are left out.

    Attributes:
        note: What the numbers are of.
        is_fitted: Whether the number of samples is decided.
        next_seconds: How long the next measurement may take.
        usual_seconds: How long one takes that starts from the last.

    Args:
        k: Eigenvalues.
        samples: Samples of the fixed sample, at most.
        params: Which parameters are coordinates: a name of a parameter or module, a pattern, a
            list or a predicate.
        forward: As for `hr.Risk`.
        mode: "train" for the mode in which one trains, dropout off: batch norm has the statistics
            of the sample as one batch, or of the batches that the data come in. "eval" for
            evaluation mode, None for the mode that each layer is in when the run begins.
        tol: Largest residual of an eigenpair relative to the eigenvalue.
        seed: Seed of the sample and the solver.
    """

    @validate(k=checks.count, samples=checks.count, tol=checks.positive)
    def __init__(
        self,
        k: int = 1,
        *,
        samples: int = 64,
        params: ParameterFilter = None,
        forward: Forward | None = None,
        mode: str | None = "train",
        tol: float = 1e-2,
        seed: int = 0,
    ) -> None:
        self.samples, self.seed = samples, seed
        self._params, self._forward = params, forward
        self._mode = TRAINED if mode == "train" else mode
        self._tracker = Tracker(k, tol=tol, seed=seed)
        self._whole: Subject | None = None
        self._subject: Subject | None = None
        self._optimizer: Any = None
        self._fewest = self.samples
        self._cold = _COLD  # products of the last measurement from a cold start
        self.note, self.is_fitted = "", False
        self.next_seconds = self.usual_seconds = inf
        import_module("torch.fx.experimental.symbolic_shapes")  # else the first product does so

    def begin(self, model: nn.Module, optimizer: Any, loss: Any, data: Any) -> None:
        """Draw the samples of the recorded curvature; called by the Recorder before the run.

        Raises:
            ArgumentError: The data are missing, or the loss of a model without a loss of its own.
        """
        if data is None:
            reason = "measuring curvature needs the data of the training"
            remedy = (
                "Give them to the recorder: hr.Recorder(..., measure='sharpness', loss=loss, "
                "data=(inputs, targets))."
            )
            raise ArgumentError("data", None, reason, remedy)
        options = {"params": self._params, "forward": self._forward, "mode": self._mode}
        self._whole = Subject(model, loss, data, **options)
        self._optimizer = optimizer
        self._tracker.reset()
        self._subject, self.is_fitted = None, False
        self._draw(self.samples)
        # Fewer samples would be another objective: of batch statistics, of samples compared.
        is_whole = self._drawn.risk.must_be_whole
        self._fewest = self.samples if is_whole else min(_FEWEST, self.samples)

    def fit_to(self, model: nn.Module, seconds: float, *, is_final: bool) -> None:
        """Choose how many samples curvature is recorded on, so that it takes no longer than given.

        Called by a Recorder at its first records, until it is decided.

        Args:
            model: The model that trains.
            seconds: What a measurement may take.
            is_final: Whether to decide on fewer samples than asked for, if need be.
        """
        number = self._fewest
        while True:
            self._draw(number)
            first, product = self._time_products(model)
            if number >= self.samples or 2 * (first + _WARM * product) > seconds:
                break
            number = min(2 * number, self.samples)
        if number >= self.samples or is_final:
            self._decide(model)
            self.usual_seconds = first + _WARM * product
            self.next_seconds = first + self._cold * product

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        """Return the recorded curvatures: the Hessian eigenvalues at the present weights."""
        self._prepare(model)
        begun, is_cold = perf_counter(), self._tracker.is_cold
        spectrum = self._tracker(self._hessian(model))
        seconds = perf_counter() - begun
        self.usual_seconds = seconds
        if is_cold:
            self._cold = float(spectrum.matvecs)
            self.usual_seconds *= min(_WARM / spectrum.matvecs, 1.0)
        self.next_seconds = self.usual_seconds
        if self._tracker.is_cold:
            self.next_seconds *= max(self._cold / _WARM, 1.0)
        found: dict[str, Any] = {}
        if bool(spectrum.converged.all()):
            found[""] = float(spectrum.eigenvalues[0])
            found["error"] = float(spectrum.residuals[0])
            found["samples"] = float(self._drawn.samples)
            if len(spectrum) > 1:
                found["eigenvalues"] = spectrum.eigenvalues
        limit = self._limit(model)
        return found if limit is None else {**found, "limit": limit}

    def _prepare(self, model: nn.Module) -> None:
        """Draw the samples of the recorded curvature where no Recorder has chosen them."""
        if self._whole is None:
            reason = "the run has not begun"
            raise ArgumentError("model", None, reason, "Let a Recorder call it, or call begin().")
        if not self.is_fitted:
            self._draw(self.samples)
            self._decide(model)

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which the next recorded curvature starts."""
        tracker = self._tracker.state_dict()
        seconds = self.next_seconds, self.usual_seconds, self._cold
        return {
            "tracker": tracker,
            "number": self._number if self.is_fitted else 0,
            "seconds": seconds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the recorded curvature."""
        self._tracker.load_state_dict(state["tracker"])
        seconds: tuple[float, float, float] = state["seconds"]
        self.next_seconds, self.usual_seconds, self._cold = seconds
        if state["number"]:
            self._draw(int(state["number"]))
            self._decide(self._drawn.model)

    @property
    def _drawn(self) -> Subject:
        assert self._subject is not None
        return self._subject

    def _draw(self, number: int) -> None:
        """Draw the samples on which curvature is recorded."""
        assert self._whole is not None
        before, self._number = self._subject, number
        self._subject = self._whole.with_samples(number, self.seed)
        if before is not None:
            self._subject.know(before)

    def _decide(self, model: nn.Module) -> None:
        """Choose the samples on which curvature is recorded, once."""
        self.is_fitted, rule = True, self._rule(model)
        fewer = f", {self.samples} would have taken too long" if self._number < self.samples else ""
        self.note = f"of the loss on {self._drawn.where()}{fewer}" + (f"; {rule}" if rule else "")

    def _risk(self, model: nn.Module) -> Risk:
        """Return the risk of the recorded curvature at the model's present weights."""
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        state = self._drawn.risk.function.state
        known = {name: tensor for name, tensor in tensors.items() if name in state}
        return self._drawn.risk.at(known)

    def _hessian(self, model: nn.Module) -> Hessian:
        return Hessian(self._risk(model))

    def _time_products(self, model: nn.Module) -> tuple[float, float]:
        """Return the seconds of the recorded curvature's first product, and of a further one."""
        hessian, seconds = self._hessian(model), []
        vector = torch.ones(hessian.shape[0], dtype=hessian.dtype, device=hessian.device)
        for _ in range(4):
            begun = perf_counter()
            _ = hessian @ vector
            seconds.append(perf_counter() - begun)
        return seconds[0], min(seconds[1:])

    def _limit(self, model: nn.Module) -> float | None:
        """Return the largest stable recorded curvature, where the optimiser has one."""
        try:
            rule = update_rule(self._optimizer, model)
        except (ArgumentError, TypeError):
            return None
        if isinstance(rule.rates, Mapping) or isinstance(rule.weight_decay, Mapping):
            return None
        return rule.limit / rule.rates - rule.weight_decay if rule.rates > 0 else None

    def _rule(self, model: nn.Module) -> str:
        """Return in words what stability limit stands beside the recorded curvature."""
        if not isinstance(self._optimizer, torch.optim.Optimizer):
            return ""
        if self._limit(model) is not None:
            return f"limit of the step with {update_rule(self._optimizer, model).text}"
        kind = type(self._optimizer).__name__
        return f"no stability limit shown: that of {kind} is not a limit of the Hessian itself"


class GradientStatistics(Curvature):
    """Statistics of the gradient at every record, on the same kind of sample as `Curvature`.

    As a measurement of a Recorder it gives "name" (the norm of the mean gradient), "name.largest"
    (its largest entry in absolute value), "name.layers" (its norm in each layer, in the order of
    `layers`), "name.noise_scale" (tr C/‖∇L‖², the critical batch size; not where samples have no
    gradients of their own, as with batch norm) and "name.samples".

    Args:
        samples: Samples of the fixed sample, at most.
        params: As for `Curvature`.
        forward: As for `hr.Risk`.
        mode: As for `Curvature`.
        seed: Seed of the sample.
    """

    def __init__(
        self,
        *,
        samples: int = 256,
        params: ParameterFilter = None,
        forward: Forward | None = None,
        mode: str | None = "train",
        seed: int = 0,
    ) -> None:
        super().__init__(samples=samples, params=params, forward=forward, mode=mode, seed=seed)

    @property
    def layers(self) -> list[str]:
        """Names of the layers whose gradient is recorded beside the curvature."""
        return list(self._drawn.risk.space.layers())

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        """Return the gradient statistics that are recorded beside the curvature."""
        self._prepare(model)
        begun, risk = perf_counter(), self._risk(model)
        slope, slices = risk.gradient(), risk.space.slices()
        signal = float(slope.double().square().sum())
        norms = [
            sum(float(slope[slices[name]].double().square().sum()) for name in space.names) ** 0.5
            for space in risk.space.layers().values()
        ]
        found: dict[str, Any] = {"": signal**0.5, "largest": float(slope.abs().max())}
        found |= {"layers": np.array(norms), "samples": float(self._drawn.samples)}
        if not risk.must_be_whole and signal > 0:
            rows = GradientRows(risk, centered=False)
            if rows.has_exact_trace:
                found["noise_scale"] = float(rows.trace_parts()[1].sum()) / signal - 1
        self.next_seconds = self.usual_seconds = perf_counter() - begun
        return found

    def _time_products(self, model: nn.Module) -> tuple[float, float]:
        self.is_fitted, began = True, perf_counter()
        self(model)
        self.is_fitted = False
        seconds = perf_counter() - began
        return seconds, seconds / _WARM


_MADE: dict[str, Callable[[], Curvature]] = {
    "sharpness": Curvature,
    "spectrum": lambda: Curvature(10),
    "gradient": GradientStatistics,
}


@validate()
def watch(name: str) -> Measurement:
    """Return a measurement of recorded curvature by its name, such as "sharpness".

    Args:
        name: "sharpness" (the largest eigenvalue of the Hessian), "spectrum" (the ten largest), or
            "gradient" (norm, largest entry, norm per layer, noise scale).
    """
    check_choice("name", name, tuple(_MADE))
    return Measurement(name, _MADE[name](), is_bounded=True)
