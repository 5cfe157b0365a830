"""The sharpness in each mode is the one that gradient descent in that mode obeys.

Two runs of full-batch gradient descent that start at θ and θ + ε v differ by δ, with
δ ← (1 − η H) δ. Along the sharpest direction the difference is multiplied by |1 − η λ| every step:
it shrinks for η below 2/λ and grows above. Runs are loops of plain torch with the model in the mode
in question; λ and v are hyperribbon's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hyperribbon as hr
from contract.dense import SHARPNESS, gauss_newton
from contract.problems import Problem

N = 32
LOSS = nn.CrossEntropyLoss()
MODES = ("eval", "train")
RATES = (0.8, 1.3)  # in units of 2/λ: the difference is multiplied by 0.6 and by 1.6
EPSILON = 1e-8  # roundings over it, and it times the third derivative, are both least here
DECAY = 0.006
Batch = tuple[torch.Tensor, torch.Tensor]


def normalised_mlp(depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in (6, *[8] * (depth - 1)):
        layers += [nn.Linear(width, 8), nn.BatchNorm1d(8), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(8, 3))


class Cnn(nn.Module):
    def __init__(self, depth: int, is_residual: bool, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), activation)
            for _ in range(depth)
        )
        self.is_residual = is_residual

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x) if self.is_residual else block(x)
        return self.head(x.mean((2, 3)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
        self.head = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(x).mean(1)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: normalised_mlp(1),
    "deep mlp": lambda: normalised_mlp(3),
    "cnn": lambda: Cnn(1, False, nn.Tanh()),
    "deep cnn": lambda: Cnn(3, False, nn.Tanh()),
    "residual cnn": lambda: Cnn(2, True, nn.Tanh()),
    "words": Words,
}
"""Smooth ones: with kinks, training comes to rest where two pieces meet and there is no Hessian."""
CHEAP = ("mlp", "deep mlp", "words")
KINKED = {"kinked cnn": lambda: Cnn(2, False, nn.ReLU())}


@dataclass
class Start:
    """A network that was trained a little, and its one batch."""

    model: nn.Module
    batch: Batch

    @classmethod
    def of(cls, name: str, seed: int) -> Start:
        """Return a network after twenty steps of gradient descent in training mode."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = (NETWORKS | KINKED)[name]().double()
            batch = samples(name)
        model.train()
        descend(model, batch, 0.3, steps=20, is_averaging=True)
        return cls(model, batch)

    def sharpest(self, mode: str) -> tuple[float, torch.Tensor]:
        """Return λ and v, as hyperribbon has them; v in the order of `model.parameters()`."""
        operator = hr.Hessian(self.model, LOSS, self.batch, mode=mode)
        spectrum = hr.eigsh(operator, k=1, tol=1e-8)
        named = operator.space.unflatten(spectrum.eigenvectors[:, 0])
        pieces = [named[name].reshape(-1) for name, _ in self.model.named_parameters()]
        return float(spectrum.eigenvalues[0]), torch.cat(pieces)

    def growth(self, mode: str, direction: torch.Tensor, rate: float, **options: Any) -> float:
        """Return the factor a step by which two runs come apart along a direction.

        The model is put back afterwards.
        """
        steps = options.get("steps", 1)
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        ends = []
        for shift in (0.0, EPSILON):
            self.model.load_state_dict(state)
            move(self.model, shift * direction)
            self.model.train(mode == "train")
            descend(self.model, self.batch, rate, **options)
            ends.append(coordinates(self.model))
        self.model.load_state_dict(state)
        return (abs(float((ends[1] - ends[0]) @ direction)) / EPSILON) ** (1 / steps)


def samples(name: str) -> Batch:
    """Return samples whose labels are wrong now and then, so that training comes to rest."""
    y = torch.randint(3, (N,))
    if name == "words":
        x = torch.randint(7, (N, 5))
        x[:, 0] = y
    elif "cnn" in name:
        x = torch.randn(N, 1, 5, 5, dtype=torch.float64) + y[:, None, None, None]
    else:
        x = torch.randn(N, 6, dtype=torch.float64) + F.one_hot(y, 6)
    return x, torch.where(torch.rand(N) < 0.3, torch.randint(3, (N,)), y)


