"""Half of the channels removed and fine-tuned: `hr.shrink` beside Torch-Pruning."""

from __future__ import annotations

import copy
import importlib.util
import statistics
import time
from functools import partial

import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F

import hyperribbon as hr
from benchmarks.harness import Limit, Measure, is_quick
from hyperribbon.core.data import LabelledData, load_data

_SHARE = 0.5
_MARGIN = 0.01
"""Loss of accuracy below which the smaller network counts as no worse; fixed before any run."""
_NETWORKS, _EPOCHS, _FINE_TUNING = 24, 6, 3


class Residual(nn.Module):
    """Two convolutions with batch norm beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the branch to the shortcut."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def _residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Residual(8, 16, 1),
        Residual(16, 32, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _plain() -> nn.Module:
    sizes = ((1, 12, 2), (12, 24, 1), (24, 32, 1))
    layers = [
        (nn.Conv2d(i, o, 3, stride, 1), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(3 - stride))
        for i, o, stride in sizes
    ]
    ends = nn.Flatten(), nn.Linear(288, 48), nn.ReLU(), nn.Linear(48, 10)
    return nn.Sequential(*(layer for block in layers for layer in block), *ends)


def _train(model: nn.Module, data: LabelledData, epochs: int, lr: float, seed: int) -> None:
    hr.train(
        model, F.cross_entropy, data, epochs=epochs, lr=lr, momentum=0.9, batch_size=64, seed=seed
    )


@torch.no_grad()
def _accuracy(model: nn.Module, data: LabelledData) -> float:
    found = model.eval()(data.inputs).argmax(1)
    return float((found == data.targets).double().mean())


@torch.no_grad()
def _seconds(model: nn.Module, inputs: torch.Tensor) -> float:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        model.eval()(inputs)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _ours(model: nn.Module, inputs: torch.Tensor) -> nn.Module:
    mask = hr.select(model, fraction=_SHARE, granularity="channel", scope="layer")
    return hr.shrink(model, mask, inputs=inputs)


def _theirs(model: nn.Module, inputs: torch.Tensor) -> nn.Module:
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]

    pruned = copy.deepcopy(model)
    pruner = tp.pruner.MagnitudePruner(
        pruned,
        inputs,
        importance=tp.importance.GroupMagnitudeImportance(),
        pruning_ratio=_SHARE,
        ignored_layers=[pruned[-1]],  # type: ignore[index]
    )
    pruner.step()
    return pruned


_MAKERS = {"residual": _residual, "plain": _plain}


def compare(name: str) -> list[Limit]:
    """Prune half of the channels of trained networks by both, fine-tune both alike."""
    if importlib.util.find_spec("torch_pruning") is None:
        return [Limit("accuracy, shrink minus Torch-Pruning", None, note="it is not installed")]
    make = _MAKERS[name]
    training, test = load_data("mnist5k"), load_data("mnist5k", "test")
    rows = []
    for seed in range(100, 102 if is_quick() else 100 + _NETWORKS):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = make()
        _train(model, training, _EPOCHS, 0.02, seed)
        small = [prune(model, training.inputs[:8]) for prune in (_ours, _theirs)]
        before = [_accuracy(one, test) for one in small]
        for one in small:
            _train(one, training, _FINE_TUNING, 0.02, seed + 100)
        after = [_accuracy(one, test) for one in small]
        sizes = [sum(p.numel() for p in one.parameters()) for one in (model, *small)]
        times = [_seconds(one, test.inputs) for one in (model, *small)]
        rows.append((_accuracy(model, test), *before, *after, *sizes, *times))
    mean = [statistics.mean(column) for column in zip(*rows, strict=True)]
    whole, one, other, ours, theirs, size, small_ours, small_theirs, slow, fast, peer = mean
    paired = [row[3] - row[4] for row in rows]
    half = stats.t.ppf(0.975, len(rows) - 1) * statistics.stdev(paired) / len(rows) ** 0.5
    same = f"after the same {_FINE_TUNING} epochs"
    return [
        Limit("accuracy, whole", whole, note=f"{len(rows)} networks, 1,000 test digits"),
        Limit("accuracy, shrink, not fine-tuned", one),
        Limit("accuracy, Torch-Pruning, not fine-tuned", other),
        Limit("accuracy, shrink", ours, note=same),
        Limit("accuracy, Torch-Pruning", theirs, note=same),
        Limit(
            "accuracy, shrink minus Torch-Pruning, lower end of the 95% interval",
            ours - theirs - half,
            low=-_MARGIN,
            note=f"paired, {ours - theirs:.4f} ± {half:.4f}; margin fixed before the run",
        ),
        Limit("parameters, shrink over whole", small_ours / size, high=0.5),
        Limit("parameters, Torch-Pruning over whole", small_theirs / size),
        Limit("time, shrink over whole", fast / slow, high=1 / 1.5),
        Limit("time, Torch-Pruning over whole", peer / slow),
    ]


ROWS = [Measure(f"half of the channels, {name}", partial(compare, name)) for name in _MAKERS]
