"""Curvature by mini-batch and by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from typing import Annotated as Float

import numpy as np
import torch
from torch import nn

from hyperribbon.core.checks import ArgumentError, count, positive, validate
from hyperribbon.core.devices.modes import plain_arithmetic
from hyperribbon.core.devices.tensors import host_array
from hyperribbon.core.generators import numpy_generator
from hyperribbon.core.parameters import ParameterFilter
from hyperribbon.core.result import Result, frame
from hyperribbon.core.store import Kept, content_digest
from hyperribbon.operators import Hessian, Risk
from hyperribbon.operators.risk_operator import RiskOperator
from hyperribbon.spectra.eigensolvers import eigsh
from hyperribbon.spectra.estimates.estimators import trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class BatchSharpness(Result, plot="plot_batch_sharpness"):
    """The largest Hessian eigenvalue of the loss of each of several disjoint mini-batches.

    Attributes:
        values: (b,), one for each mini-batch.
        residuals: (b,), within which of it an eigenvalue of that mini-batch's Hessian lies.
        pooled: Largest eigenvalue on the samples of all these mini-batches together. The largest
            eigenvalue is convex, so it is at most the mean of `values`.
        pooled_residual: Residual of it.
        batch_size: Samples of a mini-batch.
    """

    values: Float[np.ndarray, "b"]
    residuals: Float[np.ndarray, "b"]
    pooled: float
    pooled_residual: float
    batch_size: int

    @property
    def mean(self) -> float:
        """Mean of the sharpness by batch."""
        return float(self.values.mean())

    @property
    def stderr(self) -> float:
        """Standard error of the mean of the sharpness by batch."""
        return float(self.values.std(ddof=1) / len(self.values) ** 0.5)

    def to_frame(self) -> pd.DataFrame:
        """Return the sharpness by batch with its residual, one row each."""
        return frame({"sharpness": self.values, "residual": self.residuals}, "batch")

    def _headline(self) -> str:
        spread = f"{self.values.min():.4g} to {self.values.max():.4g}"
        each = f"{len(self.values)} mini-batches of {self.batch_size}"
        return (
            f"{each}: mean {self.mean:.4g} ± {self.stderr:.2g}, {spread}; pooled {self.pooled:.4g}"
        )


@dataclass(frozen=True)
class LayerCurvature(Result, plot="plot_layer_curvature"):
    """Leading eigenvalues and trace of every layer's own block of a curvature matrix.

    Attributes:
        layers: Names, in the network's order.
        parameters: (L,), number of entries of each.
        eigenvalues: (L, k), descending; NaN beyond the size of a block.
        residuals: (L, k), of the eigenpairs.
        traces: (L,).
        stderrs: (L,), standard errors of the traces; zero where exact.
    """

    layers: tuple[str, ...]
    parameters: Float[np.ndarray, "L"]
    eigenvalues: Float[np.ndarray, "L k"]
    residuals: Float[np.ndarray, "L k"]
    traces: Float[np.ndarray, "L"]
    stderrs: Float[np.ndarray, "L"]

    def to_frame(self) -> pd.DataFrame:
        """Return curvature by layer: parameters, trace and eigenvalues, one row each."""
        own = {"layer": list(self.layers), "parameters": self.parameters.astype(int)}
        own |= {"trace": self.traces, "trace_stderr": self.stderrs}
        each = {f"eigenvalue {i + 1}": c for i, c in enumerate(self.eigenvalues.T)}
        return frame(own | each)

    def _headline(self) -> str:
        sharpest = int(np.nanargmax(self.eigenvalues[:, 0]))
        top = f"{self.layers[sharpest]} ({self.eigenvalues[sharpest, 0]:.4g})"
        return f"{len(self.layers)} layers, the sharpest {top}"


@validate(batches=count, batch_size=count, tol=positive, memory=positive)
@plain_arithmetic()
def batch_sharpness(
    model: nn.Module,
    loss: Any = None,
    data: Any = None,
    *,
    batch_size: int | None = None,
    batches: int = 20,
    params: ParameterFilter = None,
    forward: Callable[..., Any] | None = None,
    mode: str | None = "eval",
    tol: float = 1e-3,
    memory: float | None = None,
    folder: str | Path | None = None,
    seed: int = 0,
) -> BatchSharpness:
    """Measure sharpness by batch: how it varies from mini-batch to mini-batch.

    Disjoint mini-batches are drawn at random, as an epoch has them, and the largest eigenvalue of
    the Hessian of each one's loss is computed. It is convex in the Hessian, so on average it is at
    least that of all samples: λ₁(Σ_B H_B / b) ≤ Σ_B λ₁(H_B) / b.

    Args:
        model: Any module; it is not changed.
        loss: As for `hr.Risk`.
        data: As for `hr.Risk`; a stream cannot be cut into mini-batches.
        batch_size: Samples of a mini-batch; by default that of a DataLoader.
        batches: Mini-batches at most; fewer where the data have fewer.
        params: Which parameters are coordinates, as for `hr.Risk`.
        forward: As for `hr.Risk`.
        mode: As for `hr.Risk`; in training mode batch norm has the statistics of each mini-batch.
        tol: Accuracy of the eigenvalues, as for `hr.eigsh`.
        memory: Bytes to stay below.
        folder: Where every eigenvalue is kept: the same call continues there after it was killed.
        seed: Of the mini-batches and the solver.

    Returns:
        The eigenvalue (b,) of each mini-batch, and that of all of them together.

    Raises:
        ArgumentError: There is no batch size, or there are fewer than two mini-batches.

    >>> import torch
    >>> data = torch.ones(8, 1) * torch.arange(1.0, 9)[:, None], torch.zeros(8, 1)
    >>> model = nn.Linear(1, 1, bias=False)
    >>> found = batch_sharpness(model, nn.MSELoss(), data, batch_size=2)
    >>> bool(abs(found.mean - 2 * (data[0] ** 2).mean()) < 1e-4)  # one weight: no gap
    True
    """
    options = {"params": params, "forward": forward, "mode": mode, "memory": memory}
    risk = Risk(model, loss, data, **options)
    size = risk.source.batch_size if batch_size is None else batch_size
    if size is None:
        remedy = "Give batch_size=, as in training, or a DataLoader."
        raise ArgumentError("batch_size", None, "these data do not come in batches", remedy)
    total = risk.source.total or 0
    number = min(batches, total // size)
    if number < 2:
        given = f"{total} samples" if total else "a stream"
        reason = f"expected two mini-batches of {size} at least"
        raise ArgumentError("data", given, reason, "Give a larger data set or smaller batches.")
    order = numpy_generator(seed, "batches").permutation(total)[: number * size]
    pieces = [np.sort(rows) for rows in order.reshape(number, size)]

    objective = [] if folder is None else [risk.value(), risk.weights()]
    kept = Kept(folder, *objective, size, mode, tol, seed)

    def largest(places: np.ndarray) -> tuple[float, float]:
        def measure() -> tuple[float, float]:
            source = risk.source.take(places)
            part = Hessian(model, loss, source if mode == "eval" else source.fixed(size), **options)
            found = eigsh(part, 1, tol=tol, eigenvectors=False, seed=seed)
            return float(found.eigenvalues[0]), float(found.residuals[0])

        return kept(content_digest(places), measure)

    values, residuals = np.array([largest(places) for places in pieces]).T
    everything = largest(np.concatenate(pieces) if mode != "eval" else np.sort(order))
    parts = number if risk.criterion.reduction == "sum" else 1
    pooled, error = (found / parts for found in everything)
    return BatchSharpness(values, residuals, pooled, error, size)


@validate(k=count, tol=positive, precision=positive)
def layer_curvature(
    op: RiskOperator,
    k: int = 1,
    *,
    tol: float = 1e-3,
    precision: float = 0.01,
    folder: str | Path | None = None,
    seed: int = 0,
) -> LayerCurvature:
    """Return curvature by layer: leading eigenvalues and trace of every diagonal block.

    Args:
        op: `hr.Hessian`, `hr.GGN` or another operator of a model.
        k: Eigenvalues per layer.
        tol: Accuracy of the eigenvalues, as for `hr.eigsh`.
        precision: Relative accuracy of the traces, as for `hr.trace`.
        folder: Where the numbers of every layer are kept: the same call continues there after it
            was killed.
        seed: Of the solver and the probes.

    Returns:
        Names, eigenvalues (L, k) and traces (L,); `.to_frame()` has one row per layer.

    Raises:
        ArgumentError: The operator has no layers.

    >>> import torch
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> model = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> layer_curvature(Hessian(model, nn.MSELoss(), data), k=2).eigenvalues.round(4)
    array([[1., 1.]])
    """
    if not hasattr(op, "layers"):
        remedy = "Give hr.Hessian(model, loss, data)."
        raise ArgumentError("op", op, "expected an operator of a model", remedy)
    blocks = op.layers()

    def measure(block: Any) -> dict[str, Any]:
        whole = trace(block, precision=precision, seed=seed)
        found = eigsh(block, min(k, block.shape[0]), tol=tol, eigenvectors=False, seed=seed)
        own = {"eigenvalues": found.eigenvalues, "residuals": found.residuals}
        return {**own, "trace": whole.value, "stderr": whole.stderr}

    image = (
        None if folder is None else op @ torch.ones(op.shape[1], dtype=op.dtype, device=op.device)
    )
    kept = Kept(folder, image, list(blocks), k, tol, precision, seed)
    layers = [kept(f"layer-{n}", partial(measure, b)) for n, b in enumerate(blocks.values())]
    values, residuals = np.full((2, len(blocks), k), np.nan)
    for place, found in enumerate(layers):
        values[place, : len(found["eigenvalues"])] = host_array(found["eigenvalues"])
        residuals[place, : len(found["residuals"])] = host_array(found["residuals"])
    sizes = np.array([float(block.shape[0]) for block in blocks.values()])
    traces, errors = np.array([[found["trace"], found["stderr"]] for found in layers]).T
    return LayerCurvature(tuple(blocks), sizes, values, residuals, traces, errors)
