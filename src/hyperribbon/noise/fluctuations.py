"""Weight fluctuations of a network under its own optimiser, layer by layer, beside the theory."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from typing import Annotated as Bool
from typing import Annotated as Float

import numpy as np
import scipy.linalg
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Subset

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.core.devices.gpus import seed_gpus
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.generators import derive_seed, torch_generator
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.core.result import Result, frame
from hyperribbon.core.store.atomic import write_text
from hyperribbon.noise.flatness import VarianceFlatness, variance_flatness
from hyperribbon.noise.stationarity import Stationarity, autocorrelation_time, stationarity
from hyperribbon.noise.stationary import read_rule
from hyperribbon.noise.weights import WeightCovariance
from hyperribbon.operators import GradientCovariance, Hessian, Risk
from hyperribbon.operators.risk.batches import batch_size
from hyperribbon.operators.risk.objective import Objective
from hyperribbon.recording import Trajectory
from hyperribbon.recording.measurements import random_state, set_random_state
from hyperribbon.recording.resume_state import load_parts, pack_parts, save_state
from hyperribbon.spectra import eigsh
from hyperribbon.theory import fluctuations as theory
from hyperribbon.theory.fluctuations.one_layer import batch_factor

if TYPE_CHECKING:
    import pandas as pd

_FEWEST = 12  # steps of a covariance
_SAVES = 10  # of the progress, over all steps
_DIVERGES = "the update diverges"
_AGREES = 1.5  # factor between measured and predicted variance up to which they agree
_MIXED = 0.5  # share of a preconditioned mode beside the others that is named
_SHARE = 0.2  # of the training, that curvature may cost
_PASSES = 1.5  # training passes that a Hessian-vector product costs
_SAMPLES = (128, 1024)  # fewest and most of them
_FORGOTTEN = 40  # steps after which nothing is left of an unknown buffer: (β/(1+β))^40 < 1e-12


@dataclass(frozen=True)
class LayerFluctuations(Result, plot="plot_layer_fluctuations"):
    """Fluctuations of the weights of one layer.

    Attributes:
        name: Module whose weights they are.
        weights: Number of weights.
        variances: (k,), along the modes.
        curvatures: (k,), along the modes, at the mean weights.
        times: (k,), correlation times in records; see `VarianceFlatness.times`.
        resolved: (k,), whether the record spans ten of these times.
        flatness: The exponent ψ with its interval, or None where `reason` says why.
        reason: Why there is no ψ; empty where there is one.
        stationarity: Test of the mean weights. Where it fails, ψ describes these steps and is no
            property of a stationary state.
        predicted_variances: (k,), by `theory.fluctuations.stationary_state`, or None where
            `no_prediction` says why; NaN along modes that it does not hold for.
        predicted_times: (k,), predicted correlation times in records, or None; NaN for shuffled
            epochs, whose anticorrelated noise shortens them.
        no_prediction: Why nothing is predicted; empty where something is.
        captured: Share of the layer's variance along the modes.
        noise_change: Gradient noise along the modes in the first and in the last tenth of the
            steps, over its mean; both one in a stationary state. NaN for a trajectory
            and without a prediction.
        broken: Assumptions of the theory that do not hold here, one sentence each.
    """

    name: str
    weights: int
    variances: Float[np.ndarray, "k"]
    curvatures: Float[np.ndarray, "k"]
    times: Float[np.ndarray, "k"]
    resolved: Bool[np.ndarray, "k"]
    flatness: VarianceFlatness | None
    reason: str
    stationarity: Stationarity
    predicted_variances: Float[np.ndarray, "k"] | None
    predicted_times: Float[np.ndarray, "k"] | None
    no_prediction: str
    captured: float
    noise_change: tuple[float, float]
    broken: tuple[str, ...]

    @property
    def stationary(self) -> bool:
        """Whether the mean of the weights stays, so that ψ belongs to a stationary state."""
        return self.stationarity.stationary

    @property
    def unresolved(self) -> int:
        """Modes whose correlation time is more than a tenth of the record."""
        return int((~self.resolved).sum())

    @property
    def ratio(self) -> float:
        """Measured over predicted fluctuations, summed over resolved modes; NaN if unknown."""
        if self.predicted_variances is None:
            return float("nan")
        use = self.resolved & np.isfinite(self.predicted_variances)
        whole = float(self.predicted_variances[use].sum())
        return float(self.variances[use].sum()) / whole if whole > 0 else float("nan")

    def to_frame(self) -> pd.DataFrame:
        """Return one row per mode: measured, and predicted where that is known."""
        return frame(
            {
                "variance": self.variances,
                "predicted_variance": self.predicted_variances,
                "correlation_time": self.times,
                "predicted_time": self.predicted_times,
                "curvature": self.curvatures,
                "resolved": self.resolved,
            },
            "mode",
        )

    def summary(self) -> str:
        """Return ψ with its interval, or the modes that are not resolved, and the prediction."""
        if self.flatness is None:
            text = f"no ψ: {self.reason}"
        else:
            low, high = self.flatness.interval
            text = f"ψ = {self.flatness.corrected_exponent:.2f} ({low:.2f} to {high:.2f})"
            if not self.stationary:
                text = f"not stationary: {self.stationarity.doubt}; {text} of these steps only"
        text += f"; {int(self.resolved.sum())} of {len(self.variances)} modes resolved"
        if np.isfinite(self.ratio):
            text += f"; variance {self.ratio:.2g} times the predicted one"
        return f"{self.name}: {text}"

    _headline = summary


@dataclass(frozen=True)
class Fluctuations(Result, plot="plot_fluctuations"):
    """Weight fluctuations of a network, layer by layer.

    Attributes:
        layers: By name.
        steps: Optimisation steps, or records of a trajectory.
        along: "covariance" or "hessian".
        samples: Samples behind the curvature.
        losses: Training loss over the first and over the last tenth of the steps, and the standard
            error of their difference; NaN for a trajectory.
        training_seconds: Time of the steps alone.
        recording_seconds: Time of keeping the weights beside them.
        curvature_seconds: Time of curvature and prediction.
    """

    layers: dict[str, LayerFluctuations]
    steps: int
    along: str
    samples: int
    losses: tuple[float, float, float]
    training_seconds: float
    recording_seconds: float
    curvature_seconds: float

    def __getitem__(self, layer: str) -> LayerFluctuations:
        """Return the fluctuations of a layer."""
        return self.layers[layer]

    def to_frame(self) -> pd.DataFrame:
        """Return the fluctuations as a table: ψ and its interval, one row per layer."""
        rows = self.layers.values()
        known = [row.flatness for row in rows]
        table = frame(
            {
                "psi": [np.nan if f is None else f.corrected_exponent for f in known],
                "low": [np.nan if f is None else f.interval[0] for f in known],
                "high": [np.nan if f is None else f.interval[1] for f in known],
                "stationary": [row.stationary for row in rows],
                "resolved": [int(row.resolved.sum()) for row in rows],
                "unresolved": [row.unresolved for row in rows],
                "ratio": [row.ratio for row in rows],
                "captured": [row.captured for row in rows],
                "weights": [row.weights for row in rows],
            }
        )
        return table.set_axis(list(self.layers)).rename_axis("layer")

    def summary(self) -> str:
        """Return the findings in words: one line per layer, then broken assumptions."""
        lines = [row.summary() for row in self.layers.values()]
        first, last, error = self.losses
        low, high = min(first, last), max(first, last)
        if low > 0 and high > _AGREES * low and high - low > 3 * error:
            lines.append(f"the training loss went from {first:.3g} to {last:.3g}: not stationary")
        lines += [f"{row.name}: {text}" for row in self.layers.values() for text in row.broken]
        return "\n".join(lines)

    def report(self, path: str | Path) -> Path:
        """Write a page with the findings, the figure and a table per layer; return its path."""
        parts = [f"<p>{'<br>'.join(self.summary().splitlines())}</p>", self._repr_html_()]
        parts += [row._repr_html_() for row in self.layers.values()]
        page = "<!doctype html><meta charset='utf-8'><title>Weight fluctuations</title>"
        write_text(Path(path), page + "".join(parts))
        return Path(path)

    def _headline(self) -> str:
        known = [row for row in self.layers.values() if row.flatness is not None]
        moving = sum(not row.stationary for row in known)
        found = f"ψ of {len(known)} of {len(self.layers)} layers"
        found += f" ({moving} not stationary)" if moving else ""
        return f"{found}, {self.steps} steps, along {self.along}"


def _sample_number(argument: str, value: Any) -> int | str | None:
    if isinstance(value, str):
        return check_choice(argument, value, ("auto",))
    return checks.optional(checks.count)(argument, value)


@validate(
    model=checks.torch_module,
    optimizer=checks.instance(torch.optim.Optimizer, "Give the optimiser you train with."),
    steps=checks.count,
    k=checks.count,
    samples=_sample_number,
    trajectory=checks.instance(Trajectory, "Give hr.Trajectory.open(folder)."),
    folder=checks.path,
    memory=checks.positive,
)
@plain_arithmetic()
def fluctuations(
    model: nn.Module,
    loss: Any,
    data: Any,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 1000,
    layers: ParameterFilter = None,
    along: str = "covariance",
    k: int = 20,
    samples: int | str | None = "auto",
    mode: str | None = "train",
    trajectory: Trajectory | None = None,
    folder: str | Path | None = None,
    memory: float = 2**30,
    seed: int = 0,
) -> Fluctuations:
    """Measure how weights fluctuate under your optimiser, and how flat the loss is along that.

    Training continues on a copy of the model and the optimiser, with their states and at constant
    learning rate; yours are not changed. The weights of every step are kept in memory, in full or,
    where they do not fit, in a basis of the leading directions that is updated as training goes.
    Curvature is that at the mean weights. For each layer the result holds ψ of variance ∝ F^(−ψ)
    over the modes that were seen for ten correlation times (`hr.variance_flatness`), marked as not
    stationary where the mean weights still move; and variances and correlation times beside those
    of `theory.fluctuations.stationary_state` for this optimiser and sampling. The gradient noise is
    that of the mini-batches on the way, which the steps themselves give; for a recorded trajectory
    that at the mean weights. Adam and RMSprop count as a fixed preconditioner, the one at the end.

    Args:
        model: Any module, best at the end of training.
        loss: As for `hr.Risk`.
        data: The DataLoader you train with, or a list of batches.
        optimizer: The optimiser you train with.
        steps: Steps to train.
        layers: Which weights: a name, a pattern, names or a predicate, as `params=` elsewhere. By
            default all matrices and kernels; frozen and tied weights are skipped.
        along: "covariance" for principal modes of the fluctuations, "hessian" for the leading
            eigenvectors of each layer's Hessian at the start.
        k: Modes per layer.
        samples: Samples behind the curvature, in whole batches; None for all. By default as many,
            from 128 to 1024, as cost about a fifth of the training.
        mode: Mode of the layers for the curvature, as for `hr.Risk`. Training is in training mode.
        trajectory: A recorded training of this model to use instead of new steps.
        folder: Where to keep the progress; the same call resumes from it.
        memory: Bytes for the weights of all steps.
        seed: Seed of the order of batches and of dropout.

    Returns:
        One `LayerFluctuations` per layer.

    Raises:
        ArgumentError: The data come in one batch, the optimiser is not of this model, or the loss
            diverges.
    """
    check_choice("along", along, ("covariance", "hessian"))
    if mode is not None:
        check_choice("mode", mode, ("eval", "train"))
    moments = steps if trajectory is None else len(trajectory)
    if moments < _FEWEST:
        name = "steps" if trajectory is None else "trajectory"
        reason = f"a covariance needs at least {_FEWEST} moments"
        raise ArgumentError(name, moments, reason, "Take more steps.")
    space = _trained_space(model, optimizer, layers)
    run = _Run(model, loss, data, optimizer, seed)
    parts = space.layers()
    if samples == "auto":
        modes = sum(min(k, part.dimension) for part in parts.values())
        affordable = int(_SHARE * moments * run.batch_size / (_PASSES * modes))
        samples = min(max(affordable, _SAMPLES[0]), _SAMPLES[1])
    assert not isinstance(samples, str)
    started = time.perf_counter()
    risk = run.risk(samples, mode, space)  # what cannot be measured is refused before training
    if along == "hessian":
        bases = {n: _leading(risk, part, k, seed) for n, part in parts.items()}
        records: dict[str, Any] = {n: _Projected(bases[n]) for n in parts}
    else:
        rows = int(memory / run.bytes_of(space))
        records = {n: _Sketch(max(min(rows, moments), 4 * k, 16)) for n in parts}
    before = time.perf_counter() - started
    if trajectory is None:
        run.train(parts, records, steps, None if folder is None else Path(folder))
        stride = 1.0
    else:
        stride = run.read(trajectory, parts, records)
    started = time.perf_counter()
    covariances = {n: record.covariance(k) for n, record in records.items()}
    run.move_to({n: found.mean for n, found in covariances.items()}, parts)
    risk = run.risk(samples, mode, space)
    rules = run.rule()
    offsets = _offsets(space, parts)
    curvature, H = _blocks(Hessian(risk), covariances, offsets)
    predicted, missing, mixed = None, rules if isinstance(rules, str) else "", {}
    levels = np.full((2, len(H)), np.nan)  # noise in the first and in the last tenth, over its mean
    try:
        if not isinstance(rules, str):
            rule = dict(rules)
            if "preconditioner" in rule:
                factors = run.by_name(rule["preconditioner"])
                rule["preconditioner"], mixed = _within(factors, covariances, parts)
            if trajectory is None:
                gradients, batches = _gradients(covariances, rule), rule.get("batches")
                C, tenth = _noise(gradients, batches), max(len(gradients) // 10, 2)
                pieces = (gradients[:tenth], gradients[-tenth:])
                levels = np.array([np.diag(_noise(piece, batches)) for piece in pieces])
                levels /= np.maximum(np.diag(C), 1e-300)
            else:
                C = run.batch_factor() * _blocks(GradientCovariance(risk), covariances, offsets)[1]
            predicted = _predict(H, C, rule, stride)
    except ArgumentError as error:
        missing = missing or error.reason
    ends = np.cumsum([len(c.eigenvalues) for c in covariances.values()])[:-1]
    split = [None] * len(parts) if predicted is None else np.split(predicted, ends, axis=1)
    changes = [np.median(part, axis=1) for part in np.split(levels, ends, axis=1)]
    found = {
        name: _layer(
            name, covariances[name], curvature[name], theirs, missing, change, mixed.get(name)
        )
        for name, theirs, change in zip(parts, split, changes, strict=True)
    }
    after = before + time.perf_counter() - started
    count = len(next(iter(covariances.values())).projections)
    seconds = (run.training_seconds, run.recording_seconds, after)
    return Fluctuations(found, count, along, risk.samples, run.losses(), *seconds)


def _trained_space(
    model: nn.Module, optimizer: torch.optim.Optimizer, layers: ParameterFilter
) -> ParameterSpace:
    """Return the space of the chosen weights whose fluctuations under the optimiser count.

    Raises:
        ArgumentError: The optimiser has none of them.
    """
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    chosen = (lambda _, tensor: tensor.ndim > 1) if layers is None else layers
    try:
        names = ParameterSpace.of_model(model, params=chosen).names
    except ArgumentError as error:
        error.rename("layers")
        raise
    tensors = dict(model.named_parameters())
    kept = [n for n in names if id(tensors[n]) in trained and tensors[n].requires_grad]
    if not kept:
        reason = "it trains none of the chosen weights of this model"
        remedy = "Give the optimiser that was built on model.parameters()."
        raise ArgumentError("optimizer", type(optimizer).__name__, reason, remedy)
    return ParameterSpace.of_model(model, params=kept)


class _Run:
    """A training that goes on with copies of the model and the optimiser."""

    def __init__(
        self, model: nn.Module, loss: Any, data: Any, optimizer: torch.optim.Optimizer, seed: int
    ) -> None:
        if not isinstance(data, DataLoader) and not (isinstance(data, list) and len(data) > 1):
            reason = "fluctuations come from mini-batches"
            raise ArgumentError("data", data, reason, "Give the DataLoader you train with.")
        self._model, self._optimizer = copy.deepcopy((model, optimizer))
        self._training = self._model.training
        self._loss, self._data, self._seed = loss, data, seed
        self.training_seconds = self.recording_seconds = 0.0
        self._losses: list[float] = []
        self._device = next(self._model.parameters()).device
        first = data.batch_size if isinstance(data, DataLoader) else None
        self.batch_size = first or batch_size(next(iter(self._epoch(0))))

    @staticmethod
    def bytes_of(space: ParameterSpace) -> int:
        return 4 * space.dimension

    def risk(self, samples: int | None, mode: str | None, space: ParameterSpace) -> Risk:
        """Return the objective at the present weights of the copy, on a few batches."""
        data, most = self._data, np.inf if samples is None else samples
        if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
            total = len(cast("Any", data.dataset))  # each sample once, whatever the sampler does
            drawn = torch_generator(self._seed, "samples")
            places = (
                torch.randperm(total, generator=drawn, device="cpu")[: int(min(most, total))]
                .sort()
                .values
            )
            chosen = Subset(data.dataset, places.tolist())
            options: Any = {"collate_fn": data.collate_fn, "generator": drawn}
            reader: Any = DataLoader(chosen, self.batch_size, **options)
        else:
            reader = self._epoch(0)
        batches, seen = [], 0
        for batch in reader:
            batches.append(_to(batch, self._device))
            seen += batch_size(batch)
            if seen >= most:
                break
        self._model.train(self._training)
        return Risk(self._model, self._loss, batches, params=list(space.names), mode=mode)

    def _epoch(self, epoch: int) -> Iterator[Any]:
        """Yield the batches of an epoch in the loader's own order, whatever was drawn before."""
        before = random_state()
        sampler = getattr(self._data, "sampler", None)
        owners = (self._data, sampler, getattr(self._data, "batch_sampler", None))
        drawing = [g for g in (getattr(o, "generator", None) for o in owners) if g is not None]
        states = [generator.get_state() for generator in drawing]
        try:
            order = torch_generator(self._seed, "epoch", epoch).get_state()
            torch.set_rng_state(order)
            for generator in drawing:
                generator.set_state(order)
            batches = iter(self._data)
            first = next(batches, None)  # the sampler draws its order with the first batch
        finally:
            set_random_state(before)
        try:
            if first is not None:
                yield _to(first, self._device)
            for batch in batches:
                yield _to(batch, self._device)
        finally:
            for generator, state in zip(drawing, states, strict=True):
                generator.set_state(state)

    def train(
        self,
        parts: dict[str, ParameterSpace],
        records: dict[str, Any],
        steps: int,
        folder: Path | None,
    ) -> None:
        """Take optimisation steps and hand the weights of every layer to its record.

        Raises:
            ArgumentError: The loss diverges, or the folder is of another run.
        """
        from hyperribbon.core.progress import Console, progress_bar

        objective, names = Objective(self._loss), {p: list(s.names) for p, s in parts.items()}
        tensors = dict(self._model.named_parameters())
        own: dict[str, Any] = {"model": self._model, "optimizer": self._optimizer}
        stored = own | {f"record {name}": record for name, record in records.items()}
        settings = {"seed": self._seed, "layers": names}
        step, began, before = 0, time.perf_counter(), random_state()
        mode = self._model.training
        try:
            torch.set_rng_state(torch_generator(self._seed, "dropout").get_state())
            seed_gpus(derive_seed(self._seed, "dropout"))
            if folder is not None and any(folder.glob("state/progress-*")):
                notes = load_parts(folder, "progress", stored)
                if notes["settings"] != settings:
                    reason = "it holds the progress of other settings"
                    raise ArgumentError("folder", str(folder), reason, "Choose another folder.")
                step = notes["step"]
                self._losses = list(notes["losses"])
            self._model.train()
            with progress_bar(Console(stderr=True)) as progress, torch.enable_grad():
                task = progress.add_task("training", total=steps, completed=step)
                for batch in self._from(step, steps):
                    self._optimizer.zero_grad()
                    value = objective(self._model, batch)
                    value.backward()
                    self._optimizer.step()
                    step += 1
                    clock = time.perf_counter()
                    self._losses.append(value.item())
                    if not np.isfinite(self._losses[-1]):
                        reason = f"the loss is {self._losses[-1]:g} after {step} steps"
                        raise ArgumentError("optimizer", "lr", reason, "Use a smaller rate.")
                    for name, record in records.items():
                        record.add([tensors[n].detach() for n in names[name]])
                    if folder is not None and step % max(steps // _SAVES, 1) == 0 and step < steps:
                        notes = {"settings": settings, "step": step, "losses": self._losses}
                        old = list(folder.glob("state/progress-*"))
                        new = save_state(folder, "progress", pack_parts(stored, notes))
                        for earlier in old:
                            if earlier != new:
                                earlier.unlink()
                    progress.advance(task)
                    self.recording_seconds += time.perf_counter() - clock
        finally:
            set_random_state(before)
            self._model.train(mode)
        self.training_seconds = time.perf_counter() - began - self.recording_seconds

    def _from(self, step: int, steps: int) -> Iterator[Any]:
        """Yield the batches of steps that are left, epoch by epoch."""
        passed = epoch = 0
        while passed < steps:
            seen = passed
            for batch in self._epoch(epoch):
                passed += 1
                if passed > steps:
                    return
                if passed > step:
                    yield batch
            if passed == seen:
                raise ArgumentError("data", self._data, "it has no batches", "Give some.")
            epoch += 1

    def read(
        self, trajectory: Trajectory, parts: dict[str, ParameterSpace], records: dict[str, Any]
    ) -> float:
        """Hand the weights of a recorded training to the records; return steps between them."""
        for index in range(len(trajectory)):
            state = trajectory.weights(index)
            for name, part in parts.items():
                records[name].add([state[n].to(self._device) for n in part.names])
        recorded = [float(s) for s in trajectory.steps]
        return (recorded[-1] - recorded[0]) / max(len(recorded) - 1, 1)

    def move_to(self, means: dict[str, np.ndarray], parts: dict[str, ParameterSpace]) -> None:
        """Put mean weights into the copy."""
        tensors = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, part in parts.items():
                for n, value in part.unflatten(torch.from_numpy(means[name])).items():
                    tensors[n].copy_(value.to(tensors[n]))

    def losses(self) -> tuple[float, float, float]:
        """Return the loss of the first and of the last tenth of the steps, and an error."""
        if len(self._losses) < 2:
            return float("nan"), float("nan"), float("nan")
        tenth = max(len(self._losses) // 10, 2)
        first, last = np.array(self._losses[:tenth]), np.array(self._losses[-tenth:])
        error = np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / tenth)
        return float(first.mean()), float(last.mean()), float(error)

    def batch_factor(self) -> float:
        """Return the variance of a mini-batch's mean over that of a sample, in the whole set."""
        sampler = getattr(self._data, "sampler", None)
        replacement = bool(getattr(sampler, "replacement", False))
        total = len(cast("Any", cast("DataLoader[Any]", self._data).dataset))
        return batch_factor(total, min(self.batch_size, total), replacement)

    def by_name(self, factors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the preconditioner of each weight tensor, from that of all in the optimiser."""
        names = {id(p): n for n, p in self._model.named_parameters()}
        owned = [p for group in self._optimizer.param_groups for p in group["params"]]
        ends = np.cumsum([p.numel() for p in owned])[:-1]
        pieces = zip(owned, np.split(factors, ends), strict=True)
        return {names[id(p)]: piece for p, piece in pieces if id(p) in names}

    def rule(self) -> dict[str, Any] | str:
        """Return the arguments of `stationary_state`, or why there is no prediction."""
        sampler = getattr(self._data, "sampler", None)
        if not isinstance(sampler, RandomSampler):
            return "batches come in a fixed or an unknown order, and the theory is of random ones"
        try:
            batches = None if sampler.replacement else len(cast("DataLoader[Any]", self._data))
            kind = "independent" if sampler.replacement else "shuffled"
            return read_rule(self._optimizer, kind, batches)
        except ArgumentError as error:
            return error.reason


class _Sketch:
    """Weights over time as coefficients in a basis: all records, or their leading directions."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._first = torch.empty(0, device="cpu")
        self._rows = torch.empty(
            0, device="cpu"
        )  # basis first, then records that are not in it yet
        self._used = 0
        self._coefficients = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        self._lost = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": self._first,
            "rows": self._rows[: self._used].clone(),
            "coefficients": self._coefficients,
            "lost": self._lost,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first, self._coefficients = state["first"], state["coefficients"]
        self._lost, self._used = state["lost"], len(state["rows"])
        self._rows = self._first.new_zeros(self._capacity, len(self._first))
        self._rows[: self._used] = state["rows"]

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add the weights of one step."""
        row = torch.cat([tensor.reshape(-1) for tensor in tensors])
        if not len(self._first):
            self._first = row.clone()
            self._rows = row.new_zeros(self._capacity, len(row))
        if self._used == self._capacity:
            self._compress()
        self._rows[self._used] = row - self._first
        self._used += 1

    def _whole(self) -> torch.Tensor:
        """Return the coefficients (n, rows) of all records."""
        new = self._used - self._coefficients.shape[1]
        return torch.block_diag(
            self._coefficients, torch.eye(new, dtype=torch.float64, device="cpu")
        )

    def _gram(self) -> torch.Tensor:
        return (self._rows[: self._used] @ self._rows[: self._used].T).double().cpu()

    def _compress(self) -> None:
        """Keep the leading half of the directions about the mean, which is one of them."""
        Q, R = torch.linalg.qr(self._whole())
        values, vectors = torch.linalg.eigh(R @ self._gram() @ R.T)
        keep = self._capacity // 2
        self._lost += float(values[:-keep].clamp(min=0).sum())
        scale = values[-keep:].clamp(min=1e-30).sqrt()
        basis = (vectors[:, -keep:] / scale).T @ R
        self._rows[:keep] = basis.to(self._rows) @ self._rows[: self._used]
        self._coefficients = Q @ (vectors[:, -keep:] * scale)
        self._used = keep

    def covariance(self, k: int) -> WeightCovariance:
        """Return the k leading principal modes over all records."""
        rows = self._rows[: self._used].double().cpu()
        whole = self._coefficients.shape[1] == 0  # the rows are the records themselves
        T = None if whole else self._whole()
        mean = rows.mean(dim=0) if T is None else T.mean(dim=0) @ rows
        centre = (self._first.double().cpu() + mean).numpy()
        if T is None:
            rows, gram = rows - mean, None
        else:
            T = T - T.mean(dim=0)
            gram = rows @ rows.T
        n, width = len(rows) if T is None else len(T), rows.shape[1]
        k = min(k, width, n - 1)
        if width <= n:
            X = rows if T is None else T @ rows
            values, modes = scipy.linalg.eigh(
                (X.T @ X).numpy(), subset_by_index=(width - k, width - 1)
            )
            modes = modes[:, ::-1]
            total = float((X**2).sum())
        else:
            K = (rows @ rows.T if T is None or gram is None else T @ gram @ T.T).numpy()
            values, vectors = scipy.linalg.eigh(K, subset_by_index=(n - k, n - 1))
            vectors = vectors[:, ::-1] / np.sqrt(np.maximum(values[::-1], 1e-300))
            lifted = torch.from_numpy(vectors.copy())
            modes = (rows.T @ (lifted if T is None else T.T @ lifted)).numpy()
            modes = np.linalg.qr(modes)[0]  # orthonormal also in single precision
            total = float(np.trace(K))
        along = rows @ torch.from_numpy(modes.copy())
        along = (along if T is None else T @ along).numpy()
        return _covariance(centre, modes, along, (total + self._lost) / (n - 1), principal=True)


class _Projected:
    """Weights over time along given directions, and their mean."""

    def __init__(self, basis: np.ndarray) -> None:
        self._basis = torch.from_numpy(basis)
        self._sum = torch.zeros(len(basis), dtype=torch.float64, device="cpu")
        self._square, self._along = 0.0, []
        self._first = torch.empty(0, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        along = torch.stack(self._along)
        own = {"sum": self._sum, "square": self._square, "along": along, "first": self._first}
        return own | {"basis": self._basis}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum, self._square, self._first = state["sum"], state["square"], state["first"]
        self._basis, self._along = state["basis"], list(state["along"])

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add the weights of one step."""
        row = torch.cat([tensor.reshape(-1) for tensor in tensors]).double().cpu()
        if not len(self._first):
            self._first = row.clone()
        row = row - self._first
        self._sum += row
        self._square += float(row @ row)
        self._along.append(row @ self._basis)

    def covariance(self, k: int) -> WeightCovariance:
        """Return the variances along the directions."""
        along = torch.stack(self._along).numpy()
        n, mean = len(along), self._sum / len(along)
        total = (self._square - n * float(mean @ mean)) / (n - 1)
        centre = (self._first + mean).numpy()
        return _covariance(
            centre, self._basis.numpy(), along - along.mean(axis=0), total, principal=False
        )


def _covariance(
    mean: np.ndarray, modes: np.ndarray, along: np.ndarray, total: float, *, principal: bool
) -> WeightCovariance:
    times = autocorrelation_time(along)
    return WeightCovariance(
        mean,
        np.sum(along**2, axis=0) / (len(along) - 1),
        modes.copy(),  # strides of a reversed axis are negative
        along,
        total,
        len(along),
        float((len(along) / times).mean()),
        stationarity(along),
        times=times,
        principal=principal,
    )


@dataclass(frozen=True)
class _Product:
    """A symmetric matrix of which the product with some modes is known."""

    shape: tuple[int, int]
    product: np.ndarray

    def __matmul__(self, modes: Any) -> np.ndarray:
        return self.product


def _leading(risk: Risk, part: ParameterSpace, k: int, seed: int) -> np.ndarray:
    found = eigsh(Hessian(risk.on(part)), min(k, part.dimension), seed=seed)
    assert found.eigenvectors is not None
    return found.eigenvectors.double().cpu().numpy()


def _offsets(space: ParameterSpace, parts: dict[str, ParameterSpace]) -> dict[str, np.ndarray]:
    """Return the coordinates of every layer whose fluctuations are measured, in the whole space."""
    ranges = space.slices()
    return {
        name: np.concatenate([np.arange(ranges[n].start, ranges[n].stop) for n in part.names])
        for name, part in parts.items()
    }


def _blocks(
    operator: Any, covariances: dict[str, WeightCovariance], offsets: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return each layer's own block of an operator times its modes, and VᵀAV over all modes."""
    own, columns = {}, []
    for name, covariance in covariances.items():
        block = _columns(operator, covariance.modes, offsets[name])
        product = (operator @ block).double().cpu().numpy()
        own[name] = product[offsets[name]]
        columns.append(
            np.concatenate([c.modes.T @ product[offsets[n]] for n, c in covariances.items()])
        )
    whole = np.concatenate(columns, axis=1)
    return own, (whole + whole.T) / 2


def _columns(operator: Any, modes: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Return a layer's modes of fluctuation as columns in the whole space."""
    size = (operator.shape[0], modes.shape[1])
    block = torch.zeros(size, dtype=operator.dtype, device="cpu")
    block[rows] = torch.from_numpy(modes).to(operator.dtype)
    return block.to(operator.device)


def _gradients(
    covariances: dict[str, WeightCovariance], rule: dict[str, Any]
) -> Float[np.ndarray, "steps K"]:
    """Return the mini-batch gradients along all modes that the recorded steps were made of.

    A step is −λPb with a buffer b ← βb + (1−δ)g, so that the weights of successive steps give g,
    but for weight decay, which changes little from step to step.
    """
    path = np.concatenate([c.projections for c in covariances.values()], axis=1)
    steps = -np.diff(path, axis=0) / rule["lr"]
    if "preconditioner" in rule:
        steps = np.linalg.solve(rule["preconditioner"], steps.T).T
    momentum, entering = rule.get("momentum", 0.0), 1 - rule.get("dampening", 0.0)
    if not rule.get("nesterov"):
        return (steps[1:] - momentum * steps[:-1]) / entering
    found, buffer = [], np.zeros(steps.shape[1])
    for step in steps:  # −Δw/λ = g + β(βb + g); what b was at first is forgotten after a few
        found.append((step - momentum**2 * buffer) / (1 + momentum))
        buffer = momentum * buffer + found[-1]
    return np.array(found[_FORGOTTEN:])


def _noise(gradients: np.ndarray, batches: int | None) -> np.ndarray:
    """Return the covariance (K×K) of the gradient noise, from differences of successive steps.

    Half of their mean square is C·B/(B−1) for shuffled epochs of B batches, and C otherwise.
    """
    change = np.diff(gradients, axis=0)
    share = 1.0 if batches is None else 1 - 1 / batches
    return share * change.T @ change / (2 * len(change))


def _within(
    factors: dict[str, np.ndarray],
    covariances: dict[str, WeightCovariance],
    parts: dict[str, ParameterSpace],
) -> tuple[np.ndarray, dict[str, float]]:
    """Return VᵀPV of a preconditioner P over the modes of all layers, and the share of PV beside V.

    Where that share is large the preconditioner carries modes into other directions, and what is
    predicted within their span need not hold.
    """
    blocks, beside = [], {}
    for name, covariance in covariances.items():
        scaled = np.concatenate([factors[n] for n in parts[name].names])[:, None] * covariance.modes
        inside = covariance.modes.T @ scaled
        blocks.append((inside + inside.T) / 2)
        rest = np.linalg.norm(scaled - covariance.modes @ inside) / np.linalg.norm(scaled)
        beside[name] = float(rest)
    return scipy.linalg.block_diag(*blocks), beside


def _layer(
    name: str,
    found: WeightCovariance,
    curvature: np.ndarray,
    predicted: np.ndarray | None,
    missing: str,
    change: np.ndarray,
    mixed: float | None,
) -> LayerFluctuations:
    """Return the fluctuations of one layer: variances, curvatures, ψ, prediction."""
    H = found.modes.T @ curvature
    flatness, reason, broken = None, "", []
    try:
        matrix = _Product((found.width, found.width), curvature)
        flatness = variance_flatness(found, matrix, warn=False, strict=False)
        reason = flatness.doubt
        times, resolved = flatness.times, flatness.resolved
    except ArgumentError as error:
        reason, times = error.reason, np.maximum(found.times, 1.0)
        resolved = 10 * times <= found.samples
    if missing.startswith(_DIVERGES):
        broken.append(missing)
    flat = int((np.diag(H) <= 0).sum())
    if flat:
        broken.append(f"{flat} of {len(H)} modes have no positive curvature: not a minimum")
    slow = int((~resolved).sum())
    if slow:
        broken.append(
            f"{slow} of {len(H)} modes decorrelate after more than a tenth of the record: "
            "they have not reached a stationary state"
        )
    if not found.stationarity.stationary:
        broken.append(found.stationarity.doubt)
    if np.isfinite(change).all() and not ((change > 1 / _AGREES) & (change < _AGREES)).all():
        broken.append(
            f"gradient noise along the modes is {change[0]:.2g} times its mean in the first tenth "
            f"of the steps and {change[1]:.2g} times in the last: the noise"
            + (" is not constant" if mixed is None else " or the preconditioner is not constant")
        )
    if mixed is not None and mixed > _MIXED:
        broken.append(
            f"{mixed:.0%} of what the preconditioner makes of the modes lies beside them: they do "
            "not fluctuate on their own"
        )
    whole = float(found.eigenvalues.sum())
    layer = LayerFluctuations(
        name,
        found.width,
        found.eigenvalues,
        np.diag(H).copy(),
        times,
        resolved,
        None if reason else flatness,
        reason,
        found.stationarity,
        None if predicted is None else predicted[0],
        None if predicted is None else predicted[1],
        missing,
        whole / found.total if found.total > 0 else float("nan"),
        (float(change[0]), float(change[1])),
        (),
    )
    if not broken and np.isfinite(layer.ratio) and not 1 / _AGREES < layer.ratio < _AGREES:
        broken.append(
            f"variances are {layer.ratio:.2g} times the predicted ones although the modes are "
            "resolved: the loss is not quadratic, or its noise not constant, over the fluctuations"
        )
    return LayerFluctuations(**{**vars(layer), "broken": tuple(broken)})


def _predict(H: np.ndarray, C: np.ndarray, rule: dict[str, Any], stride: float) -> np.ndarray:
    """Return predicted variances and correlation times (in records) along the modes, (2, K).

    Within the span of the modes of all layers, and of that in the directions of positive curvature
    only; NaN along modes that lie mostly elsewhere.
    """
    root = np.eye(len(H))
    if "preconditioner" in rule:  # w = P^{1/2}u, and u has the plain update
        factors, axes = np.linalg.eigh(rule.pop("preconditioner"))
        root = (axes * np.sqrt(np.maximum(factors, 0.0))) @ axes.T
        H = root @ (H + rule.pop("weight_decay", 0.0) * np.eye(len(H))) @ root
        C = root @ C @ root
    rates, vectors = np.linalg.eigh(H)
    V = vectors[:, rates > 1e-6 * max(rates[-1], 0.0)]
    if not V.shape[1]:
        return np.full((2, len(H)), np.nan)
    state = theory.stationary_state(V.T @ H @ V, V.T @ C @ V, rule.pop("lr"), **rule)
    along = (root @ V @ state.directions) ** 2 * np.diag(
        state.directions.T @ state.covariance @ state.directions
    )
    share = along / np.maximum(along.sum(axis=1, keepdims=True), 1e-300)
    decay = np.exp(-stride / np.maximum(state.correlation_steps, 1e-9))
    times = share @ ((1 + decay) / np.maximum(1 - decay, 1e-12))
    variances = np.einsum("ij,jk,ik->i", root @ V, state.covariance, root @ V)
    if "batches" in rule:  # anticorrelated noise shortens the memory of a step
        times[:] = np.nan
    inside = np.sum(V**2, axis=1) > 0.5
    return np.where(inside, [variances, times], np.nan)


def _to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _to(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_to(value, device) for value in batch)
    return batch
