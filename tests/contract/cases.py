"""Objectives as users train them: models, losses and data of many kinds, each with plain torch.

`reference(model, batch)` of every problem is what the training loop computes from the live module.
Those of transformers, which bring their own loss, are in `pretrained.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import contract.pretrained  # noqa: F401 - enters its cases
from contract.problems import REGISTRY, Problem, case

__all__ = ["REGISTRY"]

N = 24


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def labels(*shape: int, classes: int = 3) -> torch.Tensor:
    return torch.randint(classes, shape)


def plainly(loss: Callable[..., torch.Tensor]) -> Callable[[nn.Module, Any], torch.Tensor]:
    """Return the reference of a batch (x, y): loss(model(x), y)."""
    return lambda model, batch: loss(model(batch[0]), batch[1])


def supervised(model: nn.Module, loss: Any, x: torch.Tensor, y: Any, **options: Any) -> Problem:
    return Problem(model.double(), loss, (x, y), plainly(loss), **options)


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# Sequences: outputs (n, T, V)


class Tagger(nn.Module):
    """Scores (n, T, V) of every position; positions see their neighbours."""

    def __init__(self, vocabulary: int, scores: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 5)
        self.mix = nn.Conv1d(5, 5, 3, padding=1)
        self.head = nn.Linear(5, scores)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.embedding(x).transpose(1, 2)).tanh().transpose(1, 2))


def flat_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


class FlattenedLoss(nn.Module):
    """A loss as a module of one's own, which is no subclass of one of torch's."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.CrossEntropyLoss()(outputs.flatten(0, 1), targets.flatten())


@case("reshape")
def reshaped_tokens() -> Problem:
    x, y = labels(N, 4, classes=7), labels(N, 4, classes=6)
    return supervised(Tagger(7, 6), flat_cross_entropy, x, y)


@case("reshape")
def reshaped_tokens_as_many_as_classes() -> Problem:
    """T = V: no shape tells which axis holds the classes."""
    x, y = labels(N, 5, classes=7), labels(N, 5, classes=5)
    return supervised(Tagger(7, 5), flat_cross_entropy, x, y)


@case("reshape")
def reshaped_in_a_module() -> Problem:
    x, y = labels(N, 4, classes=7), labels(N, 4, classes=6)
    return supervised(Tagger(7, 6), FlattenedLoss(), x, y)


@case("reshape")
def transposed_tokens() -> Problem:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs.transpose(1, 2), targets)

    x, y = labels(N, 4, classes=7), labels(N, 4, classes=6)
    return supervised(Tagger(7, 6), loss, x, y)


@case("reshape", is_whole=True)
def reshaped_tokens_with_padding() -> Problem:
    x, y = labels(N, 4, classes=7), labels(N, 4, classes=6)
    y[1::3, 2:] = -100
    return supervised(Tagger(7, 6), flat_cross_entropy, x, y)


@case("reshape")
def classes_along_the_axis_that_torch_reads() -> Problem:
    """nn.CrossEntropyLoss of (n, T, T) reads classes along axis 1, and so does training with it."""
    x, y = labels(N, 5, classes=7), labels(N, 5, classes=5)
    return supervised(Tagger(7, 5), nn.CrossEntropyLoss(), x, y)


# Losses in which samples or elements weigh differently


@case("weighted")
def class_weights() -> Problem:
    weight = torch.tensor([0.2, 1.0, 4.0], dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weight=weight)
    return supervised(mlp(5, 6, 3), loss, normal(N, 5), labels(N))


@case("weighted")
def class_weights_over_uneven_batches() -> Problem:
    """The mean of all samples by their weights, as over one batch of all of them."""
    weight = torch.tensor([0.2, 1.0, 4.0], dtype=torch.float64)
    loss = nn.CrossEntropyLoss(weight=weight)
    x, y = normal(N, 5), labels(N)
    batches = list(zip(x.split([13, 4, 7]), y.split([13, 4, 7]), strict=True))
    shares = [float(weight[some].sum()) for _, some in batches]
    options = {"batches": batches, "shares": shares}
    return Problem(mlp(5, 6, 3).double(), loss, batches, plainly(loss), **options)


@case("weighted")
def samples_over_uneven_batches() -> Problem:
    """Samples are weighted, not batches."""
    loss, x, y = nn.CrossEntropyLoss(), normal(N, 5), labels(N)
    sizes = [13, 4, 7]
    batches = list(zip(x.split(sizes), y.split(sizes), strict=True))
    options = {"batches": batches, "shares": [float(size) for size in sizes]}
    return Problem(mlp(5, 6, 3).double(), loss, batches, plainly(loss), **options)


