"""Weight fluctuations of a network under its own optimiser, layer by layer, beside the theory."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated as Float
from typing import Any

import numpy as np
import torch
from torch import nn

from hyperribbon.core import checks
from hyperribbon.core.checks import ArgumentError, check_choice, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.parameters import ParameterFilter, ParameterSpace
from hyperribbon.noise.continuation import Continuation
from hyperribbon.noise.flatness import SEEN, doubt, fit_flatness, mode_times
from hyperribbon.noise.layer_fluctuations import AGREES, Fluctuations, LayerFluctuations
from hyperribbon.noise.mode_predictions import (
    noise_of_steps,
    preconditioner_within,
    predict_modes,
)
from hyperribbon.noise.stationarity import stationarity
from hyperribbon.noise.weight_records import AllDirections, GivenDirections
from hyperribbon.noise.weights import WeightCovariance
from hyperribbon.operators import GradientCovariance, Hessian, Risk
from hyperribbon.recording import Trajectory
from hyperribbon.spectra import eigsh

_FEWEST = 12  # steps of a covariance
_DIVERGES = "the update diverges"
_MIXED = 0.5  # share of a preconditioned mode beside the others that is named
_SHARE = 0.1  # of the training, that curvature may cost
_PASSES = 1.5  # training passes that a Hessian-vector product costs
_MODES = 20  # of a layer
_SLOPE = 3  # modes that ψ needs
_SAMPLES = (64, 1024)  # fewest and most


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
    k: int | None = None,
    samples: int | str | None = "auto",
    mode: str | None = "train",
    trajectory: Trajectory | None = None,
    folder: str | Path | None = None,
    memory: float = 2**30,
    seed: int = 0,
) -> Fluctuations:
    """Measure fluctuations of the weights under your optimiser, and how flat the loss is there.

    Training continues on a copy of the model and the optimiser, with their states and at constant
    learning rate; yours are not changed. The weights of every step are kept in memory, in full or,
    where they do not fit, in a basis of the leading directions that is updated as training goes.
    Curvature is that at the mean weights. For each layer the result holds ψ of variance ∝ F^(−ψ)
    over the modes that were seen for ten correlation times (`hr.variance_flatness`), marked as not
    stationary where the mean along these modes still moves or the gradient noise changes; the
    number of slower modes, and of the steps that would resolve them; and variances and correlation
    times beside those of `theory.fluctuations.stationary_state` for this optimiser and sampling.
    The gradient noise is that of the mini-batches on the way, which the steps themselves give; for
    a recorded trajectory that at the mean weights. Adam and RMSprop count as a fixed
    preconditioner, the one at the end.

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
        k: Modes per layer; by default 20, and the curvature along as many of them as cost a tenth
            of the training on 64 samples: resolved ones first, of layers with at least three.
        samples: Samples behind the curvature, in whole batches; None for all. By default as many,
            from 64 to 1024, as cost about a tenth of the training. The interval of ψ does not
            include the error of a curvature from few samples.
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
    run = Continuation(model, loss, data, optimizer, seed)
    parts = space.layers()
    products = _SHARE * moments * run.batch_size / _PASSES  # of one mode and one sample
    curved = max(int(products / _SAMPLES[0]), _SLOPE) if k is None else k * len(parts)
    k = _MODES if k is None else k
    widths = [min(k, part.dimension) for part in parts.values()]
    count = _affordable(samples, products, min(curved, sum(widths)))
    started = time.perf_counter()
    if along == "hessian":
        risk = run.risk(count, mode, space)
        bases = {n: _leading(risk, part, k, seed) for n, part in parts.items()}
        records: dict[str, Any] = {n: GivenDirections(bases[n]) for n in parts}
    else:
        run.risk(run.batch_size, mode, space)  # what cannot be measured is refused before training
        rows = int(memory / (4 * space.dimension))
        records = {n: AllDirections(max(min(rows, moments), 4 * k, 16)) for n in parts}
    before = time.perf_counter() - started
    if trajectory is None:
        run.train(parts, records, steps, None if folder is None else Path(folder))
        stride = 1.0
    else:
        stride = run.read(trajectory, parts, records)
    started = time.perf_counter()
    whole = {n: record.covariance(k) for n, record in records.items()}
    run.move_to({n: found.mean for n, found in whole.items()}, parts)
    times = {n: mode_times(found) for n, found in whole.items()}
    chosen = _resolved_first(times, moments, curved)
    covariances = {n: _of_modes(found, chosen[n]) for n, found in whole.items()}
    count = _affordable(samples, products, sum(map(len, chosen.values())))
    risk = run.risk(count, mode, space)
    H = _within_modes(Hessian(risk), covariances, space, parts)
    predicted, missing, mixed = None, "", {}
    changes = np.full((sum(len(own) for own in times.values()), 2), np.nan)
    kept = np.concatenate([np.isin(np.arange(len(times[n])), chosen[n]) for n in parts])
    try:
        rule = run.rule()
        if "preconditioner" in rule:
            factors = run.by_name(rule["preconditioner"])
            rule["preconditioner"], mixed = preconditioner_within(factors, whole, parts)
        if trajectory is None:
            C, changes = noise_of_steps(whole, rule)
            C = C[np.ix_(kept, kept)]
        else:
            noise = GradientCovariance(risk)
            C = run.batch_factor() * _within_modes(noise, covariances, space, parts)
        if "preconditioner" in rule:
            rule["preconditioner"] = rule["preconditioner"][np.ix_(kept, kept)]
        predicted = predict_modes(H, C, rule, stride)
    except ArgumentError as error:
        missing = error.reason
    found, end, last = {}, 0, 0
    for name, modes in chosen.items():
        own = slice(end, end := end + len(modes))
        theirs = None if predicted is None else predicted[:, own]
        change = np.median(changes[last : (last := last + len(times[name]))], axis=0)
        about = name, whole[name], times[name], modes, H[own, own], theirs
        found[name] = _layer(*about, missing, change, mixed.get(name))
    after = before + time.perf_counter() - started
    seconds = (run.training_seconds, run.recording_seconds, after)
    return Fluctuations(found, moments, along, risk.samples, run.losses(), *seconds)


