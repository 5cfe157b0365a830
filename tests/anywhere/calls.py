"""Every public call on one small network: what it returns, as numbers on the host."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr

Numbers = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Setting:
    """A network on a device and in a precision, with the start of its training."""

    model: nn.Module
    initial: dict[str, torch.Tensor]
    data: tuple[torch.Tensor, torch.Tensor]
    chain: nn.Module
    folder: Path
    risk: hr.Risk
    loss = staticmethod(nn.functional.cross_entropy)

    @property
    def hessian(self) -> hr.Hessian:
        return hr.Hessian(self.risk)

    @property
    def mask(self) -> hr.Mask:
        return hr.select(self.model, self.initial, fraction=0.5, criterion="change")

    def copy(self) -> nn.Module:
        with torch.inference_mode(False):  # else its parameters could not be trained
            return copy.deepcopy(self.model)

    def score(self, state: Mapping[str, torch.Tensor]) -> float:
        outputs = torch.func.functional_call(self.model, dict(state), self.data[0])
        return -float(self.loss(outputs.detach(), self.data[1]))

    def vectors(self, columns: int) -> torch.Tensor:
        like = next(self.model.parameters())
        drawn = torch.randn(39, columns, generator=generator(5), dtype=torch.float64, device="cpu")
        return drawn.to(torch.bfloat16).to(like.device, like.dtype)


def generator(seed: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(seed)


def make_setting(
    folder: Path,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    rounded: torch.dtype | None = None,
) -> Setting:
    """Return the same network on any device, before anything ambient is set.

    Args:
        folder: Where calls may write.
        device: Where the network and the data are.
        dtype: Type of the weights and of the inputs.
        rounded: A coarser type whose rounding the numbers have; `dtype` by default.
    """
    rounded = dtype if rounded is None else rounded
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    chain = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False))
    draws = generator(1)
    for module in (model, chain):
        for parameter in module.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=draws).to(rounded))
        module.to(device, dtype)
    initial = {
        name: torch.randn(tensor.shape, generator=draws).to(rounded).to(device, dtype)
        for name, tensor in model.state_dict().items()
    }
    inputs = torch.randn(24, 5, generator=draws).to(rounded).to(device, dtype)
    targets = torch.randint(0, 3, (24,), generator=draws).to(device)
    risk = hr.Risk(model, Setting.loss, (inputs, targets))
    return Setting(model, initial, (inputs, targets), chain, folder, risk)


def operator(make: Callable[[Setting], Any]) -> Callable[[Setting], Any]:
    """Products, the matrix, its trace and its diagonal."""

    def call(at: Setting) -> Any:
        op = make(at)
        found = {"one": op @ at.vectors(1)[:, 0], "block": op @ at.vectors(3)}
        if op.shape[0] == op.shape[1]:
            found |= {"dense": op.to_dense(), "trace": op.trace(), "diagonal": op.diagonal()}
        return found

    return call


def ntk(at: Setting) -> Any:
    op = hr.NTK(at.model, at.data[0])
    return op.to_dense(), op.trace()


def hessian_pairs(at: Setting) -> Any:
    found = hr.eigsh(at.hessian, 3)
    overlap = hr.alignment(found, hr.eigsh(hr.GGN(at.risk), 3))
    return found.eigenvalues, hr.summarize(found, 2.0), overlap


def lanczos(at: Setting) -> Any:
    return [
        hr.eigsh(at.hessian, 2, which=which, method="lanczos").eigenvalues
        for which in ("LA", "SA", "LM", "BE")
    ]


def density(at: Setting) -> Any:
    found = hr.density(at.hessian, probes=4, steps=12, points=64)
    return found.grid, found.values, found.low, found.high


def tracked(at: Setting) -> Any:
    tracker = hr.Tracker(2, hr.Hessian)
    first = tracker(at.risk)
    return first.eigenvalues, [s.eigenvalues for s in hr.track([at.hessian, at.hessian], 2)]


def planned(at: Setting) -> Any:
    return hr.plan(at.hessian, 3).best.matvecs


def predictions(at: Setting) -> torch.Tensor:
    """Probabilities of six models, as they are without autocast; 16 bits would not sum to one."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        outputs = at.model(at.data[0])
    return torch.stack([(outputs.float() * (i + 1)).softmax(-1) for i in range(6)])


