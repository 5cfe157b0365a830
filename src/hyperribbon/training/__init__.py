"""Models, the reference loop, sampling schemes, ensembles, and the Recorder."""

from hyperribbon.training.cadence import Overhead
from hyperribbon.training.chains import (
    ChainStatistics,
    RunningMoments,
    simulate_one_layer,
    trace_one_layer,
)
from hyperribbon.training.chains_batches import chain_batches
from hyperribbon.training.chains_two_layer import (
    TwoLayerEnsemble,
    descend_two_layer,
    simulate_two_layer,
)
from hyperribbon.training.ensembles import Ensemble, Member, train_ensemble
from hyperribbon.training.evaluation import evaluate, predict
from hyperribbon.training.initialization import initialize
from hyperribbon.training.linear_networks import (
    LINEAR_STARTS,
    HalvingSchedule,
    LinearRun,
    draw_linear_weights,
    train_linear,
)
from hyperribbon.training.loop import DivergenceError, TrainingResult, train
from hyperribbon.training.measurements import Measurement
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
from hyperribbon.training.recorder import Recorder, RecordingWarning
from hyperribbon.training.recording.forecast import Forecast
from hyperribbon.training.recording.projection import Projection
from hyperribbon.training.sampling import SAMPLING_SCHEMES, epoch_batches
from hyperribbon.training.scattering import Scattering, scattering_features

__all__ = [
    "ARCHITECTURES",
    "ChainStatistics",
    "DivergenceError",
    "Ensemble",
    "Forecast",
    "HalvingSchedule",
    "LINEAR_STARTS",
    "LinearRun",
    "Measurement",
    "Member",
    "Overhead",
    "Projection",
    "Recorder",
    "RecordingWarning",
    "RunningMoments",
    "SAMPLING_SCHEMES",
    "Scattering",
    "TrainingResult",
    "TwoLayerEnsemble",
    "all_convolutional",
    "chain_batches",
    "conv_mixer",
    "descend_two_layer",
    "draw_linear_weights",
    "epoch_batches",
    "evaluate",
    "initialize",
    "linear",
    "make_architecture",
    "mlp",
    "predict",
    "scattering_features",
    "simulate_one_layer",
    "simulate_two_layer",
    "trace_one_layer",
    "train",
    "train_ensemble",
    "train_linear",
    "vision_transformer",
    "wide_resnet",
]
