"""`predict_manifold`: the manifold that a network's training follows, from its tangent kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import (
    ArgumentError,
    check_array,
    check_fraction,
    check_positive_int,
    count,
    function,
    positive,
    torch_module,
    validate,
)
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.result import Result, frame
from hyperribbon.core.store import Kept, content_digest
from hyperribbon.operators import NTK, Risk
from hyperribbon.operators.risk.batches import move
from hyperribbon.prediction.initial import average_last_layer, draw_networks
from hyperribbon.prediction.surrogate import beyond_the_models_outputs
from hyperribbon.theory.ribbons import Ribbon, dimensions_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MOST_OUTPUTS = 6000  # n·C: a dense kernel and its eigenvectors
_KERNELS = 4, 32  # initialisations whose tangent kernels are taken, at least and at most
_EIGENVECTORS = 2**22  # entries of their eigenvectors, which decide how many between these
_DESCENTS = 64  # initial outputs followed in output space for losses that are not squared
_FOLDS = 8  # left out in turn, for the standard error
_FEATURES = 16  # initialisations of the features below a linear last layer
_DRAWS = 20  # sets of runs drawn for the dimensions that a finite number of them shows
_TIMES = 9  # at which the kernel is compared with the initial one


@dataclass(frozen=True, eq=False)
class ManifoldPrediction(Result):
    """The covariance of the outputs along training, predicted from the linearised network.

    Attributes:
        covariance: (nC, nC), P over initialisations and steps, samples varying slowest.
        path: (T, nC), predicted mean outputs at every step.
        kernel: (nC, nC), mean tangent kernel at the start.
        kernels: Number of initialisations whose tangent kernels were taken.
        start: "last layer" if the initial covariance averages exactly over the last layer,
            "sampled" if it is that of sampled networks.
        method: "closed form" (squared loss), or "kernel descent" (other losses).
        stderr: Standard error of the number of dimensions for 95% of the variance, from the sampled
            starts; 0 for a closed form.
        steps: T, points of each trajectory.
        lr: Learning rate.
    """

    covariance: Float[np.ndarray, "N N"] = field(repr=False)
    path: Float[np.ndarray, "T N"] = field(repr=False)
    kernel: Float[np.ndarray, "N N"] = field(repr=False)
    start: str
    method: str
    stderr: float
    steps: int
    lr: float
    kernels: int
    _problem: _Problem = field(repr=False)
    _sample: Callable[[int, int], np.ndarray] = field(repr=False)  # covariance of so many runs

    @cached_property
    def _eigen(self) -> tuple[np.ndarray, np.ndarray]:
        values, vectors = np.linalg.eigh(self.covariance)
        return np.maximum(values[::-1], 0), vectors[:, ::-1]

    @property
    def spectrum(self) -> Float[np.ndarray, "N"]:
        """Predicted variances along the manifold's principal components, descending."""
        return self._eigen[0]

    @property
    def components(self) -> Float[np.ndarray, "N N"]:
        """Principal components of the predicted manifold as columns: (nC, nC)."""
        return self._eigen[1]

    def dimensions(self, fraction: float = 0.95) -> int:
        """Return the predicted manifold's dimensions, which carry `fraction` of the variance."""
        return dimensions_of(self.spectrum, check_fraction("fraction", fraction))

    def compare(self, outputs: Any, fraction: float = 0.95) -> ManifoldComparison:
        """Compare the predicted manifold with the measured outputs of trained networks.

        Args:
            outputs: (runs, T, n, C), outputs of every run at every step on the same samples in the
                same order; (runs, T, nC) and a list of arrays (T, n, C) too.
            fraction: Share of the variance that dimensions carry.

        Returns:
            Both manifolds; the kernel drift is empty, since outputs do not show it.

        Raises:
            ArgumentError: The outputs are of other samples or steps.
        """
        runs = [check_array("outputs", run, ndim=(2, 3)) for run in outputs]
        moments = _Moments(len(self.kernel))
        for run in runs:
            if run.reshape(len(run), -1).shape[1] != len(self.kernel) or len(run) != self.steps:
                reason = f"expected {self.steps} steps of {len(self.kernel)} outputs"
                remedy = "Give outputs before training and after each step, on the same samples."
                raise ArgumentError("outputs", run, reason, remedy)
            moments.add(run.reshape(len(run), -1))
        return self._comparison(moments, len(runs), fraction, {})

    def measure(
        self, networks: int = 20, fraction: float = 0.95, *, folder: str | Path | None = None
    ) -> ManifoldComparison:
        """Train networks by gradient descent and compare them with the predicted manifold.

        The tangent kernel of one of them is followed: where it has changed by much, the prediction
        no longer holds.

        Args:
            networks: How many are trained, each from an initialisation of its own.
            fraction: Share of the variance that dimensions carry.
            folder: Where the outputs of every network are kept: the same call continues there after
                it was killed.

        Returns:
            Both manifolds, and the drift of the kernel.
        """
        problem, moments = self._problem, _Moments(len(self.kernel))
        drift: dict[int, float] = {}
        kept = Kept(folder, self.kernel, self.path, self.lr, self.steps)
        for network in problem.draw(check_positive_int("networks", networks)):
            state = network.state_dict()

            def train(state: dict[str, torch.Tensor] = state, follows: bool = not drift) -> Any:
                outputs, weights = problem.train(state, self.lr, self.steps)
                found = problem.kernel_drift(weights) if follows else {}
                return {"outputs": outputs, "drift": [list(pair) for pair in found.items()]}

            one = kept(content_digest(state, not drift), train)
            moments.add(one["outputs"])
            drift = drift or {int(step): float(change) for step, change in one["drift"]}
        return self._comparison(moments, networks, fraction, drift)

    def _comparison(
        self, moments: _Moments, runs: int, fraction: float, drift: dict[int, float]
    ) -> ManifoldComparison:
        measured = moments.covariance()
        spectrum = np.maximum(np.linalg.eigvalsh(measured)[::-1], 0)
        predicted = self.dimensions(fraction)
        finite = [
            dimensions_of(np.linalg.eigvalsh(self._sample(runs, draw)), fraction)
            for draw in range(_DRAWS)
        ]
        basis = self.components[:, :predicted]
        captured = float(np.trace(basis.T @ measured @ basis) / np.trace(measured))
        return ManifoldComparison(
            predicted,
            float(np.mean(finite)),
            float(np.std(finite, ddof=1)),
            dimensions_of(spectrum, fraction),
            self.spectrum,
            spectrum,
            captured,
            fraction,
            runs,
            drift,
        )

    def to_frame(self) -> pd.DataFrame:
        """Return the predicted manifold's variances, one row per principal component."""
        return frame({"variance": self.spectrum}, "component")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the predicted manifold's variances, and return the axes."""
        return _draw({"predicted": (self.spectrum, self.dimensions())}, ax)


