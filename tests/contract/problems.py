"""What an objective is here, how a case is built, and its derivatives in plain torch."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

__all__ = ["REGISTRY", "Case", "Problem", "case", "chosen"]

_NOISE = 0.2  # on all weights, so that no bias is zero and no scale is one


@dataclass
class Problem:
    """A model, its loss and its data, and the same objective as a user of plain torch has it.

    Attributes:
        model: The module.
        loss: What hyperribbon is given as the loss; None for the model's own.
        data: What hyperribbon is given as the data.
        reference: reference(model, batch) -> loss of one batch, as a training loop computes it.
        batches: What the reference goes through; the data themselves when they are one batch.
        shares: What each batch counts: its samples, or its tokens that count; equal for None.
        mode: What hyperribbon is given as the mode.
        options: Further keywords for hyperribbon.
        gauss_newton: reference(model, batch) -> (logits, loss of logits), for models with a loss of
            their own that is a function of the logits; None where it is not, or not asked for.
    """

    model: nn.Module
    loss: Any
    data: Any
    reference: Callable[[nn.Module, Any], torch.Tensor]
    batches: list[Any] | None = None
    shares: list[float] | None = None
    mode: str | None = "eval"
    options: dict[str, Any] = field(default_factory=dict)
    gauss_newton: Callable[..., Any] | None = None

    def arguments(self) -> tuple[nn.Module, Any, Any]:
        """Return model, loss and data as hyperribbon takes them."""
        return self.model, self.loss, self.data

    def keywords(self) -> dict[str, Any]:
        """Return the keywords that hyperribbon is given; no mode where the default is meant."""
        return self.options if self.mode == "eval" else {"mode": self.mode, **self.options}

    def objective(self) -> torch.Tensor:
        """Return L(θ) of the live module by the reference alone, in the mode that is meant."""
        if self.mode is not None:
            self.model.train(self.mode == "train")
        batches = [self.data] if self.batches is None else self.batches
        shares = [1.0] * len(batches) if self.shares is None else self.shares
        parts = [
            share * self.reference(self.model, batch)
            for share, batch in zip(shares, batches, strict=True)
        ]
        return sum(parts[1:], start=parts[0]) / sum(shares)


@dataclass(frozen=True)
class Case:
    """A named problem.

    Attributes:
        name: Its name in the reports.
        kind: What it stands for; tests of slow calls take some of every kind.
        make: Builds it.
        precision: That of the arithmetic inside, which a model may lower by itself.
        needs: A package that it needs.
        is_whole: Whether the loss is no sum over samples, so that a part of them has another one.
        noise: Scale of the noise on all weights.
    """

    name: str
    kind: str
    make: Callable[[], Problem]
    precision: torch.dtype = torch.float64
    needs: str = ""
    is_whole: bool = False
    noise: float = _NOISE

    def build(self) -> Problem:
        """Return a fresh problem, the same every time.

        The model is left in the other mode than the one that is meant, which must not matter.
        """
        if self.needs:
            pytest.importorskip(self.needs)
            logging.getLogger(self.needs).setLevel(logging.ERROR)
        with torch.random.fork_rng():
            torch.manual_seed(zlib.crc32(self.name.encode()))
            problem = self.make()
            with torch.no_grad():
                for parameter in problem.model.parameters():
                    parameter.add_(self.noise * torch.randn_like(parameter))
                for module in problem.model.modules():
                    mean = getattr(module, "running_mean", None)
                    if isinstance(mean, torch.Tensor):
                        mean.copy_(0.3 * torch.randn_like(mean))
                        module.running_var.copy_(0.5 + torch.rand_like(module.running_var))
        if problem.mode is not None:
            problem.model.train(problem.mode == "eval")
        return problem


REGISTRY: dict[str, Case] = {}


def case(kind: str, **options: Any) -> Callable[[Callable[[], Problem]], Callable[[], Problem]]:
    """Enter a function that builds a problem into the registry, under its own name."""

    def enter(make: Callable[[], Problem]) -> Callable[[], Problem]:
        known = REGISTRY.get(make.__name__)  # pytest reads files a second time for doctests
        assert known is None or known.make.__code__.co_filename == make.__code__.co_filename
        REGISTRY[make.__name__] = Case(make.__name__, kind, make, **options)
        return make

    return enter


ALWAYS = (
    *("reshape", "weighted", "queries", "forces", "contrastive", "inputs", "regression"),
    *("several outputs", "batchnorm eval", "batchnorm train"),
    *("huggingface causal", "huggingface classification"),
)
"""Kinds of which tests that take a second a case always take one; the other cases are slow."""


def chosen() -> list[Any]:
    """Return all cases as parameters of a test, marked slow but for the first of some kinds."""
    first: dict[str, str] = {}
    for name, entry in REGISTRY.items():
        first.setdefault(entry.kind, name)
    fast = {first[kind] for kind in ALWAYS}
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in REGISTRY]
