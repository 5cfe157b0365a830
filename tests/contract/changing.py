"""Losses and models that are no fixed function: they draw numbers, count calls or remember."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["FIXED", "LOSSES", "MODELS", "data", "network"]

N = 24
LOSSES: dict[str, Callable[[], Any]] = {}
MODELS: dict[str, Callable[[], nn.Module]] = {}
FIXED: dict[str, Callable[[], Any]] = {}


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (N,), generator=generator)


def network(*more: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3), *more).double()


def loss(make: Callable[[], Any]) -> Callable[[], Any]:
    LOSSES[make.__name__] = make
    return make


def model(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    MODELS[make.__name__] = make
    return make


def against(outputs: torch.Tensor, targets: torch.Tensor, others: Any) -> torch.Tensor:
    """Return a margin loss of each sample against others of the batch as negatives."""
    right = outputs.gather(1, targets[:, None])
    negatives = outputs[torch.as_tensor(others)].gather(1, targets[:, None])
    return F.softplus(negatives - right).mean()


# Draws


@loss
def negatives_by_torch() -> Any:
    return lambda f, y: against(f, y, torch.randperm(len(f)))


@loss
def negatives_by_numpy() -> Any:
    return lambda f, y: against(f, y, np.random.permutation(len(f)))


@loss
def negatives_by_random() -> Any:
    return lambda f, y: against(f, y, random.sample(range(len(f)), len(f)))


@loss
def negatives_by_a_generator_of_torch() -> Any:
    own = torch.Generator().manual_seed(0)
    return lambda f, y: against(f, y, torch.randperm(len(f), generator=own))


@loss
def negatives_by_a_generator_of_numpy() -> Any:
    own = np.random.default_rng(0)
    return lambda f, y: against(f, y, own.permutation(len(f)))


@loss
def negatives_by_a_generator_of_random() -> Any:
    own = random.Random(0)
    return lambda f, y: against(f, y, own.sample(range(len(f)), len(f)))


@loss
def dropout_by_function() -> Any:
    return lambda f, y: F.cross_entropy(F.dropout(f, 0.2), y)


@loss
def dropout_by_module() -> Any:
    dropout = nn.Dropout(0.2)
    return lambda f, y: F.cross_entropy(dropout(f), y)


@loss
def dropout_of_a_loss_module() -> Any:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = nn.Dropout(0.2)

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.dropout(outputs), targets)

    return Loss()


@loss
def gumbel_softmax() -> Any:
    return lambda f, y: -(F.gumbel_softmax(f).gather(1, y[:, None]) + 1e-3).log().mean()


@loss
def label_noise_by_torch() -> Any:
    def noisy(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        flipped = torch.rand(len(y)) < 0.2
        return F.cross_entropy(f, torch.where(flipped, (y + 1) % 3, y))

    return noisy


@loss
def label_noise_by_numpy() -> Any:
    def noisy(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        flipped = torch.from_numpy(np.random.rand(len(y)) < 0.2)
        return F.cross_entropy(f, torch.where(flipped, (y + 1) % 3, y))

    return noisy


@loss
def label_noise_by_random() -> Any:
    def noisy(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        flipped = torch.tensor([random.random() < 0.2 for _ in y])
        return F.cross_entropy(f, torch.where(flipped, (y + 1) % 3, y))

    return noisy


@loss
def noise_on_the_outputs() -> Any:
    return lambda f, y: F.cross_entropy(f + 0.1 * torch.randn_like(f), y)


@loss
def faint_noise_on_the_outputs() -> Any:
    """A millionth of the outputs, far above rounding in float64."""
    return lambda f, y: F.cross_entropy(f * (1 + 1e-6 * torch.randn_like(f)), y)


@loss
def mixed_labels() -> Any:
    def mixed(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        share = float(np.random.beta(0.4, 0.4))
        return share * F.cross_entropy(f, y) + (1 - share) * F.cross_entropy(f, y.flip(0))

    return mixed


@loss
def some_samples_only() -> Any:
    def some(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept = torch.randperm(len(f))[: (len(f) + 1) // 2]
        return F.cross_entropy(f[kept], y[kept])

    return some


@loss
def random_projections() -> Any:
    def sliced(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        directions = F.normalize(torch.randn(3, 4, dtype=f.dtype), dim=0)
        wanted = F.one_hot(y, 3).to(f.dtype)
        return ((f @ directions - wanted @ directions) ** 2).mean()

    return sliced


@loss
def one_of_two_by_a_coin() -> Any:
    return lambda f, y: F.cross_entropy(f, y) if random.random() < 0.5 else (f**2).mean()


# Counters: schedules that grow with the calls, in attributes, closures and buffers


class InAttribute:
    def __init__(self, factor: Callable[[int], float]) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.factor(self.calls) * F.cross_entropy(outputs, targets)


class InBuffer(nn.Module):
    def __init__(self, factor: Callable[[int], float]) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.factor(int(self.calls)) * F.cross_entropy(outputs, targets)


def in_closure(factor: Callable[[int], float]) -> Any:
    calls = 0

    def counted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return factor(calls) * F.cross_entropy(outputs, targets)

    return counted


def in_list(factor: Callable[[int], float]) -> Any:
    calls = [0]

    def counted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return factor(calls[0]) * F.cross_entropy(outputs, targets)

    return counted


def warm_up(length: int) -> Callable[[int], float]:
    """Return a factor that grows from 1 to 2 within so many calls, and on."""
    return lambda calls: 1 + calls / length


def stairs(length: int) -> Callable[[int], float]:
    """Return a factor that shrinks by a tenth every so many calls."""
    return lambda calls: 0.9 ** (calls // length)


PLACES: dict[str, Callable[..., Any]] = {
    "attribute": InAttribute,
    "buffer": InBuffer,
    "closure": in_closure,
    "list": in_list,
}
SPEEDS = {
    "warm_up_of_10": warm_up(10),
    "warm_up_of_1000": warm_up(1000),
    "warm_up_of_100000": warm_up(100_000),
    "stairs_of_2": stairs(2),
    "stairs_of_10": stairs(10),
}
for (place, make), (speed, factor) in itertools.product(PLACES.items(), SPEEDS.items()):
    LOSSES[f"{speed}_in_{place}"] = lambda make=make, factor=factor: make(factor)


@loss
def stairs_of_100_in_buffer() -> Any:
    return InBuffer(stairs(100))


@loss
def stairs_of_100_in_attribute() -> Any:
    return InAttribute(stairs(100))


@loss
def count_in_a_default_argument() -> Any:
    def counted(f: torch.Tensor, y: torch.Tensor, seen: list[int] = []) -> torch.Tensor:  # noqa: B006
        seen.append(1)
        return F.cross_entropy(f, y) * (1 + 0.01 * len(seen))

    return counted


@loss
def count_of_an_iterator() -> Any:
    steps: Iterator[int] = itertools.count()
    return lambda f, y: F.cross_entropy(f, y) * (1 + 0.01 * next(steps))


@loss
def labels_in_turn() -> Any:
    turns = itertools.cycle([0, 1, 2])
    return lambda f, y: F.cross_entropy(f, (y + next(turns)) % 3)


@loss
def time_of_day() -> Any:
    begun = time.perf_counter()
    return lambda f, y: F.cross_entropy(f, y) * (1 + time.perf_counter() - begun)


# Memory of earlier calls


@loss
def running_centre() -> Any:
    """Outputs less their running mean, as teachers are centred."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(3, dtype=torch.float64))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
            return (
                F.cross_entropy(outputs - self.centre, targets)
                + (outputs - self.centre)[:, 0].square().mean()
            )

    return Loss()


