"""A model at fixed weights on a fixed batch, differentiated as often as asked from one graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.typed import norm
from hyperribbon.operators.derivatives.choosing import Choices
from hyperribbon.operators.derivatives.factors import Factor, summed
from hyperribbon.operators.derivatives.recording import CallRecorder
from hyperribbon.operators.derivatives.rewritten.convolutions import asked_for
from hyperribbon.operators.derivatives.rewritten.twice import twice_differentiable
from hyperribbon.operators.derivatives.sums import GradientSums

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = ["AutogradLinearisation", "Block", "Evaluation", "Linearisation", "pull_back"]

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

    def pushed(self, directions: Block) -> torch.Tensor:
        """Return J v (n, …) of directions (*parameter shape) by forward mode."""
        ...


class Linearisation(Protocol):
    """Derivatives of a batch's outputs f(θ) of shape (n, …) at fixed weights θ.

    Directions may be given for some of the parameters; the others do not move. Results are asked
    for by name.
    """

    outputs: torch.Tensor

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        ...

    def pull(self, cotangents: torch.Tensor, sums: GradientSums, names: Sequence[str]) -> None:
        """Add Jᵀ u for u (k, n, …)."""
        ...

    def curve(self, loss: Loss, targets: Any, block: Block, sums: GradientSums) -> None:
        """Add the rows of ∇²_θ Σ ℓ(f(θ), y) v that belong to the names in the block."""
        ...

    def structured(self) -> set[str]:
        """Return the names of parameters whose per-sample gradients have factors."""
        ...

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the per-sample gradients of R f for rows R (m, n, …), one a structured name."""
        ...


