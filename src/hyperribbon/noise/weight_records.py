"""Weights of every step of a training, kept in memory, and their principal modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.noise.stationarity import autocorrelation_time, stationarity
from hyperribbon.noise.weights import WeightCovariance

_BLOCK = 64  # rows that are projected, or summed, at once
_EXACT = 256  # records or weights up to which all modes are computed
_MORE = 20  # directions beside the k that are wanted
_SUMS = 512  # signed sums of weights that stand for all of them in a first guess


class _Rows:
    """The weights of successive steps, less those of the first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._first = torch.empty(0, device="cpu")
        self._rows = torch.empty(0, device="cpu")
        self._used = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the records of weights so far, to resume from."""
        return {"first": self._first, "rows": self._rows[: self._used].clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with records of weights from what `state_dict` returned."""
        self._first, self._used = state["first"], len(state["rows"])
        self._rows = self._first.new_zeros(self._capacity, len(self._first))
        self._rows[: self._used] = state["rows"]

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add the weights of one step to the record."""
        if not len(self._first):
            self._first = torch.cat([tensor.reshape(-1) for tensor in tensors])
            self._rows = self._first.new_empty(self._capacity, len(self._first))
        if self._used == self._capacity:
            self._make_room()
        row, first = self._rows[self._used], 0
        for tensor in tensors:
            places = slice(first, first + tensor.numel())
            torch.sub(tensor.reshape(-1), self._first[places], out=row[places])
            first += tensor.numel()
        self._used += 1

    def _make_room(self) -> None:
        raise NotImplementedError


class AllDirections(_Rows):
    """All records, or those beyond the capacity as coefficients in their leading directions."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._coefficients = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        self._lost = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return the record of weights in all directions, to resume from."""
        own = {"coefficients": self._coefficients, "lost": self._lost}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a record in all directions from what `state_dict` returned."""
        super().load_state_dict(state)
        self._coefficients, self._lost = state["coefficients"], state["lost"]

    def _all_coefficients(self) -> torch.Tensor:
        """Return the recorded weights' coefficients (n, rows) in the rows."""
        new = self._used - self._coefficients.shape[1]
        return torch.block_diag(
            self._coefficients, torch.eye(new, dtype=torch.float64, device="cpu")
        )

    def _make_room(self) -> None:
        """Keep the record's leading half of directions about the mean, which is one of them."""
        Q, R = torch.linalg.qr(self._all_coefficients())
        gram = (self._rows @ self._rows.T).double().cpu()
        values, vectors = torch.linalg.eigh(R @ gram @ R.T)
        keep = self._capacity // 2
        self._lost += float(values[:-keep].clamp(min=0).sum())
        scale = values[-keep:].clamp(min=1e-30).sqrt()
        basis = (vectors[:, -keep:] / scale).T @ R
        self._rows[:keep] = basis.to(self._rows) @ self._rows
        self._coefficients = Q @ (vectors[:, -keep:] * scale)
        self._used = keep

    def covariance(self, k: int) -> WeightCovariance:
        """Return the k leading principal modes of the recorded weights."""
        rows = self._rows[: self._used]
        if self._coefficients.shape[1]:
            T = self._all_coefficients()
            mean = T.mean(dim=0).to(rows) @ rows
            Q, R = torch.linalg.qr(T - T.mean(dim=0))
            rows = R.to(rows) @ rows
        else:
            Q, mean = None, rows.mean(dim=0)
            rows -= mean  # in place, for they may fill the memory
            self._first, mean = self._first + mean, torch.zeros_like(mean)
        n = len(rows) if Q is None else len(Q)
        modes, along = principal_modes(rows, min(k, rows.shape[1], n - 1))
        along = (along if Q is None else Q @ along).numpy()
        total = float(torch.linalg.vector_norm(rows, dim=1).double().square().sum()) + self._lost
        centre = (self._first.double() + mean).cpu().numpy()
        return _covariance(centre, modes.numpy(), along, total / (n - 1), principal=True)


