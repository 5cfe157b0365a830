"""Whether a call leaves the user's model, loss, data and process as they were.

Objects are compared by identity, tensors also by version and value: a parameter that was swapped
out and back in, or written to and restored, is found by one of the three.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

__all__ = ["still_trains", "untouched"]


@contextmanager
def untouched(*things: Any) -> Iterator[None]:
    """Fail when the block changes one of the modules, tensors or trees of tensors, or a setting.

    Also checked when the block raises: an error must not leave a half-changed model behind.
    """
    before = [_pictures(thing) for thing in things]
    settings, states = _settings(), _random_states()
    held = _held_by_an_optimiser(things)
    try:
        yield
    finally:
        changes = []
        for thing, pictures in zip(things, before, strict=True):
            changes += _differences(pictures, _pictures(thing))
        changes += [
            f"{name}: {old} became {new}"
            for (name, old), (_, new) in zip(settings, _settings(), strict=True)
            if old != new
        ]
        changes += [
            f"random state of {name}"
            for (name, old), (_, new) in zip(states, _random_states(), strict=True)
            if not np.array_equal(old, new)
        ]
        for module, parameters in held:
            present = list(module.parameters())
            if len(present) != len(parameters) or not all(
                _same_object(a, b) for a, b in zip(present, parameters, strict=True)
            ):
                changes.append("the optimiser holds other parameters than the model")
        assert not changes, "touched: " + "; ".join(changes)


def still_trains(module: nn.Module, optimiser: torch.optim.SGD, step: Any) -> None:
    """Fail when a step of an optimiser that was made earlier does not lower the loss as it must.

    Args:
        module: The model; it is changed.
        optimiser: Plain gradient descent at a rate so small that the loss is a line along its step.
        step: step(module) -> loss, a number with a graph.
    """
    before = step(module)
    before.backward()
    moved = [
        p for p in module.parameters() if p.grad is not None and bool(p.grad.to_dense().ne(0).any())
    ]
    assert moved, "no parameter of the model gets a gradient"
    squared = sum(float(p.grad.square().sum()) for p in moved)
    optimiser.step()
    optimiser.zero_grad()
    decrease = float(before.detach()) - float(step(module).detach())
    rate = optimiser.param_groups[0]["lr"]
    assert abs(decrease / (rate * squared) - 1) < 0.1, (
        "a step of gradient descent does not lower the loss by lr·|∇L|²"
    )


@dataclass
class _Picture:
    """A tensor or an object as it was; the object is kept, so that its id is not used again."""

    thing: Any
    version: int | None = None
    value: torch.Tensor | None = None
    grad: _Picture | None = None
    flags: tuple[Any, ...] = ()


def _pictures(thing: Any) -> dict[str, _Picture]:
    if isinstance(thing, torch.jit.ScriptModule):
        named = [*thing.named_parameters(), *thing.named_buffers()]
        return {name: _tensor(tensor) for name, tensor in named}
    if isinstance(thing, nn.Module):
        found: dict[str, _Picture] = {}
        for name, module in thing.named_modules(remove_duplicate=False):
            found |= _of_module(name, module)
        return found
    leaves = [leaf for leaf in tree_leaves(thing) if isinstance(leaf, torch.Tensor)]
    return {f"data[{i}]": _tensor(leaf) for i, leaf in enumerate(leaves)}


def _of_module(name: str, module: nn.Module) -> dict[str, _Picture]:
    if isinstance(module, torch.jit.ScriptModule):
        return {f"{name}.{key}": value for key, value in _pictures(module).items()}
    found = {name: _Picture(module, flags=(type(module), tuple(module.__dict__)))}
    for key, value in module.__dict__.items():
        place = f"{name}.{key}"
        if isinstance(value, torch.Tensor):
            found[place] = _tensor(value)
        elif isinstance(value, dict):
            found[place] = _Picture(value, flags=tuple(value))
            for inner, entry in value.items():
                found[f"{place}[{inner!r}]"] = _any(entry)
        elif isinstance(value, list | tuple):
            found[place] = _Picture(value, flags=(len(value),))
            for inner, entry in enumerate(value):
                found[f"{place}[{inner}]"] = _any(entry)
        elif isinstance(value, bool | int | float | str | None):
            found[place] = _Picture(None, flags=(value,))
        else:
            found[place] = _Picture(value)
    return found


def _any(thing: Any) -> _Picture:
    return _tensor(thing) if isinstance(thing, torch.Tensor) else _Picture(thing)


def _tensor(tensor: torch.Tensor) -> _Picture:
    grad = tensor.grad if tensor.is_leaf else None
    return _Picture(
        tensor,
        tensor._version,
        tensor.detach().clone(),
        None if grad is None else _tensor(grad),
        (tensor.requires_grad, tensor.dtype, tensor.device, tensor.is_leaf),
    )


def _same_object(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a is b or (type(a) is torch.Tensor and a.data_ptr() == b.data_ptr() != 0)
    if isinstance(a, int | float | str) or a is None:
        return a == b
    if isinstance(a, ref) and isinstance(b, ref):
        return a() is b()
    return a is b or (isinstance(a, MethodType) and a == b)


def _differences(before: dict[str, _Picture], after: dict[str, _Picture]) -> list[str]:
    changes = [f"{place} appeared" for place in after if place not in before]
    for place, old in before.items():
        new = after.get(place)
        if new is None:
            changes.append(f"{place} vanished")
        elif what := _difference(old, new):
            changes.append(f"{place}: {what}")
    return changes


def _difference(old: _Picture, new: _Picture) -> str:
    if not _same_object(old.thing, new.thing):
        return "another object"
    if old.flags != new.flags:
        return f"{old.flags} became {new.flags}"
    if old.version != new.version:
        return f"written to ({old.version} became {new.version})"
    if old.value is not None and new.value is not None:
        if old.value.shape != new.value.shape or not _equal(old.value, new.value):
            return "another value"
        if (old.grad is None) != (new.grad is None):
            return "its .grad appeared or vanished"
        if old.grad is not None and new.grad is not None and _difference(old.grad, new.grad):
            return f"its .grad: {_difference(old.grad, new.grad)}"
    return ""


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _held_by_an_optimiser(things: tuple[Any, ...]) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    held = []
    for thing in things:
        if isinstance(thing, nn.Module) and any(True for _ in thing.parameters()):
            groups = torch.optim.SGD(thing.parameters(), lr=0.1).param_groups
            held.append((thing, groups[0]["params"]))
    return held


def _settings() -> list[tuple[str, Any]]:
    return [
        ("grad mode", torch.is_grad_enabled()),
        ("inference mode", torch.is_inference_mode_enabled()),
        ("default dtype", torch.get_default_dtype()),
        ("threads", torch.get_num_threads()),
        ("autocast", torch.is_autocast_enabled("cpu")),
        ("deterministic", torch.are_deterministic_algorithms_enabled()),
        ("anomaly mode", torch.is_anomaly_enabled()),
        ("flash attention", torch.backends.cuda.flash_sdp_enabled()),
        ("efficient attention", torch.backends.cuda.mem_efficient_sdp_enabled()),
        ("plain attention", torch.backends.cuda.math_sdp_enabled()),
    ]


def _random_states() -> list[tuple[str, Any]]:
    numpy_state: Any = np.random.get_state()
    return [
        ("torch", torch.get_rng_state().numpy().copy()),
        ("numpy", [*numpy_state[1], numpy_state[2]]),
        ("python", [hash(random.getstate())]),
    ]
