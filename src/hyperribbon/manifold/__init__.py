"""Distances between probabilistic models and low-dimensional embeddings."""

from hyperribbon.manifold.distances import (
    DistanceReport,
    bhattacharyya,
    gaussian_distances,
    symmetric_kl,
)
from hyperribbon.manifold.embedding import InPCA
from hyperribbon.manifold.principal import PCA
from hyperribbon.manifold.runs import Trajectories
from hyperribbon.manifold.stored_tiles import TileRule
from hyperribbon.manifold.streaming import StreamedInPCA, Streaming, stream_inpca
from hyperribbon.manifold.stress import explained_stress
from hyperribbon.manifold.trajectories import (
    geodesic,
    ignorance,
    progress,
    resample,
    trajectory_distances,
    truth,
)

__all__ = [
    "DistanceReport",
    "InPCA",
    "PCA",
    "StreamedInPCA",
    "Streaming",
    "TileRule",
    "Trajectories",
    "bhattacharyya",
    "explained_stress",
    "gaussian_distances",
    "geodesic",
    "ignorance",
    "progress",
    "resample",
    "stream_inpca",
    "symmetric_kl",
    "trajectory_distances",
    "truth",
]
