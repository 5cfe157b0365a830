"""A model at fixed weights on a fixed batch, differentiated as often as asked from one graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.autograd.graph import GradientEdge, saved_tensors_hooks

from hyperribbon.operators.derivatives.factors import Factor, summed
from hyperribbon.operators.derivatives.purity import evaluation
from hyperribbon.operators.derivatives.recording import Recorder
from hyperribbon.operators.derivatives.sums import GradientSums

if TYPE_CHECKING:
    from hyperribbon.operators.risk.losses import Loss

__all__ = ["AutogradLinearisation", "Block", "Linearisation", "pull_back"]

Block = Mapping[str, torch.Tensor]
"""Named tensors with k leading rows, (k, *parameter shape)."""


Forward = Callable[[Block, slice], torch.Tensor]
Within = Callable[[Callable[[], Any]], Any]


class Linearisation(Protocol):
    """Derivatives of a batch's outputs f(θ) of shape (n, …) at fixed weights θ."""

    outputs: torch.Tensor

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        ...

    def pull(self, cotangents: torch.Tensor, sums: GradientSums) -> None:
        """Add Jᵀ u for u (k, n, …)."""
        ...

    def curve(self, loss: Loss, targets: Any, block: Block, sums: GradientSums) -> None:
        """Add ∇²_θ Σ ℓ(f(θ), y) v."""
        ...

    def structured(self) -> set[str]:
        """Return the names of parameters whose per-sample gradients have factors."""
        ...

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the per-sample gradients of R f for rows R (m, n, …), one a structured name."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory that is kept for the next product."""
        ...


