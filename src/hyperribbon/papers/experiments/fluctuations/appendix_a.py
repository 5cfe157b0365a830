"""A tanh network in its stationary state against its linearisation, by batch size."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from hyperribbon.core import numpy_generator
from hyperribbon.noise import linearize
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.fluctuations import GOOD, _regression
from hyperribbon.papers.simulation import chain_batches

TITLE = "A nonlinear network and its linearisation"

STATEMENTS = (
    kit.says(
        "linearised",
        "Sec. I A and Appendix A",
        "in the stationary regime at the end of training, a deep nonlinear network typically "
        "follows "
        "a linearized dynamics (multivariate Ornstein-Uhlenbeck process with correlated noise)",
        "At the largest batch the variances of SGD along the eigenvectors of the linearised "
        "Hessian "
        "are those of Eq. (2.30) with the Jacobian for X within a tenth (our threshold), median "
        "over "
        "modes.",
        kit.Band.at_most(GOOD, "words"),
        setting="a tanh network with 3 hidden units, 400 samples, MSE loss, chains from the "
        "minimum; "
        "the modes that relax five times or more within the burn-in",
        needs="400 samples and 96 chains",
    ),
    kit.says(
        "small-deviations",
        "Appendix A",
        "Nonlinear networks can be linearized in the stationary state of training, provided "
        "deviations "
        "from the reference state are sufficiently small, which requires large batch sizes and "
        "small "
        "learning rates",
        "The median distance from the linearised variances is smaller at the largest batch than "
        "at the "
        "smallest: their ratio is below one.",
        kit.Band.at_most(1, "printed"),
        setting="the same, batches of 5 and 100 at one learning rate",
        needs="400 samples and 96 chains",
    ),
)


class Config(kit.Frozen):
    """Network, task, SGD, and chains for each batch size."""

    inputs: int = 3
    hidden: int = 3
    samples: int = 400
    label_variance: float = 0.04
    lr: float = 0.1
    batches: tuple[int, ...] = (5, 20, 100)
    steps: int = 3000
    burn_in: int = 3000
    chains: int = 96
    networks: int = 5


PRESETS = kit.presets(
    Config(),
    smoke=Config(samples=200, steps=200, burn_in=200, chains=16, batches=(10, 30), networks=1),
    paper=Config(steps=30_000, burn_in=30_000, chains=256, networks=10),
)


class Result(kit.Frozen):
    """Along the modes of the linearised Hessian: (networks, batches, modes), and rates."""

    batches: np.ndarray
    rates: np.ndarray  # (networks, modes), of the linearised Hessian, descending
    simulated: np.ndarray
    predicted: np.ndarray
    relaxed: np.ndarray  # (networks, modes), whether the burn-in spans five relaxation times


def compute(config: Config, context: kit.Context) -> Result:
    """Train to a minimum, linearise there, and run chains of SGD from it (Appendix A)."""
    items = [
        {**vars(config), "batches": None, "batch_size": size, "seed": seed}
        for seed in _regression.seeds(context.seed, config.networks)
        for size in config.batches
    ]
    parts = context.map(_chains, items, label="chains of SGD")
    found = kit.stack(parts, shape=(config.networks, len(config.batches)))
    rates = found["rates"][:, 0]
    return Result(
        np.array(config.batches),
        rates,
        found["simulated"],
        found["predicted"],
        config.lr * rates * config.burn_in >= 5,
    )


def _network(item: kit.Item) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Return a tanh network at a minimum of its loss, to be linearised as in Appendix A."""
    rng = numpy_generator(item["seed"], "tanh")
    N, h, P = item["inputs"], item["hidden"], item["samples"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape))

    X = normal(P, N)
    teacher = nn.Sequential(nn.Linear(N, h), nn.Tanh(), nn.Linear(h, 1)).double()
    student = nn.Sequential(nn.Linear(N, h), nn.Tanh(), nn.Linear(h, 1)).double()
    with torch.no_grad():
        for first, second in zip(teacher.parameters(), student.parameters(), strict=True):
            first.copy_(normal(*first.shape))
            second.copy_(first)  # near the teacher, so that all networks end in one kind of minimum
        Y = teacher(X) + item["label_variance"] ** 0.5 * normal(P, 1)
    optimizer = torch.optim.LBFGS(
        student.parameters(), max_iter=2000, line_search_fn="strong_wolfe", tolerance_grad=1e-10
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((student(X) - Y) ** 2).mean() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    return student, X, Y


def _chains(item: kit.Item) -> dict[str, np.ndarray]:
    student, X, Y = _network(item)
    linear = linearize(student, (X, Y))
    rates, modes = np.linalg.eigh(linear.hessian())
    M = linear.stationary_covariance(item["lr"], item["batch_size"], time="discrete")
    rest = np.concatenate([p.detach().numpy().ravel() for p in student.parameters()])
    moments = _run(rest, X.numpy(), Y.numpy()[:, 0], item)
    return {
        "rates": rates[::-1].copy(),
        "simulated": _regression.along_modes(moments, modes)[::-1].copy(),
        "predicted": _regression.along_modes(M, modes)[::-1].copy(),
    }


def _run(rest: np.ndarray, X: np.ndarray, Y: np.ndarray, item: kit.Item) -> np.ndarray:
    """Return the weights' covariance over chains of SGD from the minimum (Appendix A)."""
    chains = item["chains"]
    rng = numpy_generator(item["seed"], "chains", item["batch_size"])
    batches = chain_batches(len(X), item["batch_size"], chains, sampling="replacement", rng=rng)
    w = np.tile(rest, (chains, 1))
    sums, products, count = np.zeros(len(rest)), np.zeros((len(rest), len(rest))), 0
    for step in range(item["burn_in"] + item["steps"]):
        indices = next(batches)
        w = w - item["lr"] * _gradient(w, X[indices], Y[indices], item["hidden"])
        if step >= item["burn_in"] and step % 5 == 0:
            deviation = w - rest
            sums += deviation.mean(axis=0)
            products += deviation.T @ deviation / chains
            count += 1
    mean = sums / count
    return products / count - np.outer(mean, mean)


def _gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray, hidden: int) -> np.ndarray:
    """Return the tanh network's gradient of ½(f − y)² over each chain's samples (Appendix A).

    Args:
        w: Weights of all chains, in torch's order of the parameters.
        x: Inputs (chains, samples, N).
        y: Targets (chains, samples).
        hidden: Hidden units.
    """
    (chains, size, N), h = x.shape, hidden
    W1, b1 = w[:, : h * N].reshape(-1, h, N), w[:, h * N : h * N + h]
    W2, b2 = w[:, h * N + h : -1], w[:, -1]
    units = np.tanh(x @ W1.transpose(0, 2, 1) + b1[:, None])
    error = (np.einsum("rsh,rh->rs", units, W2) + b2[:, None] - y) / size
    back = error[:, :, None] * W2[:, None] * (1 - units**2)
    return np.hstack(
        [
            (back.transpose(0, 2, 1) @ x).reshape(chains, -1),
            back.sum(axis=1),
            np.einsum("rs,rsh->rh", error, units),
            error.sum(axis=1, keepdims=True),
        ]
    )


