from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

def svd(
    a: NDArray[np.float64], full_matrices: bool = True
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]: ...
def eigh(
    a: NDArray[np.float64],
    *,
    driver: str | None = None,
    check_finite: bool = True,
    overwrite_a: bool = False,
    subset_by_index: tuple[int, int] | list[int] | None = None,
    eigvals_only: Literal[False] = False,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]: ...
def eigvalsh(a: NDArray[np.float64]) -> NDArray[np.float64]: ...
def __getattr__(name: str) -> Any: ...