def _affordable(samples: int | str | None, products: float, modes: int) -> int | None:
    """Return how many samples curvature takes, so that fluctuations stay affordable."""
    if samples != "auto":
        assert not isinstance(samples, str)
        return samples
    return min(max(int(products / modes), _SAMPLES[0]), _SAMPLES[1])


def _trained_space(
    model: nn.Module, optimizer: torch.optim.Optimizer, layers: ParameterFilter
) -> ParameterSpace:
    """Return the space of the weights whose fluctuations are measured: those trained.

    Raises:
        ArgumentError: The optimiser does not have any of them.
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


def _leading(risk: Risk, part: ParameterSpace, k: int, seed: int) -> np.ndarray:
    found = eigsh(Hessian(risk.on(part)), min(k, part.dimension), seed=seed)
    assert found.eigenvectors is not None
    return found.eigenvectors.double().cpu().numpy()


def _within_modes(
    operator: Any,
    covariances: dict[str, WeightCovariance],
    space: ParameterSpace,
    parts: dict[str, ParameterSpace],
) -> Float[np.ndarray, "K K"]:
    """Return VᵀAV of an operator A over the modes V of all layers' fluctuations."""
    ranges = space.slices()
    rows = {
        name: np.concatenate([np.arange(ranges[n].start, ranges[n].stop) for n in part.names])
        for name, part in parts.items()
    }
    columns = []
    for name, covariance in covariances.items():
        if not covariance.modes.shape[1]:
            continue
        size = (operator.shape[0], covariance.modes.shape[1])
        block = torch.zeros(size, dtype=operator.dtype, device="cpu")
        block[rows[name]] = torch.from_numpy(covariance.modes).to(operator.dtype)
        product = (operator @ block.to(operator.device)).double().cpu().numpy()
        columns.append(
            np.concatenate([c.modes.T @ product[rows[n]] for n, c in covariances.items()])
        )
    whole = np.concatenate(columns, axis=1)
    return (whole + whole.T) / 2