def manifold(at: Setting) -> Any:
    outputs = predictions(at)
    distances = hr.bhattacharyya(outputs)
    embedded = hr.InPCA(n_components=2).fit(hr.Trajectories([outputs]))
    flat = hr.PCA(n_components=2).fit(outputs.flatten(1))
    return distances, embedded.eigenvalues_, np.abs(embedded.embedding_), flat.eigenvalues_


def predicted(at: Setting) -> Any:
    options = {"steps": 3, "lr": 0.01, "initializations": 4}
    return hr.predict_manifold(at.model, at.loss, at.data, **options).covariance


def streamed(at: Setting) -> Any:
    outputs = predictions(at)
    place = hr.Streaming(folder=at.folder / "tiles")
    return hr.stream_inpca(outputs, n_components=2, streaming=place).eigenvalues


def redrawn(at: Setting) -> Any:
    return hr.rerandomize(at.model, at.mask, at.initial, seed=3)


def critical(at: Setting) -> Any:
    return hr.layer_criticality(at.model, at.initial, at.score, draws=2)


def shrunk(at: Setting) -> Any:
    mask = hr.select(at.model, fraction=0.5, granularity="channel")
    return hr.shrink(at.model, mask).state_dict()


def ticket(at: Setting) -> Any:
    def train(model: nn.Module) -> None:
        hr.train(model, at.loss, at.data, epochs=2, lr=0.1, batch_size=8)

    return hr.find_ticket(at.copy(), train, at.score, levels=1, branches=("random",))


def trained(at: Setting) -> Any:
    model = at.copy()
    result = hr.train(model, at.loss, at.data, epochs=3, lr=0.1, batch_size=8, momentum=0.5, seed=2)
    return model.state_dict(), result.losses if hasattr(result, "losses") else ()


def ensemble(at: Setting) -> Any:
    found = hr.train_ensemble(
        lambda seed: at.copy(), at.loss, at.data, seeds=(0, 1), epochs=2, lr=0.1, batch_size=8
    )
    return [model.state_dict() for model in found.models] if hasattr(found, "models") else found


def recorded(at: Setting) -> Any:
    folder = at.folder / "recording"
    recorder = hr.Recorder(folder, every="1it", probe=at.data[0])
    model = at.copy()
    hr.train(model, at.loss, at.data, epochs=30, lr=0.1, batch_size=8, recorder=recorder)
    path = hr.Trajectory.open(folder)
    covariance = hr.weight_covariance(path, k=4)
    flat = hr.variance_flatness(path, hr.GGN(at.risk), k=4, warn=False, strict=False)
    return covariance.eigenvalues, flat.variances, path.weights(-1)


def stationary(at: Setting) -> Any:
    H = hr.GGN(at.risk).to_dense() + torch.eye(39, device=at.data[0].device)
    C = hr.GradientCovariance(at.risk).to_dense()
    return hr.stationary_covariance(H, C, lr=0.1)


def inspected(at: Setting) -> Any:
    console = Console(file=io.StringIO())
    found = hr.inspect(at.model, at.loss, at.data, at.initial, k=3, budget=1e4, console=console)
    table = found.table()
    # Of how many layers the sharpness is measured is a matter of time.
    return {f"{r.part}.{r.key}": r.value for r in table.itertuples() if r.part != "layers"}


def compared(at: Setting) -> Any:
    other = at.copy()
    other.load_state_dict(at.initial)
    console = Console(file=io.StringIO())
    found = hr.compare(at.model, other, loss=at.loss, data=at.data, k=2, console=console)
    return found.differences


