from typing import Any

import numpy as np

class _Digits:
    images: np.ndarray
    target: np.ndarray

def load_digits() -> _Digits: ...
def fetch_openml(
    name: str, *, return_X_y: bool, as_frame: bool, parser: str
) -> tuple[np.ndarray, np.ndarray]: ...
def __getattr__(name: str) -> Any: ...