def _resolved_first(
    times: dict[str, np.ndarray], moments: int, count: int
) -> dict[str, np.ndarray]:
    """Return the modes of each layer's fluctuations in the order curvature is measured.

    First those that were resolved, of layers with enough of them for ψ, in turn as many as ψ needs;
    then others.
    """
    order = []
    for layer, own in enumerate(times.values()):
        slow = SEEN * own > moments
        few = (~slow).sum() < _SLOPE
        for rank, mode in enumerate(np.argsort(slow, kind="stable")):
            order.append((bool(slow[mode] or few), rank // _SLOPE, layer, int(mode)))
    taken = sorted(order)[:count]
    modes = [sorted(mode for *_, own, mode in taken if own == layer) for layer in range(len(times))]
    return {name: np.array(own, dtype=int) for name, own in zip(times, modes, strict=True)}


def _of_modes(found: WeightCovariance, chosen: np.ndarray) -> WeightCovariance:
    """Return the covariance of the fluctuations along some of their modes."""
    return replace(
        found,
        eigenvalues=found.eigenvalues[chosen],
        modes=found.modes[:, chosen],
        projections=found.projections[:, chosen],
        times=found.times[chosen],
    )


def _layer(
    name: str,
    found: WeightCovariance,
    times: np.ndarray,
    chosen: np.ndarray,
    H: np.ndarray,
    predicted: np.ndarray | None,
    missing: str,
    change: np.ndarray,
    mixed: float | None,
) -> LayerFluctuations:
    """Return the fluctuations of a layer, of which some modes were chosen for curvature."""
    flatness, reason = None, ""
    measured = _of_modes(found, chosen)
    resolved = SEEN * times <= found.samples
    if len(chosen) < _SLOPE <= len(times):
        reason = doubt(times, found)
        if resolved.sum() >= _SLOPE:
            reason = f"curvature is known along {len(chosen)} modes only; take more steps"
    else:
        try:
            flatness = fit_flatness(measured, H, times[chosen])
            reason = flatness.doubt
        except ArgumentError as error:
            reason = error.reason

    def all_modes(values: np.ndarray) -> np.ndarray:
        result = np.full(len(times), np.nan)
        result[chosen] = values
        return result

    mean = found.stationarity
    if resolved.any():
        mean = stationarity(found.projections[:, resolved], times=times[resolved])
    along = float(found.eigenvalues.sum())
    layer = LayerFluctuations(
        name,
        found.width,
        found.eigenvalues,
        all_modes(np.diag(H)),
        times,
        resolved,
        None if reason or flatness is None else replace(flatness, stationarity=mean),
        reason,
        mean,
        None if predicted is None else all_modes(predicted[0]),
        None if predicted is None else all_modes(predicted[1]),
        missing,
        along / found.total if found.total > 0 else float("nan"),
        (float(change[0]), float(change[1])),
        (),
    )
    return replace(layer, broken=_broken(layer, mixed))


def _broken(layer: LayerFluctuations, mixed: float | None) -> tuple[str, ...]:
    """Return which assumptions of the theory of fluctuations do not hold, one sentence each."""
    broken, count = [], len(layer.variances)
    if layer.no_prediction.startswith(_DIVERGES):
        broken.append(layer.no_prediction)
    flat = int((layer.curvatures <= 0).sum())
    if flat:
        broken.append(f"{flat} of {count} modes have no positive curvature: not a minimum")
    if layer.stationarity.doubt:
        broken.append(layer.stationarity.doubt)
    if not layer.constant_noise:
        first, last = layer.noise_change
        broken.append(
            f"gradient noise along the modes is {first:.2g} times its mean in the first tenth "
            f"of the steps and {last:.2g} times in the last: the noise"
            + (" is not constant" if mixed is None else " or the preconditioner is not constant")
        )
    if mixed is not None and mixed > _MIXED:
        broken.append(
            f"{mixed:.0%} of what the preconditioner makes of the modes lies beside them: they do "
            "not fluctuate on their own"
        )
    if not broken and np.isfinite(layer.ratio) and not 1 / AGREES < layer.ratio < AGREES:
        broken.append(
            f"variances are {layer.ratio:.2g} times the predicted ones although the modes are "
            "resolved: the loss is not quadratic, or its noise not constant, over the fluctuations"
        )
    return tuple(broken)
