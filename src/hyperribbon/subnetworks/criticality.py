"""Layer criticality: re-initialise or re-randomise each layer and measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from hyperribbon.core import ArgumentError, Mask, checks, derive_seed
from hyperribbon.core.checks import check_finite, validate
from hyperribbon.core.result import Result
from hyperribbon.core.store import Kept, content_digest
from hyperribbon.subnetworks.evaluation import Metric
from hyperribbon.subnetworks.operations import Initializer, reinitialize, rerandomize
from hyperribbon.subnetworks.states import State, eligible_names, layer_of, state_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LayerCriticality:
    """Effect of re-initialising and of re-randomising one layer (or block).

    Attributes:
        layer: Its name.
        parameters: Number of entries replaced.
        reinitialized: The metric with the layer at its initial weights and, as in all values but
            `stored_drop`, the normalisation statistics, stored or re-estimated for these weights,
            with which it is better.
        drop: Baseline minus that (reversed where lower is better).
        drop_stderr: Standard error of the drop over the samples, which are the same before and
            after; 0 when the metric gives a single number.
        rerandomized: The metric with the layer redrawn, mean over the draws.
        rerandomized_stderr: Its standard error over the draws; NaN for one draw.
        verdict: "critical", "robust" or "undecided".
        stored_drop: The drop with the normalisation statistics of the trained network, which do not
            fit the changed weights; equal to `drop` for networks without such layers.
    """

    layer: str
    parameters: int
    reinitialized: float
    drop: float
    drop_stderr: float
    rerandomized: float
    rerandomized_stderr: float
    verdict: str
    stored_drop: float


@dataclass(frozen=True)
class Criticality(Result, plot="plot_criticality"):
    """The criticality of every layer: what resetting it to its initial weights costs.

    Attributes:
        baseline: The metric of the trained network, with its normalisation statistics or
            re-estimated ones, whichever is better.
        baseline_stderr: Its standard error over the samples; 0 for a single number.
        tolerance: The drop that separates robust from critical.
        layers: One entry per layer, in the network's order.
    """

    baseline: float
    baseline_stderr: float
    tolerance: float
    layers: tuple[LayerCriticality, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return each layer's criticality: the effect of resetting and of redrawing it."""
        import pandas as pd

        return pd.DataFrame([vars(layer) for layer in self.layers])

    def _headline(self) -> str:
        critical = [layer.layer for layer in self.layers if layer.verdict == "critical"]
        which = (
            f": {', '.join(critical[:3])}{', …' if len(critical) > 3 else ''}" if critical else ""
        )
        return f"{len(critical)} of {len(self.layers)} layers critical{which}"


