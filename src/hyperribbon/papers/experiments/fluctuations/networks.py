"""The variance-flatness exponent of every layer of three networks, by optimiser and sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from hyperribbon.core import numpy_generator
from hyperribbon.core.data import load_data
from hyperribbon.noise import fluctuations
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import _regression

TITLE = "Variance and flatness in three networks"

RULES = ("SGD, independent", "SGD, shuffled", "momentum, shuffled", "Adam, shuffled")
KINDS = ("mlp", "cnn", "transformer")

_NEEDS = "1000 digits and 5 networks of each kind"

STATEMENTS = (
    kit.says(
        "observed",
        "Sec. IV",
        "In Ref. [16], the IVFR has been observed empirically for various deep nonlinear network "
        "architectures trained on image data under cross-entropy loss",
        "Under shuffled SGD the median of ψ over layers is positive, whatever the network.",
        kit.Band.at_least(0, "printed"),
        setting="an MLP, a CNN and a transformer on 1000 digits with a fifth of the labels wrong, "
        "one "
        "value per network and seed; the modes that were seen for ten correlation times",
        needs=_NEEDS,
    ),
    kit.observe(
        "momentum",
        "Sec. IV",
        "The median of ψ over layers is positive under shuffled SGD with momentum too.",
        kit.Band.at_least(0, "words"),
        needs=_NEEDS,
    ),
    kit.observe(
        "adam",
        "Sec. IV",
        "The median of ψ over layers is positive under Adam.",
        kit.Band.at_least(0, "words"),
        needs=_NEEDS,
    ),
    kit.observe(
        "independent",
        "Sec. IV",
        "With independent batches, the paper's own sampling, the median of ψ over layers is "
        "smaller than with shuffled ones: the difference is negative.",
        kit.Band.at_most(0, "words"),
        needs=_NEEDS,
    ),
)


class Config(kit.Frozen):
    """Digits, wrong labels, training before and during the measurement, networks of each kind."""

    samples: int = 1000
    wrong_labels: float = 0.2
    batch_size: int = 20
    warm_up: int = 1500
    steps: int = 800
    modes: int = 10
    networks: int = 5


PRESETS = kit.presets(
    Config(),
    smoke=Config(samples=60, warm_up=10, steps=40, modes=4, networks=1),
    paper=Config(warm_up=50_000, steps=20_000, modes=20),
)


class Result(kit.Frozen):
    """ψ, variance ratio, modes: (kinds, rules, networks, layers), NaN beyond the last layer."""

    psi: np.ndarray
    ratio: np.ndarray
    resolved: np.ndarray
    stationary: np.ndarray
    layers: dict[str, list[str]]


def compute(config: Config, context: kit.Context) -> Result:
    """Train the three networks under every optimiser; measure fluctuations of all their layers."""
    items = [
        {**vars(config), "kind": kind, "rule": rule, "seed": seed}
        for kind in KINDS
        for rule in RULES
        for seed in _regression.seeds(context.seed, config.networks)
    ]
    parts = context.map(_measure, items, label="networks")
    most = max(len(part["psi"]) for part in parts)

    def grid(name: str) -> np.ndarray:
        padded = [
            np.pad(part[name], (0, most - len(part[name])), constant_values=np.nan)
            for part in parts
        ]
        return np.array(padded).reshape(len(KINDS), len(RULES), config.networks, most)

    names = ("psi", "ratio", "resolved", "stationary")
    first = range(0, len(parts), len(RULES) * config.networks)
    layers = {kind: parts[place]["layers"] for kind, place in zip(KINDS, first, strict=True)}
    return Result(*(grid(name) for name in names), layers=layers)


class _Rows(nn.Module):
    """A transformer over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 12)
        self.place = nn.Parameter(torch.zeros(8, 12, device="cpu"))
        self.block = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embed(x[:, 0]) + self.place).mean(dim=1))


def _model(kind: str) -> nn.Module:
    if kind == "transformer":
        return _Rows()
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 6, 3),
            nn.Tanh(),
            nn.Conv2d(6, 8, 3, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32, 10),
        )
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 12),
        nn.Tanh(),
        nn.Linear(12, 12),
        nn.Tanh(),
        nn.Linear(12, 10),
    )