class AutogradLinearisation:
    """Derivatives of any model from graphs that are built once and kept.

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
        self._transposed: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None
        self._slopes: dict[str, torch.Tensor] | None = None

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        if not self.graph.requires_grad:
            return self.outputs.new_zeros(_rows(block), *self.outputs.shape)
        way = self._choices.chosen("push")
        if way is None:
            return self._push_first(block)
        return self._push_forward(block) if way == "forward" else self._push_reverse(block)

    def _push_first(self, block: Block) -> torch.Tensor:
        """Find out, on samples where the result is checked, whether Jᵀu can be differentiated."""
        way = "reverse"
        try:
            pushed = self._push_reverse(block)
        except (RuntimeError, NotImplementedError):
            way, pushed = "forward", self._push_forward(block)
        self._choices.settle("push", way)
        return pushed

    def turn_forward(self) -> bool:
        """Take forward mode for J v from now on; False when that is so already."""
        was_reversed = self._choices.chosen("push") != "forward"
        self._choices.settle("push", "forward")
        return was_reversed

    def pull(self, cotangents: torch.Tensor, sums: GradientSums, names: Sequence[str]) -> None:
        """Add Jᵀ u for u (k, n, …)."""
        if not self.graph.requires_grad:
            sums.add(self._zeros(names, len(cotangents)))
            return
        leaves = [self._leaves[name] for name in names]
        pulled = pull_back([self.graph], leaves, [cotangents], self._choices)
        sums.add(dict(zip(names, pulled, strict=True)))

    def curve(self, loss: Loss, targets: Any, block: Block, sums: GradientSums) -> None:
        """Add ∇²_θ Σ ℓ(f(θ), y) v; loss and targets must be the same in every call."""
        if self._slopes is None:
            self._slopes = self._build_slopes(loss, targets)
        moving = [name for name in block if name in self._slopes]
        if not moving:
            sums.add(self._zeros(list(block), _rows(block)))
            return
        curved = pull_back(
            [self._slopes[name] for name in moving],
            [self._leaves[name] for name in block],
            [block[name].to(self._slopes[name].dtype) for name in moving],
            self._choices,
        )
        sums.add(dict(zip(block, curved, strict=True)))

    def gradient(self, loss: Loss, targets: Any) -> dict[str, torch.Tensor]:
        """Return ∇_θ Σ ℓ(f(θ), y), of the names whose gradient can be differentiated again."""
        if self._slopes is None:
            self._slopes = self._build_slopes(loss, targets)
        return {name: slope.detach() for name, slope in self._slopes.items()}

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
            gradients.append(pull_back([outputs], leaves, [row], self._choices))
        columns = zip(*gradients, strict=True)
        return {name: torch.stack(column) for name, column in zip(names, columns, strict=True)}

    def _push_forward(self, block: Block) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own rules
            rows = [
                self._batch.pushed({name: rowed[r] for name, rowed in block.items()})
                for r in range(_rows(block))
            ]
        return torch.stack(rows)

    def _push_reverse(self, block: Block) -> torch.Tensor:
        probe, pulled = self._build_transposed()
        names = [name for name in block if name in pulled]
        if not names:
            return self.outputs.new_zeros(_rows(block), *self.outputs.shape)
        (pushed,) = pull_back(
            [pulled[name] for name in names],
            [probe],
            [block[name].to(pulled[name].dtype) for name in names],
            self._choices,
        )
        return pushed

    def _flow_back(self, rows: torch.Tensor) -> dict[GradientEdge, torch.Tensor]:
        """Return what flows back into every layer's output, (m, *shape)."""
        shapes = {use.edge: use.shape for use in self._uses}
        if not shapes or not self.graph.requires_grad:
            return {}
        edges = list(shapes)
        flowed = pull_back([self.graph], edges, [rows], self._choices, list(shapes.values()))
        return dict(zip(shapes, flowed, strict=True))

    def _build_transposed(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if self._transposed is None:
            probe = torch.zeros_like(self.graph).requires_grad_()
            pulled = _differentiated(self.graph, self._leaves, probe)
            self._transposed = probe, pulled
        return self._transposed

    def _build_slopes(self, loss: Loss, targets: Any) -> dict[str, torch.Tensor]:
        if not self.graph.requires_grad:
            return {}
        with torch.enable_grad():
            total = loss.total(self.graph, targets)
        return _differentiated(total, self._leaves)

    def _zeros(self, names: Sequence[str], rows: int) -> dict[str, torch.Tensor]:
        return {
            name: self._leaves[name].new_zeros(rows, *self._leaves[name].shape) for name in names
        }


def pull_back(
    outputs: list[torch.Tensor],
    inputs: Sequence[Any],
    cotangents: list[torch.Tensor],
    choices: Choices,
    shapes: Sequence[torch.Size] | None = None,
) -> list[torch.Tensor]:
    """Return the vector-Jacobian products of k rows of cotangents, each (k, *input shape).

    Inputs are tensors, or edges of the graph with their shapes. Rows go through the graph together
    or one by one, whichever is found faster; one by one where an operation has no batching rule.
    """
    rows = len(cotangents[0])
    shapes = [tensor.shape for tensor in inputs] if shapes is None else shapes

    def backward(rowed: list[torch.Tensor], batched: bool, lead: tuple[int, ...]) -> list[Any]:
        with twice_differentiable(), torch.no_grad(), asked_for(inputs):
            pulled = torch.autograd.grad(
                outputs,
                inputs,
                rowed,
                retain_graph=True,
                is_grads_batched=batched,
                allow_unused=True,
            )
        return [
            outputs[0].new_zeros(*lead, *shape) if tensor is None else tensor
            for tensor, shape in zip(cast(Slopes, pulled), shapes, strict=True)
        ]

    def singly() -> list[torch.Tensor]:
        singles = [backward([c[r] for c in cotangents], False, ()) for r in range(rows)]
        return [torch.stack(pieces) for pieces in zip(*singles, strict=True)]

    if rows == 1:
        return [tensor.unsqueeze(0) for tensor in backward([c[0] for c in cotangents], False, ())]
    ways: dict[str, Callable[[], list[torch.Tensor]]] = {
        "singly": singly,
        "together": lambda: backward(cotangents, True, (rows,)),
    }
    question = "rows", len(outputs) > 1, len(inputs) > 1
    return choices.run(question, ways, _all_agree)


def _agree(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two results are equal up to rounding."""
    limit = min(1e4 * torch.finfo(first.dtype).eps, 0.1)
    return norm(first - second) <= limit * norm(first) + 1e-30


def _all_agree(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(map(_agree, first, second))


def _differentiated(
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
