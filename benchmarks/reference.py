"""What is usual: trains small networks and stores their numbers in the package.

`python -m benchmarks.reference --data FOLDER` trains 66 networks on eight data sets, three seeds
each, and writes answers/reference.json of the inspection room, with which the answers of an
inspection compare. Data sets that are not in the folder are skipped, and what is done is kept in
`--out`: the command may be stopped and repeated. `--only digits wine` trains on some data sets.

Every network is trained with cross-entropy for about 700 steps of 64 samples. Its curvature is
measured on 512 of its training samples and its noise scale on all of them, as `hr.inspect` does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from torch import nn

import hyperribbon as hr
from benchmarks.models import ResidualBlock
from hyperribbon.application.inspection.answers import kind_of
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts import headlines
from hyperribbon.application.inspection.sampling import is_lower_bound
from hyperribbon.core.data import LabelledData

_SOURCE = Path(__file__).parents[1] / "src" / "hyperribbon"
FILE = _SOURCE / "application" / "inspection" / "answers" / "reference.json"
SAMPLES, MOST_SAMPLES, SEEDS = 512, 4000, (0, 1, 2)
STEPS, BATCH, MOST_EPOCHS = 700, 64, 60
MADE = (
    "{networks} networks ({settings} settings, {seeds} seeds) trained with cross-entropy on "
    "{data}; curvature on {samples} training samples, noise scale on all: benchmarks/reference.py"
)


@lru_cache(1)
def load(name: str) -> LabelledData:
    """Return the training samples of a data set, at most 4,000."""
    if name in ("wine", "breast_cancer"):
        inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)
        return LabelledData(torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets))
    if name == "text":
        return _characters()
    options: dict[str, Any] = {"spectrogram": "log"} if name == "sounds" else {}
    data = hr.load_data(
        name, limit=None if name in ("digits", "sounds") else MOST_SAMPLES, **options
    )
    if name == "sounds":
        pooled = nn.functional.adaptive_avg_pool2d(data.inputs, 32)
        data = LabelledData((pooled - pooled.mean()) / pooled.std(), data.targets)
    return data


def _characters(length: int = 24, fewest: int = 50) -> LabelledData:
    """Return characters of prose and the one that follows; rare ones count as one."""
    files = sorted(Path(os.environ.get("HYPERRIBBON_DATA", "."), "text").glob("*.txt"))
    if not files:
        raise hr.ArgumentError("data", "text", "there is no text/*.txt", "Give --data.")
    text = "".join(file.read_text(encoding="utf-8") for file in files).lower()
    common = sorted(c for c, count in Counter(text).items() if count >= fewest)
    numbers = {character: number for number, character in enumerate(common)}
    stream = np.array([numbers.get(character, len(common)) for character in text])
    rng = np.random.default_rng(0)
    starts = rng.choice(len(stream) - length, MOST_SAMPLES, replace=False)
    windows = torch.tensor(stream[starts[:, None] + np.arange(length + 1)])
    return LabelledData(windows[:, :-1], windows[:, -1])


class Rows(nn.Module):
    """Hands an image over row by row, and characters as vectors: (n, places, width)."""

    def __init__(self, data: LabelledData) -> None:
        super().__init__()
        self.embed = None if data.inputs.is_floating_point() else nn.Embedding(_symbols(data), 16)
        self.width = 16 if self.embed else prod(data.inputs.shape[1:]) // data.inputs.shape[-2]
        self.places = data.inputs.shape[-1 if self.embed else -2]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the sequence."""
        if self.embed is not None:
            return self.embed(inputs)
        return inputs.transpose(1, 2).flatten(2)


class Recurrent(nn.Module):
    """A recurrent layer whose last state is classified."""

    def __init__(self, data: LabelledData, layer: type[nn.RNNBase], hidden: int) -> None:
        super().__init__()
        self.rows = Rows(data)
        self.recurrent = layer(self.rows.width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, data.classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.recurrent(self.rows(inputs))[0][:, -1])