@loss
def running_scale() -> Any:
    """The loss over its own running mean."""
    scale = [1.0]

    def scaled(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = F.cross_entropy(f, y)
        scale[0] = 0.9 * scale[0] + 0.1 * float(value.detach())
        return value / scale[0]

    return scaled


@loss
def batchnorm_of_a_loss_module() -> Any:
    """Running averages of a normalisation inside the loss, which it reads back."""

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3, affine=False).double()

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.norm(outputs.detach())
            return (
                F.cross_entropy(outputs - self.norm.running_mean, targets)
                + outputs.sub(self.norm.running_mean).square().mean()
            )

    return Loss()


@loss
def queue_of_negatives() -> Any:
    queue = [torch.zeros(4, 3, dtype=torch.float64)]

    def contrasted(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = torch.cat([f.gather(1, y[:, None]), f @ queue[0].T], 1)
        queue[0] = torch.cat([f.detach().to(torch.float64)[:2], queue[0][:-2]])
        return F.cross_entropy(scores, torch.zeros_like(y))

    return contrasted


# Models


class Drawing(nn.Module):
    def __init__(self, drawn: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.body, self.drawn = network(), drawn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.drawn(x)


@model
def model_with_noise_by_torch() -> nn.Module:
    return Drawing(lambda x: 1 + 0.1 * torch.randn(len(x), 1, dtype=x.dtype))


@model
def model_with_noise_by_numpy() -> nn.Module:
    return Drawing(lambda x: 1 + 0.1 * float(np.random.randn()))


@model
def model_with_noise_by_random() -> nn.Module:
    return Drawing(lambda x: 1 + 0.1 * random.random())


@model
def model_with_dropout_that_is_always_on() -> nn.Module:
    return Drawing(lambda x: F.dropout(torch.ones(len(x), 3, dtype=x.dtype), 0.2, training=True))


@model
def model_that_leaves_layers_out() -> nn.Module:
    return Drawing(lambda x: 0.5 if random.random() < 0.5 else 1.0)


@model
def model_that_samples_its_code() -> nn.Module:
    class Sampled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = network(), nn.Linear(3, 3).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = self.body(x)
            return self.head(mean + 0.3 * torch.randn_like(mean))

    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Sampled()


@model
def model_with_a_generator_of_its_own() -> nn.Module:
    own = np.random.default_rng(0)
    return Drawing(lambda x: 1 + 0.1 * own.normal())


@model
def model_that_counts_its_calls() -> nn.Module:
    steps = itertools.count(1)
    return Drawing(lambda x: 1 + 0.01 * next(steps))


# Losses that are fixed functions of outputs and targets, although they keep something


def fixed(make: Callable[[], Any]) -> Callable[[], Any]:
    FIXED[make.__name__] = make
    return make


@fixed
def values_are_written_down() -> Any:
    history: list[float] = []

    def logged(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = F.cross_entropy(f, y)
        history.append(float(value.detach()))
        return value

    return logged


@fixed
def last_value_is_kept() -> Any:
    class Loss(nn.Module):
        last = 0.0

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            value = F.cross_entropy(outputs, targets)
            self.last = value.item()
            return value

    return Loss()


@fixed
def constants_are_made_at_the_first_call() -> Any:
    class Loss(nn.Module):
        weight: torch.Tensor | None = None

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if self.weight is None:
                self.weight = torch.arange(1.0, 4.0, dtype=outputs.dtype)
            each = F.cross_entropy(outputs, targets, reduction="none")
            return (each * self.weight[targets]).mean()

    return Loss()


@fixed
def the_same_draw_at_every_call() -> Any:
    def projected(f: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        own = torch.Generator().manual_seed(7)
        directions = torch.randn(3, 4, generator=own, dtype=torch.float64).to(f.dtype)
        return ((f - F.one_hot(y, 3)) @ directions).square().mean()

    return projected


@fixed
def buffers_that_stay() -> Any:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            each = F.cross_entropy(outputs, targets, reduction="none")
            return (each * self.weight.to(each)[targets]).mean()

    return Loss()
