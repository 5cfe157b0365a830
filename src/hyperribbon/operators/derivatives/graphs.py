"""The graph that autograd has recorded: its operations and the leaves it reaches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

Nodes = Iterable[Any]


def operation_names(nodes: Nodes) -> set[str]:
    """Return the names of the operations in an autograd graph."""
    return {node.name() for node in nodes}


def graph_leaves(nodes: Nodes) -> list[torch.Tensor]:
    """Return the leaf tensors of an autograd graph."""
    found = (getattr(node, "variable", None) for node in nodes)
    return [leaf for leaf in found if leaf is not None]


def graph_nodes(result: torch.Tensor) -> set[Any]:
    """Return all nodes of the autograd graph of a result."""
    seen: set[Any] = set()
    waiting = [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen
