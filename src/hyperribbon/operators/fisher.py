"""The Fisher information matrix of a model's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import (
    ArgumentError,
    check_absent,
    check_choice,
    check_positive_int,
    count,
    validate,
)
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators.factored import FactoredOperator
from hyperribbon.operators.gram import centre_rows
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.forward import Forward
from hyperribbon.operators.risk.likelihoods import (
    Bernoulli,
    Categorical,
    FromDistribution,
    Gaussian,
    Laplace,
    Likelihood,
    Poisson,
    StudentT,
)
from hyperribbon.operators.risk.risk import OUTPUTS_ONLY
from hyperribbon.operators.risk_operator import RiskOperator, risk_of

_KINDS: dict[str, Callable[..., Likelihood]] = {
    "categorical": Categorical,
    "gaussian": Gaussian,
    "bernoulli": Bernoulli,
    "poisson": Poisson,
    "laplace": Laplace,
    "student": StudentT,
}
_TAKES = {"gaussian": ("outputs", "variance"), "laplace": ("scale",), "student": ("df", "scale")}


class Fisher(FactoredOperator):
    """The Fisher information F = (1/N) Σ_n E_y[∇log p(y|x_n, θ) ∇log p(y|x_n, θ)ᵀ].

    With estimator "exact" the expectation over the model's own y is taken in closed form:
    F = (1/N) Σ_n J_nᵀ I(f_n) J_n with the information I of the likelihood in the outputs,

        categorical   diag p − ppᵀ of p = softmax f, over the second axis of outputs (n, C, …)
        gaussian      Σ⁻¹, or SΣ⁻¹S with the Jacobian S of the softmax
        bernoulli     σ(f)σ(−f), coins of probability σ(f), one an output
        poisson       e^f, counts of rate e^f
        laplace       1/b², Laplace noise of scale b around f
        student       (ν + 1)/((ν + 3)s²), Student's t noise of ν degrees of freedom and scale s

    "mc" draws y from the model, "empirical" takes the data's own y.

    With centre=True the Jacobians of Gaussian outputs (or of their softmax) are taken around their
    mean J̄ over the samples,

        F = (1/N) Σ_n (J_n − J̄)ᵀ Σ⁻¹ (J_n − J̄),

    which removes the directions that change all samples' outputs alike.

    Args:
        model: Any module, which is not changed; or a `Risk`, which has data and options.
        data: Inputs, (inputs, targets), a Dataset or a DataLoader; only "empirical" uses targets.
        likelihood: One of the names above; a function from outputs to a torch distribution, such
            as `lambda f: Normal(f[:, 0], softplus(f[:, 1]))`; or a `Likelihood`.
        estimator: "exact", "mc" or "empirical". Of a function's distribution, "exact" is there
            where its information is known (see `FromDistribution`).
        outputs: "model", or "softmax" for Gaussian noise on the softmax of the outputs.
        variance: Of "gaussian": a number σ², a matrix Σ (C, C), or a function of the inputs that
            returns Σ(x) as (n,), (n, C) or (n, C, C); by default 1.
        scale: Of "laplace" and "student": a number, or one an output; by default 1.
        df: Degrees of freedom ν, for "student".
        samples: Draws a sample, for "mc"; by default 1.
        centre: Whether the mean Jacobian is subtracted; for likelihood "gaussian" with a variance
            that does not depend on the inputs, and estimator "exact".
        seed: Of the draws. A sample's draws depend on its place in the data (of all ranks, in
            their order), so neither batches nor processes change them.
        params: Which parameters are coordinates, as for `Risk`.
        mask: Which entries of them are.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other calls.
        mode: "eval", "train", or None for each layer's own mode; see `Risk`.
        memory: Bytes to stay below.
        process_group: The ranks that hold the samples.

    Raises:
        ArgumentError: A choice is unknown, or is of another likelihood or estimator, Σ is not
            positive definite, there is no closed form for "exact", or as for `Hessian`.
    """

    @validate(samples=count)
    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | Risk,
        data: Data = None,
        *,
        likelihood: str | Likelihood | Callable[[torch.Tensor], Any] = "categorical",
        estimator: str = "exact",
        outputs: str = "model",
        variance: float | torch.Tensor | Callable[[Any], torch.Tensor] | None = None,
        scale: float | torch.Tensor | None = None,
        df: float | None = None,
        samples: int | None = None,
        centre: bool = False,
        seed: int = 0,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        mode: str | None = "eval",
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        self.estimator = check_choice("estimator", estimator, ("exact", "mc", "empirical"))
        check_choice("outputs", outputs, ("model", "softmax"))
        if estimator != "mc":
            check_absent("samples", samples, f"estimator={estimator!r} draws nothing")
        self.samples = 1 if samples is None else check_positive_int("samples", samples)
        self.seed = seed
        settings: dict[str, Any] = {"variance": variance, "scale": scale, "df": df}
        settings["outputs"] = None if outputs == "model" else outputs
        self.likelihood = _likelihood(likelihood, settings)
        self.centre, self._mean = centre, None
        if centre and (estimator != "exact" or not self.likelihood.is_constant):
            reason = "the mean Jacobian is that of Gaussian outputs of one variance"
            remedy = "Use likelihood='gaussian' and estimator='exact', or omit it."
            raise ArgumentError("centre", True, reason, remedy)
        if estimator == "empirical" and isinstance(data, list) and data:
            # One batch with its targets, not batches of inputs.
            data = tuple(data) if isinstance(data[-1], torch.Tensor) else data
        loss = None if isinstance(model, Risk) else OUTPUTS_ONLY
        risk = risk_of(model, loss, data, params, mask, forward, mode, memory, process_group)
        super().__init__(risk)
        self._offset = risk.offset
        with risk.processes.together("the check of the likelihood"):
            probe = risk.probe()
            if probe is not None and estimator == "empirical" and probe.targets is None:
                raise ArgumentError(
                    "data", data, "estimator='empirical' needs targets", "Give (inputs, targets)."
                )
            if probe is not None:
                self._middle(probe, probe.point.outputs.unsqueeze(0))

    def in_precision(self, dtype: torch.dtype) -> RiskOperator | None:
        """Return the Fisher matrix in another precision, unless its labels are drawn."""
        return None if self.estimator == "mc" else super().in_precision(dtype)

    @plain_arithmetic()
    def mean_rows(self) -> torch.Tensor:
        """Return B (P, m) of the Fisher F = F_uncentred − B Bᵀ: √(sN) · mean rows of R_n J_n."""
        if self._mean is None:
            count = self.risk.samples
            rows = (self.gram_size or 0) // count
            units = torch.eye(rows, dtype=self.dtype, device=self.device) / count**0.5
            self._mean = super().lift(units.repeat(count, 1))
        return self._mean

    @plain_arithmetic()
    def gram(self) -> torch.Tensor:
        """Return the Fisher matrix's Gram matrix F Fᵀ, centred where it is."""
        gram, count = super().gram(), self.risk.samples
        return centre_rows(centre_rows(gram, count).T, count) if self.centre else gram

    @plain_arithmetic()
    def lift(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Return the Fisher matrix's eigenvectors from those of its Gram matrix, FᵀU."""
        if not self.centre:
            return super().lift(coefficients)
        return super().lift(centre_rows(coefficients, self.risk.samples))

    @plain_arithmetic()
    def diagonal(self) -> torch.Tensor:
        """Return the diagonal of the Fisher information."""
        second = super().diagonal()
        if not self.centre or not self.has_exact_trace:
            return second
        return (second - self.mean_rows().square().sum(1)).clamp_min(0.0)

    @plain_arithmetic()
    def trace(self) -> float:
        """Return the trace of the Fisher information."""
        second = super().trace()
        if not self.centre or not self.has_exact_trace:
            return second
        return max(second - float(self.mean_rows().square().sum(dtype=torch.float64)), 0.0)

    def trace_parts(self) -> tuple[dict[str, float], torch.Tensor]:
        """Return the Fisher matrix's trace by parameter and by sample, where it is not centred.

        Raises:
            ArgumentError: It is centred.
        """
        if self.centre:
            reason = "parts of the trace of a centred matrix are not available"
            raise ArgumentError("centre", True, reason, "Use .diagonal(), or centre=False.")
        return super().trace_parts()

    def _with(self, risk: Risk) -> Fisher:
        other = super()._with(risk)
        other._mean = None
        return other

    def _complete(self, product: torch.Tensor, block: torch.Tensor, rows: slice) -> torch.Tensor:
        if not self.centre:
            return product
        mean = self.mean_rows()
        return product - mean[rows] @ (mean.T @ block)

    def _middle(self, chunk: Chunk, block: torch.Tensor) -> torch.Tensor:
        if self.estimator == "exact":
            return self.likelihood.information(chunk.point.outputs, chunk.inputs, block)
        rows = self._rows(chunk)
        flat = block.reshape(*block.shape[:2], -1)
        along = torch.einsum("sni,kni->skn", rows.reshape(*rows.shape[:2], -1), flat)
        return torch.einsum("skn,sn...->kn...", along, rows)

    def _rows_each(self, outputs: torch.Tensor) -> int:
        if self.estimator == "exact":
            return self.likelihood.rows(outputs)
        return self.samples if self.estimator == "mc" else 1

    def _rows(self, chunk: Chunk) -> torch.Tensor:
        outputs = chunk.point.outputs
        if self.estimator == "exact":
            return self.likelihood.root(outputs, chunk.inputs)
        if self.estimator == "empirical":
            return self.likelihood.score(outputs, chunk.inputs, chunk.targets).unsqueeze(0)
        seed = (self.seed, self._offset + chunk.start)
        scores = self.likelihood.draw_scores(outputs, chunk.inputs, self.samples, seed)
        return scores / self.samples**0.5

    def _scale(self) -> float:
        return 1.0 / self.risk.samples


def _likelihood(
    given: str | Likelihood | Callable[[torch.Tensor], Any], settings: dict[str, Any]
) -> Likelihood:
    """Return the likelihood of the Fisher matrix, given by name, by a function, or itself."""
    settings = {name: value for name, value in settings.items() if value is not None}
    known = _TAKES.get(given, ()) if isinstance(given, str) else ()
    for name in (name for name in settings if name not in known):
        owners = " or ".join(repr(owner) for owner, takes in _TAKES.items() if name in takes)
        reason = f"it is of likelihood={owners}, and here that is {given!r}"
        remedy = f"Omit it, or use likelihood={owners}."
        raise ArgumentError(name, settings[name], reason, remedy)
    if isinstance(given, Likelihood):
        return given
    if not isinstance(given, str):
        if not callable(given) or given in _KINDS.values():
            reason = "it is neither a name, nor a Likelihood, nor a function of the outputs"
            remedy = (
                "Give 'categorical', Laplace(0.5), or lambda f: Normal(f[:, 0], f[:, 1].exp())."
            )
            raise ArgumentError("likelihood", given, reason, remedy)
        return FromDistribution(given)
    name = check_choice("likelihood", given, tuple(_KINDS))
    if name == "student" and "df" not in settings:
        raise ArgumentError(
            "df", None, "Student's t has degrees of freedom", "Give df=4, for example."
        )
    if "outputs" in settings:
        settings["space"] = settings.pop("outputs")
    return _KINDS[name](**settings)
