"""Products with Hessian and Gauss-Newton matrices: ours, the peers', and in double precision.

`WAYS` has each of them by name: a function that takes a subject and returns multiply(vectors).
Peers run as they are; where that fails, they run once more with the help a user would find for them
(attention from plain operations, recurrent layers without oneDNN), and it is said so.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hyperribbon as hr
from benchmarks.models import NETWORKS, Subject

__all__ = [
    "HELPS",
    "OURS",
    "WAYS",
    "Entry",
    "clock",
    "directions",
    "exact_products",
    "peak_of",
    "peak_of_pairs",
    "take_turns",
]

Multiply = Callable[[torch.Tensor], torch.Tensor]


@contextlib.contextmanager
def without_onednn() -> Iterator[None]:
    """Run with torch's own kernels; oneDNN warns about processors it is not on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with torch.backends.mkldnn.flags(enabled=False):
            yield


HELPS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": contextlib.nullcontext,
    "plain attention": lambda: sdpa_kernel(SDPBackend.MATH),
    "no oneDNN": without_onednn,
}


def gradient(subject: Subject) -> Multiply:
    """The unit of all times: the loss and one torch.autograd.grad of it, whatever the vectors."""
    model, inputs, targets = subject
    params, loss = list(model.parameters()), nn.CrossEntropyLoss()

    def multiply(_: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(loss(model(inputs), targets), params)[0]

    return multiply


def ours(kind: type) -> Callable[[Subject], Multiply]:
    def build(subject: Subject) -> Multiply:
        model, inputs, targets = subject
        return kind(model, nn.CrossEntropyLoss(), (inputs, targets)).__matmul__

    return build


def curvlinops(name: str) -> Callable[[Subject], Multiply]:
    def build(subject: Subject) -> Multiply:
        model, inputs, targets = subject
        kind = getattr(importlib.import_module("curvlinops"), name)
        params, data = list(model.parameters()), [(inputs, targets)]
        operator = kind(model, nn.CrossEntropyLoss(), params, data, check_deterministic=False)
        return operator.__matmul__

    return build


def eigenthings(subject: Subject) -> Multiply:
    from hessian_eigenthings import HessianOperator, supervised_loss

    model, inputs, targets = subject
    loss = supervised_loss(nn.CrossEntropyLoss())
    return HessianOperator(model, [(inputs, targets)], loss).matvec


WAYS: dict[str, Callable[[Subject], Multiply]] = {
    "gradient": gradient,
    "hessian": ours(hr.Hessian),
    "ggn": ours(hr.GGN),
    "hessian, curvlinops": curvlinops("HessianLinearOperator"),
    "ggn, curvlinops": curvlinops("GGNLinearOperator"),
    "hessian, hessian-eigenthings": eigenthings,
}
OURS = ("hessian", "ggn")
PACKAGES = {"curvlinops": "curvlinops", "hessian-eigenthings": "hessian_eigenthings"}


def clock() -> float:
    """Return seconds of the wall, or on one thread of the processor, true on a busy machine too."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def directions(subject: Subject, columns: int | None = None) -> torch.Tensor:
    """Return a random vector (P,), or a block (P, columns)."""
    size = sum(p.numel() for p in subject.model.parameters())
    generator = torch.Generator().manual_seed(1)
    return torch.randn((size,) if columns is None else (size, columns), generator=generator)


@dataclass
class Entry:
    """One way to multiply, after its first product.

    Attributes:
        name: Its name in `WAYS`.
        vectors: What it is multiplied with.
        multiply: The product, or None when it does not run.
        answer: The first product.
        built: Seconds to build it: ours looks at model, loss and data, compares derivatives with
            finite differences and tries routes.
        first: Seconds to build it and multiply once.
        help: The name in `HELPS` that it needs; "" when it runs as it is.
        error: What it said when it did not run as it is.
    """

    name: str
    vectors: torch.Tensor
    multiply: Multiply | None = None
    answer: torch.Tensor | None = None
    built: float = 0.0
    first: float = 0.0
    help: str = ""
    error: str = ""

    @classmethod
    def start(cls, name: str, subject: Subject, vectors: torch.Tensor, help: str) -> Entry:
        """Build and multiply once; a peer that fails gets the help, ours never does."""
        load_peer(name)
        entry = cls(name, vectors)
        for attempt in dict.fromkeys(["", "" if name in OURS else help]):
            try:
                start = clock()
                with HELPS[attempt]():
                    multiply = WAYS[name](subject)
                    entry.built = clock() - start
                    answer = multiply(vectors).detach()
                entry.first = clock() - start
                entry.multiply, entry.answer, entry.help = multiply, answer, attempt
                break
            except Exception as error:
                entry.error = entry.error or told(error)
        return entry

    @property
    def operator(self) -> Any:
        """Ours whose product it is; None for others."""
        return getattr(self.multiply, "__self__", None)

    def __call__(self) -> torch.Tensor:
        """Multiply once more."""
        assert self.multiply is not None
        with HELPS[self.help]():
            return self.multiply(self.vectors)


def load_peer(way: str) -> None:
    """Import the package of a peer, so that it is neither timed nor counted as memory."""
    for peer, package in PACKAGES.items():
        if peer in way:
            with contextlib.suppress(ImportError):  # it is told when the peer is built
                importlib.import_module(package)


def warm_up(way: str) -> None:
    """Multiply something small, so that what a way loads is in memory."""
    load_peer(way)
    model = nn.Sequential(nn.LayerNorm(4), nn.Conv1d(1, 1, 2), nn.Flatten(), nn.Linear(3, 3))
    subject = Subject(model, torch.randn(6, 1, 4), torch.arange(6) % 3)
    WAYS[way](subject)(directions(subject))


def told(error: Exception) -> str:
    """Return the first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:90]}" if lines else type(error).__name__


def exact_products(
    subject: Subject, vectors: torch.Tensor, help: str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return H V and G V by two backward passes, written out apart from every library.

        H v = ∂⟨∇L, v⟩/∂θ,    G v = Jᵀ (diag p − p pᵀ) J v / amount,

    with J v as the derivative of ⟨Jᵀ u, v⟩ along u.
    """
    model = copy.deepcopy(subject.model).to(dtype)
    inputs = subject.inputs.to(dtype) if subject.inputs.is_floating_point() else subject.inputs
    params = [p.requires_grad_(True) for p in model.parameters()]
    columns = vectors.reshape(len(vectors), -1).to(dtype).T
    with HELPS[help]():
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, subject.targets)
        slopes = torch.autograd.grad(loss, params, create_graph=True)
        hessian = [_pulled(slopes, params, _pieces(column, params)) for column in columns]
        del slopes
        probe = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(outputs, params, probe, create_graph=True)
        ggn = []
        for column in columns:
            (push,) = torch.autograd.grad(pulled, probe, _pieces(column, params), retain_graph=True)
            p = outputs.detach().softmax(1)
            bent = p * (push - (p * push).sum(1, keepdim=True)) / subject.targets.numel()
            ggn.append(_pulled([outputs], params, [bent]))
    return {
        "hessian": torch.stack(hessian, 1).reshape(vectors.shape),
        "ggn": torch.stack(ggn, 1).reshape(vectors.shape),
    }


def _pulled(tensors: Any, params: list[torch.Tensor], weights: Any) -> torch.Tensor:
    found = torch.autograd.grad(tensors, params, weights, retain_graph=True, materialize_grads=True)
    return torch.cat([piece.reshape(-1) for piece in found])


def _pieces(column: torch.Tensor, params: list[torch.Tensor]) -> list[torch.Tensor]:
    pieces = column.split([p.numel() for p in params])
    return [piece.view_as(p) for piece, p in zip(pieces, params, strict=True)]


def take_turns(
    entries: Mapping[str, Callable[[], Any]], seconds: float, least: int, most: int = 41
) -> dict[str, list[float]]:
    """Time everybody in turn, round after round, until `seconds` are used up."""
    times: dict[str, list[float]] = {name: [] for name in entries}
    start = time.perf_counter()
    for turn in range(most):
        if turn >= least and time.perf_counter() - start > seconds:
            break
        for name, run in entries.items():
            gc.collect()
            begin = clock()
            run()
            times[name].append(clock() - begin)
    return times


def peak_of(network: str, way: str, help: str, columns: int | None) -> Iterator[None]:
    """Build a way and multiply twice; for `peak_memory`, the network and its data being there.

    Another network was multiplied before, so that libraries are loaded, and the gradient of this
    one taken, as in a training that is going on.
    """
    warm_up(way)
    subject = NETWORKS[network]()
    vectors = directions(subject, columns)
    gradient(subject)(vectors)
    yield
    with HELPS[help]():
        multiply = WAYS[way](subject)
        multiply(vectors)
        multiply(vectors)


def peak_of_pairs(network: str, way: str, pairs: int) -> Iterator[None]:
    """Compute eigenpairs; for `peak_memory`, the network and its data being there."""
    warm_up(way)
    model, inputs, targets = NETWORKS[network]()
    kind = {"hessian": hr.Hessian, "ggn": hr.GGN}[way]
    yield
    hr.eigsh(kind(model, nn.CrossEntropyLoss(), (inputs, targets)), pairs)