@dataclass(frozen=True, eq=False)
class ManifoldComparison(Result):
    """A measured manifold beside the predicted one.

    Attributes:
        predicted: Predicted dimensions for `fraction` of the variance, over all initialisations.
        expected: Predicted dimensions that as many runs as were measured show, on average: few runs
            span few dimensions.
        spread: Standard deviation of those over sets of runs.
        measured: Measured dimensions.
        predicted_spectrum: (nC,), predicted variances along the principal components.
        measured_spectrum: (nC,), measured ones.
        captured: Share of the measured variance in the predicted components.
        fraction: Share of the variance that the dimensions carry.
        runs: Number of trainings.
        kernel_drift: Relative change of the tangent kernel of one network, by step.
    """

    predicted: int
    expected: float
    spread: float
    measured: int
    predicted_spectrum: Float[np.ndarray, "N"] = field(repr=False)
    measured_spectrum: Float[np.ndarray, "N"] = field(repr=False)
    captured: float
    fraction: float
    runs: int
    kernel_drift: dict[int, float]

    @property
    def uncertainty(self) -> float:
        r"""Return how far the manifold's measured dimensions may lie from the expected ones.

        One dimension, as counts are whole numbers, two standard deviations over sets of runs, and
        the error of the linearisation: it describes the network as long as its kernel changes by
        little, so of d expected dimensions

        $$d\, \min\{1, \max_t \|\Theta_t - \Theta_0\|/\|\Theta_0\|\}$$

        are uncertain. NaN where the kernel was not followed.
        """
        if not self.kernel_drift:
            return float("nan")
        drift = min(1.0, max(self.kernel_drift.values()))
        return 1 + 2 * self.spread + self.expected * drift

    def to_frame(self) -> pd.DataFrame:
        """Return the manifold's predicted and measured variances, one row per component."""
        own = {"predicted": self.predicted_spectrum, "measured": self.measured_spectrum}
        return frame(own, "component")

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the predicted and the measured manifold's spectra, and return the axes."""
        both = {
            "predicted": (self.predicted_spectrum, self.predicted),
            "measured": (self.measured_spectrum, self.measured),
        }
        return _draw(both, ax)


