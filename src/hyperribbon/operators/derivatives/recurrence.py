"""A recurrent layer as one operation with first and second derivatives, for any elementwise cell.

A layer multiplies by W and U; everything else in a step is elementwise. A `Cell` lists those
elementwise equations x = φ(arguments). With D = ∂φ/∂arguments and M = ∂²φ/∂arguments² at every step
and v = U h_{t−1} + d,

    tangent:   v̇_t = U ḣ_{t−1} + U̇ h_{t−1} + ḋ,    ẋ = Σ D∘ȧ over the arguments a of φ
    gradient:  ā = Σ D∘x̄ over the equations with a,    h̄_{t−1} += Uᵀ v̄_t
    second:    the derivative of ā along a tangent, Σ D∘x̄̇ + (M∘x̄)∘ȧ,    with Uᵀ v̄̇_t + U̇ᵀ v̄_t

where x̄ is the gradient in x. Autograd computes D and M∘x̄ for all steps at once, and they are kept
for all products. Hessian products take 0.92 to 1.09 of the time of formulas written out by hand for
LSTM, GRU and RNN (widths 64 and 128, two layers), so there are none.
"""

# pyright: reportIncompatibleMethodOverride=false
# torch gives `backward` as many gradients as `forward` has outputs.
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hyperribbon.core.devices.torch_private import as_one_operation, without_function_modes
from hyperribbon.operators.derivatives.convolutions import needed_inputs

Maybe = torch.Tensor | None
Steps = Sequence[torch.Tensor]
"""A tensor (n, H) for each step."""


@dataclass(frozen=True)
class Equation:
    """An elementwise equation of a recurrent step: result = function(arguments)."""

    result: str
    function: Callable[..., torch.Tensor]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """The equations of one recurrent step; "old_h" is the state h of the step before.

    Attributes:
        gates: Parts of W x + b.
        own: Parts of U h + d; a part with the name of a gate is added to it.
        states: What a step hands on, h first.
        equations: In the order of evaluation.
    """

    gates: tuple[str, ...]
    own: tuple[str, ...]
    states: tuple[str, ...]
    equations: tuple[Equation, ...]


_LSTM = Cell(
    gates=("i", "f", "g", "o"),
    own=("i", "f", "g", "o"),
    states=("h", "c"),
    equations=(
        Equation(
            "c",
            lambda i, f, g, old_c: f.sigmoid() * old_c + i.sigmoid() * g.tanh(),
            ("i", "f", "g", "old_c"),
        ),
        Equation("h", lambda o, c: o.sigmoid() * c.tanh(), ("o", "c")),
    ),
)
_GRU = Cell(
    gates=("r", "z", "n"),
    own=("r", "z", "own_n"),
    states=("h",),
    equations=(
        Equation("new", lambda n, r, own_n: n + r.sigmoid() * own_n, ("n", "r", "own_n")),
        Equation(
            "h", lambda z, new, old_h: new.tanh().lerp(old_h, z.sigmoid()), ("z", "new", "old_h")
        ),
    ),
)
_TANH = Cell(("a",), ("a",), ("h",), (Equation("h", torch.tanh, ("a",)),))
_RELU = Cell(("a",), ("a",), ("h",), (Equation("h", torch.relu, ("a",)),))

CELLS = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": _TANH, "rnn_relu": _RELU}
"""By the names of torch's functions."""