def _measure(item: kit.Item) -> dict[str, Any]:
    digits = load_data("digits", limit=item["samples"], seed=item["seed"])
    rng = numpy_generator(item["seed"], "networks", item["kind"])
    inputs = digits.inputs.float().reshape(-1, 1, 8, 8)
    inputs = (inputs - inputs.mean()) / inputs.std()
    wrong = torch.from_numpy(rng.random(len(inputs)) < item["wrong_labels"])
    random = torch.from_numpy(rng.integers(10, size=len(inputs)))
    data = TensorDataset(inputs, torch.where(wrong, random, digits.targets.long()))
    model, loss = _model(item["kind"]), nn.CrossEntropyLoss()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                scale = parameter[0].numel() ** -0.5
                parameter.copy_(scale * torch.from_numpy(rng.normal(size=parameter.shape)))
    drawing = torch.Generator("cpu").manual_seed(int(rng.integers(2**31)))
    name, sampling = item["rule"].split(", ")
    options: dict[str, Any] = {"shuffle": True, "generator": drawing}
    if sampling == "independent":
        options = {"sampler": RandomSampler(data, replacement=True, generator=drawing)}
    loader = DataLoader(data, item["batch_size"], drop_last=True, **options)
    if name == "Adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    else:
        momentum, lr = (0.9, 0.01) if name == "momentum" else (0.0, 0.1)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    step = 0
    while step < item["warm_up"]:
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            step += 1
    found = fluctuations(
        model, loss, loader, optimizer, steps=item["steps"], k=item["modes"], seed=item["seed"]
    )
    table = found.to_frame()
    return {
        "layers": list(found.layers),
        **{
            name: np.asarray(table[name], dtype=float)
            for name in ("psi", "ratio", "resolved", "stationary")
        },
    }


def plot(result: Result) -> kit.Figure:
    """Draw ψ of every layer of the three networks, a panel per network, a row per optimiser."""
    figure, axes = kit.new_figure(columns=3, width="full", ratio=1.3, sharey=True)
    place = np.arange(len(RULES))[::-1]
    for axis, kind, psi in zip(axes, KINDS, result.psi, strict=True):
        for layer, name in enumerate(result.layers[kind]):
            shift = 0.5 * (layer / max(len(result.layers[kind]) - 1, 1) - 0.5)
            for row in range(len(RULES)):
                values = psi[row, :, layer]
                color, label = kit.COLORS[layer % len(kit.COLORS)], name if row == 0 else None
                height = np.full(len(values), place[row] - shift)
                axis.plot(values, height, "o", ms=3, color=color, label=label)
        axis.axvline(0, color="0.6", lw=0.8)
        axis.set(xlabel="ψ", title=kind, xlim=(-4, 6))
        axis.set_yticks(place, list(RULES))
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.25)}
        axis.legend(fontsize=6, labelspacing=0.2, **below)
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the three networks' median ψ over layers, one value per network and seed."""
    medians = np.array([[[_median(seed) for seed in rule] for rule in kind] for kind in result.psi])

    def over(row: int, values: np.ndarray) -> kit.Observed:
        known = values[np.isfinite(values)]
        by_kind = ", ".join(
            f"{kind} {_median(part):.2f}" if np.isfinite(part).any() else f"{kind} unknown"
            for kind, part in zip(KINDS, values, strict=True)
        )
        with_psi = np.isfinite(result.psi[:, row])
        still = int(np.nansum(result.stationary[:, row][with_psi]))
        return kit.over_seeds(
            known if len(known) else [np.nan],
            f"medians by network: {by_kind}; {with_psi.sum()} of "
            f"{np.isfinite(result.resolved[:, row]).sum()} layers have ψ, {still} of them "
            f"stationary",
            comparable=len(known) > 0,
        )

    return {
        "observed": over(1, medians[:, 1]),
        "momentum": over(2, medians[:, 2]),
        "adam": over(3, medians[:, 3]),
        "independent": over(0, medians[:, 0] - medians[:, 1]),
    }


def _median(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")