@case("weighted", is_whole=True)
def masked_mean() -> Problem:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen = targets > -9
        return ((outputs - targets) ** 2)[seen].sum() / seen.sum()

    y = normal(N, 3)
    y[5:9] = -10
    y[15:, 1] = -10
    return supervised(mlp(5, 6, 3), loss, normal(N, 5), y)


@case("loss")
def label_smoothing() -> Problem:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    return supervised(mlp(5, 6, 3), loss, normal(N, 5), labels(N))


@case("loss")
def focal() -> Problem:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = F.cross_entropy(outputs, targets, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return supervised(mlp(5, 6, 3), loss, normal(N, 5), labels(N))


@case("loss")
def huber() -> Problem:
    return supervised(mlp(5, 6, 2), nn.HuberLoss(delta=0.7), normal(N, 5), 2 * normal(N, 2))


@case("loss", precision=torch.float32)
def single_precision() -> Problem:
    loss = nn.CrossEntropyLoss()
    return Problem(mlp(5, 6, 3), loss, (normal(N, 5).float(), labels(N)), plainly(loss))


# Learned queries: a view of a parameter goes into attention


class AttentionPooling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, 1, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query.expand(len(x), -1, -1)
        return self.head(self.attention(query, x, x, need_weights=False)[0][:, 0])


class Detr(nn.Module):
    """Boxes (n, queries, 4) of learned queries, which also see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Embedding(3, 4)
        self.among = nn.MultiheadAttention(4, 1, batch_first=True)
        self.across = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.boxes = nn.Linear(4, 4)

    def forward(self, memory: torch.Tensor) -> torch.Tensor:
        queries = self.queries.weight.unsqueeze(0).repeat(len(memory), 1, 1)
        held = self.norm(queries + self.among(queries, queries, queries)[0])
        return self.boxes(held + self.across(held, memory, memory)[0]).sigmoid()


class Perceiver(nn.Module):
    """Latents, batch second, which read the inputs and then each other."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(3, 4))
        self.read = nn.MultiheadAttention(4, 2, kdim=3, vdim=3)
        self.think = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inputs = x.transpose(0, 1)
        latents = self.latents[:, None].expand(-1, len(x), -1)
        latents = latents + self.read(latents, inputs, inputs)[0]
        return self.head(self.think(latents).mean(0))


@case("queries")
def attention_pooling() -> Problem:
    return supervised(AttentionPooling(), nn.CrossEntropyLoss(), normal(N, 5, 4), labels(N))


@case("queries")
def learned_object_queries() -> Problem:
    y = torch.rand(N, 3, 4, dtype=torch.float64)
    return supervised(Detr(), nn.MSELoss(), normal(N, 5, 4), y)


@case("queries")
def perceiver_latents() -> Problem:
    return supervised(Perceiver(), nn.CrossEntropyLoss(), normal(N, 5, 3), labels(N))


# Models that differentiate while they are called


class Forces(nn.Module):
    """F = −∂E/∂x of an energy that is a network of the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = mlp(6, 7, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.energy(x.flatten(1)).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return -slope


class Residual(nn.Module):
    """u″ + u of a network u(x): the left side of a differential equation."""

    def __init__(self) -> None:
        super().__init__()
        self.u = mlp(1, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = self.u(x)
            (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return second + u


class OneInnerStep(nn.Module):
    """Predictions on queries after one step of gradient descent on the support of the task."""

    def __init__(self) -> None:
        super().__init__()
        self.network = mlp(3, 5, 1)

    def forward(
        self, support: torch.Tensor, targets: torch.Tensor, queries: torch.Tensor
    ) -> torch.Tensor:
        weights = dict(self.network.named_parameters())
        with torch.enable_grad():
            inner = F.mse_loss(torch.func.functional_call(self.network, weights, support), targets)
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        moved = {
            name: weight - 0.1 * slope
            for (name, weight), slope in zip(weights.items(), slopes, strict=True)
        }
        return torch.func.functional_call(self.network, moved, queries)


@case("forces")
def forces_of_an_energy() -> Problem:
    return supervised(Forces(), nn.MSELoss(), normal(N, 2, 3), normal(N, 2, 3))


@case("forces")
def residual_of_an_equation() -> Problem:
    x = normal(N, 1)
    return supervised(Residual(), nn.MSELoss(), x, x.sin())


@case("forces", is_whole=True)
def one_inner_step() -> Problem:
    loss = nn.MSELoss()
    data = ((normal(12, 3), normal(12, 1), normal(12, 3)), normal(12, 1))

    def reference(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model(*batch[0]), batch[1])

    return Problem(OneInnerStep().double(), loss, data, reference)


# Samples that are compared with each other


def similarities(z: torch.Tensor, temperature: float = 0.5) -> torch.Tensor:
    z = F.normalize(z, dim=1)
    scores = z @ z.T / temperature
    return scores.masked_fill(torch.eye(len(z), dtype=torch.bool), float("-inf"))


@case("contrastive", is_whole=True)
def nt_xent() -> Problem:
    """The other view of sample i is at i + N/2: no part of the batch has all the targets."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(similarities(outputs), targets)

    x = normal(N // 2, 5)
    views = torch.cat([x, x + 0.3 * normal(N // 2, 5)])
    partner = (torch.arange(N) + N // 2) % N
    return supervised(mlp(5, 6, 3), loss, views, partner)


class Pairs(nn.Module):
    """Scores (n, n) of images with texts."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = mlp(5, 4, 3), mlp(4, 4, 3)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def embed(self, image: torch.Tensor, text: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        first, second = self.embed(image, text)
        return self.scale.exp() * first @ second.T


class BothEmbeddings(Pairs):
    """Both embeddings and the scale, for a loss that makes the scores."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, image: torch.Tensor, text: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = self.embed(image, text)
        return self.scale.exp() * first, second


@case("contrastive", is_whole=True)
def clip_scores() -> Problem:
    loss = nn.CrossEntropyLoss()
    data = ((normal(N, 5), normal(N, 4)), torch.arange(N))
    return Problem(Pairs().double(), loss, data, lambda m, b: loss(m(*b[0]), b[1]))


@case("contrastive", is_whole=True)
def clip_both_ways() -> Problem:
    def loss(outputs: tuple[torch.Tensor, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        scores = outputs[0] @ outputs[1].T
        return (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2

    data = ((normal(N, 5), normal(N, 4)), torch.arange(N))
    return Problem(BothEmbeddings().double(), loss, data, lambda m, b: loss(m(*b[0]), b[1]))


# Several inputs, inputs by name


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = mlp(3, 4), mlp(4, 4), nn.Linear(4, 3)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.head((self.first(a) * self.second(b)).tanh())


class Named(nn.Module):
    """One number per sample, (n,), from inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.category, self.head = nn.Embedding(4, 3), mlp(6, 5, 1)

    def forward(self, *, dense: torch.Tensor, category: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([dense, self.category(category)], 1)).squeeze(1)


@case("inputs")
def two_inputs() -> Problem:
    loss = nn.CrossEntropyLoss()
    data = ((normal(N, 3), normal(N, 4)), labels(N))
    return Problem(TwoTowers().double(), loss, data, lambda m, b: loss(m(*b[0]), b[1]))


@case("inputs")
def two_inputs_side_by_side() -> Problem:
    loss = nn.CrossEntropyLoss()
    data = (normal(N, 3), normal(N, 4), labels(N))
    return Problem(TwoTowers().double(), loss, data, lambda m, b: loss(m(b[0], b[1]), b[2]))


@case("inputs")
def named_inputs_with_real_targets() -> Problem:
    loss = nn.MSELoss()
    data = {"dense": normal(N, 3), "category": labels(N, classes=4), "targets": normal(N)}

    def reference(model: nn.Module, batch: Any) -> torch.Tensor:
        return loss(model(dense=batch["dense"], category=batch["category"]), batch["targets"])

    return Problem(Named().double(), loss, data, reference)


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(5, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).squeeze(-1)


@case("regression")
def regression_of_one_number() -> Problem:
    return supervised(Squeezed(), nn.MSELoss(), normal(N, 5), normal(N))


@case("regression")
def regression_by_a_function() -> Problem:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return ((outputs - targets) ** 2).mean() / 2

    return supervised(Squeezed(), loss, normal(N, 5), normal(N))


@case("regression")
def autoencoder() -> Problem:
    x = normal(N, 6)
    return supervised(mlp(6, 3, 6), nn.MSELoss(), x, x)


# Outputs of several tensors


class Vae(nn.Module):
    """Reconstruction, mean and log variance; the mean is decoded, so that nothing is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(6, 5, 4), mlp(2, 5, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean), mean, log_variance


class TwoHeads(nn.Module):
    """Outputs by name, of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.label, self.size = mlp(5, 6), nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        held = self.body(x).tanh()
        return {"label": self.label(held), "size": self.size(held).squeeze(1)}


def evidence_bound(outputs: tuple[torch.Tensor, ...], targets: torch.Tensor) -> torch.Tensor:
    decoded, mean, log_variance = outputs
    divergence = (log_variance.exp() + mean**2 - 1 - log_variance).sum(1) / 2
    return ((decoded - targets) ** 2).sum(1).mean() + 0.5 * divergence.mean()


@case("several outputs")
def variational_autoencoder() -> Problem:
    x = normal(N, 6)
    return supervised(Vae(), evidence_bound, x, x)


@case("several outputs")
def outputs_by_name() -> Problem:
    def loss(outputs: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
        right = F.cross_entropy(outputs["label"], targets)
        return right + 0.3 * F.mse_loss(outputs["size"], targets.to(outputs["size"].dtype))

    return supervised(TwoHeads(), loss, normal(N, 5), labels(N))


# Normalisation


class SmallCnn(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], channels: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norms = nn.ModuleList([norm(channels), norm(channels)])
        self.head = nn.Linear(channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norms[0](self.first(x)).relu()
        return self.head((x + self.norms[1](self.second(x)).tanh()).mean((2, 3)))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return normal(N, 1, 5, 5), labels(N)


@case("batchnorm eval")
def batchnorm_cnn() -> Problem:
    return supervised(SmallCnn(nn.BatchNorm2d), nn.CrossEntropyLoss(), *images())


@case("batchnorm eval")
def batchnorm_and_dropout() -> Problem:
    model = nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 3)
    )
    return supervised(model, nn.CrossEntropyLoss(), normal(N, 5), labels(N))


@case("batchnorm train", is_whole=True)
def batchnorm_cnn_in_training() -> Problem:
    return supervised(SmallCnn(nn.BatchNorm2d), nn.CrossEntropyLoss(), *images(), mode="train")


@case("batchnorm train", is_whole=True)
def batchnorm_over_fixed_batches() -> Problem:
    """Each batch has statistics of its own, and counts by its samples."""
    loss, (x, y) = nn.CrossEntropyLoss(), images()
    sizes = [11, 5, 8]
    batches = list(zip(x.split(sizes), y.split(sizes), strict=True))
    options = {"batches": batches, "shares": [float(size) for size in sizes], "mode": "train"}
    model = SmallCnn(nn.BatchNorm2d).double()
    return Problem(model, loss, batches, plainly(loss), **options)


@case("batchnorm train", is_whole=True)
def batchnorm_over_a_loader() -> Problem:
    loss, x, y = nn.CrossEntropyLoss(), normal(N, 5), labels(N)
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    batches = list(zip(x.split(10), y.split(10), strict=True))
    options = {"batches": batches, "shares": [10.0, 10.0, 4.0], "mode": "train"}
    loader = DataLoader(TensorDataset(x, y), batch_size=10)
    return Problem(model.double(), loss, loader, plainly(loss), **options)


@case("batchnorm train", is_whole=True)
def batchnorm_under_a_loss_of_the_batch() -> Problem:
    """Redundancy reduction: batch statistics in the model, and a loss that is no mean."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        both = F.batch_norm(outputs, None, None, training=True)
        correlation = both.T @ both / len(both)
        return (correlation - torch.eye(len(correlation), dtype=both.dtype)).square().sum()

    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))
    return supervised(model, loss, normal(N, 5), labels(N), mode="train")


@case("batchnorm as it is", is_whole=True)
def batchnorm_frozen_by_hand() -> Problem:
    """The first layer's statistics are frozen as in fine-tuning, the second one's are not."""
    model = SmallCnn(nn.BatchNorm2d)
    model.train()
    model.norms[0].eval()
    return supervised(model, nn.CrossEntropyLoss(), *images(), mode=None)


# Architectures


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.skip = mlp(5, 4), mlp(5, 3, 4), nn.Linear(5, 4, bias=False)
        self.gate = nn.Parameter(torch.zeros(4))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = F.gelu(self.left(x)), F.silu(self.right(x))
        mixed = self.gate.sigmoid() * left + (1 - self.gate.sigmoid()) * right
        return self.head(torch.cat([mixed, self.skip(x)], 1))


class Tied(nn.Module):
    """The matrix that reads words also writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(6, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(x).mean(1)).tanh())


@case("architecture")
def recurrent() -> Problem:
    return supervised(Recurrent(), nn.CrossEntropyLoss(), normal(N, 4, 3), labels(N))


@case("architecture")
def branches() -> Problem:
    return supervised(Branches(), nn.CrossEntropyLoss(), normal(N, 5), labels(N))


@case("architecture")
def tied_embeddings() -> Problem:
    x, y = labels(N, 4, classes=6), labels(N, classes=6)
    return supervised(Tied(), nn.CrossEntropyLoss(), x, y)


@case("architecture")
def frozen_body() -> Problem:
    model = mlp(5, 6, 6, 3)
    for parameter in model[:3].parameters():
        parameter.requires_grad_(False)
    return supervised(model, nn.CrossEntropyLoss(), normal(N, 5), labels(N))


@case("architecture")
def groupnorm_cnn() -> Problem:
    model = SmallCnn(lambda channels: nn.GroupNorm(2, channels))
    return supervised(model, nn.CrossEntropyLoss(), *images())
