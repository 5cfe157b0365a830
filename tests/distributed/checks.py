"""What must hold on every rank of a group: each check runs on all of them at once.

Every check makes the whole data, gives the operators of the group this rank's share, and compares
with the same operators of this process alone on all the data.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hyperribbon as hr
from hyperribbon.application.inspection.copies import as_source
from hyperribbon.application.inspection.engine.clock import Clock, OutOfTimeError
from hyperribbon.application.inspection.engine.notebook import Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.devices.processes import PeerError, Processes
from hyperribbon.spectra import StoppedError

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


class Transformer(nn.Module):
    """Embedding, position code, attention, layer norm, an output layer tied to the embedding.

    Its weight (in, out) has factors the other way round, and its exponent none.
    """

    def __init__(self, vocabulary: int = 5, width: int = 4, length: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) / 3)
        self.block = nn.TransformerEncoderLayer(
            width, 2, dim_feedforward=3, dropout=0.0, batch_first=True, activation="gelu"
        )
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.turn = nn.Parameter(torch.randn(width, width) / 2)
        self.power = nn.Parameter(torch.zeros(width))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return scores (n, classes, length)."""
        hidden = self.block(self.embedding(tokens) + self.position)
        hidden = (hidden @ self.turn) * self.power.exp()
        return self.head(hidden).transpose(1, 2).contiguous()


def case(kind: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, tuple]:
    """Return a model and data of 13 samples, the same on every rank."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        if kind == "mlp":
            model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.ReLU())
            model = nn.Sequential(*model, nn.Linear(6, 3))
            data = torch.randn(13, 5), torch.randint(3, (13,))
        elif kind == "cnn":
            model = nn.Sequential(
                nn.Conv2d(2, 3, 3, padding=1),
                nn.GELU(),
                nn.AvgPool2d(2),
                nn.Conv2d(3, 4, 2),
                nn.Tanh(),
                nn.Flatten(),
                nn.Linear(16, 3),
            )
            data = torch.randn(13, 2, 6, 6), torch.randint(3, (13,))
        else:
            model = Transformer()
            data = torch.randint(5, (13, 3)), torch.randint(5, (13, 3))
    inputs = data[0].to(dtype) if data[0].is_floating_point() else data[0]
    return model.to(dtype).eval(), (inputs, data[1])


def share(data: tuple, uneven: bool = True) -> tuple:
    """Return this rank's samples; uneven shares, in the order of the ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = len(data[0])
    parts = [(r + 1) ** 2 if uneven else 1 for r in range(size)]
    edges = [round(count * sum(parts[:r]) / sum(parts)) for r in range(size + 1)]
    return tuple(x[edges[rank] : edges[rank + 1]] for x in data)


def close(ours: object, theirs: object, tolerance: float) -> None:
    """Compare numbers or tensors, relative to the largest entry."""
    a, b = (torch.as_tensor(x).double() for x in (ours, theirs))
    assert a.shape == b.shape, (a.shape, b.shape)
    gap = float((a - b).abs().max() / b.abs().max())
    assert gap <= tolerance, f"relative difference {gap:.1e}"


