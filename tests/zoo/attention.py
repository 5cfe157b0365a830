"""Networks that attend: written by hand, of torch.nn, and of the transformers library."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from zoo.registry import Network, labels, network


class Block(nn.Module):
    """Attention by `scaled_dot_product_attention` and two linear layers, norms first."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.qkv(self.norm1(x)).reshape(n, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A causal language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.block, self.norm = Block(4, 2, causal=True), nn.LayerNorm(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.block(self.tokens(tokens) + self.places(places))
        return self.head(self.norm(hidden)).transpose(1, 2)


@network()
def gpt_tied() -> Network:
    return Network(GPT(), nn.CrossEntropyLoss(), labels(3, 5, classes=7), labels(3, 5, classes=7))


class ViT(nn.Module):
    """Patches, a class token, positions, attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 4, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.places = nn.Parameter(torch.randn(1, 5, 4))
        self.block, self.norm, self.head = Block(4, 2, False), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), patches], dim=1) + self.places
        return self.head(self.norm(self.block(x))[:, 0])


@network()
def vit() -> Network:
    return Network(ViT(), nn.CrossEntropyLoss(), torch.randn(4, 1, 4, 4), labels(4))


class KeywordAttention(nn.Module):
    """`nn.MultiheadAttention` called by keyword, with keys of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.attention = nn.MultiheadAttention(4, 2, kdim=3, vdim=3, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, weights = self.attention(query=self.embed(x), key=x, value=x, need_weights=True)
        return self.head(mixed.mean(1) + weights.square().sum((1, 2))[:, None])


@network()
def attention_by_keyword() -> Network:
    return Network(KeywordAttention(), nn.CrossEntropyLoss(), torch.randn(4, 4, 3), labels(4))


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` on sequences first, with an added bias and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, add_zero_attn=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(len(x), dtype=x.dtype)
        mixed, _ = self.attention(x, x, x, need_weights=False, attn_mask=mask, is_causal=True)
        return self.head(mixed[-1])


@network()
def attention_with_bias_and_mask() -> Network:
    return Network(SelfAttention(), nn.MSELoss(), torch.randn(4, 3, 4), torch.randn(4, 2))


class Encoder(nn.Module):
    """`nn.TransformerEncoder` with padding."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=0)
        layer = nn.TransformerEncoderLayer(
            4, 2, 5, dropout=0.1, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.embed(tokens), src_key_padding_mask=tokens == 0)
        return self.head(hidden[:, 0])


@network()
def transformer_encoder() -> Network:
    tokens = torch.tensor([[1, 2, 3, 4], [5, 4, 0, 0], [2, 2, 1, 0], [3, 0, 0, 0]])
    return Network(Encoder(False), nn.CrossEntropyLoss(), tokens, labels(4))


@network()
def transformer_encoder_norm_first() -> Network:
    tokens = torch.tensor([[1, 2, 3, 4], [5, 4, 0, 0], [2, 2, 1, 0]])
    return Network(Encoder(True), nn.CrossEntropyLoss(), tokens, labels(3))


class EncoderDecoder(nn.Module):
    """`nn.Transformer`, which takes a source and a target sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(4, 2, 1, 1, 5, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(source, target)).transpose(1, 2)


@network()
def encoder_decoder() -> Network:
    inputs = (torch.randn(3, 3, 4), torch.randn(3, 2, 4))
    return Network(
        EncoderDecoder(), nn.CrossEntropyLoss(), inputs, labels(3, 2, classes=2), lambda m, x: m(*x)
    )


def _logits(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(**{k: v for k, v in batch.items() if k != "labels"}).logits


@network()
def bert_of_dicts() -> Network:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=7,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=5,
        max_position_embeddings=5,
        type_vocab_size=1,
        num_labels=3,
    )
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    batch = {"input_ids": labels(4, 4, classes=7), "attention_mask": mask, "labels": labels(4)}
    model = BertForSequenceClassification(config).double()
    return Network(model, nn.CrossEntropyLoss(), batch, batch["labels"], _logits, data=batch)


def _next_tokens(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _logits(model, batch).transpose(1, 2), batch["labels"]


@network(precision=torch.float32)  # its norms
def t5() -> Network:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=5,
        d_model=4,
        d_kv=2,
        d_ff=5,
        num_layers=1,
        num_heads=2,
        relative_attention_num_buckets=4,
        decoder_start_token_id=0,
    )
    batch = {
        "input_ids": labels(3, 4, classes=5),
        "decoder_input_ids": labels(3, 2, classes=5),
        "labels": labels(3, 2, classes=5),
    }
    batch["labels"][0, 1] = -100
    return Network(
        T5ForConditionalGeneration(config).double(),
        nn.CrossEntropyLoss(),
        batch,
        batch["labels"],
        lambda model, batch: _next_tokens(model, batch)[0],
        data=batch,
        forward=_next_tokens,
    )


@network(precision=torch.float32)  # its norms
def llama() -> Network:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=5,
        hidden_size=4,
        intermediate_size=5,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=8,
    )
    batch = {"input_ids": labels(3, 3, classes=5), "labels": labels(3, 3, classes=5)}
    return Network(
        LlamaForCausalLM(config).double(),
        nn.CrossEntropyLoss(),
        batch,
        batch["labels"],
        lambda model, batch: _next_tokens(model, batch)[0],
        data=batch,
        forward=_next_tokens,
    )