def plot(result: Result) -> kit.Figure:
    """Draw simulated over linearised variance against the rate of the mode (Appendix A)."""
    figure, axis = kit.new_figure(width="column", ratio=0.8)
    for row, size in enumerate(result.batches):
        ratio = result.simulated[0, row] / result.predicted[0, row]
        seen = result.relaxed[0]
        color = kit.COLORS[row]
        axis.loglog(result.rates[0][seen], ratio[seen], "o", ms=4, color=color, label=f"S = {size}")
        axis.loglog(result.rates[0][~seen], ratio[~seen], "o", ms=4, mfc="none", color=color)
    axis.axhline(1, color="0.6", lw=0.8)
    axis.set(xlabel="rate of the mode", ylabel="SGD / linearised variance")
    axis.set_title("open: relaxes slower than a fifth of the burn-in", fontsize=7)
    axis.legend()
    return figure


def measure(result: Result) -> kit.Measurements:
    """Measure the distance from the linearised variances at both extreme batches (Appendix A)."""

    def distance(row: int) -> np.ndarray:
        pairs = zip(result.simulated[:, row], result.predicted[:, row], result.relaxed, strict=True)
        return np.array([np.median(abs(s[k] / p[k] - 1)) for s, p, k in pairs])

    most, least = int(np.argmax(result.batches)), int(np.argmin(result.batches))
    large, small = distance(most), distance(least)
    share = result.relaxed.mean()
    return {
        "linearised": kit.over_seeds(
            large,
            f"median over modes at S = {result.batches[most]}, one value per network; {share:.0%} "
            f"of "
            f"the modes relax. At S = {result.batches[least]} it is {small.mean():.2f}",
        ),
        "small-deviations": kit.over_seeds(
            large / small, "distance at the largest batch over that at the smallest, per network"
        ),
    }
