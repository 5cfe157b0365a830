"""A small language model with a loss of its own, for the tests of this folder."""

import pytest
import torch
from torch import nn

__all__ = ["language_model", "tokens"]


def language_model() -> nn.Module:
    """Return a causal model of 11 words and sequences of 7."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 11, "n_positions": 7, "n_embd": 4, "n_layer": 1, "n_head": 2}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, n_inner=4))


def tokens(count: int, length: int = 7, vocabulary: int = 11) -> torch.Tensor:
    """Return random words (count, length)."""
    return torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(1))
