"""Scale: InPCA of tens of thousands of models, and curvature of a transformer with 10⁸ weights.

Models of the first are checkpoints of an ensemble of softmax classifiers trained on MNIST digits by
gradient descent: real trajectories, stored as float32 in zarr.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from benchmarks.harness import Limit, Measure, peak_memory
from hyperribbon.core.data import load_data
from hyperribbon.manifold import InPCA, StreamedInPCA, Streaming, stream_inpca
from hyperribbon.operators import Hessian
from hyperribbon.spectra import eigsh, plan

SAMPLES, CLASSES = 500, 10
CHECKPOINTS = 100
MODELS = 20_000
PAIRS = 3
TOLERANCE = 1e-2


def write_models(folder: Path, count: int = MODELS) -> Path:
    """Train an ensemble on random features and store its predictions; return the zarr's path."""
    path = folder / f"models-{count}.zarr"
    if (path / "zarr.json").exists():
        return path
    generator = torch.Generator().manual_seed(0)
    data = load_data("mnist5k", split="all")
    order = torch.randperm(len(data.targets), generator=generator)[:SAMPLES]
    inputs = data.inputs.flatten(1)[order]
    inputs = torch.tanh(inputs @ torch.randn(784, 48, generator=generator) / 5)
    truth = torch.eye(CLASSES)[data.targets[order]]
    runs = count // CHECKPOINTS
    rates = 0.2 * torch.logspace(-1, 1, runs)[:, None, None]
    subsets = (torch.rand(runs, SAMPLES, 1, generator=generator) < 0.5).float()
    weights = torch.randn(runs, 48, CLASSES, generator=generator) * 0.3
    array = zarr.create_array(
        str(path), shape=(count, SAMPLES, CLASSES), chunks=(100, SAMPLES, CLASSES), dtype="float32"
    )
    for checkpoint in range(CHECKPOINTS):
        predictions = torch.softmax(inputs @ weights, dim=2)
        array[checkpoint * runs : (checkpoint + 1) * runs] = predictions.numpy()
        for _ in range(1 + checkpoint // 20):
            slope = inputs.T @ (subsets * (torch.softmax(inputs @ weights, dim=2) - truth))
            weights = weights - rates * slope / SAMPLES
    return path


@lru_cache
def models() -> zarr.Array:
    folder = Path(tempfile.gettempdir()) / "hyperribbon-scale"
    folder.mkdir(exist_ok=True)
    return zarr.open_array(str(write_models(folder)), mode="r")


class Part:
    """Every so many of the models, without reading them."""

    def __init__(self, array: Any, count: int) -> None:
        self._array, self._step = array, array.shape[0] // count
        self.shape, self.dtype = (count, *array.shape[1:]), array.dtype

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, _ = part.indices(self.shape[0])
        return self._array[start * self._step : stop * self._step : self._step]


def watched(count: int) -> tuple[StreamedInPCA, float, float]:
    """Return the directions of so many models, the time, and the peak of resident memory in GB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    begin = time.perf_counter()
    found = stream_inpca(Part(models(), count), PAIRS)
    seconds = time.perf_counter() - begin
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return found, seconds, int(line.split()[1]) / 1e6


def inpca_limits() -> list[Limit]:
    array = models()
    few = np.asarray(Part(array, 2000)[:])
    dense = InPCA(PAIRS).fit(few)
    streamed = InPCA(PAIRS, precision="single", streaming=Streaming(memory=1e8)).fit(few)
    apart = float(np.abs(streamed.embedding_ - dense.embedding_).max())
    limits = [Limit("2,000 models: largest difference to dense", apart, high=1e-5)]
    del few, dense, streamed
    runs = {count: watched(count) for count in (5000, 10_000, MODELS)}
    for count, (_, seconds, memory) in runs.items():
        limits.append(Limit(f"{count:,} models: time", seconds, unit="s"))
        limits.append(Limit(f"{count:,} models: resident", memory, high=3.0, unit="GB"))
    found = runs[MODELS][0]
    exponent = float(np.log(runs[MODELS][1] / runs[5000][1]) / np.log(MODELS / 5000))
    limits.append(Limit("time grows as models to the power", exponent, low=1.6, high=2.3))
    limits.append(Limit("passes over the distances", found.passes))
    worst = float(found.residuals.max() / abs(found.eigenvalues[0]))
    limits.append(Limit("largest relative residual", worst, high=1e-9))
    for index, stress in enumerate(found.explained_stress):
        limits.append(Limit(f"explained stress, {index + 1} directions", float(stress)))
    begin = time.perf_counter()
    landmarks = InPCA(PAIRS, landmarks=500, precision="single").fit(array)
    limits.append(Limit("500 landmarks", time.perf_counter() - begin, unit="s"))
    off = np.abs(landmarks.explained_stress_ / found.explained_stress - 1)
    limits.append(Limit("500 landmarks: stress off by", float(off.max()), high=0.01))
    covered = landmarks.stress_error_ - np.abs(landmarks.explained_stress_ - found.explained_stress)
    bound = float((landmarks.stress_error_ / found.explained_stress).max())
    limits.append(Limit("500 landmarks: stated bound", bound))
    limits.append(Limit("500 landmarks: bound less error", float(covered.min()), low=0.0))
    return limits


def transformer() -> Any:
    """Return the Hessian of a transformer of GPT-2's size with random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    options: dict[str, Any] = {"attn_implementation": "eager"}
    config = GPT2Config(**options, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = GPT2LMHeadModel(config).eval()
    tokens = torch.randint(0, config.vocab_size, (1, 32))

    def forward(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return model(batch[0]).logits[:, :-1].transpose(1, 2), batch[0][:, 1:]

    loss = torch.nn.CrossEntropyLoss()
    return Hessian(model, loss, (tokens, tokens), forward=forward)


def big_model(memory: float, results: str, max_matvecs: int = 120) -> Iterator[None]:
    operator = transformer()
    best = plan(operator, PAIRS, memory=memory, tol=TOLERANCE).best
    yield
    begin = time.perf_counter()
    found = eigsh(operator, PAIRS, tol=TOLERANCE, memory=memory, max_matvecs=max_matvecs)
    seconds = time.perf_counter() - begin
    with Path(results).open("wb") as file:
        np.savez(
            file,
            eigenvalues=found.eigenvalues.numpy(),
            residuals=found.residuals.numpy(),
            numbers=[found.matvecs, seconds, best.memory, best.seconds, operator.shape[0]],
            storage=best.storage,
        )


def transformer_limits() -> list[Limit]:
    """Run in a process of its own, with 16 GB given to the plan."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.npz"
        rise = peak_memory(big_model, 16e9, str(path))
        stored = np.load(path)
    matvecs, seconds, planned, forecast, weights = stored["numbers"]
    base = 4 * 2 * weights + 5e8  # weights, their copy in the operator, Python and imports
    limits = [
        Limit("parameters", weights, low=1e8),
        Limit("resident at the peak", (rise + base) / 1e9, high=20, unit="GB"),
        Limit("memory, planned over measured", planned / rise, low=0.5, high=2),
        Limit("products", matvecs),
        Limit("time", seconds, unit="s"),
        Limit("time, planned over measured", forecast / seconds),
    ]
    for index, (value, residual) in enumerate(
        zip(stored["eigenvalues"], stored["residuals"], strict=True)
    ):
        limits.append(Limit(f"eigenvalue {index + 1}", float(value)))
        limits.append(Limit(f"residual {index + 1}", float(residual)))
    return limits


ROWS = [
    Measure("InPCA, models × 500 samples × 10 classes", inpca_limits),
    Measure("top three of a transformer with 10⁸ weights", transformer_limits),
]