def principal_modes(rows: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k leading modes (P, k) of recorded rows (n, P), and the rows along them.

    Computed exactly where there are few rows or columns. For others a subspace that is a little
    larger is found from random signed sums of the columns, whose Gram matrix has nearly the same
    leading eigenvectors, and improved by one product with the rows; variances are exact along the
    modes that are returned (Halko, Martinsson and Tropp 2011).
    """
    n, width = rows.shape
    if width <= min(n, _EXACT):
        rows = rows.double().cpu()
        modes = torch.linalg.eigh(rows.T @ rows)[1].flip(1)[:, :k].contiguous()
        return modes, rows @ modes
    if n <= _EXACT:
        rows = rows.double().cpu()
        wanted = torch.linalg.eigh(rows @ rows.T)[1][:, -k:]
    else:
        wanted = _guess(rows, k + _MORE)
    basis = torch.linalg.qr(rows.T @ wanted.to(rows))[0]
    along = (rows @ basis).double().cpu()
    turn = torch.linalg.eigh(along.T @ along)[1].flip(1)[:, :k].contiguous()
    return basis.double().cpu() @ turn, along @ turn


def _guess(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return approximate leading left singular vectors (n, count) of recorded rows."""
    n, width = rows.shape
    if width > _SUMS:
        draws = torch.randint(2, (width,), generator=torch_generator(0, "signs"), device="cpu")
        signs = (2 * draws - 1).to(rows)
        spare = -width % _SUMS
        sums = [
            torch.nn.functional.pad(block * signs, (0, spare)).unflatten(1, (-1, _SUMS)).sum(dim=1)
            for block in rows.split(_BLOCK)
        ]
        rows = torch.cat(sums)
    if rows.shape[1] < n:
        vectors = torch.linalg.eigh((rows.T @ rows).double())[1]
        return rows.double() @ vectors[:, -count:]
    return torch.linalg.eigh((rows @ rows.T).double())[1][:, -count:]


class GivenDirections(_Rows):
    """Weights over time along given directions, and their mean."""

    def __init__(self, basis: np.ndarray) -> None:
        super().__init__(_BLOCK)
        self._basis = torch.from_numpy(basis)
        self._along = torch.zeros(0, basis.shape[1], dtype=torch.float64, device="cpu")
        self._sum = torch.zeros(len(basis), dtype=torch.float64, device="cpu")
        self._square = torch.zeros((), dtype=torch.float64, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        """Return the record of weights along given directions, to resume from."""
        own = {"basis": self._basis, "sum": self._sum, "square": self._square, "along": self._along}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a record along given directions from what `state_dict` returned."""
        super().load_state_dict(state)
        self._basis, self._along = state["basis"], state["along"]
        self._sum, self._square = state["sum"], state["square"]

    def _make_room(self) -> None:
        rows = self._rows[: self._used].double().cpu()
        self._along = torch.cat([self._along, rows @ self._basis])
        self._sum += rows.sum(dim=0)
        self._square += rows.square().sum()
        self._used = 0

    def covariance(self, k: int) -> WeightCovariance:
        """Return the recorded weights' variances along the given directions."""
        self._make_room()
        along = self._along.numpy()
        n, mean = len(along), self._sum / len(along)
        total = float(self._square - n * (mean @ mean)) / (n - 1)
        centre = (self._first.double().cpu() + mean).numpy()
        along = along - along.mean(axis=0)
        return _covariance(centre, self._basis.numpy(), along, total, principal=False)


def _covariance(
    mean: np.ndarray, modes: np.ndarray, along: np.ndarray, total: float, *, principal: bool
) -> WeightCovariance:
    times = autocorrelation_time(along)
    return WeightCovariance(
        mean,
        np.sum(along**2, axis=0) / (len(along) - 1),
        modes,
        along,
        total,
        len(along),
        float((len(along) / times).mean()),
        stationarity(along),
        times=times,
        principal=principal,
    )