def descend(
    model: nn.Module,
    batch: Batch,
    rate: float,
    *,
    steps: int = 1,
    decay: float = 0.0,
    is_averaging: bool = False,
) -> None:
    """Take steps of full-batch gradient descent in the mode the model is in.

    Running averages are put back after every step unless they are meant to follow.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    for _ in range(steps):
        buffers = [buffer.clone() for buffer in model.buffers()]
        optimizer.zero_grad()
        LOSS(model(batch[0]), batch[1]).backward()
        optimizer.step()
        if not is_averaging:
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)
    optimizer.zero_grad()


def come_to_rest(model: nn.Module, batch: Batch) -> None:
    """Minimise the loss with weight decay in the mode the model is in."""
    optimizer = torch.optim.LBFGS(
        model.parameters(),
        max_iter=1000,
        tolerance_grad=1e-4,
        history_size=50,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        squares = sum(p.square().sum() for p in model.parameters())
        value = LOSS(model(batch[0]), batch[1]) + DECAY / 2 * squares
        value.backward()
        return value

    optimizer.step(objective)
    optimizer.zero_grad()


def coordinates(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def move(model: nn.Module, by: torch.Tensor) -> None:
    with torch.no_grad():
        for p, piece in zip(
            model.parameters(), by.split([p.numel() for p in model.parameters()]), strict=True
        ):
            p.add_(piece.view_as(p))


def first_steps(seeds: range) -> None:
    """The first step is linear but for ε times the third derivative, some 1e-6 of it.

    At kinks the difference jumps where a unit lies within ε of one; that is rare for such an ε.
    """
    misses, noticed = [], []
    for name in (*NETWORKS, *KINKED):
        for seed in seeds:
            start = Start.of(name, seed)
            found = {mode: start.sharpest(mode) for mode in MODES}
            for mode, other in (MODES, MODES[::-1]):
                top, direction = found[mode]
                for factor in RATES:
                    rate = factor * 2 / top
                    grown = start.growth(mode, direction, rate)
                    if abs(grown / abs(1 - rate * top) - 1) > 1e-3:
                        misses.append((name, seed, mode, factor, grown))
                    noticed.append(abs(grown / abs(1 - rate * found[other][0]) - 1) > 0.1)
    assert not misses, misses
    assert sum(noticed) > len(noticed) / 2, "the modes hardly differ: this would not notice"


def runs_at_rest(names: Iterable[str], seeds: range, mode: str) -> None:
    """Four steps at a point where training in that mode has come to rest, with weight decay μ.

    The step is θ ← θ − η (∇L + μθ), so the factor is |1 − η (λ + μ)|. Elsewhere a step of this size
    leaves the place whose curvature was measured. Nine in ten starts keep within a tenth of the
    factor, at both rates: some have not quite come to rest, and their curvature moves with them.
    """
    kept = []
    for name in names:
        for seed in seeds:
            start = Start.of(name, seed)
            start.model.train(mode == "train")
            come_to_rest(start.model, start.batch)
            top, direction = start.sharpest(mode)
            top += DECAY
            ratios = []
            for factor in RATES:
                rate = factor * 2 / top
                grown = start.growth(mode, direction, rate, steps=4, decay=DECAY)
                ratios.append(grown / abs(1 - rate * top))
            kept.append(all(abs(ratio - 1) <= 0.1 for ratio in ratios))
    assert sum(kept) >= 0.9 * len(kept), kept


def test_the_first_step_obeys_the_sharpness_of_its_mode():
    first_steps(range(1))


@pytest.mark.parametrize("mode", MODES)
def test_runs_at_rest_obey_the_sharpness_of_their_mode(mode):
    runs_at_rest(CHEAP, range(1), mode)


@pytest.mark.slow
def test_sixty_first_steps_obey_the_sharpness_of_their_mode():
    first_steps(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_sixty_runs_at_rest_obey_the_sharpness_of_their_mode(mode):
    runs_at_rest(NETWORKS, range(10), mode)


@pytest.mark.parametrize("kind", ["Hessian", "GGN", "GradientCovariance"])
def test_dropout_in_training_mode_is_refused_and_off_in_evaluation(kind):
    start = Start.of("mlp", 0)
    model = nn.Sequential(start.model, nn.Dropout(0.2)).double()
    make = getattr(hr, kind)
    for mode in ("train", None):
        with pytest.raises(hr.ArgumentError, match=r"[Dd]ropout"):
            make(model.train(), LOSS, start.batch, mode=mode)
    make(model.train(), LOSS, start.batch)


def test_dropout_that_is_off_is_no_dropout():
    start = Start.of("mlp", 0)
    model = nn.Sequential(start.model, nn.Dropout(0.0)).double()
    found = hr.Hessian(model, LOSS, start.batch, mode="train").loss()
    with torch.no_grad():
        expected = float(LOSS(start.model.train()(start.batch[0]), start.batch[1]))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_the_gauss_newton_matrix_in_training_mode_is_right_or_refused(name):
    start = Start.of(name, 0)
    try:
        found = hr.GGN(start.model, LOSS, start.batch, mode="train").to_dense()
    except hr.ArgumentError as error:
        assert error.argument in ("model", "mode", "data")
        return

    def both(model: nn.Module, batch: Batch) -> Any:
        return model(batch[0]), lambda logits: LOSS(logits, batch[1])

    problem = Problem(start.model, LOSS, start.batch, lambda m, b: LOSS(m(b[0]), b[1]))
    problem.mode, problem.gauss_newton = "train", both
    expected = gauss_newton(problem)
    assert (found - expected).norm() <= SHARPNESS[torch.float64] * expected.norm()
