"""Record training runs: the Recorder, its measurements, storage, and loggers.

Names load on first use, so reading recorded runs does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperribbon.core.lazy import lazy_attributes

if TYPE_CHECKING:
    from hyperribbon.recording.cadence import Overhead
    from hyperribbon.recording.disk_space import Forecast
    from hyperribbon.recording.evaluation import evaluate, predict
    from hyperribbon.recording.measurements import Measurement
    from hyperribbon.recording.projection import Projection
    from hyperribbon.recording.recorder import Recorder, RecordingWarning
    from hyperribbon.recording.trajectory import Trajectory

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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_attributes(__name__)
