"""The graph that autograd has recorded: its operations and the leaves it reaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["Nodes", "graph_leaves", "graph_nodes", "has_kinks", "has_own_rules", "operation_names"]

Nodes = Iterable[Any]

_KINKED = ("Relu", "Hard", "Clamp", "Threshold", "Abs", "Max", "Min", "Amax", "Amin", "Where")


def operation_names(nodes: Nodes) -> set[str]:
    """Return the names of the operations in a graph."""
    return {node.name() for node in nodes}


def graph_leaves(nodes: Nodes) -> list[torch.Tensor]:
    """Return the tensors whose gradients a graph accumulates."""
    found = (getattr(node, "variable", None) for node in nodes)
    return [leaf for leaf in found if leaf is not None]


def has_kinks(nodes: Nodes) -> bool:
    """Whether a graph has operations that are known to have kinks."""
    return any(part in name for name in operation_names(nodes) for part in _KINKED)


def has_own_rules(nodes: Nodes) -> bool:
    """Whether a graph has derivatives that neither torch nor this package has written."""
    for node in nodes:
        if "CppNode" in node.name():
            return True
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            written = getattr(type(node), "_forward_cls", type(node)).__module__
            if not written.startswith("hyperribbon."):
                return True
    return False


def graph_nodes(result: torch.Tensor) -> set[Any]:
    """Return all nodes of the graph of a result."""
    seen: set[Any] = set()
    waiting = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen
