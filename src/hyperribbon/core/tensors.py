"""Values of any kind as tensors, whatever `torch.set_default_device` says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["host_array", "tensor_of"]


def tensor_of(values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return values as a tensor: a tensor stays where it is, anything else goes to the host.

    `torch.as_tensor` without a device would move both to the default device.

    >>> with torch.device("meta"):
    ...     tensor_of([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    if isinstance(values, torch.Tensor):
        return values if dtype is None else values.to(dtype)
    return torch.as_tensor(values, dtype=dtype, device="cpu")


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor of any device as an array; bfloat16, which numpy lacks, as float32.

    >>> host_array(torch.ones(2, dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    values = tensor.detach().cpu()
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
