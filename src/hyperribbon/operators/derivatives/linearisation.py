"""A model at fixed weights on a fixed batch, differentiated as often as asked from one graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from hyperribbon.core.devices.torch_private import FlopCounter
from hyperribbon.operators.derivatives.convolutions import only_needed
from hyperribbon.operators.derivatives.factors import Factor, add_factors
from hyperribbon.operators.derivatives.recording import CallRecorder
from hyperribbon.operators.derivatives.replacements import twice_differentiable

if TYPE_CHECKING:
    from hyperribbon.operators.risk.loss import Loss

_ARITHMETIC = 1e8  # floating-point operations per row above which a CPU gains nothing by batching
_LARGE = 2**18  # entries of a gradient whose values are not kept beside its graph

Slopes = Sequence[torch.Tensor | None]  # none where an input is not used
Block = Mapping[str, torch.Tensor]
"""Named tensors with k leading rows, (k, *parameter shape)."""


class Evaluation(Protocol):
    """A batch on which a model can be evaluated, at leaves that require gradients."""

    leaves: Mapping[str, torch.Tensor]
    count: int

    def outputs(self, samples: slice, watcher: TorchFunctionMode | None = None) -> torch.Tensor:
        """Return the outputs (n, …) to linearise, with a graph; a watcher sees the calls."""
        ...

    def jvp(self, v: Block) -> torch.Tensor:
        """Return J v (n, …) of an evaluation to linearise, by forward mode."""
        ...


@dataclass
class Routes:
    """How a model's linearisation finds jvps and blocks of products, for all batches.

    Attributes:
        jvp: How J v is found: "reverse", "forward", or "" before that is known.
        batched: Whether rows go through a graph together, by whether the backward pass has several
            outputs and several inputs.
    """

    jvp: str = ""
    batched: dict[tuple[bool, bool], bool] = field(default_factory=dict)


class Linearisation:
    """Derivatives of a batch's outputs f(θ), (n, …), at fixed weights, from graphs that are kept.

    Jᵀu is a backward pass. ∇²ℓ v is a backward pass through the graph of the gradient (double
    backward). J v is the derivative in u of ⟨Jᵀu, v⟩, a backward pass through the graph of Jᵀu.
    Forward mode, which evaluates the model again, took 0.75 to 1.9 times as long on twelve kinds of
    networks, and its first call in a process a second more: it is for models whose Jᵀu cannot be
    differentiated.

    Args:
        batch: The samples.
        routes: What is known of other batches of the same model.

    Attributes:
        graph: The outputs with their graph.
        outputs: The outputs without.
    """

    def __init__(self, batch: Evaluation, routes: Routes) -> None:
        self._batch, self._routes, self._leaves = batch, routes, batch.leaves
        recorder = CallRecorder(self._leaves, batch.count)
        self.graph = batch.outputs(slice(0, batch.count), recorder)
        self.outputs = self.graph.detach()
        self._uses, self._others = recorder.uses, recorder.others
        self._has_checkpoints = recorder.has_checkpoints
        self._skips_unneeded = recorder.skips_unneeded
        self._transposed: tuple[torch.Tensor, dict[str, torch.Tensor]] | None = None
        self._gradient: dict[str, torch.Tensor] | None = None

    def jvp(self, v: Block) -> torch.Tensor:
        """Return J v (k, n, …) of the linearised batch for k rows v."""
        if not self.graph.requires_grad:
            return self.outputs.new_zeros(_rows(v), *self.outputs.shape)
        if self._routes.jvp == "forward":
            return self._jvp_forward(v)
        if self._routes.jvp == "reverse":
            return self._jvp_reverse(v)
        try:  # on samples where the result is checked
            product, self._routes.jvp = self._jvp_reverse(v), "reverse"
        except (RuntimeError, NotImplementedError):
            product, self._routes.jvp = self._jvp_forward(v), "forward"
        return product

    def use_forward_mode(self) -> bool:
        """Let linearisations take forward mode for J v from now on; False when they do already."""
        was_reverse = self._routes.jvp != "forward"
        self._routes.jvp = "forward"
        return was_reverse

    def vjp(self, u: torch.Tensor, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return Jᵀ u of the linearised batch for u (k, n, …), by name."""
        return self.differentiate({"": self.graph}, {"": u}, names)

    def gradient(self, loss: Loss, targets: Any) -> dict[str, torch.Tensor]:
        """Return the linearised batch's ∇_θ Σ ℓ(f(θ), y) with its graph, by name.

        Loss and targets must be the same in every call.
        """
        if self._gradient is None:
            with torch.enable_grad():
                total = loss.total(self.graph, targets)
            is_constant = not self.graph.requires_grad
            self._gradient = {} if is_constant else _differentiate(total, self._leaves)
        return self._gradient

    def differentiate(self, of: Block, u: Block, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return ∂⟨of, u⟩/∂θ of a linearisation's own graphs by name, for k rows u."""
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

    def names_with_factors(self) -> set[str]:
        """Return the linearisation's parameters with factors: a rule for every use."""
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
            flow = use.by_sample(flowed[use.edge][0])
            if len(flow) != count or bool(flow[half:].any()):
                names.discard(use.name)
        unused = set(self._leaves) - {use.name for use in self._uses} - self._others
        return names | unused

    def factors(self, rows: torch.Tensor, names: set[str]) -> list[Factor]:
        """Return the linearisation's per-sample gradients of R f, one factor per name."""
        flowed = self._flow_back(rows)
        pieces: dict[str, list[Factor]] = {}
        for use in self._uses:
            if use.name in names:
                pieces.setdefault(use.name, []).append(use.make(flowed[use.edge]))
        return [add_factors(uses) for uses in pieces.values()]

    def sample_gradients(
        self, rows: torch.Tensor, names: Sequence[str], samples: slice
    ) -> dict[str, torch.Tensor]:
        """Return the linearisation's gradients of single samples, written out (n, m, *shape)."""
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
        """Return J v of the linearised batch as ∂⟨Jᵀu, v⟩/∂u, by reverse mode."""
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

    def _flow_back(
        self, rows: torch.Tensor
    ) -> dict[GradientEdge, torch.Tensor | tuple[torch.Tensor, ...]]:
        """Return what flows back into every layer's output of a linearisation, m times (*shape)."""
        shapes = {use.edge: use.shape for use in self._uses}
        if not shapes or not self.graph.requires_grad:
            return {}
        edges = list(shapes)
        flowed = self._backward_by_row([self.graph], edges, [rows], list(shapes.values()))
        return dict(zip(shapes, flowed, strict=True))

    def _backward(
        self,
        outputs: list[torch.Tensor],
        inputs: Sequence[Any],
        cotangents: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Return the linearised batch's vector-Jacobian products, each (k, *input shape)."""
        found = self._backward_by_row(outputs, inputs, cotangents)
        return [k if isinstance(k, torch.Tensor) else torch.stack(k) for k in found]

    def _backward_by_row(
        self,
        outputs: list[torch.Tensor],
        inputs: Sequence[Any],
        cotangents: list[torch.Tensor],
        shapes: Sequence[torch.Size] | None = None,
    ) -> list[torch.Tensor] | list[tuple[torch.Tensor, ...]]:
        """Return the linearised batch's vector-Jacobian products, one row after the other.

        Inputs are tensors, or edges of the graph with their shapes. Rows go through the graph
        together where that is possible and saves time, else one by one.
        """
        rows = len(cotangents[0])

        def backward(u: list[torch.Tensor], lead: tuple[int, ...] = ()) -> list[torch.Tensor]:
            with ExitStack() as stack:
                if self._has_checkpoints:
                    stack.enter_context(twice_differentiable())
                    stack.enter_context(torch.no_grad())
                if self._skips_unneeded:
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

        def one(row: int) -> list[torch.Tensor]:
            return backward([u[row] for u in cotangents])

        if rows == 1:
            return [tensor.unsqueeze(0) for tensor in one(0)]
        kind = len(outputs) > 1, len(inputs) > 1
        done: list[list[torch.Tensor]] = []
        if kind not in self._routes.batched:
            found, done = self._try_batched(one, lambda: backward(cotangents, (rows,)))
            self._routes.batched[kind] = found is not None
            if found is not None:
                return found
        if self._routes.batched[kind]:
            return backward(cotangents, (rows,))
        done += [one(row) for row in range(len(done), rows)]
        return list(zip(*done, strict=True))

    def _try_batched(
        self, one: Callable[[int], list[torch.Tensor]], together: Callable[[], list[torch.Tensor]]
    ) -> tuple[list[torch.Tensor] | None, list[list[torch.Tensor]]]:
        """Return the linearisation's products of all rows at once, or None: better one by one.

        The first rows, one by one, are returned beside it.

        Small products spend their time on overhead, which rows share: on six networks, together
        they mostly took 0.3 to 0.9 of the time of single rows up to 1e8 floating-point operations
        per row (a small convolutional network took 2.5), and 0.67 to 2.4 beyond. The count decides,
        not a clock, so every run rounds alike. Checkpoints save memory that rows together would
        take.
        """
        singles: list[list[torch.Tensor]] = []
        if self._has_checkpoints:
            return None, singles
        try:
            with FlopCounter() as counter:
                singles.append(one(0))
            if self.outputs.device.type == "cpu" and counter.flops > _ARITHMETIC:
                return None, singles
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                warnings.filterwarnings("error", message=".*performance drop.*")
                found = together()
        except Exception:  # an operation has no batching rule
            return None, singles
        singles.append(one(1))
        pairs = zip(_stack(singles), found, strict=True)
        agree = all(_agree(single, rows[:2]) for single, rows in pairs)
        return found if agree else None, singles


def _stack(rows: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.stack(pieces) for pieces in zip(*rows, strict=True)]


def _agree(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether products of a linearisation by two routes are equal up to rounding."""
    limit = min(1e4 * torch.finfo(first.dtype).eps, 0.1)
    return float((first - second).norm()) <= limit * float(first.norm()) + 1e-30


def _differentiate(
    output: torch.Tensor,
    leaves: Mapping[str, torch.Tensor],
    cotangent: torch.Tensor | None = None,
) -> dict[str, torch.Tensor]:
    """Return a linearisation's derivatives so that they can be differentiated again."""
    with twice_differentiable():
        slopes = torch.autograd.grad(
            output, list(leaves.values()), cotangent, create_graph=True, allow_unused=True
        )
    found = zip(leaves, cast(Slopes, slopes), strict=True)
    graphs = {name: slope for name, slope in found if slope is not None and slope.requires_grad}
    with torch.enable_grad():
        return {
            name: _GraphOnly.apply(slope) if slope.numel() >= _LARGE else slope
            for name, slope in graphs.items()
        }


class _GraphOnly(torch.autograd.Function):
    """A large tensor's place in a linearisation's graph, without the memory of its values."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return zeros of the tensor's shape that take the memory of one number."""
        return tensor.new_zeros(()).expand_as(tensor)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> torch.Tensor:
        """Return the cotangent: of the graph it is the identity."""
        return cotangents[0]


def _rows(block: Block) -> int:
    return len(next(iter(block.values())))
