"""Eigenpairs and traces against peers, tracking along checkpoints, the plan against memory.

The rows "eigenpairs, …" solve the same problem in turns, in CPU seconds on one thread: `eigsh` with
both certificates and scipy's `eigsh` (ARPACK), all three with our operator, and ARPACK with that of
curvlinops. Answers that differ by more than the tolerance are marked and not compared. The rows
"trace, …" count products for a relative standard error of 2%, beside what Hutchinson's estimator
(PyHessian, curvlinops) would take for the same error, from the variance of its probes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import diags
from torch import nn

from benchmarks.harness import Contender, Limit, Measure, Race, is_quick, peak_memory
from benchmarks.models import NETWORKS, Subject, mlp
from benchmarks.products import HELPS, WAYS
from hyperribbon.core.data import load_data
from hyperribbon.operators import GGN, Fisher, Hessian
from hyperribbon.spectra import eigsh, plan, trace, track

PAIRS = 10
TOLERANCE = 1e-3
SHORT = {  # network: its name in NETWORKS, steps of Adam, and the help that curvlinops needs
    "mlp": ("mnist mlp", 40, ""),
    "resnet8": ("resnet8", 20, ""),
    "gpt": ("nanogpt", 20, "plain attention"),
    "vit": ("vit", 20, "plain attention"),
    "lstm": ("lstm", 60, "no oneDNN"),
}


@dataclass
class Work:
    """A trained model, its loss and its data."""

    model: nn.Module
    loss: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor


def trained(
    epochs: int = 3,
    sizes: tuple[int, ...] = (784, 256, 256, 256, 10),
    samples: int | None = None,
    seed: int = 0,
) -> Work:
    data = load_data("mnist5k", split="all")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.targets), generator=generator)[:samples]
    inputs, targets = data.inputs.flatten(1)[order], data.targets[order]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = mlp(sizes)
        work = Work(model.eval(), nn.CrossEntropyLoss(), inputs, targets)
        for _ in steps(work, lr=0.05, count=epochs * (len(inputs) // 128), momentum=0.9):
            pass
    return work


def steps(work: Work, lr: float, count: int, momentum: float = 0.0) -> Iterator[int]:
    """Take SGD steps in place, batches of 128 in order."""
    optimizer = torch.optim.SGD(work.model.parameters(), lr=lr, momentum=momentum)
    batches = len(work.inputs) // 128
    for step in range(count):
        window = slice(128 * (step % batches), 128 * (step % batches + 1))
        optimizer.zero_grad(set_to_none=True)
        work.loss(work.model(work.inputs[window]), work.targets[window]).backward()
        optimizer.step()
        yield step


def hessian(work: Work) -> Hessian:
    return Hessian(work.model, work.loss, (work.inputs, work.targets))


def top_ours(operator: Hessian) -> tuple[Any, Any, Any]:
    # ARPACK's tolerance is on estimates: its true residuals come out many times smaller.
    spectrum = eigsh(operator, PAIRS, tol=TOLERANCE / 40, method="lanczos")
    return operator, spectrum.eigenvalues, spectrum.eigenvectors


def prepare_curvlinops(work: Work) -> Any:
    from curvlinops import HessianLinearOperator

    params = list(work.model.parameters())
    data = [(work.inputs, work.targets)]
    operator = HessianLinearOperator(work.model, work.loss, params, data, check_deterministic=False)
    return operator.to_scipy(), work


def top_curvlinops(state: Any) -> tuple[Any, Any, Any]:
    from scipy.sparse.linalg import eigsh as arpack

    operator, work = state
    start = np.random.default_rng(0).normal(size=operator.shape[0]).astype(np.float32)
    values, vectors = arpack(operator, k=PAIRS, which="LA", tol=TOLERANCE, v0=start)
    return work, torch.from_numpy(values[::-1].copy()), torch.from_numpy(vectors[:, ::-1].copy())


def prepare_pyhessian(work: Work) -> Any:
    from pyhessian import hessian as PyHessian

    batch = (work.inputs, work.targets)
    return PyHessian(work.model, work.loss, data=batch, cuda=False), work


def top_pyhessian(state: Any) -> tuple[Any, Any, Any]:
    operator, work = state
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values, vectors = operator.eigenvalues(maxIter=100, tol=TOLERANCE, top_n=PAIRS)
    columns = [torch.cat([piece.reshape(-1) for piece in vector]) for vector in vectors]
    return work, torch.tensor(values), torch.stack(columns, dim=1)


def prepare_eigenthings(work: Work) -> Any:
    from hessian_eigenthings import HessianOperator, supervised_loss

    batch = [(work.inputs, work.targets)]
    return HessianOperator(work.model, batch, supervised_loss(work.loss)), work


def top_eigenthings(state: Any) -> tuple[Any, Any, Any]:
    from hessian_eigenthings import lanczos

    operator, work = state
    result = lanczos(operator, k=PAIRS, max_iter=40, tol=TOLERANCE, which="LA", seed=0)
    order = result.eigenvalues.argsort(descending=True)
    vectors = result.eigenvectors
    vectors = vectors.T if vectors.shape[0] == PAIRS else vectors
    return work, result.eigenvalues[order], vectors[:, order]


def eigenvalue_difference(ours: tuple[Any, Any, Any], theirs: tuple[Any, Any, Any]) -> float:
    """Return the largest difference of eigenvalues, over the largest of them."""
    return float((ours[1].cpu() - theirs[1].cpu()).abs().max() / ours[1].max())


def true_residual(answer: tuple[Any, Any, Any]) -> dict[str, float]:
    """Return the largest ‖Hv − λv‖/λ₁, with one operator for everybody."""
    source, values, vectors = answer
    operator = source if isinstance(source, Hessian) else hessian(source)
    vectors = vectors.to(operator.dtype)
    image = operator @ vectors - vectors * values.to(operator.dtype)
    residual = torch.linalg.vector_norm(image, dim=0).max()
    return {"largest residual": float(residual / values.max())}


def tracking(epochs: int, lr: float, seed: int) -> tuple[float, float, float]:
    """Return products warm over cold along 20 steps, and the largest residuals of both."""
    work = trained(epochs, seed=seed)
    states = []
    for _ in steps(work, lr=lr, count=20):
        states.append({name: p.detach().clone() for name, p in work.model.state_dict().items()})

    def operator(state: dict[str, torch.Tensor]) -> Hessian:
        model = mlp()
        model.load_state_dict(state)
        return Hessian(model.eval(), work.loss, (work.inputs[:500], work.targets[:500]))

    warm = track(operator, PAIRS, weights=states, tol=TOLERANCE, seed=seed)
    cold = [eigsh(operator(s), PAIRS, tol=TOLERANCE, method="lanczos", seed=seed) for s in states]
    worst = [max(float(s.residuals.max() / s.eigenvalues[0]) for s in run) for run in (warm, cold)]
    ratio = sum(s.matvecs for s in warm) / sum(s.matvecs for s in cold)
    return ratio, worst[0], worst[1]


def tracking_limits() -> list[Limit]:
    """Three networks late in training, where they move slowly, and early, where they move far."""
    limits = []
    for epochs, lr, high in ((20, 0.002, 0.45), (3, 0.002, None), (3, 0.1, None)):
        runs = np.array([tracking(epochs, lr, seed) for seed in range(3)])
        ratio = runs[:, 0]
        when = f"after {epochs} epochs, rate {lr:g}"
        limits += [
            Limit(f"products warm over cold, {when}", ratio.mean(), high=high),
            Limit(f"spread over three networks, {when}", float(np.ptp(ratio))),
            Limit(f"largest residual warm, {when}", runs[:, 1].max(), high=TOLERANCE),
            Limit(f"largest residual cold, {when}", runs[:, 2].max(), high=TOLERANCE),
        ]
    return limits


def train_briefly(name: str) -> Subject:
    """Return one of the `SHORT` networks after a few steps, on a thousand samples at most."""
    network, count, _ = SHORT[name]
    model, inputs, targets = NETWORKS[network]()
    inputs, targets = inputs[:1000], targets[:1000]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(count):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Subject(model, inputs, targets)


def arpack(multiply: Callable[[torch.Tensor], torch.Tensor], size: int, k: int) -> np.ndarray:
    """Return the k largest eigenvalues, descending, by scipy from products with tensors."""
    from scipy.sparse.linalg import LinearOperator
    from scipy.sparse.linalg import eigsh as scipy_eigsh

    def matvec(vector: np.ndarray) -> np.ndarray:
        vector = torch.from_numpy(np.ascontiguousarray(vector.ravel(), dtype=np.float32))
        return multiply(vector).detach().numpy()

    operator = LinearOperator((size, size), matvec=matvec, dtype=np.float32)
    start = np.random.default_rng(0).normal(size=size).astype(np.float32)
    values = scipy_eigsh(operator, k, which="LA", tol=TOLERANCE, v0=start)[0]
    return np.sort(values)[::-1]


def eigenpair_limits(name: str) -> list[Limit]:
    """Return our CPU seconds over ARPACK's, and curvlinops' over ours."""
    subject, limits = train_briefly(name), []
    for kind, label in ((GGN, "ggn"), (Hessian, "hessian")):
        op = kind(subject.model, nn.CrossEntropyLoss(), (subject.inputs, subject.targets))
        size = op.shape[0]
        help = SHORT[name][2]
        with HELPS[help]():
            theirs = WAYS[f"{label}, curvlinops"](subject)
        slower = product_seconds(theirs, size, help) / product_seconds(op.__matmul__, size, "")
        limits.append(Limit(f"{label}: product of curvlinops over ours", slower))
        for k in (1, PAIRS):
            ways = {
                "residual": partial(values_of, op, k, "residual"),
                "full": partial(values_of, op, k, "full"),
                "arpack": partial(arpack, op.__matmul__, size, k),
                "curvlinops": partial(arpack, theirs, size, k),
            }
            limits += compare_times(f"{label}, k={k}", ways, help, is_slower=slower >= 2)
    return limits


def product_seconds(
    multiply: Callable[[torch.Tensor], torch.Tensor], size: int, help: str
) -> float:
    """Return the CPU seconds of a product, the best of three after two that warm up."""
    vector, times = torch.randn(size, generator=torch.Generator().manual_seed(0)), []
    for _ in range(5):
        with HELPS[help]():
            start = time.process_time()
            multiply(vector)
        times.append(time.process_time() - start)
    return min(times[2:])


def values_of(op: Any, k: int, certificate: str) -> np.ndarray:
    """Return the k largest eigenvalues by ours."""
    options = {"tol": TOLERANCE, "method": "lanczos", "certificate": certificate}
    return eigsh(op, k, **options).eigenvalues.numpy()


def compare_times(
    case: str, ways: dict[str, Callable[[], np.ndarray]], help: str, *, is_slower: bool
) -> list[Limit]:
    """Return the limits of one case, from alternating runs whose answers agree."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, np.ndarray] = {}
    for turn in range(1 if is_quick() else 3):
        for name, run in ways.items():
            if name == "curvlinops" and turn:
                continue
            with HELPS[help if name == "curvlinops" else ""]():
                start = time.process_time()
                answers[name] = run()
                times[name].append(time.process_time() - start)
    seconds = {name: statistics.median(some) for name, some in times.items()}
    scale = float(np.abs(answers["full"]).max())
    right = all(
        np.abs(a - answers["full"]).max() <= 3 * TOLERANCE * scale for a in answers.values()
    )
    ahead = seconds["curvlinops"] / seconds["residual"]
    return [
        Limit(f"{case}: residual", seconds["residual"], unit="s", agrees=right),
        Limit(f"{case}: residual over ARPACK", seconds["residual"] / seconds["arpack"], high=1.0),
        Limit(f"{case}: full over ARPACK", seconds["full"] / seconds["arpack"], high=1.3),
        Limit(f"{case}: curvlinops + ARPACK over residual", ahead, low=2.0 if is_slower else None),
    ]