def block_of(size: int, dtype: torch.dtype, columns: int = 2) -> torch.Tensor:
    """Return random vectors, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(size, columns, generator=generator, dtype=dtype)


MAKERS = {
    "hessian": lambda m, d, **o: hr.Hessian(m, nn.CrossEntropyLoss(), d, **o),
    "sum": lambda m, d, **o: hr.Hessian(m, nn.CrossEntropyLoss(reduction="sum"), d, **o),
    "ggn": lambda m, d, **o: hr.GGN(m, nn.CrossEntropyLoss(), d, **o),
    "fisher": lambda m, d, **o: hr.Fisher(m, d, **o),
    "sampled": lambda m, d, **o: hr.Fisher(m, d, estimator="mc", samples=3, seed=7, **o),
    "empirical": lambda m, d, **o: hr.Fisher(m, d, estimator="empirical", **o),
    "covariance": lambda m, d, **o: hr.GradientCovariance(
        m, nn.CrossEntropyLoss(), d, batch_size=4, replacement=False, **o
    ),
    "uncentred": lambda m, d, **o: hr.GradientCovariance(
        m, nn.CrossEntropyLoss(), d, centered=False, **o
    ),
}


def compare(kind: str, dtype: torch.dtype, names: tuple[str, ...] = tuple(MAKERS)) -> None:
    """Compare products, traces, diagonals and Gram matrices with one process."""
    model, data = case(kind, dtype)
    tolerance = TOLERANCE[dtype]
    for name in names:
        make = MAKERS[name]
        ours, theirs = make(model, share(data), process_group=True), make(model, data)
        block = block_of(theirs.shape[0], dtype)
        close(ours @ block, theirs @ block, tolerance)
        close(ours @ block[:, 0], theirs @ block[:, 0], tolerance)
        rows = ours.processes.rows(len(block))
        close(ours.multiply_rows(block[rows]), (theirs @ block)[rows], tolerance)
        assert ours.risk.samples == theirs.risk.samples == 13
        if theirs.has_exact_trace:
            close(ours.trace(), theirs.trace(), tolerance)
            close(ours.diagonal(), theirs.diagonal(), tolerance)
        if isinstance(theirs, hr.Hessian):
            close(ours.loss(), theirs.loss(), tolerance)
            close(ours.gradient(), theirs.gradient(), tolerance)
        else:
            assert ours.gram_size == theirs.gram_size
            close(ours.gram(), theirs.gram(), 10 * tolerance)
            coefficients = block_of(theirs.gram_size, dtype)
            close(ours.lift(coefficients), theirs.lift(coefficients), tolerance)


def check_mlp() -> None:
    """Every operator, the main ones in both precisions."""
    compare("mlp", torch.float64)
    compare("mlp", torch.float32, ("hessian", "ggn", "sampled", "covariance"))


def check_cnn() -> None:
    """Every operator on a convolutional network."""
    compare("cnn", torch.float64)
    compare("cnn", torch.float32, ("hessian", "ggn", "covariance"))


def check_transformer() -> None:
    """Every operator on a transformer with tied weights, some without factors."""
    compare("transformer", torch.float64)
    compare("transformer", torch.float32, ("hessian", "ggn", "covariance"))


def check_kernels() -> None:
    """Jacobian and neural tangent kernel, also of layers and of chosen parameters."""
    for kind in ("mlp", "cnn", "transformer"):
        model, (inputs, _) = case(kind)
        mine = share((inputs,))[0]
        ours, theirs = hr.Jacobian(model, mine, process_group=True), hr.Jacobian(model, inputs)
        block, rows = (block_of(size, torch.float64) for size in theirs.shape[::-1])
        close(ours @ block, theirs @ block, 1e-10)
        close(ours.T @ rows, theirs.T @ rows, 1e-10)
        ntk, alone = hr.NTK(model, mine, process_group=True), hr.NTK(model, inputs)
        close(ntk @ rows, alone @ rows, 1e-10)
        close(ntk.to_dense(), alone.to_dense(), 1e-10)
        close(ntk.trace(), alone.trace(), 1e-10)
        layer = next(iter(alone.layers()))
        close(ntk.layers()[layer].to_dense(), alone.layers()[layer].to_dense(), 1e-10)
        mask = hr.Mask({n: p.detach() > 0 for n, p in model.named_parameters()})
        masked = hr.NTK(model, mine, mask=mask, process_group=True)
        close(masked.to_dense(), hr.NTK(model, inputs, mask=mask).to_dense(), 1e-10)


def check_spectra() -> None:
    """Eigenpairs by every route, density, trace and Frobenius norm."""
    cases = (("mlp", torch.float64), ("cnn", torch.float32), ("transformer", torch.float64))
    for kind, dtype in cases:
        model, data = case(kind, dtype)
        tolerance = TOLERANCE[dtype]
        tol = {torch.float32: 1e-5, torch.float64: 1e-7}[dtype]
        routes = [("hessian", "lanczos"), ("ggn", "gram"), ("covariance", "lanczos")]
        if kind == "mlp":
            routes += [("hessian", "dense"), ("hessian", "auto")]
        for name, method in routes:
            ours = MAKERS[name](model, share(data), process_group=True)
            theirs = MAKERS[name](model, data)
            found = hr.eigsh(ours, 3, tol=tol, method=method, seed=1)
            expected = hr.eigsh(theirs, 3, tol=tol, method=method, seed=1)
            close(found.eigenvalues, expected.eigenvalues, tolerance)
            assert found.eigenvectors is not None
            assert expected.eigenvectors is not None
            overlap = (found.eigenvectors * expected.eigenvectors).sum(0).abs()
            close(overlap, torch.ones(3), 100 * tolerance)
            assert bool((found.converged == expected.converged).all())
            part = hr.eigsh(ours, 3, tol=tol, method=method, seed=1, eigenvectors="sharded")
            assert part.eigenvectors is not None
            rows = ours.processes.rows(ours.shape[0])
            close(part.eigenvectors.abs(), found.eigenvectors[rows].abs(), 100 * tolerance)
        ours, theirs = (
            MAKERS["hessian"](model, share(data), process_group=True),
            MAKERS["hessian"](model, data),
        )
        both = [hr.density(op, probes=2, steps=6, seed=2, width=0.1) for op in (ours, theirs)]
        close(both[0].grid, both[1].grid, 10 * tolerance)
        close(both[0].values, both[1].values, 10 * tolerance)
        for estimate in (hr.trace, hr.frobenius):
            values = [estimate(op, max_matvecs=30, seed=3).value for op in (ours, theirs)]
            close(values[0], values[1], 10 * tolerance)


def check_empty_share() -> None:
    """A rank without samples takes part."""
    model, data = case("cnn")
    mine = data if dist.get_rank() == 0 else tuple(x[:0] for x in data)
    for name in ("hessian", "ggn", "sampled", "covariance"):
        ours, theirs = MAKERS[name](model, mine, process_group=True), MAKERS[name](model, data)
        block = block_of(theirs.shape[0], torch.float64)
        close(ours @ block, theirs @ block, 1e-10)
    close(
        hr.GGN(model, nn.CrossEntropyLoss(), mine, process_group=True).gram(),
        hr.GGN(model, nn.CrossEntropyLoss(), data).gram(),
        1e-10,
    )
    loader = DataLoader(TensorDataset(*mine), batch_size=4)
    streamed = hr.Hessian(model, nn.CrossEntropyLoss(), loader, memory=5e4, process_group=True)
    close(streamed.loss(), hr.Hessian(model, nn.CrossEntropyLoss(), data).loss(), 1e-10)
    nothing = tuple(x[:0] for x in data)
    raises(
        ArgumentError,
        "no rank has any samples",
        MAKERS["hessian"],
        model,
        nothing,
        process_group=True,
    )


def check_different_models() -> None:
    """Ranks whose models differ in precision or size are refused, before a collective aborts."""
    rank = dist.get_rank()
    model, (inputs, labels) = case("mlp", torch.float32)
    if rank == 1:
        model, inputs = model.double(), inputs.double()
    data = share((inputs, labels))
    raises(ArgumentError, "different precision", MAKERS["hessian"], model, data, process_group=True)
    model, data = case("mlp")
    wider = nn.Sequential(model, nn.Linear(3, 3).double()) if rank == 0 else model
    raises(
        ArgumentError, "different models", MAKERS["hessian"], wider, share(data), process_group=True
    )


def check_different_vectors() -> None:
    """A vector of another precision on one rank is refused on all."""
    model, data = case("mlp")
    operator = MAKERS["hessian"](model, share(data), process_group=True)
    vector = torch.ones(operator.shape[0], dtype=torch.float64)
    given = vector.float() if dist.get_rank() == 0 else vector
    raises(ArgumentError, "works in torch.float64", operator.__matmul__, given)


def check_distributed_sampler() -> None:
    """The samples that a DistributedSampler repeats to make shares equal count once."""
    model, data = case("mlp")
    dataset = TensorDataset(*data)
    loader = DataLoader(dataset, batch_size=3, sampler=DistributedSampler(dataset, shuffle=True))
    ours, theirs = (
        MAKERS["hessian"](model, loader, process_group=True),
        MAKERS["hessian"](model, data),
    )
    block = block_of(theirs.shape[0], torch.float64)
    close(ours @ block, theirs @ block, 1e-10)
    assert ours.risk.samples == 13


def check_ddp() -> None:
    """A model in DistributedDataParallel, whose own collectives stay asleep."""
    model, data = case("transformer")
    wrapped = DistributedDataParallel(copy.deepcopy(model))
    ours = MAKERS["hessian"](wrapped, share(data), process_group=dist.group.WORLD)
    theirs = MAKERS["hessian"](model, data)
    block = block_of(theirs.shape[0], torch.float64)
    close(ours @ block, theirs @ block, 1e-10)
    assert ours.space.names == theirs.space.names
    assert all(p.grad is None for p in wrapped.parameters())


def check_fsdp() -> None:
    """Models sharded by FSDP2: the same numbers, and a model that trains on as before."""
    for kind in ("mlp", "cnn", "transformer"):
        model, data = case(kind)
        sharded = copy.deepcopy(model)
        if kind == "transformer":
            fully_shard(sharded.block)
        else:
            fully_shard(sharded[-1])
        fully_shard(sharded)
        before = [p.to_local().clone() for p in sharded.parameters()]
        for name in ("hessian", "ggn", "covariance"):
            ours = MAKERS[name](sharded, share(data), process_group=True)
            theirs = MAKERS[name](model, data)
            block = block_of(theirs.shape[0], torch.float64)
            close(ours @ block, theirs @ block, 1e-10)
        spectrum = hr.eigsh(ours, 2, method="lanczos", tol=1e-7, eigenvectors="sharded")
        close(spectrum.eigenvalues, hr.eigsh(theirs, 2, tol=1e-7).eigenvalues, 1e-9)
        assert spectrum.eigenvectors is not None
        assert len(spectrum.eigenvectors) <= math.ceil(ours.shape[0] / dist.get_world_size())
        raises(ArgumentError, "process_group=True", MAKERS["hessian"], sharded, data)
        mine = share(data, uneven=False)
        nn.functional.cross_entropy(sharded(mine[0]), mine[1]).backward()
        for parameter, kept in zip(sharded.parameters(), before, strict=True):
            assert torch.equal(parameter.to_local(), kept)
            assert parameter.grad is not None


def check_basis_is_sharded() -> None:
    """Each rank keeps its part of every Lanczos vector, and no more."""
    from hyperribbon.spectra.krylov.basis import Basis
    from hyperribbon.spectra.products import Products

    model, data = case("cnn")
    op = MAKERS["hessian"](model, share(data), process_group=True)
    basis = Basis(Products(op), 10)
    assert basis.vectors.length <= math.ceil(op.shape[0] / dist.get_world_size())
    assert basis.outside.shape[1] == basis.vectors.length
    plans = hr.plan(op, 3, memory=1e9), hr.plan(MAKERS["hessian"](model, data), 3, memory=1e9)
    kept = [next(r.memory for r in p.routes if r.method == "lanczos") for p in plans]
    assert kept[0] < kept[1]


def check_tracking() -> None:
    """Spectra followed along a path of weights."""
    model, data = case("mlp")
    ours, theirs = (
        MAKERS["hessian"](model, share(data), process_group=True),
        MAKERS["hessian"](model, data),
    )
    weights = theirs.space.flatten(theirs.risk.weights())
    path = [weights, 1.01 * weights, 1.02 * weights]
    found = hr.track(ours.at, 2, weights=path, tol=1e-7)
    expected = hr.track(theirs.at, 2, weights=path, tol=1e-7)
    for a, b in zip(found, expected, strict=True):
        close(a.eigenvalues, b.eigenvalues, 1e-10)


def check_algebra() -> None:
    """Sums, multiples, blocks and restrictions of operators of a group."""
    model, data = case("mlp")
    mine = share(data)
    pairs = [
        (MAKERS[n](model, mine, process_group=True), MAKERS[n](model, data))
        for n in ("hessian", "covariance")
    ]
    ours, theirs = ((2.0 * h - c) for h, c in zip(*pairs, strict=True))
    block = block_of(theirs.shape[0], torch.float64)
    close(ours @ block, theirs @ block, 1e-10)
    close(
        hr.eigsh(ours, 2, tol=1e-7, method="lanczos").eigenvalues,
        hr.eigsh(theirs, 2, tol=1e-7).eigenvalues,
        1e-9,
    )
    for name, layer in pairs[0][1].layers().items():
        close(pairs[0][0].layers()[name].to_dense(), layer.to_dense(), 1e-10)


def raises(kind: type[Exception], text: str, action, *arguments, **options) -> None:
    """Check that an action raises on this rank too."""
    try:
        action(*arguments, **options)
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"no {kind.__name__} with {text!r}")


def check_errors_reach_every_rank() -> None:
    """What one rank does wrong ends the call on all of them, and they can go on."""
    model, data = case("mlp")
    rank = dist.get_rank()
    noisy = copy.deepcopy(model)
    if rank == 1:
        noisy.append(nn.Dropout(0.5)).train()
    options = {"process_group": True, "mode": None}
    raises(ArgumentError, "dropout", MAKERS["hessian"], noisy, share(data), **options)
    wrong = (data[0], data[1][:-1]) if rank == 1 else data
    raises(ArgumentError, "lengths", MAKERS["hessian"], model, wrong, process_group=True)
    other = copy.deepcopy(model)
    if rank == 1:
        nn.init.ones_(other[0].weight)
    raises(
        ArgumentError, "different models", MAKERS["hessian"], other, share(data), process_group=True
    )
    op = MAKERS["hessian"](model, share(data), process_group=True)
    size = op.shape[0]
    raises(
        ArgumentError, "not the same on all", lambda: op @ torch.full((size,), 1.0 + rank).double()
    )
    raises(ArgumentError, "columns", lambda: op @ torch.ones(size + rank).double())
    processes = Processes.of(True)

    def part() -> None:
        with processes.together("a test"):
            if rank == 1:
                raise OSError("the disk is full")

    raises(OSError if rank == 1 else PeerError, "the disk is full", part)
    block = block_of(size, torch.float64)
    close(op @ block, MAKERS["hessian"](model, data) @ block, 1e-10)


def check_inspection() -> None:
    """Every rank gets the same answer, from shares of the data it is given."""
    model, data = case("cnn", torch.float32)
    silent = Console(quiet=True)
    found = hr.inspect(
        model, nn.CrossEntropyLoss(), data, k=1, budget=4, console=silent, process_group=True
    )
    assert not [outcome for outcome in found.outcomes if outcome.status == "failed"]
    values = found.table().set_index("key")["value"]
    answers = Processes.of(True).gather(values.to_dict())
    assert answers[0] == answers[-1]
    (few,) = as_source(model, data).few(8, 0).batches()
    expected = MAKERS["hessian"](model, few).loss()
    assert found.statistics["loss@8"].value == pytest.approx(expected, rel=1e-5)
    mine = (data[0] + dist.get_rank(), data[1])
    raises(
        ArgumentError,
        "different data",
        hr.inspect,
        model,
        nn.CrossEntropyLoss(),
        mine,
        process_group=True,
    )


def check_stopping() -> None:
    """One rank that says it is time stops a solver on all, and so does the clock of an inspection.

    Lanczos multiplies parts of vectors there, which no operator's own `@` sees.
    """
    model, data = case("mlp")
    rank, asked = dist.get_rank(), []

    def late() -> bool:
        asked.append(rank)
        return rank == 1 and len(asked) > 12

    op = MAKERS["hessian"](model, share(data), process_group=True)
    found = hr.eigsh(op, 2, tol=1e-12, method="lanczos", should_stop=late)
    assert not bool(found.converged.all())
    for solve in (hr.trace, lambda op, **o: hr.eigsh(op, 2, method="dense", **o)):
        raises(StoppedError, "returned True", solve, op, should_stop=lambda: rank == 1)
    asked.clear()
    raises(StoppedError, "returned True", hr.density, op, probes=2, steps=20, should_stop=late)
    processes = Processes.of(True)
    subject = Subject(model, nn.CrossEntropyLoss(), data, processes=processes)
    clock = subject.clock = Clock(processes=processes)
    notebook, hessian = Notebook(k=2, seed=0, clock=clock), subject.hessian
    notebook.eigsh(hessian, 2, method="lanczos")
    clock.end = 0.0 if rank == 1 else math.inf
    raises(OutOfTimeError, "exceeded", notebook.eigsh, hessian, 2, method="lanczos")


def check_callable_loss() -> None:
    """All ranks take a function for what the largest share shows it to be."""
    model, data = case("mlp")
    mine = tuple(x[:1] if dist.get_rank() == 0 else x[1:] for x in data)
    mine = mine if dist.get_rank() < 2 else tuple(x[:0] for x in data)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.logsumexp(1) - outputs.gather(1, targets[:, None])[:, 0]).sum()

    ours, theirs = hr.Hessian(model, loss, mine, process_group=True), hr.Hessian(model, loss, data)
    close(ours.loss(), theirs.loss(), 1e-10)
    block = block_of(theirs.shape[0], torch.float64)
    close(ours @ block, theirs @ block, 1e-10)
