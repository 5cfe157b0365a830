from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

class OdeResult:
    y: NDArray[np.float64]
    success: bool
    message: str

def solve_ivp(
    fun: Callable[[float, NDArray[np.float64]], NDArray[np.float64]],
    t_span: tuple[float, float],
    y0: NDArray[np.float64],
    *,
    method: str = "RK45",
    rtol: float = 1e-3,
    atol: float = 1e-6,
) -> OdeResult: ...
def __getattr__(name: str) -> Any: ...