def trace_limits(name: str) -> list[Limit]:
    """Return products for the Hessian's trace to 2%, beside those of Hutchinson's estimator."""
    subject = train_briefly(name)
    op = Hessian(subject.model, nn.CrossEntropyLoss(), (subject.inputs, subject.targets))
    found = trace(op, precision=0.02, max_matvecs=1000)
    if found.exact:
        return [Limit("products, exact", found.matvecs)]
    generator = torch.Generator().manual_seed(1)
    squares = []
    for _ in range(10):
        omega = torch.randn(op.shape[0], generator=generator)
        squares.append(float((op @ omega).double().square().sum()))
    plain = 2 * statistics.mean(squares) / found.stderr**2  # Var ωᵀHω = 2‖H‖²
    return [
        Limit("products", found.matvecs),
        Limit("relative standard error", found.stderr / abs(found.value), high=0.022),
        Limit("Hutchinson's products for this error over ours", plain / found.matvecs, low=2.0),
    ]


def planned_case(name: str) -> tuple[Any, int, str]:
    """Return the operator, the pairs wanted and the route of one case of the plan."""
    if name == "hessian lanczos":
        return hessian(trained(samples=1000)), 10, "lanczos"
    work = trained(samples=200)
    if name == "ggn lanczos":
        return GGN(work.model, work.loss, (work.inputs, work.targets)), 20, "lanczos"
    if name == "fisher gram":
        return Fisher(work.model, work.inputs), 10, "gram"
    if name == "hessian dense":
        return hessian(trained(sizes=(784, 3, 10), samples=200)), 10, "dense"
    return diags(np.arange(1.0, 1_000_001.0) ** -1, format="csr"), 10, "lanczos"


