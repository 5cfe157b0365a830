"""Data sets: bundled, from files, and synthetic."""

from hyperribbon.core.data.loading import DATASETS, LabelledData, load_data
from hyperribbon.core.data.synthetic import sloppy_inputs, teacher_student, wishart_inputs
from hyperribbon.core.data.whitening import Whitened, whiten

__all__ = [
    "DATASETS",
    "LabelledData",
    "Whitened",
    "load_data",
    "sloppy_inputs",
    "teacher_student",
    "whiten",
    "wishart_inputs",
]
