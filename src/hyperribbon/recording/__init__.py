"""Record training runs: the Recorder, its measurements, storage, and loggers.

Names load on first use, so reading recorded runs does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperribbon.core.first_use import on_first_use

if TYPE_CHECKING:
    from hyperribbon.recording.cadence import Overhead
    from hyperribbon.recording.entries import RecordingWarning
    from hyperribbon.recording.evaluation import evaluate, predict
    from hyperribbon.recording.measurements import Measurement
    from hyperribbon.recording.projection import Projection
    from hyperribbon.recording.recorder import Recorder
    from hyperribbon.recording.trajectory import Trajectory
    from hyperribbon.recording.writing.forecast import Forecast

__all__ = [
    "Forecast",
    "Measurement",
    "Overhead",
    "Projection",
    "Recorder",
    "RecordingWarning",
    "Trajectory",
    "evaluate",
    "predict",
]

__getattr__, __dir__ = on_first_use(
    __name__,
    {
        "cadence": ("Overhead",),
        "entries": ("RecordingWarning",),
        "evaluation": ("evaluate", "predict"),
        "measurements": ("Measurement",),
        "projection": ("Projection",),
        "recorder": ("Recorder",),
        "trajectory": ("Trajectory",),
        "writing.forecast": ("Forecast",),
    },
)
