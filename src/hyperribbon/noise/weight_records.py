"""Weights of every step of a training, kept in memory, and their principal modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hyperribbon.core.generators import torch_generator
from hyperribbon.noise.stationarity import autocorrelation_time, stationarity
from hyperribbon.noise.weights import WeightCovariance

_BLOCK = 64  # rows that are projected, or summed, at once
_BUFFERED = 2**22  # most weights of steps that wait for being recorded
_EXACT = 256  # records or weights up to which all modes are computed
_KRYLOV = 3  # blocks of the subspace in which modes are searched
_MORE = 6  # directions of a block beside the k that are wanted
_SUMS = 4096  # signed sums of weights that stand for all of them in a first guess


class StepBuffer:
    """Weights of a few successive steps, until they are handed to the layers' records."""

    def __init__(self, layers: dict[str, list[torch.Tensor]], steps: int) -> None:
        self._weights = [weight for own in layers.values() for weight in own]
        width = sum(weight.numel() for weight in self._weights)
        rows = max(min(_BLOCK, _BUFFERED // width, steps), 1)
        first = {n: torch.cat([w.detach().reshape(-1) for w in own]) for n, own in layers.items()}
        self._blocks = {n: row.new_empty(rows, len(row)) for n, row in first.items()}
        self._places: list[list[torch.Tensor]] = [[] for _ in range(rows)]
        for name, own in layers.items():
            for row, places in zip(self._blocks[name], self._places, strict=True):
                pieces = row.split([weight.numel() for weight in own])
                places += [p.view(w.shape) for p, w in zip(pieces, own, strict=True)]
        self._used = 0

    def add(self) -> bool:
        """Add the present weights to the buffer; return whether it is full."""
        for place, weight in zip(self._places[self._used], self._weights, strict=True):
            place.copy_(weight.detach())
        self._used += 1
        return self._used == len(self._places)

    def empty(self, records: dict[str, Any]) -> None:
        """Hand the buffered weights of every layer to its record."""
        for name, record in records.items():
            record.add(self._blocks[name][: self._used])
        self._used = 0


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

    def add(self, rows: torch.Tensor) -> None:
        """Add the weights (m, P) of m steps to the record."""
        if not len(self._first):
            self._first = rows[0].clone()
            self._rows = rows.new_empty(self._capacity, rows.shape[1])
        while len(rows):
            if self._used == self._capacity:
                self._make_room()
            new = rows[: self._capacity - self._used]
            end = self._used + len(new)
            torch.sub(new, self._first, out=self._rows[self._used : end])
            self._used, rows = end, rows[len(new) :]

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
        """Go on with a weight record in all directions from what `state_dict` returned."""
        super().load_state_dict(state)
        self._coefficients, self._lost = state["coefficients"], state["lost"]

    def _all_coefficients(self) -> torch.Tensor:
        """Return the recorded weights' coefficients (n, rows) in the rows."""
        new = self._used - self._coefficients.shape[1]
        return torch.block_diag(
            self._coefficients, torch.eye(new, dtype=torch.float64, device="cpu")
        )

    def _make_room(self) -> None:
        """Keep the leading half of a weight record's directions, the mean one among them."""
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
    """Return the k leading modes (P, k) of weight records (n, P), and the rows along them.

    Computed exactly where there are few rows or columns. For others a subspace that is a little
    larger is found by block Krylov iteration (Musco and Musco 2015), for a large number of columns
    on random signed sums of them, whose Gram matrix has nearly the same leading eigenvectors
    (Halko, Martinsson and Tropp 2011), and improved by one product with the rows; variances are
    exact along the modes that are returned.
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
        wanted = _left_vectors(_sums(rows), min(k + _MORE, n // _KRYLOV))
    basis = torch.linalg.qr(rows.T @ wanted.to(rows))[0]
    along = (rows @ basis).double().cpu()
    turn = torch.linalg.eigh(along.T @ along)[1].flip(1)[:, :k].contiguous()
    return basis.double().cpu() @ turn, along @ turn


def _left_vectors(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Return approximate leading left singular vectors (n, count) of weight records."""
    found, products = rows.new_empty(len(rows), 0), [_signs((rows.shape[1], count)).to(rows)]
    for _ in range(_KRYLOV):
        block = torch.linalg.qr(rows @ products[-1])[0]
        for _ in range(2 if len(products) > 1 else 0):  # once leaves rounding errors
            block = torch.linalg.qr(block - found @ (found.T @ block))[0]
        found = torch.cat([found, block], dim=1)
        products.append(rows.T @ block)
    whole = torch.cat(products[1:], dim=1)
    vectors = torch.linalg.eigh((whole.T @ whole).double())[1]
    return found @ vectors[:, -count:].to(found)


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """Return random signed sums of the columns of weight records, or these if there are few."""
    width = rows.shape[1]
    if width <= 2 * _SUMS:
        return rows
    signs = _signs((width,)).to(rows)
    spare = -width % _SUMS
    return torch.cat(
        [
            torch.nn.functional.pad(block * signs, (0, spare)).unflatten(1, (-1, _SUMS)).sum(dim=1)
            for block in rows.split(_BLOCK)
        ]
    )


def _signs(shape: tuple[int, ...]) -> torch.Tensor:
    """Return random signs for sums of recorded weights."""
    return 2 * torch.randint(2, shape, generator=torch_generator(0, "signs"), device="cpu") - 1


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
        """Go on with a weight record along given directions from what `state_dict` returned."""
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
        stationarity(along, times=times),
        times=times,
        principal=principal,
    )