CALLS: dict[str, Callable[[Setting], Any]] = {
    "Hessian": operator(lambda at: at.hessian),
    "GGN": operator(lambda at: hr.GGN(at.risk)),
    "Fisher": operator(lambda at: hr.Fisher(at.model, at.data)),
    "Fisher mc": operator(lambda at: hr.Fisher(at.model, at.data, estimator="mc")),
    "GradientCovariance": operator(lambda at: hr.GradientCovariance(at.risk)),
    "Jacobian": operator(lambda at: hr.Jacobian(at.model, at.data[0])),
    "NTK": ntk,
    "eigsh, alignment, summarize": hessian_pairs,
    "eigsh by Lanczos": lanczos,
    "trace": lambda at: hr.trace(hr.GGN(at.risk)).value,
    "frobenius": lambda at: hr.frobenius(at.hessian).value,
    "diagonal": lambda at: hr.diagonal(at.hessian, matvecs=20).values,
    "density": density,
    "Tracker, track": tracked,
    "plan": planned,
    "bhattacharyya, InPCA, PCA, Trajectories": manifold,
    "predict_manifold": predicted,
    "predict_sharpness": lambda at: (
        hr.predict_sharpness(at.model, at.loss, at.data, optimizer=0.05, steps=3).path
    ),
    "Streaming, stream_inpca": streamed,
    "Mask, select": lambda at: at.mask,
    "prune": lambda at: hr.prune(at.model, at.mask),
    "reinitialize": lambda at: hr.reinitialize(at.model, at.initial, at.mask),
    "rerandomize": redrawn,
    "overlap_ratio": lambda at: hr.overlap_ratio(at.mask, hr.select(at.model, fraction=0.5)),
    "batch_sharpness": lambda at: hr.batch_sharpness(at.model, at.loss, at.data, batch_size=8),
    "layer_curvature": lambda at: hr.layer_curvature(at.hessian),
    "prunable": lambda at: hr.prunable(at.model, at.loss, at.data, held_out=True),
    "shrink": shrunk,
    "layer_criticality": critical,
    "find_ticket": ticket,
    "train": trained,
    "train_ensemble": ensemble,
    "Recorder, Trajectory, weight_covariance, variance_flatness": recorded,
    "stationary_covariance": stationary,
    "inspect": inspected,
    "compare": compared,
    "compare_with_theory": lambda at: hr.compare_with_theory(at.chain, at.loss, at.data, k=2),
    "load_data": lambda at: hr.load_data("digits", limit=20).flat(),
}
LONG = {"inspect", "compare", "find_ticket"}
LONG |= {"Recorder, Trajectory, weight_covariance, variance_flatness"}
AS_IT_RUNS = {"train", "train_ensemble", "find_ticket", "layer_criticality"}
AS_IT_RUNS |= {"Recorder, Trajectory, weight_covariance, variance_flatness"}
"""Calls in which the user's own code evaluates the model, or trains it."""
WITHOUT_TENSORS = {"ArgumentError", "Band", "Claim", "explore", "sweep", "__version__"}
OWN_LOADER = {"fluctuations"}  # takes a DataLoader, which does not run on a default device "meta"
RESULTS = {"Density", "Estimate", "Spectrum", "Risk"}


def numbers(found: Any, name: str = "") -> Numbers:
    """Return every number of a result by its place; names, texts and times are left out."""
    if found is None or isinstance(found, str | bytes | Path | nn.Module) or callable(found):
        return {}
    if isinstance(found, torch.Tensor):
        values = found.detach().cpu()
        return {name: values.to(torch.float64 if values.is_floating_point() else None).numpy()}
    if isinstance(found, np.ndarray | bool | int | float | np.generic):
        values = np.asarray(found)
        return {name: values} if values.dtype.kind in "biuf" else {}
    if dataclasses.is_dataclass(found):
        found = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    if isinstance(found, Mapping):
        parts = found.items()
    elif isinstance(found, list | tuple):
        parts = enumerate(found)
    else:
        raise TypeError(f"{name}: {type(found)}")
    every: Numbers = {}
    for key, part in parts:
        if "seconds" not in str(key):
            every |= numbers(part, f"{name}.{key}")
    return every


def differences(
    found: Numbers, expected: Numbers, rtol: float, least: float = 0.0
) -> dict[str, float]:
    """Return the places whose numbers differ by more than rtol times the largest of the place.

    Args:
        found: Numbers by place.
        expected: What they should be.
        rtol: In units of the largest number of a place.
        least: The smallest unit.
    """
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    far = {}
    for place, right in expected.items():
        values = found[place]
        assert values.shape == right.shape, (place, values.shape, right.shape)
        finite = np.isfinite(right)
        scale = max(float(np.abs(right[finite]).max(initial=0.0)), least, math.ulp(1.0))
        gap = np.abs(np.where(finite, values, 0.0) - np.where(finite, right, 0.0)).max(initial=0.0)
        if gap > rtol * scale or (np.isfinite(values) != finite).any():
            far[place] = float(gap / scale)
    return far
