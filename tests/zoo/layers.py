"""Networks with layers other than plain ones: norms, gates, embeddings, graphs, Fourier."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from zoo.registry import Network, labels, network

_TWICE = "torch cannot differentiate it twice"


def _classify(*layers: nn.Module, shape: tuple[int, ...] = (5, 4)) -> Network:
    model = nn.Sequential(*layers)
    return Network(model, nn.CrossEntropyLoss(), torch.randn(*shape), labels(shape[0]))


@network()
def prelu() -> Network:
    return _classify(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 3))


@network()
def instance_norm() -> Network:
    return _classify(
        nn.Conv1d(2, 3, 2),
        nn.InstanceNorm1d(3, affine=True, track_running_stats=False),
        nn.Tanh(),
        nn.Conv1d(3, 3, 2),
        nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(12, 3),
        shape=(4, 2, 6),
    )


@network()
def local_response_norm() -> Network:
    return _classify(
        nn.Conv2d(1, 4, 2),
        nn.LocalResponseNorm(2, alpha=0.5),
        nn.Flatten(),
        nn.Linear(16, 3),
        shape=(4, 1, 3, 3),
    )


@network()
def rms_norm_and_glu() -> Network:
    return _classify(nn.Linear(4, 8), nn.GLU(), nn.RMSNorm(4), nn.Linear(4, 3))


@network()
def layer_norm_without_bias() -> Network:
    return _classify(
        nn.Linear(4, 5),
        nn.LayerNorm(5, bias=False),
        nn.Softmax(1),
        nn.Linear(5, 3),
        nn.LogSigmoid(),
    )


@network()
def batch_norm_of_vectors() -> Network:
    return _classify(
        nn.Linear(4, 5),
        nn.BatchNorm1d(5),
        nn.ReLU(),
        nn.BatchNorm1d(5, affine=False),
        nn.Linear(5, 3),
    )


@network(training=True, mixes=True)
def batch_norm_of_vectors_train() -> Network:
    return _classify(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


@network(mixes=True)
def batch_norm_without_statistics() -> Network:
    return _classify(
        nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Tanh(), nn.Linear(5, 3)
    )


@network(may_be_refused="its forward hook makes a tensor of the module anew", truth="differences")
def weight_norm_old() -> Network:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = nn.utils.weight_norm(nn.Linear(4, 5))
        second = nn.utils.weight_norm(nn.Linear(5, 3), dim=None)
    return _classify(first, nn.ReLU(), second)


@network(may_be_refused=_TWICE, truth="differences")
def weight_norm() -> Network:
    first = parametrizations.weight_norm(nn.Linear(4, 5))
    second = parametrizations.weight_norm(nn.Linear(5, 3), dim=1)
    return _classify(first, nn.ReLU(), second)


@network(may_be_refused=_TWICE, truth="differences")
def weight_norm_of_convolution() -> Network:
    first = parametrizations.weight_norm(nn.Conv1d(2, 3, 2))
    return _classify(first, nn.Tanh(), nn.Flatten(), nn.Linear(9, 3), shape=(4, 2, 4))


@network()
def spectral_norm() -> Network:
    first = parametrizations.spectral_norm(nn.Linear(4, 5))
    return _classify(first, nn.ReLU(), nn.Linear(5, 3))


@network(may_be_refused="its forward hook makes a tensor of the module anew")
def spectral_norm_old() -> Network:
    first = nn.utils.spectral_norm(nn.Linear(4, 5))
    return _classify(first, nn.ReLU(), nn.Linear(5, 3))


@network()
def orthogonal_weights() -> Network:
    first = parametrizations.orthogonal(nn.Linear(4, 3))
    return _classify(first, nn.ReLU(), nn.Linear(3, 3))


class SoftExperts(nn.Module):
    """Experts averaged by a softmax gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.gate(x), 1)
        return torch.einsum("ne,neo->no", weights, torch.stack([e(x) for e in self.experts], 1))


@network()
def experts_soft() -> Network:
    return _classify(SoftExperts(), nn.Tanh(), nn.Linear(3, 3))