@validate(metric=checks.function, draws=checks.count, tolerance=checks.positive)
def layer_criticality(
    final: nn.Module | State,
    initial: nn.Module | State,
    metric: Metric,
    *,
    initializer: Initializer | None = None,
    layers: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    draws: int = 3,
    tolerance: float = 0.1,
    higher_is_better: bool = True,
    folder: str | Path | None = None,
    seed: int = 0,
) -> Criticality:
    """Measure layers' criticality by re-initialising and re-randomising each.

    A layer is critical when the drop after re-initialisation exceeds the tolerance by more than two
    standard errors, robust when it stays below by as much, and undecided otherwise. With a metric
    of `metric_of`, the running statistics of batch norm are re-estimated for the changed weights
    where that is better, as for the trained ones; the drop without that is reported beside it.
    Implements Sec. 3.1 of [subnetworks], with the
    threshold and the uncertainty made explicit.

    Args:
        final: The trained network: a module or a state dict; it stays as it is.
        initial: The initial state.
        metric: A function of a state dict: one number per sample (as `metric_of` gives), from which
            the uncertainty follows, or a single number. Its method `reestimate`, if it has one,
            gives a state the normalisation statistics of its weights; its `model` says which
            entries of a state dict are parameters.
        initializer: Where re-randomised values come from, as in `rerandomize`; by default the
            initial state, shuffled within each parameter.
        layers: Names of modules, each including its submodules, or a mapping from a block's
            name to parameter names; by default every module that owns parameters.
        draws: Number of re-randomisations per layer.
        tolerance: Drop of the metric that separates robust from critical.
        higher_is_better: False for a loss.
        folder: Where every evaluation is kept: the same call continues there after it was killed.
            A metric is known by its values of the trained network.
        seed: Seed of the re-randomisations.

    Returns:
        For every layer the drops of the metric with their standard errors, and the verdict.

    Raises:
        ArgumentError: A layer does not exist, or the states do not match.
    """
    if initial is None:
        remedy = "Keep copy.deepcopy(model.state_dict()) before training."
        raise ArgumentError("initial", None, "re-initialising needs the initial state", remedy)
    state, start = state_of("final", final), state_of("initial", initial)
    blocks = _blocks(final, layers, getattr(metric, "model", None))
    reestimate = getattr(metric, "reestimate", None)
    source = initial if initializer is None else initializer
    sign = 1.0 if higher_is_better else -1.0

    def better(stored: torch.Tensor, renewed: torch.Tensor) -> torch.Tensor:
        return renewed if sign * float((renewed - stored).mean()) > 0 else stored

    before = kept = _samples(metric(state))
    if reestimate is not None:
        before = better(kept, _samples(metric(reestimate(state))))
    kept_there = Kept(folder, before)

    def piece(changed: State, renew: Callable[[State], State]) -> torch.Tensor:
        name = content_digest(changed, renew is not dict)
        values = kept_there(name, lambda: _samples(metric(renew(changed))))
        return torch.as_tensor(values, device=before.device)

    def measure(changed: State) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the metric for a layer's criticality by the better normalisation statistics."""
        stored = piece(changed, dict)
        return (better(stored, piece(changed, reestimate)) if reestimate else stored), stored

    results = []
    for block, names in blocks.items():
        mask = Mask({name: torch.ones_like(state[name], dtype=torch.bool) for name in names})
        changed = reinitialize(state, start, mask)
        after, stored = measure(changed)
        drop, stderr = _mean(sign * (before - after))
        seeds = [derive_seed(seed, block, draw) for draw in range(draws)]
        drawn = (rerandomize(state, mask, source, seed=own) for own in seeds)
        redrawn = torch.stack([measure(own)[0].mean() for own in drawn])
        results.append(
            LayerCriticality(
                layer=block,
                parameters=mask.size,
                reinitialized=float(after.mean()),
                drop=drop,
                drop_stderr=stderr,
                rerandomized=float(redrawn.mean()),
                rerandomized_stderr=_mean(redrawn)[1] if draws > 1 else float("nan"),
                verdict=_verdict(drop, stderr, tolerance),
                stored_drop=float((sign * (kept - stored)).mean()),
            )
        )
    baseline, baseline_stderr = _mean(before)
    return Criticality(baseline, baseline_stderr, tolerance, tuple(results))


def _verdict(drop: float, stderr: float, tolerance: float) -> str:
    if drop - 2 * stderr > tolerance:
        return "critical"
    return "robust" if drop + 2 * stderr < tolerance else "undecided"


def _samples(measured: torch.Tensor | float) -> torch.Tensor:
    found = checks.tensor("metric", measured).detach().double().reshape(-1)
    if not found.numel():
        raise ArgumentError("metric", "a function", "it returned nothing", "Return a number.")
    return check_finite("metric", found)


def _mean(samples: torch.Tensor) -> tuple[float, float]:
    """Return the mean effect for a layer's criticality, and its standard error."""
    size = len(samples)
    stderr = float(samples.std() / size**0.5) if size > 1 else 0.0
    return float(samples.mean()), stderr


def _blocks(
    final: nn.Module | State,
    layers: Sequence[str] | Mapping[str, Sequence[str]] | None,
    model: nn.Module | None,
) -> dict[str, list[str]]:
    names = eligible_names(final, "all", model=model, frozen=True)
    if isinstance(layers, Mapping):
        found = {}
        for block, chosen in layers.items():
            try:
                found[block] = eligible_names(final, "all", chosen, model=model, frozen=True)
            except ArgumentError as error:
                error.rename(f"layers[{block!r}]")
                raise
        return found
    if layers is None:
        owners: dict[str, list[str]] = {}
        for name in names:
            owners.setdefault(layer_of(name), []).append(name)
        return owners
    blocks = {}
    for layer in checks.list_of(checks.text)(
        "layers", [layers] if isinstance(layers, str) else layers
    ):
        below = [name for name in names if name == layer or name.startswith(f"{layer}.")]
        if not below:
            owners_listed = ", ".join(dict.fromkeys(layer_of(name) for name in names))
            reason = "the network does not have this layer"
            raise ArgumentError("layers", layer, reason, f"It has: {owners_listed}.")
        blocks[layer] = below
    return blocks
