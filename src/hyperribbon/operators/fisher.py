"""The Fisher information matrix of a model's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, check_choice, check_positive_int
from hyperribbon.core.mask import Mask
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.operators.factored import FactoredOperator
from hyperribbon.operators.risk import Chunk, Risk
from hyperribbon.operators.risk.calling import Forward
from hyperribbon.operators.risk.data import Data
from hyperribbon.operators.risk.likelihoods import Categorical, Gaussian, Likelihood

__all__ = ["Fisher"]


class Fisher(FactoredOperator):
    """The Fisher information F = (1/N) Σ_n E_y[∇log p(y|x_n, θ) ∇log p(y|x_n, θ)ᵀ].

    With estimator "exact" the expectation over the model's own y is taken in closed form:
    F = (1/N) Σ_n J_nᵀ (diag p − ppᵀ) J_n for a categorical and (1/N) Σ_n J_nᵀ Σ⁻¹ J_n for a
    Gaussian likelihood. "mc" draws y from the model, "empirical" takes the data's own y.

    Args:
        model: Any module; it is not changed, and its weights are copied.
        data: Inputs, (inputs, targets), a Dataset or a DataLoader; only "empirical" uses targets.
        likelihood: "categorical" (outputs are logits (n, C, …)) or "gaussian" (outputs are means).
        estimator: "exact", "mc" or "empirical".
        outputs: "model", or "softmax" for Gaussian noise on the softmax of the outputs.
        variance: Of the Gaussian: a number σ², a matrix Σ (C, C), or a function of the inputs
            that returns Σ(x) as (n,), (n, C) or (n, C, C).
        samples: Draws a sample, for "mc".
        seed: Of the draws. A sample's draws depend on its place in the data (of all ranks, in
            their order), so neither batches nor processes change them.
        params: Name pattern, list of names or predicate that chooses parameters.
        mask: Entries of the parameters that are coordinates.
        forward: forward(model, batch) -> outputs or (outputs, targets), for other batches.
        memory: Bytes to stay below; by default 512 MiB.
        process_group: Processes that share the samples, each giving its own: a torch.distributed
            group, or True for all. Every rank then does the same with the operator.

    Raises:
        ArgumentError: A choice is unknown, Σ is not positive definite, or as for `Hessian`.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        likelihood: str = "categorical",
        estimator: str = "exact",
        outputs: str = "model",
        variance: float | torch.Tensor | Callable[[Any], torch.Tensor] = 1.0,
        samples: int = 1,
        seed: int = 0,
        params: ParameterFilter = None,
        mask: Mask | None = None,
        forward: Forward | None = None,
        memory: float | None = None,
        process_group: Any = None,
    ) -> None:
        check_choice("likelihood", likelihood, ("categorical", "gaussian"))
        self.estimator = check_choice("estimator", estimator, ("exact", "mc", "empirical"))
        check_choice("outputs", outputs, ("model", "softmax"))
        self.samples = check_positive_int("samples", samples)
        self.seed = seed
        self.likelihood: Likelihood = (
            Categorical() if likelihood == "categorical" else Gaussian(variance, outputs)
        )
        risk = Risk(
            model,
            None,
            data,
            params=params,
            mask=mask,
            forward=forward,
            memory=memory,
            process_group=process_group,
        )
        super().__init__(risk)
        self._offset = risk.offset
        with risk.processes.together("the check of the likelihood"):
            first = next(iter(risk.chunks()), None)
            if first is not None and estimator == "empirical" and first.targets is None:
                raise ArgumentError(
                    "data", data, "estimator='empirical' needs targets", "Give (inputs, targets)."
                )
            if first is not None:
                self._rows(first)

    def _middle(self, chunk: Chunk, block: torch.Tensor) -> torch.Tensor:
        if self.estimator == "exact":
            return self.likelihood.information(chunk.point.outputs, chunk.inputs, block)
        rows = self._rows(chunk)
        along = torch.einsum("sni,kni->skn", rows.flatten(2), block.flatten(2))
        return torch.einsum("skn,sn...->kn...", along, rows)

    def _rows_each(self, outputs: torch.Tensor) -> int:
        if self.estimator == "exact":
            return super()._rows_each(outputs)
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
