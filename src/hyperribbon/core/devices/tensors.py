"""Values of any kind as tensors or arrays, whatever `torch.set_default_device` says.

A caller that has a tensor has imported torch; others need not wait for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hyperribbon.core.checks import check_readable, is_tensor

if TYPE_CHECKING:
    import torch


def tensor_of(values: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return values as a tensor: a tensor stays where it is, anything else goes to the host.

    `torch.as_tensor` without a device would move both to the default device.

    >>> import torch
    >>> with torch.device("meta"):
    ...     tensor_of([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """
    import torch

    if isinstance(values, torch.Tensor):
        return values if dtype is None else values.to(dtype)
    if isinstance(values, np.ndarray) and not values.flags.writeable:
        values = values.copy()  # torch warns of views that cannot be written to
    return torch.as_tensor(values, dtype=dtype, device="cpu")


def host_array(values: Any) -> np.ndarray:
    """Return a tensor of any device, or anything else, as an array on the host.

    bfloat16, which numpy lacks, becomes float32.

    >>> import torch
    >>> host_array(torch.ones(2, dtype=torch.bfloat16)).dtype
    dtype('float32')
    >>> host_array([1, 2])
    array([1, 2])
    """
    check_readable("values", values)
    if not is_tensor(values):
        return np.asarray(values)
    import torch

    host = values.detach().cpu()
    return (host.float() if host.dtype == torch.bfloat16 else host).numpy()