def recurrent_layer(
    cell: Cell, steps: torch.Tensor, u: torch.Tensor, d: Maybe, start: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the outputs (T, n, H) of a recurrence over time steps, and its last state.

    Args:
        cell: The equations of a step.
        steps: W x + b of all steps, (T, n, gates·H).
        u: U, (gates·H, H).
        d: The bias beside U, where it is not a part of the steps.
        start: The state before the first step, (n, H) each.
    """
    outputs, *others = _Layer.apply(cell, steps, u, d, *start)
    return outputs, (outputs[-1], *others)


class _Evaluation:
    """An evaluated recurrence; tensors that it keeps are its own, not those that it returns."""

    def __init__(
        self, cell: Cell, steps: torch.Tensor, u: torch.Tensor, d: Maybe, start: Steps
    ) -> None:
        self.cell, self.u, self.has_bias = cell, u, d is not None
        state = dict(zip(cell.states, start, strict=True))
        found: list[dict[str, torch.Tensor]] = []
        for step in steps:
            values = self._arguments(step, d, state)
            for equation in cell.equations:
                own = (values[name] for name in equation.arguments)
                values[equation.result] = equation.function(*own)
            state = {name: values[name] for name in cell.states}
            found.append(values)
        kept = {name for equation in cell.equations for name in equation.arguments}
        kept |= {*cell.states, "old_h"}
        self.values = {name: torch.stack([step[name] for step in found]) for name in kept}

    def _arguments(
        self, step: torch.Tensor, added: Maybe, state: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return what a recurrence's equations of a step take: parts of W x + b and of U h + d.

        Args:
            step: W x + b, with d where all gates are sums.
            added: d, otherwise.
            state: The state before.
        """
        cell, h, across = self.cell, state["h"], self.u.t()
        values = {f"old_{name}": tensor for name, tensor in state.items()}
        if cell.gates == cell.own:
            own = torch.addmm(step, h, across)
            return values | dict(zip(cell.own, own.chunk(len(cell.own), dim=1), strict=True))
        own = h @ across if added is None else torch.addmm(added, h, across)
        values |= zip(cell.own, own.chunk(len(cell.own), dim=1), strict=True)
        for name, part in zip(cell.gates, step.chunk(len(cell.gates), dim=1), strict=True):
            values[name] = values[name] + part if name in cell.own else part
        return values

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Return a recurrence's outputs (T, n, H), and the other parts of the last state."""
        first, *others = (self.values[name] for name in self.cell.states)
        return first.detach(), *(part[-1].clone() for part in others)

    @cached_property
    def slopes(self) -> list[list[Steps]]:
        """First derivatives D of the recurrence by equation and argument, for each step."""
        found: list[list[Steps]] = []
        for equation in self.cell.equations:
            with torch.enable_grad():
                leaves = self._leaves(equation)
                total = equation.function(*leaves).sum()
            slopes = torch.autograd.grad(total, leaves)
            found.append([slope.unbind(0) for slope in slopes])
        return found

    def _leaves(self, equation: Equation) -> list[torch.Tensor]:
        return [self.values[name].detach().requires_grad_() for name in equation.arguments]

    def second(self, equation: Equation, weights: torch.Tensor) -> list[tuple[str, str, Steps]]:
        """Return a recurrence's second derivatives M∘x̄ for pairs of arguments, where not zero."""
        with torch.enable_grad():
            leaves = self._leaves(equation)
            total = (equation.function(*leaves) * weights).sum()
            slopes = torch.autograd.grad(total, leaves, create_graph=True)
        found: list[tuple[str, str, Steps]] = []
        for first, slope in zip(equation.arguments, slopes, strict=True):
            if not slope.requires_grad:
                continue
            ones = torch.ones_like(slope)
            bends = torch.autograd.grad(slope, leaves, ones, retain_graph=True, allow_unused=True)
            for other, bend in zip(equation.arguments, bends, strict=True):
                if bend is not None and bool(bend.any()):
                    found.append((first, other, bend.unbind(0)))
        return found

    def tangent(
        self, along: torch.Tensor, along_u: Maybe, along_d: Maybe, along_start: Steps
    ) -> list[dict[str, torch.Tensor]]:
        """Return the tangents of all values of each step of a recurrence, along a direction."""
        cell = self.cell
        moved: torch.Tensor | None = None
        if along_u is not None:
            before = self.values["old_h"]
            moved = (_rows(before) @ along_u.t()).view(*before.shape[:2], -1)
        if along_d is not None:
            moved = along_d.expand(along.shape) if moved is None else moved + along_d
        if moved is not None and cell.gates == cell.own:
            along, moved = along + moved, None
        state = dict(zip(cell.states, along_start, strict=True))
        found: list[dict[str, torch.Tensor]] = []
        for t, step in enumerate(along):
            values = self._arguments(step, None if moved is None else moved[t], state)
            for equation, slopes in zip(cell.equations, self.slopes, strict=True):
                total = None
                for name, slope in zip(equation.arguments, slopes, strict=True):
                    total = _add_product(total, slope[t], values[name])
                assert total is not None
                values[equation.result] = total
            state = {name: values[name] for name in cell.states}
            found.append(values)
        return found

    def adjoint(
        self,
        of_outputs: Sequence[Maybe],
        of_state: Steps,
        change: Callable[[int, dict[str, torch.Tensor]], None] = lambda step, gradients: None,
    ) -> _Adjoint:
        """Return the recurrence's gradients in its inputs, from those in its outputs.

        Args:
            of_outputs: The gradient in h of each step.
            of_state: Gradients in the last state besides.
            change: Adds to the gradients of a step before they are passed on.
        """
        cell, length = self.cell, len(of_outputs)
        gates: list[torch.Tensor] = []
        own: list[torch.Tensor] = []
        results: list[dict[str, torch.Tensor]] = []
        state = dict(zip(cell.states, of_state, strict=True))
        for t in reversed(range(length)):
            gradients = dict(state)
            outside = of_outputs[t]
            if outside is not None:
                gradients["h"] = gradients["h"] + outside
            change(t, gradients)
            for equation, slopes in zip(cell.equations[::-1], self.slopes[::-1], strict=True):
                flowing = gradients[equation.result]
                for name, slope in zip(equation.arguments, slopes, strict=True):
                    gradients[name] = _add_product(gradients.get(name), slope[t], flowing)
            results.append({e.result: gradients[e.result] for e in cell.equations})
            own.append(torch.cat([gradients[name] for name in cell.own], dim=1))
            if cell.gates != cell.own:
                gates.append(torch.cat([gradients[name] for name in cell.gates], dim=1))
            past = gradients.get("old_h")
            h = own[-1] @ self.u if past is None else torch.addmm(past, own[-1], self.u)
            state = {name: gradients[f"old_{name}"] for name in cell.states if name != "h"}
            state["h"] = h
        stacked = torch.stack(own[::-1])
        return _Adjoint(
            self,
            torch.stack(gates[::-1]) if gates else stacked,
            stacked,
            [state[name] for name in cell.states],
            results[::-1],
        )


class _Adjoint:
    """Gradients of an evaluated recurrence, backwards in time.

    Attributes:
        gates: In W x + b, (T, n, gates·H).
        own: In U h + d, likewise.
        start: In the state before the first step.
    """

    def __init__(
        self,
        layer: _Evaluation,
        gates: torch.Tensor,
        own: torch.Tensor,
        start: list[torch.Tensor],
        results: list[dict[str, torch.Tensor]],
    ) -> None:
        self.layer, self.gates, self.own, self.start = layer, gates, own, start
        self._results = results

    def gradients(self, is_u_needed: bool) -> tuple[Maybe, ...]:
        """Return the recurrence's gradients in the steps, U, d and the initial state."""
        in_u = _sum_outer(self.own, self.layer.values["old_h"]) if is_u_needed else None
        in_d = self.own.sum((0, 1)) if self.layer.has_bias else None
        return self.gates, in_u, in_d, *self.start

    @cached_property
    def _second(self) -> list[tuple[str, str, Steps]]:
        """Second derivatives M∘x̄ of all equations of the recurrence."""
        found: list[tuple[str, str, Steps]] = []
        for equation in self.layer.cell.equations:
            weights = torch.stack([step[equation.result] for step in self._results])
            found += self.layer.second(equation, weights)
        self._results = []
        return found

    def derivative(
        self, tangent: list[dict[str, torch.Tensor]], along_u: Maybe, is_u_needed: bool
    ) -> tuple[Maybe, ...]:
        """Return the derivatives of the recurrence's gradients along a tangent."""

        def bend(t: int, gradients: dict[str, torch.Tensor]) -> None:
            for name, other, coefficients in self._second:
                moved = tangent[t][other]
                gradients[name] = _add_product(gradients.get(name), coefficients[t], moved)

        of_h: list[Maybe] = [None] * (len(tangent) + 1)
        if along_u is not None:
            of_h[:-1] = (self.own @ along_u).unbind(0)
        nothing = torch.zeros_like(self.layer.values["h"][0])
        found = self.layer.adjoint(of_h[1:], [nothing] * len(self.start), bend)
        if of_h[0] is not None:
            found.start[0] = found.start[0] + of_h[0]
        in_steps, in_u, in_d, *in_start = found.gradients(is_u_needed)
        if in_u is not None:
            in_u = in_u + _sum_outer(self.own, torch.stack([step["old_h"] for step in tangent]))
        return in_steps, in_u, in_d, *in_start


class _Layer(torch.autograd.Function):
    @staticmethod
    @without_function_modes
    def forward(ctx: Any, cell: Cell, *given: Any) -> Any:
        ctx.save_for_backward(*given)
        steps, u, d, *start = given

        def evaluate() -> tuple[_Evaluation, list[torch.Tensor]]:
            layer = _Evaluation(cell, steps, u.detach(), d, start)
            return layer, list(layer.values.values())

        ctx.layer = as_one_operation(evaluate)[0]
        return ctx.layer.ends()

    @staticmethod
    @without_function_modes
    def backward(ctx: Any, *of_ends: torch.Tensor) -> Any:
        is_u_needed = needed_inputs(ctx)[2]
        if torch.is_grad_enabled():
            given = ctx.saved_tensors
            return None, *_Gradient.apply(ctx.layer, is_u_needed, len(of_ends), *of_ends, *given)
        return None, *_gradient(ctx.layer, of_ends).gradients(is_u_needed)


class _Gradient(torch.autograd.Function):
    @staticmethod
    @without_function_modes
    def forward(ctx: Any, layer: _Evaluation, is_u_needed: bool, ends: int, *given: Any) -> Any:
        adjoint = _gradient(layer, given[:ends])
        found = adjoint.gradients(is_u_needed)
        ctx.adjoint, ctx.ends = adjoint, ends
        # What is returned would hold itself through these.
        adjoint.gates, adjoint.own = adjoint.gates.detach(), adjoint.own.detach()
        adjoint.start = [part.detach() for part in adjoint.start]
        return found

    @staticmethod
    @without_function_modes
    @once_differentiable
    def backward(ctx: Any, along: Any, along_u: Maybe, along_d: Maybe, *start: Any) -> Any:
        tangent = ctx.adjoint.layer.tangent(along, along_u, along_d, start)
        _, _, _, *needed = needed_inputs(ctx)
        in_ends, needed = needed[: ctx.ends], needed[ctx.ends :]
        moved: list[Maybe] = [None] * ctx.ends
        if any(in_ends):
            _, *others = ctx.adjoint.layer.cell.states
            moved = [torch.stack([step["h"] for step in tangent])]
            moved += [tangent[-1][name] for name in others]
        if not any(needed):
            return None, None, None, *moved, *(None for _ in needed)
        return None, None, None, *moved, *ctx.adjoint.derivative(tangent, along_u, needed[1])


def _gradient(layer: _Evaluation, of_ends: Steps) -> _Adjoint:
    of_outputs, *of_others = of_ends
    return layer.adjoint(of_outputs.unbind(0), [torch.zeros_like(of_outputs[0]), *of_others])


def _add_product(total: Maybe, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return first * second if total is None else torch.addcmul(total, first, second)


def _sum_outer(gradients: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a recurrence's weights, Σ_t v̄_t h_tᵀ, summed over samples too."""
    return _rows(gradients).t() @ _rows(states)


def _rows(steps: torch.Tensor) -> torch.Tensor:
    """Return samples of all steps of a recurrence as rows."""
    return steps.reshape(-1, steps.shape[2])