CASES = ("hessian lanczos", "ggn lanczos", "fisher gram", "hessian dense", "sparse lanczos")


def run_case(name: str) -> Iterator[None]:
    operator, k, method = planned_case(name)
    yield
    eigsh(operator, k, method=method)


def plan_limits() -> list[Limit]:
    limits = []
    for name in CASES:
        operator, k, method = planned_case(name)
        route = next(route for route in plan(operator, k).routes if route.method == method)
        measured = peak_memory(run_case, name)
        limits.append(
            Limit(f"{name}: planned over measured", route.memory / measured, low=0.5, high=2.0)
        )
        limits.append(Limit(f"{name}: measured", measured / 1e6, unit="MB"))
    return limits


ROWS = [
    Race(
        name="top ten hessian pairs",
        work=trained,
        ours=Contender(top_ours, prepare=hessian),
        peers={
            "curvlinops + eigsh": Contender(
                top_curvlinops, prepare=prepare_curvlinops, requires="curvlinops"
            ),
            "PyHessian": Contender(top_pyhessian, prepare=prepare_pyhessian, requires="pyhessian"),
            "hessian-eigenthings": Contender(
                top_eigenthings,
                prepare=prepare_eigenthings,
                requires="hessian_eigenthings",
            ),
        },
        difference=eigenvalue_difference,
        tolerance=0.02,
        targets={"curvlinops + eigsh": 2.0, "PyHessian": 4.0},
        repeats=3,
        notes=true_residual,
    ),
    *(Measure(f"eigenpairs, {name}", partial(eigenpair_limits, name)) for name in SHORT),
    *(Measure(f"trace, {name}", partial(trace_limits, name)) for name in SHORT if name != "mlp"),
    Measure("tracking", tracking_limits),
    Measure("plan", plan_limits),
]
