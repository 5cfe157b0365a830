"""Everything hyperribbon asks of CUDA itself: random states, and which GPU a process has.

No GPU has run these lines yet; without one they do nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def gpu_numbers() -> range:
    """Return the numbers of the GPUs, whose random states are to be kept."""
    return range(torch.cuda.device_count())


def gpu_random_states() -> list[torch.Tensor]:
    """Return the random states of the GPUs that are in use."""
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


def set_gpu_random_states(states: Sequence[torch.Tensor]) -> None:
    """Restore the random states of all GPUs."""
    if states:
        torch.cuda.set_rng_state_all(states)


def seed_gpus(seed: int) -> None:
    """Begin the random streams of the GPUs that are in use."""
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def take_own_gpu() -> bool:
    """Give this process the GPU of its rank on the machine; return whether there are GPUs."""
    if not torch.cuda.is_available():
        return False
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return True
