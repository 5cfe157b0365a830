"""Modules of random networks that torch.nn does not have."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

__all__ = [
    "Attention",
    "Branches",
    "ByFunction",
    "Function",
    "Gate",
    "Last",
    "Places",
    "Reader",
    "Residual",
    "Stopped",
    "Steps",
    "Tied",
    "Twice",
    "Words",
]

Map = Callable[[torch.Tensor], torch.Tensor]


class Function(nn.Module):
    """A function without parameters."""

    def __init__(self, function: Map) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)

    def extra_repr(self) -> str:
        code = getattr(self.function, "__code__", None)
        named = self.function.__name__
        return named if code is None or named != "<lambda>" else f"line {code.co_firstlineno}"


class Steps(nn.Module):
    """Layers in a list, one after another."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ByFunction(nn.Module):
    """A linear map of parameters that no layer of torch.nn holds."""

    def __init__(self, width: int, out: int, how: str) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(out, width) / width**0.5)
        self.shift, self.how = nn.Parameter(torch.randn(out) / 3), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "linear":
            return F.linear(x, self.matrix, self.shift)
        if self.how == "matmul":
            return x @ self.matrix.T + self.shift
        if self.how == "einsum":
            return torch.einsum("...i,oi->...o", x, self.matrix) * self.shift
        flat = torch.addmm(self.shift, x.reshape(-1, x.shape[-1]), self.matrix.t(), beta=0.7)
        return flat.reshape(*x.shape[:-1], -1)


class Tied(nn.Module):
    """A map and, behind an activation, its transpose."""

    def __init__(self, width: int, inner: int, between: nn.Module) -> None:
        super().__init__()
        self.code, self.between = nn.Linear(width, inner), between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self.between(self.code(x)), self.code.weight.t())


class Twice(nn.Module):
    """The same layer two times."""

    def __init__(self, layer: nn.Module, between: nn.Module) -> None:
        super().__init__()
        self.layer, self.again, self.between = layer, layer, between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.between(self.layer(x)))


class Gate(nn.Module):
    """A map times a gate."""

    def __init__(self, width: int, out: int, gate: Map) -> None:
        super().__init__()
        self.value, self.open, self.gate = nn.Linear(width, out), nn.Linear(width, out), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(x) * self.gate(self.open(x))


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x.clone())


class Stopped(nn.Module):
    """A map and another one through which no gradient flows."""

    def __init__(self, free: nn.Module, held: nn.Module, how: str) -> None:
        super().__init__()
        self.free, self.held, self.how = free, held, how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "detach":
            return self.free(x) + self.held(x).detach()
        with torch.no_grad():
            held = self.held(x)
        return self.free(x) * torch.tanh(held)


class Branches(nn.Module):
    """Two maps side by side."""

    def __init__(self, left: nn.Module, right: nn.Module) -> None:
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.left(x), self.right(x)], dim=1)


class Reader(nn.Module):
    """All outputs of a recurrent layer."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)[0]


class Attention(nn.Module):
    """Attention with one head."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.maps, self.causal = nn.Linear(width, 3 * width), causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.maps(x).chunk(3, dim=2)
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Last(nn.Module):
    """Attention of torch.nn to the sequence itself."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Places(nn.Module):
    """A learned number for every entry, and a scale."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.randn(sizes)), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + self.shift


class Words(nn.Module):
    """An embedding, in one of torch's ways."""

    def __init__(self, count: int, width: int, how: str) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width, padding_idx=0 if how == "padded" else None)
        self.how = how

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        if self.how == "indexed":
            return self.table.weight[words]
        if self.how == "one-hot":
            return F.one_hot(words, len(self.table.weight)).double() @ self.table.weight
        if self.how == "last padded":
            return F.embedding(words, self.table.weight, padding_idx=-1)
        return self.table(words)
