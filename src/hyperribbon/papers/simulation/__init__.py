"""The papers' systems run: the same keys as theory and experiments."""

from hyperribbon.papers.simulation.fluctuations.batches import chain_batches
from hyperribbon.papers.simulation.fluctuations.one_layer import (
    ChainStatistics,
    RunningMoments,
    simulate_one_layer,
    trace_one_layer,
)
from hyperribbon.papers.simulation.fluctuations.two_layer import (
    TwoLayerEnsemble,
    descend_two_layer,
    simulate_two_layer,
)
from hyperribbon.papers.simulation.linear_networks.descent import (
    LINEAR_STARTS,
    HalvingSchedule,
    LinearRun,
    draw_linear_weights,
    train_linear,
)
from hyperribbon.papers.simulation.subnetworks.scattering import Scattering, scattering_features

__all__ = [
    "ChainStatistics",
    "HalvingSchedule",
    "LINEAR_STARTS",
    "LinearRun",
    "RunningMoments",
    "Scattering",
    "TwoLayerEnsemble",
    "chain_batches",
    "descend_two_layer",
    "draw_linear_weights",
    "scattering_features",
    "simulate_one_layer",
    "simulate_two_layer",
    "trace_one_layer",
    "train_linear",
]