class AutogradLinearisation:
    """Derivatives of any model by reverse mode, from graphs that are built once and kept.

    J v is the derivative in u of ⟨Jᵀu, v⟩ (double backward), so that only reverse rules are needed.

    Args:
        forward: Function from named parameters and a range of samples to outputs (n, …).
        weights: Leaf tensors that require gradients.
        count: Number of samples.
        within: Runs a function while the model holds these weights. Backward passes run there: a
            model that checkpoints its activations is evaluated again in them.
    """

    def __init__(
        self,
        forward: Forward,
        weights: Mapping[str, torch.Tensor],
        count: int,
        within: Within = lambda action: action(),
    ) -> None:
        self._weights, self._forward, self._within = dict(weights), forward, within
        recorder = Recorder(self._weights)
        with evaluation(), recorder:
            self._graph = forward(self._weights, slice(0, count))
        self.outputs = self._graph.detach()
        self._uses, self._others = recorder.uses, recorder.others
        self._transposed: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None
        self._slopes: dict[str, torch.Tensor] | None = None

    @property
    def nbytes(self) -> int:
        """Estimate of the graphs' memory: the second one saves about twice the first again."""
        saved: dict[int, int] = {}

        def weigh(tensor: torch.Tensor) -> torch.Tensor:
            saved[tensor.data_ptr()] = tensor.nbytes
            return tensor.detach()

        with evaluation(), saved_tensors_hooks(weigh, lambda tensor: tensor):
            self._forward(self._weights, slice(0, len(self.outputs)))
        own = {w.data_ptr() for w in self._weights.values()}
        return 3 * sum(size for place, size in saved.items() if place not in own)

    def push(self, block: Block) -> torch.Tensor:
        """Return J v, shape (k, n, …)."""
        if self._transposed is None:
            self._transposed = self._build_transposed()
        probe, pulled = self._transposed
        if not pulled:
            return self.outputs.new_zeros(_rows(block), *self.outputs.shape)
        names = list(pulled)
        (pushed,) = self._pull_back(
            [pulled[name] for name in names], [probe], [block[name] for name in names]
        )
        return pushed

    def pull(self, cotangents: torch.Tensor, sums: GradientSums) -> None:
        """Add Jᵀ u for u (k, n, …)."""
        if not self._graph.requires_grad:
            sums.add(self._zeros(len(cotangents)))
            return
        pulled = self._pull_back([self._graph], list(self._weights.values()), [cotangents])
        sums.add(dict(zip(self._weights, pulled, strict=True)))

    def curve(self, loss: Loss, targets: Any, block: Block, sums: GradientSums) -> None:
        """Add ∇²_θ Σ ℓ(f(θ), y) v; loss and targets must be the same in every call."""
        if self._slopes is None:
            self._slopes = self._build_slopes(loss, targets)
        if not self._slopes:
            sums.add(self._zeros(_rows(block)))
            return
        names = list(self._slopes)
        curved = self._pull_back(
            list(self._slopes.values()),
            list(self._weights.values()),
            [block[name] for name in names],
        )
        sums.add(dict(zip(self._weights, curved, strict=True)))

    def structured(self) -> set[str]:
        """Return the names whose every use was understood and keeps samples apart."""
        names = {use.name for use in self._uses} - self._others
        if not names or not self._graph.requires_grad:
            return set(self._weights) - self._others
        count = len(self.outputs)
        half = (count + 1) // 2
        seeds = torch.zeros_like(self.outputs).unsqueeze(0)
        generator = torch.Generator(seeds.device).manual_seed(0)
        drawn = torch.randn(seeds[:, :half].shape, generator=generator, device=seeds.device)
        seeds[:, :half] = drawn.to(seeds)
        flowed = self._flow_back(seeds)
        for use in self._uses:
            apart = use.shape[0] == count and not bool(flowed[use.edge][0, half:].any())
            if not apart:
                names.discard(use.name)
        unused = set(self._weights) - {use.name for use in self._uses} - self._others
        return names | unused

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the per-sample gradients of R f, one factor a structured name."""
        flowed = self._flow_back(rows)
        pieces: dict[str, list[Factor]] = {}
        for use in self._uses:
            if use.name in names:
                back = flowed[use.edge].transpose(0, 1)
                pieces.setdefault(use.name, []).append(use.factor(use.name, back))
        return [summed(uses) for uses in pieces.values()]

    def sample_gradients(
        self, rows: torch.Tensor, names: Sequence[str], samples: slice
    ) -> dict[str, torch.Tensor]:
        """Return per-sample gradients written out, sample by sample."""
        weights = [self._weights[name] for name in names]
        gradients = []
        for index in range(samples.start, samples.stop):
            with evaluation():
                outputs = self._forward(self._weights, slice(index, index + 1))
            row = rows[:, index : index + 1]
            gradients.append(self._pull_back([outputs], weights, [row]))
        columns = zip(*gradients, strict=True)
        return {name: torch.stack(column) for name, column in zip(names, columns, strict=True)}

    def _flow_back(self, rows: torch.Tensor) -> dict[GradientEdge, torch.Tensor]:
        """Return what flows back into every layer's output, (m, *shape)."""
        shapes = {use.edge: use.shape for use in self._uses}
        if not shapes:
            return {}
        flowed = self._pull_back([self._graph], list(shapes), [rows], list(shapes.values()))
        return dict(zip(shapes, flowed, strict=True))

    def _build_transposed(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        probe = torch.zeros_like(self._graph).requires_grad_()
        if not self._graph.requires_grad:
            return probe, {}
        pulled = self._differentiate(self._graph, probe)
        return probe, _differentiable(self._weights, pulled)

    def _build_slopes(self, loss: Loss, targets: Any) -> dict[str, torch.Tensor]:
        if not self._graph.requires_grad:
            return {}
        with evaluation():
            total = loss.total(self._graph, targets)
        slopes = self._differentiate(total)
        return _differentiable(self._weights, slopes)

    def _differentiate(
        self, output: torch.Tensor, cotangent: torch.Tensor | None = None
    ) -> tuple[torch.Tensor | None, ...]:
        """Return derivatives in the weights that can be differentiated again."""
        weights = list(self._weights.values())
        with evaluation():
            return self._within(
                lambda: torch.autograd.grad(
                    output, weights, cotangent, create_graph=True, allow_unused=True
                )
            )

    def _pull_back(self, *arguments: Any) -> list[torch.Tensor]:
        return self._within(lambda: pull_back(*arguments))

    def _zeros(self, rows: int) -> dict[str, torch.Tensor]:
        return {name: w.new_zeros(rows, *w.shape) for name, w in self._weights.items()}


def pull_back(
    outputs: list[torch.Tensor],
    inputs: Sequence[Any],
    cotangents: list[torch.Tensor],
    shapes: Sequence[torch.Size] | None = None,
) -> list[torch.Tensor]:
    """Return the vector-Jacobian products of k rows of cotangents, each (k, *input shape).

    Inputs are tensors, or edges of the graph with their shapes. Rows go through the graph together;
    operations without a batching rule go one by one.
    """
    rows = len(cotangents[0])
    shapes = [tensor.shape for tensor in inputs] if shapes is None else shapes

    def backward(rowed: list[torch.Tensor], batched: bool) -> tuple[torch.Tensor | None, ...]:
        return torch.autograd.grad(
            outputs,
            inputs,
            rowed,
            retain_graph=True,
            is_grads_batched=batched,
            allow_unused=True,
        )

    def filled(pulled: tuple[torch.Tensor | None, ...], lead: tuple[int, ...]) -> list:
        return [
            outputs[0].new_zeros(*lead, *shape) if tensor is None else tensor
            for tensor, shape in zip(pulled, shapes, strict=True)
        ]

    if rows > 1:
        try:
            return filled(backward(cotangents, True), (rows,))
        except RuntimeError as error:
            if "vmap" not in str(error) and "batching rule" not in str(error):
                raise
    singles = [filled(backward([c[r] for c in cotangents], False), ()) for r in range(rows)]
    return [torch.stack(pieces) for pieces in zip(*singles, strict=True)]


def _differentiable(
    weights: Mapping[str, torch.Tensor], tensors: tuple[torch.Tensor | None, ...]
) -> dict[str, torch.Tensor]:
    return {
        name: tensor
        for name, tensor in zip(weights, tensors, strict=True)
        if tensor is not None and tensor.requires_grad
    }


def _rows(block: Block) -> int:
    return len(next(iter(block.values())))
