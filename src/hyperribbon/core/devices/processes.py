"""Process groups: collective operations, and errors that reach every rank."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from hyperribbon.core.checks import ArgumentError, ProcessGroupError
from hyperribbon.core.devices.gpus import take_own_gpu

_TIMEOUT = 600  # seconds of silence of a process before the others give up
_SAME = 1e-9  # relative difference of checksums that rounding on different machines explains


class PeerError(RuntimeError):
    """Another process failed; all ranks know and may continue together."""


class Processes:
    """A process group as operators use it; a single process is the group of one.

    Every method but the properties is collective: every rank calls it, in the same order.

    Args:
        group: A torch.distributed process group, or None for this process alone.

    Attributes:
        rank: Number of this process within the group.
        size: Number of processes.
        task: What is being done, for messages.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.task = "a computation"
        if group is None:
            self.rank, self.size, self._device, self._scatters = 0, 1, None, False
            return
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        backend = dist.get_backend(group)
        homes = {"gloo": "cpu", "nccl": "cuda"}
        self._device = torch.device(homes[backend]) if backend in homes else None
        self._scatters = backend == "nccl"

    @classmethod
    def of(cls, process_group: Any) -> Processes:
        """Return the processes that an argument `process_group=` names.

        Args:
            process_group: None for this process alone, a torch.distributed group, or True or
                "world" for the default group.

        Raises:
            ArgumentError: It is not a process group, this process is not in it, or none exists yet.
        """
        if isinstance(process_group, Processes):
            return process_group
        if process_group is None or process_group is False:
            return ALONE
        if not dist.is_available() or not dist.is_initialized():
            reason = "torch.distributed is not initialised"
            remedy = "Start with torchrun and call torch.distributed.init_process_group() first."
            raise ArgumentError("process_group", process_group, reason, remedy)
        if process_group is True or process_group == "world":
            return cls(dist.group.WORLD)
        if not isinstance(process_group, dist.ProcessGroup):
            reason = "expected a process group that this process belongs to"
            remedy = "Give True for all processes, or a group of torch.distributed.new_group."
            raise ArgumentError("process_group", process_group, reason, remedy)
        return cls(process_group)

    @property
    def is_parallel(self) -> bool:
        """Whether the group has more than one of the processes."""
        return self.size > 1

    @contextmanager
    def together(self, task: str, same: Any = None) -> Generator[None]:
        """Run each rank's own part, then check that all processes succeeded.

        When one rank raises, every rank does: none is left waiting for it. The part itself must not
        be collective.

        A failure of another rank other than an ArgumentError raises a PeerError here.

        Args:
            task: What is done, for messages.
            same: A tensor that must be the same on every rank.

        Raises:
            ArgumentError: The error of another rank, or `same` differs.
            ProcessGroupError: The processes lost contact.
        """
        self.task = task
        if self.size == 1:
            yield
            return
        failure: Exception | None = None
        try:
            yield
        except ProcessGroupError:
            raise
        except Exception as error:
            failure = error
        checksum, scale = _checksum(same) if failure is None else (0.0, 0.0)
        status = self._numbers([float(failure is not None), checksum, -checksum])
        self._call(torch.distributed.all_reduce, status, op=dist.ReduceOp.MAX)
        failed, high, low = status.tolist()
        if failed:
            self._raise_everywhere(failure)
        if high + low > _SAME * scale:
            reason = f"it is not the same on all {self.size} ranks"
            remedy = "Draw it with the same seed on every rank, or broadcast it."
            raise ArgumentError("vector", same, reason, remedy)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sum of all processes' tensors, on every rank; may overwrite the argument."""
        if self.size == 1:
            return tensor
        total = self._home(tensor)
        self._call(torch.distributed.all_reduce, total)
        return total.to(tensor.device)

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' (processes') numbers, on every rank."""
        if self.size == 1:
            return value
        number = self._numbers([value])
        self._call(torch.distributed.all_reduce, number, op=dist.ReduceOp.MAX)
        return number.item()

    def gather(self, thing: Any) -> list[Any]:
        """Gather what all ranks (processes) give, by rank; it is pickled."""
        if self.size == 1:
            return [thing]
        found: list[Any] = [None] * self.size
        self._call(torch.distributed.all_gather_object, found, thing)
        return found

    def choose(self, thing: Any) -> Any:
        """Return what the first of the processes gives, on every rank; it is pickled."""
        if self.size == 1:
            return thing
        holder = [thing]
        self._call(dist.broadcast_object_list, holder, src=self._global(0))
        return holder[0]

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Return one process's tensor on every rank; the others give one of its shape to fill."""
        if self.size == 1:
            return tensor
        sent = self._home(tensor)
        self._call(dist.broadcast, sent, src=self._global(source))
        return sent.to(tensor.device)

    def agree(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return rank 0's tensors, which all processes have up to rounding and signs."""
        if self.size == 1:
            return tensors
        flat = self.broadcast(torch.cat([t.reshape(-1) for t in tensors]))
        pieces = flat.split([t.numel() for t in tensors])
        return tuple(piece.view_as(t) for piece, t in zip(pieces, tensors, strict=True))

    def from_first(
        self, compute: Callable[[], tuple[torch.Tensor, ...]], task: str
    ) -> tuple[torch.Tensor, ...]:
        """Return what the first of the processes computes, on every rank."""
        if self.size == 1:
            return compute()
        with self.together(task):
            found = compute() if self.rank == 0 else ()
        forms = self.choose([(t.shape, t.dtype, t.device) for t in found])
        empty = (torch.empty(shape, dtype=d, device=device) for shape, d, device in forms)
        sent = found if self.rank == 0 else tuple(empty)
        return tuple(self.broadcast(tensor) for tensor in sent)

    def rows(self, size: int) -> slice:
        """Return the rows of long vectors that this rank (process) keeps, consecutive parts."""
        step = -(-size // self.size)
        return slice(min(self.rank * step, size), min((self.rank + 1) * step, size))

    def gather_rows(self, part: torch.Tensor, size: int) -> torch.Tensor:
        """Gather whole vectors (size, k) from the rows (·, k) that each rank (process) keeps."""
        if self.size == 1:
            return part
        step = -(-size // self.size)
        own = part.new_zeros(step, *part.shape[1:])
        own[: len(part)] = part
        whole = self._home(part.new_empty(step * self.size, *part.shape[1:]))
        self._call(torch.distributed.all_gather, list(whole.split(step)), self._home(own))
        return whole[:size].to(part.device)

    def sum_rows(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows of the sum of all processes' vectors (size, k)."""
        rows = self.rows(len(whole))
        if not self._scatters or self.size == 1:
            return self.sum(whole)[rows].clone()
        step = -(-len(whole) // self.size)
        padded = whole.new_zeros(step * self.size, *whole.shape[1:])
        padded[: len(whole)] = whole
        part = torch.empty_like(padded[:step])
        self._call(torch.distributed.reduce_scatter, part, list(padded.split(step)))
        return part[: rows.stop - rows.start]

    def _home(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on a device from which the processes' backend can send."""
        tensor = tensor.contiguous()
        return tensor if self._device is None else tensor.to(self._device)

    def _numbers(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64, device=self._device)

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank)

    def _call(self, collective: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Run a collective operation of the processes; explain its failure."""
        try:
            collective(*arguments, group=self._group, **options)
        except RuntimeError as error:
            raise ProcessGroupError(
                f"rank {self.rank} of {self.size} lost contact with the other processes during "
                f"{self.task}: one of them has ended, or did not respond within the group's "
                f"timeout ({_first_line(error)}). Files already written are intact; start "
                "all processes again."
            ) from error

    def _raise_everywhere(self, failure: Exception | None) -> NoReturn:
        told = isinstance(failure, ArgumentError | None)
        reports = self.gather(failure if told else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        rank, report = next((r, text) for r, text in enumerate(reports) if text is not None)
        if isinstance(report, ArgumentError):
            raise ArgumentError(
                report.argument, report.value, f"{report.reason} (on rank {rank})", report.remedy
            )
        raise PeerError(f"rank {rank} of {self.size} failed during {self.task}: {report}")


ALONE = Processes()
"""This process by itself."""


@contextmanager
def torchrun_processes() -> Generator[Processes]:
    """Join the processes that torchrun started; this process alone when it did not.

    Uses nccl where there are GPUs, one per process, and gloo otherwise.

    Yields:
        The processes; `ALONE` without torchrun.
    """
    if not dist.is_available() or not dist.is_torchelastic_launched():
        yield ALONE
        return
    backend = "nccl" if take_own_gpu() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=_TIMEOUT))
    try:
        yield Processes.of(True)
    finally:
        dist.destroy_process_group()


def _checksum(tensor: Any) -> tuple[float, float]:
    """Return the checksum by which processes compare tensors: sums of entries and magnitudes."""
    if not isinstance(tensor, torch.Tensor):
        return 0.0, 0.0
    total = float(tensor.sum(dtype=torch.float64))
    scale = float(tensor.abs().sum(dtype=torch.float64))
    return (total, scale) if abs(scale) < float("inf") else (0.0, 0.0)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
