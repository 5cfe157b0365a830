"""Models, the reference loop, sampling schemes, ensembles, and the Recorder."""

from hyperribbon.training.initialization import initialize
from hyperribbon.training.loop import DivergenceError, TrainingResult, evaluate, train
from hyperribbon.training.models import (
    ARCHITECTURES,
    all_convolutional,
    conv_mixer,
    linear,
    make_architecture,
    mlp,
    vision_transformer,
    wide_resnet,
)
from hyperribbon.training.sampling import SAMPLING_SCHEMES, epoch_batches

__all__ = [
    "ARCHITECTURES",
    "DivergenceError",
    "SAMPLING_SCHEMES",
    "TrainingResult",
    "all_convolutional",
    "conv_mixer",
    "epoch_batches",
    "evaluate",
    "initialize",
    "linear",
    "make_architecture",
    "mlp",
    "train",
    "vision_transformer",
    "wide_resnet",
]