class Transformer(nn.Module):
    """A transformer encoder, read from the mean of its places."""

    def __init__(self, data: LabelledData, width: int, layers: int) -> None:
        super().__init__()
        self.rows = Rows(data)
        self.embed = nn.Linear(self.rows.width, width)
        self.place = nn.Parameter(torch.zeros(self.rows.places, width))
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, data.classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.blocks(self.embed(self.rows(inputs)) + self.place).mean(1))


class Columns(nn.Module):
    """Swaps places and width, for convolutions over characters."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return (n, width, places)."""
        return inputs.transpose(1, 2)


def _symbols(data: LabelledData) -> int:
    return int(max(data.inputs.max(), data.targets.max())) + 1


def _first(data: LabelledData) -> list[nn.Module]:
    return [] if data.inputs.is_floating_point() else [nn.Embedding(_symbols(data), 16)]


def dense(data: LabelledData, *hidden: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return fully connected layers."""
    first = _first(data)
    size = prod(data.inputs.shape[1:]) * (16 if first else 1)
    layers: list[nn.Module] = [*first, nn.Flatten()]
    for before, after in itertools.pairwise((size, *hidden, data.classes)):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def convolutional(data: LabelledData, *channels: int, norm: bool = False) -> nn.Module:
    """Return convolutions of stride two, each with an activation, and a linear layer."""
    first = _first(data)
    layers: list[nn.Module] = [*first, Columns()] if first else []
    convolution, normalise = (nn.Conv1d, nn.BatchNorm1d) if first else (nn.Conv2d, nn.BatchNorm2d)
    for before, after in itertools.pairwise((16 if first else data.inputs.shape[1], *channels)):
        layers.append(convolution(before, after, 3, stride=2, padding=1))
        layers += [normalise(after), nn.ReLU()] if norm else [nn.ReLU()]
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        size = body.eval()(data.inputs[:1]).shape[1]
    return nn.Sequential(*body.train(), nn.Linear(size, data.classes))


def residual(data: LabelledData, *channels: int) -> nn.Module:
    """Return a residual network with batch norm and a mean over places."""
    blocks = [ResidualBlock(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(channels)]
    stem = nn.Conv2d(data.inputs.shape[1], channels[0], 3, stride=2, padding=1, bias=False)
    return nn.Sequential(
        *(stem, nn.BatchNorm2d(channels[0]), nn.ReLU(), *blocks),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], data.classes)),
    )


NETWORKS: dict[str, Callable[[LabelledData], nn.Module]] = {
    "linear": dense,
    "mlp-s": lambda data: dense(data, 48),
    "mlp-l": lambda data: dense(data, 160, 160, activation=nn.GELU),
    "cnn-s": lambda data: convolutional(data, 8, 16),
    "cnn-l": lambda data: convolutional(data, 16, 32, 48),
    "cnn-norm": lambda data: convolutional(data, 16, 32, norm=True),
    "resnet": lambda data: residual(data, 16, 16, 32),
    "gru": lambda data: Recurrent(data, nn.GRU, 24),
    "lstm": lambda data: Recurrent(data, nn.LSTM, 48),
    "transformer-s": lambda data: Transformer(data, 24, 1),
    "transformer-l": lambda data: Transformer(data, 48, 2),
    "mlp-deep": lambda data: dense(data, 32, 32, 32, 32, activation=nn.Tanh),
}
_TABLES = ("linear", "mlp-s", "mlp-l", "mlp-deep")
_WORDS = ("linear", "cnn-l", "cnn-norm", "resnet")
_SMALL = tuple(name for name in NETWORKS if name not in ("cnn-l", "lstm", "transformer-l"))
DATA: dict[str, tuple[str, ...]] = {
    "digits": tuple(NETWORKS),
    "wine": _TABLES,
    "breast_cancer": _TABLES,
    "mnist": tuple(name for name in NETWORKS if name != "transformer-l"),
    "fashion_mnist": _SMALL,
    "cifar10": _SMALL,
    "sounds": _SMALL,
    "text": tuple(name for name in NETWORKS if name not in _WORDS),
}
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "lr": 0.1},
    {"optimizer": "sgd", "lr": 0.02, "momentum": 0.9},
    {"optimizer": "adam", "lr": 0.002},
)
"""In turn over networks and data sets; recurrent networks and transformers have Adam."""


def optimizer_of(data: str, network: str) -> dict[str, Any]:
    """Return the optimiser of a setting."""
    if network.startswith(("gru", "lstm", "transformer")):
        return OPTIMIZERS[2]
    return OPTIMIZERS[(list(DATA).index(data) + list(NETWORKS).index(network)) % len(OPTIMIZERS)]


def measure(point: Mapping[str, Any]) -> dict[str, Any]:
    """Train one network and return its record."""
    data, loss = load(point["data"]), nn.CrossEntropyLoss()
    with torch.random.fork_rng():
        torch.manual_seed(point["seed"])
        model = NETWORKS[point["network"]](data)
    options = optimizer_of(point["data"], point["network"])
    epochs = min(ceil(STEPS * BATCH / len(data.inputs)), MOST_EPOCHS)
    pair = (data.inputs, data.targets)
    hr.train(model, loss, pair, epochs=epochs, batch_size=BATCH, seed=point["seed"], **options)
    whole, notebook = Subject(model, loss, pair), Notebook(k=headlines.FEW, seed=0)
    number = min(SAMPLES, len(data.inputs))
    every, some = Level(whole, len(data.inputs)), Level(whole.with_samples(number, 0), number)
    headlines.measure_noise_scale(every, notebook)
    for step in (headlines.measure_loss, headlines.measure_trace, headlines.measure_sharpness):
        step(some, notebook)
    headlines.measure_gauss_newton(some, notebook)
    lowest = headlines.hessian_end(some, 1, "SA", 1e-2, notebook)
    numbers = {key: quantity.value for key, quantity in some.statistics.items()}
    numbers["noise_scale"] = every.statistics["noise_scale"].value
    smallest, residual = float(lowest.eigenvalues[-1]), float(lowest.residuals[-1])
    if smallest + residual < 0:
        numbers["negativity"] = smallest / numbers["sharpness"]
    kept = ("sharpness", "trace", "share10", "negativity", "noise_scale")
    is_bound = is_lower_bound(numbers["noise_scale"], len(data.inputs))
    return {
        **point,
        "kind": kind_of(model),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "accuracy": round(numbers["accuracy"], 4),
        **{key: float(f"{numbers[key]:.4g}") for key in ("loss", "gradient")},
        "statistics": {key: float(f"{numbers[key]:.4g}") for key in kept if key in numbers},
        "at_least": ["noise_scale"] if is_bound else [],
    }


def main() -> None:
    """Train and measure what is missing, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("reference-runs"), help="what is done")
    parser.add_argument("--only", choices=DATA, nargs="*", default=list(DATA))
    chosen = parser.parse_args()
    if chosen.data is not None:
        os.environ["HYPERRIBBON_DATA"] = str(chosen.data.resolve())
    stored = json.loads(FILE.read_text())["networks"] if FILE.exists() else []
    records = [record for record in stored if record["data"] not in chosen.only]
    for name in chosen.only:
        try:
            load(name)
        except hr.ArgumentError as error:
            print(f"{name}: skipped, {error}")
            records += [record for record in stored if record["data"] == name]
            continue
        grid = {"data": [name], "network": DATA[name], "seed": SEEDS}
        found = hr.sweep(measure, grid, out=chosen.out / name, version="2")
        records += [entry["result"] for entry in found if entry["result"] is not None]
    order = list(DATA)
    records.sort(key=lambda record: order.index(record["data"]))
    made = MADE.format(
        networks=len(records),
        settings=len({(record["data"], record["network"]) for record in records}),
        seeds=len(SEEDS),
        data=", ".join(name for name in order if any(r["data"] == name for r in records)),
        samples=SAMPLES,
    )
    lines = ",\n".join(json.dumps(record) for record in records)
    FILE.write_text(f'{{"made": {json.dumps(made)}, "networks": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