@validate(model=torch_module, steps=count, lr=positive, initializations=count, init=function)
def predict_manifold(
    model: nn.Module,
    loss: Any,
    data: Any,
    *,
    steps: int,
    lr: float,
    init: Callable[[], nn.Module] | None = None,
    initializations: int | None = None,
    mode: str | None = "eval",
    memory: float | None = None,
    seed: int = 0,
) -> ManifoldPrediction:
    r"""Predict the manifold that training follows: its dimensions, spectrum and mean path.

    Full-batch gradient descent on a network that stays close to its linearisation moves the outputs
    f on the n samples by the tangent kernel Θ = JJᵀ of the start,

    $$f_{t+1} = f_t - \eta\, \Theta\, \nabla_f L(f_t).$$

    For the squared loss, ∇L = s(f − y), the covariance over initialisations and steps is that of
    Eq. (5) of [ribbons] with the network's own initial covariance C₀ in place of σw²K (`Ribbon`
    with `start`). The kernels of networks of finite width differ between initialisations, so those
    of several are taken, as those of different kernel machines in Sec. III of [ribbons]:

    $$P = \operatorname{E}_m P^{(m)} + \operatorname{Cov}_m(\bar f^{(m)}),$$

    with the mean f̄ over steps of each. Other losses are descended in output space from sampled
    initial outputs.

    Args:
        model: Any module; its copies are initialised anew but for frozen modules, and it is not
            changed.
        loss: As `hr.Risk` takes it: of outputs and targets, such as nn.MSELoss(), or None for a
            model whose outputs have a loss of their own.
        data: As `hr.Risk` takes them; a few hundred samples.
        steps: T, points of each trajectory, the first before training.
        lr: Learning rate of gradient descent.
        init: Returns a newly initialised network; None for `reset_parameters` of all modules.
        initializations: Networks from which the initial covariance is taken; None for 16 if the
            model ends in a linear layer, else 4 per output and sample.
        mode: "eval", "train", or None for each layer's own mode; see `Risk`.
        memory: Bytes to stay below.
        seed: Of the initial weights.

    Returns:
        The prediction; `.measure()` trains networks and compares, `.compare(outputs)` compares with
        runs of your own.

    Raises:
        ArgumentError: The data have more outputs than a dense kernel takes, the loss is not known
            as a function of the outputs, or the linearised training diverges at this learning rate.
    """
    problem = _Problem(model, loss, data, init=init, mode=mode, memory=memory, seed=seed)
    scale = problem.squared_scale()
    if scale is None:
        return _descend(problem, steps, lr, initializations or _DESCENTS)
    kernel, spectra = 0.0, []
    for one in problem.kernels():
        eigenvalues, U = np.linalg.eigh(one)
        spectra.append((np.maximum(eigenvalues[::-1], 0) * scale, U[:, ::-1]))
        kernel = kernel + one
    tops = np.array([rates[0] for rates, _ in spectra])
    if (lr * tops >= 2).any():
        unstable, top = int((lr * tops >= 2).sum()), tops.max()
        reason = f"the linearised training diverges for {unstable} of {len(tops)} initialisations"
        raise ArgumentError("lr", lr, reason, f"Choose it below {2 / top:.3g}.")
    mean, start, how = problem.initial_covariance(initializations)
    goal = problem.minimum(scale)
    root = _root(start)
    ribbons = [
        Ribbon(rates, U.T @ (goal - mean), 1.0, lr, steps, start=U.T @ start @ U)
        for rates, U in spectra
    ]
    times = np.arange(steps)[:, None]
    paths = [((1 - lr * rates) ** times * (U.T @ (mean - goal))) @ U.T for rates, U in spectra]
    parts = [
        (U @ ribbon.P @ U.T, U @ ribbon.mean)
        for ribbon, (_, U) in zip(ribbons, spectra, strict=True)
    ]
    count = len(parts)
    covariance = _combine(parts, np.full(count, 1 / count), count / (count - 1))

    def sample(runs: int, draw: int) -> np.ndarray:
        rng = numpy_generator(seed, "runs", draw)
        z = rng.standard_normal((runs, len(root))) @ root.T
        groups = [g for g in np.array_split(rng.permutation(runs), count) if len(g)]
        drawn = []
        for group, own, (_, U) in zip(groups, ribbons, spectra, strict=False):
            shift = z[group].mean(axis=0)
            moment = (z[group] - shift).T @ (z[group] - shift) / len(group)
            one = replace(own, targets=own.targets - U.T @ shift, start=U.T @ moment @ U)
            drawn.append((U @ one.P @ U.T, U @ one.mean))
        return _combine(drawn, np.array([len(group) for group in groups]) / runs)

    return ManifoldPrediction(
        covariance,
        goal + np.mean(paths, axis=0),
        np.asarray(kernel) / count,
        how,
        "closed form",
        0.0,
        steps,
        lr,
        count,
        problem,
        sample,
    )


