"""A model at fixed weights on a fixed batch, differentiated as often as asked from one graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from hyperribbon.operators.derivatives.choosing import Choices
from hyperribbon.operators.derivatives.factors import Factor, summed
from hyperribbon.operators.derivatives.recording import CallRecorder
from hyperribbon.operators.derivatives.rewritten.convolutions import only_needed
from hyperribbon.operators.derivatives.rewritten.twice import twice_differentiable

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = ["Block", "Evaluation", "Linearisation"]

Slopes = Sequence[torch.Tensor | None]  # none where an input is not used
Block = Mapping[str, torch.Tensor]
"""Named tensors with k leading rows, (k, *parameter shape)."""


class Evaluation(Protocol):
    """A batch on which a model can be evaluated, at leaves that require gradients."""

    leaves: Mapping[str, torch.Tensor]
    count: int

    def outputs(self, samples: slice, watcher: TorchFunctionMode | None = None) -> torch.Tensor:
        """Return the outputs (n, …) of some samples, with a graph; a watcher sees the calls."""
        ...

    def jvp(self, v: Block) -> torch.Tensor:
        """Return J v (n, …) for v (*parameter shape) by forward mode."""
        ...


class Linearisation:
    """Derivatives of a batch's outputs f(θ), (n, …), at fixed weights, from graphs that are kept.

    Jᵀu is a backward pass. ∇²ℓ v is a backward pass through the graph of the gradient (double
    backward). J v is the derivative in u of ⟨Jᵀu, v⟩, a backward pass through the graph of Jᵀu.
    Forward mode, which evaluates the model again, took 0.75 to 1.9 times as long on twelve kinds of
    networks, and its first call in a process a second more: it is for models whose Jᵀu cannot be
    differentiated.

    Args:
        batch: The samples.
        choices: Which ways have been found to work, and fastest, for all batches of a model.

    Attributes:
        graph: The outputs with their graph.
        outputs: The outputs without.
    """

    def __init__(self, batch: Evaluation, choices: Choices) -> None:
        self._batch, self._choices, self._leaves = batch, choices, batch.leaves
        recorder = CallRecorder(self._leaves, batch.count)
        self.graph = batch.outputs(slice(0, batch.count), recorder)
        self.outputs = self.graph.detach()
        self._uses, self._others = recorder.uses, recorder.others
        self._has_checkpoints = recorder.has_checkpoints
        self._has_convolutions = recorder.has_convolutions
        self._transposed: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None
        self._gradient: dict[str, torch.Tensor] | None = None

    def jvp(self, v: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        if not self.graph.requires_grad:
            return self.outputs.new_zeros(_rows(v), *self.outputs.shape)
        way = self._choices.chosen("jvp")
        if way is None:
            return self._jvp_first(v)
        return self._jvp_forward(v) if way == "forward" else self._jvp_reverse(v)

    def _jvp_first(self, v: Block) -> torch.Tensor:
        """Find out, on samples where the result is checked, whether Jᵀu can be differentiated."""
        way = "reverse"
        try:
            product = self._jvp_reverse(v)
        except (RuntimeError, NotImplementedError):
            way, product = "forward", self._jvp_forward(v)
        self._choices.settle("jvp", way)
        return product

    def turn_forward(self) -> bool:
        """Take forward mode for J v from now on; False when that is so already."""
        was_reversed = self._choices.chosen("jvp") != "forward"
        self._choices.settle("jvp", "forward")
        return was_reversed

    def vjp(self, u: torch.Tensor, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return Jᵀ u for u (k, n, …), by name."""
        return self.differentiate({"": self.graph}, {"": u}, names)

    def gradient(self, loss: Loss, targets: Any) -> dict[str, torch.Tensor]:
        """Return ∇_θ Σ ℓ(f(θ), y) with its graph, of the names where it can be differentiated.

        Loss and targets must be the same in every call.
        """
        if self._gradient is None:
            with torch.enable_grad():
                total = loss.total(self.graph, targets)
            is_constant = not self.graph.requires_grad
            self._gradient = {} if is_constant else _differentiate(total, self._leaves)
        return self._gradient

    def differentiate(self, of: Block, u: Block, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return ∂⟨of, u⟩/∂θ by name, for graphs of this linearisation and k rows u of each."""
        parts = [name for name in of if name in u and of[name].requires_grad]
        if not parts:
            rows = _rows(u)
            return {n: self._leaves[n].new_zeros(rows, *self._leaves[n].shape) for n in names}
        found = self._backward(
            [of[name] for name in parts],
            [self._leaves[name] for name in names],
            [u[name].to(of[name].dtype) for name in parts],
        )
        return dict(zip(names, found, strict=True))

    def structured(self) -> set[str]:
        """Return the names whose every use was understood and keeps samples apart."""
        names = {use.name for use in self._uses} - self._others
        if not names or not self.graph.requires_grad:
            return set(self._leaves) - self._others
        count = len(self.outputs)
        half = (count + 1) // 2
        seeds = torch.zeros_like(self.outputs).unsqueeze(0)
        generator = torch.Generator("cpu").manual_seed(0)
        drawn = torch.randn(seeds[:, :half].shape, generator=generator, device="cpu")
        seeds[:, :half] = drawn.to(seeds)
        flowed = self._flow_back(seeds)
        for use in self._uses:
            flow = use.by_sample(flowed[use.edge])[0]
            if len(flow) != count or bool(flow[half:].any()):
                names.discard(use.name)
        unused = set(self._leaves) - {use.name for use in self._uses} - self._others
        return names | unused

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the per-sample gradients of R f, one factor a structured name."""
        flowed = self._flow_back(rows)
        pieces: dict[str, list[Factor]] = {}
        for use in self._uses:
            if use.name in names:
                back = use.by_sample(flowed[use.edge]).transpose(0, 1)
                pieces.setdefault(use.name, []).append(use.factor(use.name, back))
        return [summed(uses) for uses in pieces.values()]

    def sample_gradients(
        self, rows: torch.Tensor, names: Sequence[str], samples: slice
    ) -> dict[str, torch.Tensor]:
        """Return per-sample gradients written out (n, m, *shape), sample by sample."""
        leaves = [self._leaves[name] for name in names]
        gradients: list[list[torch.Tensor]] = []
        for index in range(samples.start, samples.stop):
            outputs = self._batch.outputs(slice(index, index + 1))
            row = rows[:, index : index + 1]
            gradients.append(self._backward([outputs], leaves, [row]))
        columns = zip(*gradients, strict=True)
        return {name: torch.stack(column) for name, column in zip(names, columns, strict=True)}

    def _jvp_forward(self, v: Block) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own rules
            rows = [
                self._batch.jvp({name: rows[r] for name, rows in v.items()})
                for r in range(_rows(v))
            ]
        return torch.stack(rows)

    def _jvp_reverse(self, v: Block) -> torch.Tensor:
        """Return ∂⟨Jᵀu, v⟩/∂u, which does not depend on u."""
        if self._transposed is None:
            u = torch.zeros_like(self.graph).requires_grad_()
            self._transposed = u, _differentiate(self.graph, self._leaves, u)
        u, gradients = self._transposed
        names = [name for name in v if name in gradients]
        if not names:
            return self.outputs.new_zeros(_rows(v), *self.outputs.shape)
        graphs = [gradients[name] for name in names]
        rows = [v[name].to(gradients[name].dtype) for name in names]
        return self._backward(graphs, [u], rows)[0]

    def _flow_back(self, rows: torch.Tensor) -> dict[GradientEdge, torch.Tensor]:
        """Return what flows back into every layer's output, (m, *shape)."""
        shapes = {use.edge: use.shape for use in self._uses}
        if not shapes or not self.graph.requires_grad:
            return {}
        edges = list(shapes)
        flowed = self._backward([self.graph], edges, [rows], list(shapes.values()))
        return dict(zip(shapes, flowed, strict=True))

    def _backward(
        self,
        outputs: list[torch.Tensor],
        inputs: Sequence[Any],
        cotangents: list[torch.Tensor],
        shapes: Sequence[torch.Size] | None = None,
    ) -> list[torch.Tensor]:
        """Return the vector-Jacobian products of k rows of cotangents, each (k, *input shape).

        Inputs are tensors, or edges of the graph with their shapes. Rows go through the graph
        together or one by one, whichever is found faster; one by one where an operation has no
        batching rule.
        """
        rows = len(cotangents[0])

        def backward(u: list[torch.Tensor], lead: tuple[int, ...] = ()) -> list[torch.Tensor]:
            with ExitStack() as stack:
                if self._has_checkpoints:
                    stack.enter_context(twice_differentiable())
                    stack.enter_context(torch.no_grad())
                if self._has_convolutions:
                    stack.enter_context(only_needed(inputs))
                found = torch.autograd.grad(
                    outputs,
                    inputs,
                    u,
                    retain_graph=True,
                    is_grads_batched=bool(lead),
                    allow_unused=True,
                )
            sizes = [tensor.shape for tensor in inputs] if shapes is None else shapes
            return [
                outputs[0].new_zeros(*lead, *size) if tensor is None else tensor
                for tensor, size in zip(cast(Slopes, found), sizes, strict=True)
            ]

        def singly() -> list[torch.Tensor]:
            singles = [backward([u[row] for u in cotangents]) for row in range(rows)]
            return [torch.stack(pieces) for pieces in zip(*singles, strict=True)]

        if rows == 1:
            return [tensor.unsqueeze(0) for tensor in backward([u[0] for u in cotangents])]
        ways = {"singly": singly, "together": lambda: backward(cotangents, (rows,))}
        question = "rows", len(outputs) > 1, len(inputs) > 1
        return self._choices.run(question, ways, _all_agree)


def _agree(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results are equal up to rounding."""
    limit = min(1e4 * torch.finfo(first.dtype).eps, 0.1)
    return float((first - second).norm()) <= limit * float(first.norm()) + 1e-30


def _all_agree(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(map(_agree, first, second))


def _differentiate(
    output: torch.Tensor,
    leaves: Mapping[str, torch.Tensor],
    cotangent: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return the derivatives in the leaves that can be differentiated again."""
    with twice_differentiable():
        slopes = torch.autograd.grad(
            output, list(leaves.values()), cotangent, create_graph=True, allow_unused=True
        )
    return {
        name: slope
        for name, slope in zip(leaves, cast(Slopes, slopes), strict=True)
        if slope is not None and slope.requires_grad
    }


def _rows(block: Block) -> int:
    return len(next(iter(block.values())))
