"""What is usual: trains a dozen small networks and stores their numbers in the package.

`python -m benchmarks.reference` writes answers/reference.json of the inspection room, against
which the answers of an inspection are laid. `--only NAME` measures one network and keeps the other
records. Every network is trained on digits (1,442 of scikit-learn's, or 4,000 of MNIST) until
it has learned them, with one seed, then inspected on 512 of its training samples.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr
from hyperribbon.application.inspection.answers import kind_of
from hyperribbon.application.inspection.sampling import is_lower_bound

_SOURCE = Path(__file__).parents[1] / "src" / "hyperribbon"
FILE = _SOURCE / "application" / "inspection" / "answers" / "reference.json"
SAMPLES = 512
MADE = (
    "{count} networks trained on scikit-learn's digits or on 4,000 images of MNIST with "
    "cross-entropy, one seed each, each inspected on 512 of its training samples; noise scales "
    "above a fifth of these are lower bounds: benchmarks/reference.py."
)
KEYS = {
    "sharpness": "hessian.largest",
    "trace": "gauss_newton.trace",
    "share10": "gauss_newton.share10",
    "share50": "gauss_newton.share50",
    "ratio10": "hessian.ratio10",
    "negativity": "hessian.negativity",
    "noise_scale": "noise.scale",
    "prunable": "subnetworks.prunable",
    "accuracy": "model.accuracy",
}


class Rows(nn.Module):
    """Reads an image row by row with a recurrent layer."""

    def __init__(self, layer: type[nn.RNNBase], side: int, hidden: int) -> None:
        super().__init__()
        self.recurrent = layer(side, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.recurrent(images.flatten(1, -2))[0][:, -1])


class Attention(nn.Module):
    """A transformer encoder whose tokens are the rows of an image."""

    def __init__(self, side: int, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Linear(side, width), nn.Parameter(torch.zeros(side, width))
        block = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return self.head(self.blocks(self.embed(images.flatten(1, -2)) + self.place).mean(1))


def _convolutional(side: int, channels: int, norm: bool) -> nn.Module:
    def block(before: int, after: int) -> list[nn.Module]:
        layers = [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return [layers[0], nn.BatchNorm2d(after), *layers[1:]] if norm else layers

    left = side // 4
    return nn.Sequential(
        *block(1, channels),
        *block(channels, 2 * channels),
        nn.Flatten(),
        nn.Linear(2 * channels * left * left, 10),
    )


def _dense(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


Maker = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[str, Maker, float, int]] = {
    "mlp-small": ("digits", lambda: _dense(64, 32, 10), 0.1, 40),
    "mlp-tanh": ("digits", lambda: _dense(64, 64, 64, 10, activation=nn.Tanh), 0.1, 30),
    "mlp-mnist": ("mnist5k", lambda: _dense(784, 128, 10), 0.1, 10),
    "mlp-deep": ("mnist5k", lambda: _dense(784, 256, 256, 256, 10), 0.1, 10),
    "cnn-small": ("digits", lambda: _convolutional(8, 8, norm=False), 0.1, 30),
    "cnn-norm": ("digits", lambda: _convolutional(8, 16, norm=True), 0.1, 15),
    "cnn-mnist": ("mnist5k", lambda: _convolutional(28, 8, norm=False), 0.1, 5),
    "lstm": ("digits", lambda: Rows(nn.LSTM, 8, 32), 0.5, 60),
    "gru": ("digits", lambda: Rows(nn.GRU, 8, 32), 0.5, 40),
    "rnn": ("digits", lambda: Rows(nn.RNN, 8, 48), 0.1, 40),
    "attention-1": ("digits", lambda: Attention(8, 32, 1), 0.1, 40),
    "attention-2": ("digits", lambda: Attention(8, 48, 2), 0.1, 40),
}
"""Data, network, learning rate of SGD with batches of 64, epochs."""


def measure(name: str) -> dict[str, Any]:
    """Train one network and return its record."""
    data_name, make, rate, epochs = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make()
    data = hr.load_data(data_name)
    inputs = data.inputs
    pair = (inputs, data.targets)
    initial = copy.deepcopy(model.state_dict())
    hr.train(model, nn.CrossEntropyLoss(), pair, epochs=epochs, lr=rate, batch_size=64, seed=0)
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))[:SAMPLES]
    found = hr.inspect(
        model,
        nn.CrossEntropyLoss(),
        (inputs[rows], data.targets[rows]),
        initial=initial,
        batch_size=64,
        budget=900,
        console=Console(quiet=True),
    )
    numbers = {quantity.key: quantity for quantity in found}
    statistics = {
        key: float(f"{numbers[name].value:.4g}")
        for key, name in KEYS.items()
        if name in numbers and numbers[name].samples in (0, SAMPLES)
    }
    is_bounded = is_lower_bound(statistics.get("noise_scale", 0.0), SAMPLES)
    bounds = ["noise_scale"] if is_bounded else []
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "name": name,
        "kind": kind_of(model),
        "parameters": parameters,
        "data": data_name,
        "rate": rate,
        "epochs": epochs,
        "statistics": statistics,
        "at_least": bounds,
    }


def main() -> None:
    """Measure all networks, or one, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=NETWORKS, nargs="*", default=list(NETWORKS))
    chosen = parser.parse_args().only
    stored = json.loads(FILE.read_text())["networks"] if FILE.exists() else []
    records = {record["name"]: record for record in stored}
    for name in chosen:
        records[name] = measure(name)
        print(name, records[name]["statistics"])
        ordered = [records[name] for name in NETWORKS if name in records]
        FILE.write_text(
            json.dumps({"made": MADE.format(count=len(ordered)), "networks": ordered}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
