"""Models, the reference loop, sampling schemes and ensembles."""

from hyperribbon.papers.training.ensembles import Ensemble, Member, train_ensemble
from hyperribbon.papers.training.initialization import initialize
from hyperribbon.papers.training.loop import DivergenceError, TrainingResult, train
from hyperribbon.papers.training.models import (
    ARCHITECTURES,
    all_convolutional,
    conv_mixer,
    linear,
    make_architecture,
    mlp,
    vision_transformer,
    wide_resnet,
)
from hyperribbon.papers.training.sampling import SAMPLING_SCHEMES, epoch_batches

__all__ = [
    "ARCHITECTURES",
    "DivergenceError",
    "Ensemble",
    "Member",
    "SAMPLING_SCHEMES",
    "TrainingResult",
    "all_convolutional",
    "conv_mixer",
    "epoch_batches",
    "initialize",
    "linear",
    "make_architecture",
    "mlp",
    "train",
    "train_ensemble",
    "vision_transformer",
    "wide_resnet",
]
