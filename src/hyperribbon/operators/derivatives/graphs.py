"""The graph that autograd has recorded: its operations and the leaves it reaches."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["graph_leaves", "has_own_rules", "operation_names"]


def operation_names(result: torch.Tensor) -> set[str]:
    """Return the names of the operations in the graph of a result."""
    return {node.name() for node in _nodes(result)}


def graph_leaves(result: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors whose gradients the graph of a result accumulates."""
    found = (getattr(node, "variable", None) for node in _nodes(result))
    return [leaf for leaf in found if leaf is not None]


def has_own_rules(result: torch.Tensor) -> bool:
    """Whether the graph has derivatives that neither torch nor this package has written."""
    for node in _nodes(result):
        if "CppNode" in node.name():
            return True
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            written = getattr(type(node), "_forward_cls", type(node)).__module__
            if not written.startswith("hyperribbon."):
                return True
    return False


def _nodes(result: torch.Tensor) -> set[Any]:
    seen: set[Any] = set()
    waiting = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen
