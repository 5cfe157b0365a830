"""Operator products, Gram matrices and exact traces against peers; memory and scaling."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

from benchmarks.harness import (
    Contender,
    Limit,
    Measure,
    Race,
    peak_memory,
    relative_difference,
)
from benchmarks.models import mlp
from hyperribbon.core.data import load_data
from hyperribbon.operators import GGN, NTK, Fisher, Hessian

GB = 2.0**30


@dataclass
class Work:
    """A model, its loss, data and vectors that all contenders share."""

    model: nn.Module
    loss: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor
    vector: torch.Tensor
    block: torch.Tensor


def work(samples: int | None = None) -> Work:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = mlp().eval()
        data = load_data("mnist5k", split="all")
        inputs, targets = data.inputs.flatten(1)[:samples], data.targets[:samples]
        size = sum(p.numel() for p in model.parameters())
        vector, block = torch.randn(size), torch.randn(size, 16)
    return Work(model, nn.CrossEntropyLoss(), inputs, targets, vector, block)


def ours(kind: type) -> Any:
    def prepare(w: Work) -> Any:
        operator = kind(w.model, w.loss, (w.inputs, w.targets))
        return operator, w

    return prepare


def theirs(name: str) -> Any:
    def prepare(w: Work) -> Any:
        import curvlinops

        operator = getattr(curvlinops, name)(
            w.model,
            w.loss,
            list(w.model.parameters()),
            [(w.inputs, w.targets)],
            check_deterministic=False,
        )
        return operator, w

    return prepare


def times_vector(state: Any) -> torch.Tensor:
    operator, w = state
    return operator @ w.vector


def times_block(state: Any) -> torch.Tensor:
    operator, w = state
    return operator @ w.block


def product_race(name: str, kind: type, peer: str, run: Any, target: float, repeats: int) -> Race:
    return Race(
        name=name,
        work=work,
        ours=Contender(run, prepare=ours(kind)),
        peers={"curvlinops": Contender(run, prepare=theirs(peer), requires="curvlinops")},
        difference=relative_difference,
        tolerance=1e-4,
        targets={"curvlinops": target},
        repeats=repeats,
    )


def kernel_work() -> Work:
    return work(300)


def our_kernel(w: Work) -> torch.Tensor:
    return NTK(w.model, w.inputs).to_dense()


def nngeometry_kernel(w: Work, batch_size: int) -> torch.Tensor:
    from nngeometry.backend import TorchHooksJacobianBackend
    from nngeometry.layercollection import LayerCollection
    from torch.utils.data import DataLoader, TensorDataset

    backend = TorchHooksJacobianBackend(
        layer_collection=LayerCollection.from_model(w.model),
        model=w.model,
        function=lambda *batch: w.model(batch[0]),
    )
    loader = DataLoader(TensorDataset(w.inputs, w.targets), batch_size=batch_size)
    gram = backend.get_gram_matrix(loader).detach()  # (outputs, samples, outputs, samples)
    size = gram.shape[0] * gram.shape[1]
    return gram.permute(1, 0, 3, 2).reshape(size, size)


def contracted_kernel(w: Work) -> torch.Tensor:
    """The recipe of the torch.func documentation: per-sample Jacobians, contracted."""
    weights = {name: p.detach() for name, p in w.model.named_parameters()}

    def outputs(weights: dict, x: torch.Tensor) -> torch.Tensor:
        return functional_call(w.model, weights, (x.unsqueeze(0),)).squeeze(0)

    jacobians = vmap(jacrev(outputs), (None, 0), chunk_size=100)(weights, w.inputs)
    count, classes = len(w.inputs), 10
    gram = torch.zeros(count, classes, count, classes)
    for jacobian in jacobians.values():
        flat = jacobian.flatten(2)
        gram += torch.einsum("naf,mbf->namb", flat, flat)
    return gram.reshape(count * classes, count * classes)


def exact_trace(state: Any) -> float:
    operator, _ = state
    return operator.trace()


def hutchinson_trace(state: Any) -> float:
    """Random signs until the standard error is 1% of the mean."""
    operator, w = state
    generator = torch.Generator().manual_seed(1)
    values: list[float] = []
    while True:
        signs = torch.randint(0, 2, (len(w.vector), 16), generator=generator) * 2.0 - 1
        values += (signs * (operator @ signs)).sum(0).tolist()
        found = torch.tensor(values)
        if float(found.std() / len(found) ** 0.5) <= 0.01 * float(found.mean()):
            return float(found.mean())


def fisher_spectrum():
    """All eigenvalues of the Fisher matrix of 1,000 images with 10 outputs."""
    w = work(1000)
    yield
    operator = Fisher(w.model, w.inputs)
    torch.linalg.eigvalsh(operator.gram())


def full_fisher() -> list[Limit]:
    from hyperribbon.spectra import eigsh

    w = work(1000)
    start = time.perf_counter()
    spectrum = eigsh(Fisher(w.model, w.inputs), k=10_000, method="gram", eigenvectors=False)
    seconds = time.perf_counter() - start
    peak = peak_memory(fisher_spectrum) / GB
    return [
        Limit("eigenvalues", float(len(spectrum.eigenvalues)), low=10_000),
        Limit("time", seconds, unit="s"),
        Limit("peak memory", peak, high=6.0, unit="GB"),
    ]


def many_images():
    """A Hessian product over 60,000 images, counted from an empty process."""
    torch.manual_seed(0)
    inputs = torch.rand(60_000, 784)
    targets = torch.randint(10, (60_000,))
    operator = Hessian(mlp().eval(), nn.CrossEntropyLoss(), (inputs, targets))
    operator @ torch.randn(operator.shape[0])


def resident_memory() -> list[Limit]:
    rise = peak_memory(many_images) / GB
    return [
        Limit("rise above the empty process", rise, unit="GB"),
        Limit("resident", rise + peak_base() / GB, high=1.5, unit="GB"),
    ]


def peak_base() -> float:
    """Resident bytes of a process that has imported torch and the library."""
    import subprocess
    import sys

    code = (
        "import torch, hyperribbon.operators\n"
        "print([l for l in open('/proc/self/status') if l.startswith('VmRSS')][0].split()[1])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(found.stdout.split()[-1]) * 1024


def scaling() -> list[Limit]:
    limits = []
    times = {}
    for samples in (1000, 2000, 4000):
        w = work(samples)
        times[samples] = _seconds(Hessian(w.model, w.loss, (w.inputs, w.targets)))
        limits.append(Limit(f"{samples} samples", times[samples], unit="s"))
    limits.append(Limit("4000 over 1000 samples", times[4000] / times[1000], high=5.0))
    w = work(1000)
    costs = {}
    for width in (256, 512, 1024):
        model = mlp((784, width, width, 10)).eval()
        operator = Hessian(model, w.loss, (w.inputs, w.targets))
        seconds = _seconds(operator)
        costs[width] = seconds / operator.shape[0]
        limits.append(Limit(f"{operator.shape[0]} parameters", seconds, unit="s"))
    limits.append(
        Limit("time a parameter, widest over narrowest", costs[1024] / costs[256], high=2.0)
    )
    return limits


def _seconds(operator: Hessian, repeats: int = 5) -> float:
    vector = torch.randn(operator.shape[0], generator=torch.Generator().manual_seed(0))
    operator @ vector
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        operator @ vector
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


ROWS = [
    product_race(
        "hessian product", Hessian, "HessianLinearOperator", times_vector, 2.2, repeats=61
    ),
    product_race("ggn product", GGN, "GGNLinearOperator", times_vector, 1.7, repeats=61),
    product_race(
        "hessian block of 16", Hessian, "HessianLinearOperator", times_block, 2.2, repeats=15
    ),
    Race(
        name="ntk gram",
        work=kernel_work,
        ours=Contender(our_kernel),
        peers={
            "nngeometry, batches of 50": Contender(
                lambda w: nngeometry_kernel(w, 50), requires="nngeometry", repeats=3
            ),
            "nngeometry, one batch": Contender(
                lambda w: nngeometry_kernel(w, 300), requires="nngeometry", repeats=3
            ),
            "torch.func": Contender(contracted_kernel, repeats=1),
        },
        difference=relative_difference,
        tolerance=1e-4,
        targets={"nngeometry, batches of 50": 25, "torch.func": 120},
        repeats=5,
    ),
    Race(
        name="ggn trace",
        work=work,
        ours=Contender(exact_trace, prepare=ours(GGN)),
        peers={"hutchinson": Contender(hutchinson_trace, prepare=ours(GGN), repeats=1)},
        difference=relative_difference,
        tolerance=0.05,
        targets={"hutchinson": 10},
        repeats=3,
    ),
    Measure("all fisher eigenvalues", full_fisher),
    Measure("60,000 images", resident_memory),
    Measure("scaling", scaling),
]
