"""The curvature of the loss followed through a training, on a fixed small sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch
from torch import nn

from hyperribbon.application.inspection.copies import TRAINED
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.update_rules import update_rule
from hyperribbon.core.checks import (
    ArgumentError,
    check_choice,
    count,
    positive,
    seed_number,
    validate,
)
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators import Hessian
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.recording import Measurement
from hyperribbon.spectra import Tracker

__all__ = ["Curvature", "watch"]

_WARM_PRODUCTS = 10  # that a spectrum usually takes when it starts from the last one


class Curvature:
    """The k largest eigenvalues of the Hessian at every record, each started from the last ones.

    The loss is that of a fixed sample, drawn once: numbers of one run compare with each other to
    the accuracy of the solver, and with the loss of all data to the accuracy of so many samples.
    Batch norm has the statistics of the sample, as in training, and dropout is off. With an
    optimiser whose limit is one number (SGD with one learning rate, momentum and decay), the
    largest curvature at which its step is stable stands beside it: 2/η, with momentum
    2(1 + β)/η; see `hr.inspection.update_rules`.

    As a measurement of a Recorder it gives "name" (the largest eigenvalue), "name.error" (how far
    the solver may be off), "name.limit", and for several eigenvalues "name.eigenvalues".
    Eigenvalues that did not converge are left out.

    Attributes:
        note: What the numbers are of.
        next_seconds: How long the next measurement may take.

    Args:
        k: Eigenvalues.
        samples: Samples of the fixed sample.
        params: Which parameters are coordinates: a name of a parameter or module, a pattern, a
            list or a predicate.
        forward: As for `hr.Risk`.
        mode: "train" for the mode in which one trains, dropout off: batch norm has the statistics
            of the sample as one batch, or of the batches that the data come in. "eval" for
            evaluation mode, None for the mode that each layer is in when the run begins.
        tol: Largest residual of an eigenpair relative to the eigenvalue.
        seed: Seed of the sample and the solver.
    """

    @validate(k=count, samples=count, tol=positive, seed=seed_number)
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
        self._subject: Subject | None = None
        self._optimizer: Any = None
        self.note = ""
        self.next_seconds = 0.0

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
        whole = Subject(model, loss, data, **options)
        self._subject = whole.with_samples(self.samples, self.seed)
        self._optimizer = optimizer
        self._tracker.reset()
        rule = self._rule(model)
        self.note = f"of the loss on {self._subject.where()}" + (f"; {rule}" if rule else "")

    def __call__(self, model: nn.Module) -> dict[str, Any]:
        """Return the recorded curvatures: the Hessian eigenvalues at the present weights."""
        if self._subject is None:
            reason = "the run has not begun"
            raise ArgumentError("model", None, reason, "Let a Recorder call it, or call begin().")
        begun = perf_counter()
        is_first = self._tracker.calls == 0
        tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        state = self._subject.risk.function.state
        known = {name: tensor for name, tensor in tensors.items() if name in state}
        hessian = Hessian(self._subject.risk.at(known))
        spectrum = self._tracker(hessian)
        self.next_seconds = perf_counter() - begun
        if is_first and spectrum.eigenvectors is not None:  # it began cold, and set much up
            begun = perf_counter()
            _ = hessian @ spectrum.eigenvectors[:, 0]
            warm = (_WARM_PRODUCTS + len(spectrum)) * (perf_counter() - begun)
            self.next_seconds = min(self.next_seconds, warm)
        found: dict[str, Any] = {}
        if bool(spectrum.converged.all()):
            found[""] = float(spectrum.eigenvalues[0])
            found["error"] = float(spectrum.residuals[0])
            if len(spectrum) > 1:
                found["eigenvalues"] = spectrum.eigenvalues
        limit = self._limit(model)
        return found if limit is None else {**found, "limit": limit}

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which the next recorded curvature starts."""
        return self._tracker.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the recorded curvature."""
        self._tracker.load_state_dict(state)

    def _limit(self, model: nn.Module) -> float | None:
        """Return the largest stable curvature, where the optimiser has one for all coordinates."""
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
        return f"no limit beside it: that of {kind} as it is set is none on the Hessian itself"


_MADE: dict[str, Callable[[], Curvature]] = {
    "sharpness": Curvature,
    "spectrum": lambda: Curvature(10),
}


@validate()
def watch(name: str) -> Measurement:
    """Return a curvature measurement that a Recorder knows by name, such as "sharpness".

    Args:
        name: "sharpness" (the largest eigenvalue of the Hessian) or "spectrum" (the ten largest).
    """
    check_choice("name", name, tuple(_MADE))
    return Measurement(name, _MADE[name](), is_bounded=True)