def _combine(
    parts: list[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, correction: float = 1.0
) -> np.ndarray:
    """Return the predicted manifold's covariance from the covariance and mean of each part.

    Args:
        parts: Covariance (N, N) and mean (N,) of each.
        weights: Shares, summing to one.
        correction: Of the covariance of the means, for parts that are a sample of many.
    """
    means = np.stack([mean for _, mean in parts])
    apart = means - weights @ means
    inside = sum(w * P for w, (P, _) in zip(weights, parts, strict=True))
    return inside + correction * (apart.T * weights) @ apart


def _root(covariance: np.ndarray) -> np.ndarray:
    """Return a root R of the predicted manifold's covariance, R Rᵀ."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0))


def _descend(problem: _Problem, steps: int, lr: float, networks: int) -> ManifoldPrediction:
    """Follow f ← f − lr·Θ ∇L(f) to predict the manifold, from sampled initial outputs."""
    kernels = list(problem.kernels())
    kernel = np.mean(kernels, axis=0)
    trajectories = np.zeros((networks, steps, len(kernel)), dtype=np.float32)
    for index, fresh in enumerate(problem.draw(networks)):
        theta = torch.from_numpy(kernels[index % len(kernels)])
        f = problem.outputs(fresh).double().cpu()
        for step in range(steps):
            trajectories[index, step] = f.numpy()
            f = f - lr * theta @ problem.output_gradient(f)
        if not torch.isfinite(f).all():
            reason = "the linearised training diverges at this learning rate"
            raise ArgumentError("lr", lr, reason, "Choose a smaller one.")
    path = trajectories.mean(axis=0, dtype=np.float64)
    folds = np.array_split(np.arange(networks), min(_FOLDS, networks))
    without = [
        dimensions_of(np.linalg.eigvalsh(_covariance(np.delete(trajectories, fold, axis=0))))
        for fold in folds
        if len(folds) > 1
    ]
    stderr = float(np.std(without) * np.sqrt(len(folds) - 1)) if without else float("nan")
    covariance = _covariance(trajectories)

    def sample(runs: int, draw: int) -> np.ndarray:
        rng = numpy_generator(problem.seed, "runs", draw)
        chosen = rng.choice(len(trajectories), runs, replace=runs > len(trajectories))
        return _covariance(trajectories[chosen])

    return ManifoldPrediction(
        covariance,
        path,
        kernel,
        "sampled",
        "kernel descent",
        stderr,
        steps,
        lr,
        len(kernels),
        problem,
        sample,
    )


class _Moments:
    """First and second moments of points of the manifold, summed as they come."""

    def __init__(self, size: int) -> None:
        self.count, self.total, self.squares = 0, np.zeros(size), np.zeros((size, size))

    def add(self, points: np.ndarray) -> None:
        """Add points (m, N) of a measured manifold to its moments."""
        points = points.astype(np.float64)
        self.count += len(points)
        self.total += points.sum(axis=0)
        self.squares += points.T @ points

    def covariance(self) -> np.ndarray:
        """Return the covariance of all points of the measured manifold."""
        mean = self.total / self.count
        return self.squares / self.count - np.outer(mean, mean)


def _covariance(trajectories: np.ndarray) -> np.ndarray:
    """Return the covariance of all points of a predicted manifold's paths (runs, T, N)."""
    moments = _Moments(trajectories.shape[-1])
    for run in trajectories:
        moments.add(run)
    return moments.covariance()


class _Problem:
    """The prediction's model, loss and data as one function of all outputs."""

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        data: Any,
        *,
        init: Callable[[], nn.Module] | None,
        mode: str | None,
        memory: float | None,
        seed: int,
    ) -> None:
        self.model, self.init, self.seed = model, init, seed
        self.risk = Risk(model, loss, data, mode=mode, memory=memory)
        self.criterion = self.risk.criterion
        self.criterion.check_factored("predict_manifold")
        chunks = list(self.risk.chunks())
        outputs = [chunk.point.outputs for chunk in chunks]
        self.shape = torch.Size([sum(len(part) for part in outputs), *outputs[0].shape[1:]])
        if self.shape.numel() > _MOST_OUTPUTS:
            reason = f"{self.shape[0]} samples have {self.shape.numel()} outputs"
            remedy = f"Give a subset with at most {_MOST_OUTPUTS} outputs."
            raise ArgumentError("data", f"{self.shape[0]} samples", reason, remedy)
        self.targets = [
            (len(part), move(chunk.targets, torch.device("cpu")))
            for part, chunk in zip(outputs, chunks, strict=True)
        ]
        self.inputs = [chunk.inputs for chunk in chunks]

    def draw(self, networks: int) -> Iterator[nn.Module]:
        """Yield newly initialised networks whose manifold is predicted."""
        return draw_networks(self.model, networks, self.init, self.seed)

    def outputs(self, network: nn.Module) -> torch.Tensor:
        """Return the outputs (nC,) of a network whose manifold is predicted."""
        return _outputs(self.risk.at(network.state_dict()))

    def tangent_kernel(self, weights: dict[str, torch.Tensor]) -> np.ndarray:
        """Return the kernel Θ = JJᵀ that predicts the manifold, on all samples: (nC, nC)."""
        return NTK(self.risk.at(weights)).to_dense().double().cpu().numpy()

    def kernel_drift(self, weights: dict[int, dict[str, torch.Tensor]]) -> dict[int, float]:
        """Return ‖Θ_t − Θ_0‖/‖Θ_0‖ by step, by which a predicted manifold may be off."""
        kernels = {step: self.tangent_kernel(named) for step, named in weights.items()}
        first = kernels[min(kernels)]
        return {
            step: float(np.linalg.norm(kernel - first) / np.linalg.norm(first))
            for step, kernel in kernels.items()
        }

    def kernels(self) -> Iterator[np.ndarray]:
        """Yield the tangent kernels of several initialisations, to predict the manifold by."""
        least, most = _KERNELS
        count = min(max(_EIGENVECTORS // self.shape.numel() ** 2, least), most)
        for network in self.draw(count):
            yield self.tangent_kernel(network.state_dict())

    def initial_covariance(self, initializations: int | None) -> tuple[np.ndarray, np.ndarray, str]:
        """Return mean and covariance of initial outputs, where the predicted manifold starts."""
        exact = None
        if self.init is None and all(isinstance(given, torch.Tensor) for given in self.inputs):
            exact = average_last_layer(
                self.model, self.inputs, initializations or _FEATURES, self.seed
            )
        if exact is not None:
            return np.zeros(len(exact)), exact.cpu().numpy(), "last layer"
        size = self.shape.numel()
        drawn = self.draw(initializations or 4 * size)
        rows = np.stack([self.outputs(fresh).double().cpu().numpy() for fresh in drawn])
        return rows.mean(axis=0), np.cov(rows.T).reshape(size, size), "sampled"

    def output_gradient(self, f: torch.Tensor) -> torch.Tensor:
        """Return ∇L at outputs f (nC,), along which the predicted manifold moves."""
        counts, targets = zip(*self.targets, strict=True)
        parts = zip(f.detach().reshape(self.shape).split(counts), targets, strict=True)
        with beyond_the_models_outputs(self.criterion):
            slopes = [self.criterion.gradient(part, target) for part, target in parts]
        return torch.cat(slopes).flatten() / self.risk.amount

    def squared_scale(self) -> float | None:
        """Return s if ∇L(f) = s(f − y) everywhere on the manifold, else None."""
        generator = torch.Generator("cpu").manual_seed(0)
        f, move, far = torch.randn(
            3, self.shape.numel(), generator=generator, dtype=torch.float64, device="cpu"
        )
        near, beyond = self.output_gradient(f + move) - self.output_gradient(f), 10 * far
        scale = float(near @ move / (move @ move))
        other = self.output_gradient(f + beyond + move) - self.output_gradient(f + beyond)
        linear = all(torch.allclose(g, scale * move, rtol=1e-4) for g in (near, other))
        return scale if linear and scale > 0 else None

    def minimum(self, scale: float) -> np.ndarray:
        """Return the outputs y (nC,) where a squared loss lets the predicted manifold end."""
        return (
            -self.output_gradient(
                torch.zeros(self.shape.numel(), dtype=torch.float64, device="cpu")
            ).numpy()
            / scale
        )

    def train(
        self, state: dict[str, torch.Tensor], lr: float, steps: int
    ) -> tuple[np.ndarray, dict[int, dict[str, torch.Tensor]]]:
        """Return outputs (T, nC) of real training, by which the predicted manifold is measured."""
        times = set(np.unique(np.round(np.geomspace(1, steps, _TIMES)).astype(int) - 1))
        risk = self.risk.at(state)
        weights = {name: tensor.clone() for name, tensor in risk.weights().items()}
        outputs, stored = [], {}
        for step in range(steps):
            risk = risk.at(weights)  # frozen weights and buffers stay those of the state
            outputs.append(_outputs(risk).double().cpu().numpy())
            if step in times:
                stored[step] = weights
            gradient = self.risk.space.unflatten(risk.gradient())
            weights = {n: w - lr * gradient.get(n, 0.0) for n, w in weights.items()}
        return np.stack(outputs), stored


def _outputs(risk: Risk) -> torch.Tensor:
    return torch.cat([chunk.point.outputs.detach().flatten() for chunk in risk.chunks()])


def _draw(spectra: dict[str, tuple[np.ndarray, int]], ax: Axes | None) -> Axes:
    from hyperribbon.plots.style import COLORS, new_figure

    if ax is not None and not hasattr(ax, "plot"):
        raise ArgumentError("ax", ax, "expected matplotlib axes", "Give one of plt.subplots().")
    axes: Axes = new_figure()[1] if ax is None else ax
    for color, (name, (values, dimensions)) in zip(COLORS, spectra.items(), strict=False):
        shown = values[values > 1e-12 * values[0]]
        axes.semilogy(np.arange(1, len(shown) + 1), shown, color=color, label=name)
        axes.axvline(dimensions, color=color, linestyle=":", linewidth=1)
    axes.set_xlabel("principal component")
    axes.set_ylabel("variance of the outputs")
    axes.legend()
    return axes
