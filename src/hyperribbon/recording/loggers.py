"""Log recorded scalars to TensorBoard, MLflow, Weights & Biases, or a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from hyperribbon.core.checks import ArgumentError, MissingExtraError, check_choice

LogTarget = str | Callable[[int, dict[str, float]], None]


class ScalarLogger:
    """A logger: a destination for scalars by step.

    Args:
        log: Called as `log(step, scalars)`.
        close: Called once at the end.
    """

    def __init__(
        self, log: Callable[[int, dict[str, float]], Any], close: Callable[[], Any] = lambda: None
    ) -> None:
        self._log, self.close = log, close

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the scalar metrics to the logger; arrays stay in the records."""
        scalars = {}
        for name, value in metrics.items():
            size = getattr(value, "size", 1)
            if callable(size):
                size = value.numel()
            if size == 1 and not math.isnan(float(value)):
                scalars[name] = float(value)
        if scalars:
            self._log(step, scalars)


def make_logger(target: LogTarget, folder: Path, first_step: int) -> ScalarLogger:
    """Return a logger for recorded metrics: TensorBoard, MLflow, Weights & Biases, or a function.

    Raises a MissingExtraError when TensorBoard is requested but not installed.

    Args:
        target: "tensorboard" (files in folder/tensorboard), "mlflow" (the active run), "wandb"
            (the active run), or a function of (step, scalars).
        folder: The recorder's folder.
        first_step: Step the run resumes from; TensorBoard discards later entries.

    Raises:
        ArgumentError: The target is unknown, or its package is not installed.
    """
    if callable(target):
        return ScalarLogger(target)
    check_choice("log", target, ("tensorboard", "mlflow", "wandb"))
    if target == "tensorboard":
        return _tensorboard(folder, first_step)
    try:
        package = import_module(target)
    except ImportError:
        reason = "the package is not installed"
        raise ArgumentError("log", target, reason, f"Install it: pip install {target}.") from None
    if target == "mlflow":
        return ScalarLogger(lambda step, scalars: package.log_metrics(scalars, step=step))
    if package.run is None:
        raise ArgumentError("log", target, "no run is active", "Call wandb.init(...) first.")
    return ScalarLogger(lambda step, scalars: package.log(scalars, step=step))


def _tensorboard(folder: Path, first_step: int) -> ScalarLogger:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError:
        raise MissingExtraError("tensorboard", "tensorboard", "logging to TensorBoard") from None
    purge = first_step + 1 if first_step else None
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def log(step: int, scalars: dict[str, float]) -> None:
        for name, value in scalars.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return ScalarLogger(log, writer.close)