class TopExperts(nn.Module):
    """Every sample goes to the two experts of the largest gates; others see only their samples."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, chosen = self.gate(x).topk(2, dim=1)
        weights, out = torch.softmax(values, 1), x.new_zeros(len(x), 3)
        for index, expert in enumerate(self.experts):
            sample, place = (chosen == index).nonzero(as_tuple=True)
            own = weights[sample, place, None] * expert(x[sample])
            out = out.index_add(0, sample, own)
        return out


@network()
def experts_top_two() -> Network:
    return _classify(TopExperts(), shape=(6, 4))


class GraphNetwork(nn.Module):
    """Two rounds of messages along the edges of one graph whose nodes are the samples."""

    def __init__(self, edges: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.own, self.sent = nn.Linear(3, 4), nn.Linear(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start, end = self.edges
        messages = torch.zeros(len(x), 4, dtype=x.dtype).index_add(0, end, self.sent(x)[start])
        hidden = torch.relu(self.own(x) + messages)
        return self.head(hidden + torch.zeros_like(hidden).index_add(0, end, hidden[start]))


@network(mixes=True)
def graph_network() -> Network:
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0, 2], [1, 2, 3, 4, 5, 0, 3, 5]])
    return Network(GraphNetwork(edges), nn.CrossEntropyLoss(), torch.randn(6, 3), labels(6))


class DenseGraphs(nn.Module):
    """Graphs as samples: features and adjacency matrices, summed over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        hidden = F.elu(torch.bmm(adjacency, self.first(x)))
        return self.second(torch.bmm(adjacency, hidden)).sum(1)


@network()
def dense_graphs() -> Network:
    inputs = (torch.randn(4, 3, 3), (torch.rand(4, 3, 3) > 0.5).double())
    return Network(DenseGraphs(), nn.CrossEntropyLoss(), inputs, labels(4), lambda m, x: m(*x))


class Bag(nn.Module):
    """Words summed with weights."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = nn.EmbeddingBag(7, 4, mode=mode), nn.Linear(4, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.bag(words)))


@network(may_be_refused=_TWICE, truth="differences")
def embedding_bag_mean() -> Network:
    return Network(Bag("mean"), nn.CrossEntropyLoss(), labels(4, 3, classes=7), labels(4))


@network(may_be_refused=_TWICE, truth="differences")
def embedding_bag_sum() -> Network:
    return Network(Bag("sum"), nn.CrossEntropyLoss(), labels(4, 3, classes=7), labels(4))


def _embed(**options: object) -> Network:
    model = nn.Sequential(nn.Embedding(6, 3, **options), nn.Flatten(), nn.Linear(9, 3))
    words = torch.tensor([[0, 5, 1], [5, 5, 0], [2, 3, 0], [4, 1, 5]])
    return Network(model, nn.CrossEntropyLoss(), words, labels(4))


@network()
def embedding_with_padding() -> Network:
    return _embed(padding_idx=0)


@network()
def embedding_with_negative_padding() -> Network:
    return _embed(padding_idx=-1)


@network(may_be_refused="its forward writes into the weights", truth="double backward")
def embedding_with_max_norm() -> Network:
    return _embed(max_norm=0.7)


@network(may_be_refused="its gradients depend on the batch")
def embedding_scaled_by_frequency() -> Network:
    return _embed(scale_grad_by_freq=True)


@network(may_be_refused="its gradients are sparse")
def embedding_with_sparse_gradient() -> Network:
    return _embed(sparse=True)


class Pairs(nn.Module):
    """A bilinear form of two linear maps."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.form = nn.Linear(4, 3), nn.Linear(4, 2), nn.Bilinear(3, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.form(torch.tanh(self.left(x)), self.right(x))


@network()
def bilinear() -> Network:
    return _classify(Pairs())


class Fourier(nn.Module):
    """A filter learned in frequency space."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.imaginary = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = torch.fft.rfft(x) * torch.complex(self.real, self.imaginary)
        return self.head(torch.tanh(torch.fft.irfft(waves, n=6)))


@network()
def fourier_filter() -> Network:
    return Network(Fourier(), nn.CrossEntropyLoss(), torch.randn(5, 6), labels(5))


class Lists(nn.Module):
    """Parameters in lists and dicts, used by functions."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(4, 5), torch.randn(5, 3)])
        self.others = nn.ParameterDict({"shift": torch.randn(5), "scale": torch.rand(3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ self.weights[0] + self.others["shift"])
        return torch.einsum("ni,io->no", hidden, self.weights[1]) * self.others["scale"]


@network()
def parameters_in_lists_and_dicts() -> Network:
    return _classify(Lists())
