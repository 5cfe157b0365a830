"""Heads of transformers with tiny configurations and random weights, called with their own loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from contract.problems import Problem, case

__all__ = ["own_loss"]

N, T, V = 12, 5, 7
SINGLE = {"precision": torch.float32, "needs": "transformers"}
"""For those whose loss is computed in float32; Llama and T5, whose layers are too, stay in it."""
DOUBLE = {"needs": "transformers"}


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, V, shape)


def own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return what model(**batch) has as its loss, which is what its Trainer minimises."""
    return model(**batch).loss


def transformer(name: str, config: str, **options: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, name)(getattr(transformers, config)(**options))
    return made.double()


def bert(head: str, **options: Any) -> nn.Module:
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 4, "vocab_size": V, "max_position_embeddings": 6}
    return transformer(f"BertFor{head}", "BertConfig", **sizes, **options)


def gpt2() -> nn.Module:
    sizes = {"vocab_size": V, "n_positions": 6, "n_embd": 4, "n_layer": 1, "n_head": 2}
    ends = {"n_inner": 4, "bos_token_id": 0, "eos_token_id": 0}
    return transformer("GPT2LMHeadModel", "GPT2Config", **sizes, **ends)


def by_labels(cross: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """Return what gives (logits, loss of logits) of a batch with labels."""

    def both(model: nn.Module, batch: Any) -> tuple[torch.Tensor, Callable[..., torch.Tensor]]:
        return model(**batch).logits, lambda logits: cross(logits, batch["labels"])

    return both


def plain(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def shifted(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return plain(logits[:, :-1], y[:, 1:])


def problem(model: nn.Module, data: Any, **options: Any) -> Problem:
    return Problem(model, None, data, own_loss, **options)


@case("huggingface causal", **SINGLE)
def gpt2_language() -> Problem:
    ids = tokens(N, T)
    return problem(gpt2(), {"input_ids": ids, "labels": ids}, gauss_newton=by_labels(shifted))


@case("huggingface causal", **SINGLE)
def gpt2_with_padding() -> Problem:
    ids = tokens(N, T)
    mask, y = torch.ones_like(ids), ids.clone()
    for row in range(0, N, 2):
        mask[row, 3 - row % 3 :] = 0
    y[mask == 0] = -100
    data = {"input_ids": ids, "attention_mask": mask, "labels": y}
    return problem(gpt2(), data, gauss_newton=by_labels(shifted))


@case("huggingface causal", **SINGLE)
def gpt2_over_batches_of_several_lengths() -> Problem:
    """Tokens that count are weighted, not batches and not samples."""
    batches = []
    for length, size in ((5, 4), (3, 6), (4, 2)):
        ids = tokens(size, length)
        y = ids.clone()
        y[1::2, -1] = -100
        batches.append({"input_ids": ids, "labels": y})
    shares = [float((batch["labels"][:, 1:] != -100).sum()) for batch in batches]
    return problem(gpt2(), batches, batches=batches, shares=shares)


@case("huggingface causal", **SINGLE)
def llama_language() -> Problem:
    sizes = {"vocab_size": V, "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8}
    model = transformer("LlamaForCausalLM", "LlamaConfig", **sizes, **heads).float()
    ids = tokens(N, T)
    return problem(model, {"input_ids": ids, "labels": ids}, gauss_newton=by_labels(shifted))


@case("huggingface classification", **DOUBLE)
def bert_classes() -> Problem:
    data = {"input_ids": tokens(N, T), "labels": tokens(N) % 3}
    head = "SequenceClassification"
    return problem(bert(head, num_labels=3), data, gauss_newton=by_labels(plain))


@case("huggingface classification", **DOUBLE)
def bert_regression() -> Problem:
    data = {"input_ids": tokens(N, T), "labels": torch.randn(N, dtype=torch.float64)}
    squared = by_labels(lambda logits, y: F.mse_loss(logits.squeeze(1), y))
    return problem(bert("SequenceClassification", num_labels=1), data, gauss_newton=squared)


@case("huggingface classification", **DOUBLE)
def bert_several_labels() -> Problem:
    data = {"input_ids": tokens(N, T), "labels": (tokens(N, 3) % 2).double()}
    options = {"num_labels": 3, "problem_type": "multi_label_classification"}
    binary = by_labels(F.binary_cross_entropy_with_logits)
    return problem(bert("SequenceClassification", **options), data, gauss_newton=binary)


@case("huggingface classification", **DOUBLE)
def vit_images() -> Problem:
    sizes = {"image_size": 4, "patch_size": 2, "num_channels": 1, "hidden_size": 4}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4}
    model = transformer("ViTForImageClassification", "ViTConfig", **sizes, num_labels=3)
    pixels = torch.randn(N, 1, 4, 4, dtype=torch.float64)
    data = {"pixel_values": pixels, "labels": tokens(N) % 3}
    return problem(model, data, gauss_newton=by_labels(plain))


@case("huggingface tokens", **DOUBLE)
def bert_masked_words() -> Problem:
    ids = tokens(N, T)
    y = torch.full_like(ids, -100)
    hidden = torch.rand(N, T) < 0.4
    hidden[0] = True
    y[hidden] = ids[hidden]
    ids = ids.masked_fill(hidden, V - 1)  # not 0, whose embedding is held fixed
    data = {"input_ids": ids, "labels": y}
    return problem(bert("MaskedLM"), data, gauss_newton=by_labels(plain))


@case("huggingface tokens", **DOUBLE)
def bert_tags() -> Problem:
    ids = tokens(N, T)
    y = ids % 3
    y[2:, 3:] = -100
    data = {"input_ids": ids, "attention_mask": (y != -100).long(), "labels": y}
    return problem(bert("TokenClassification", num_labels=3), data, gauss_newton=by_labels(plain))


@case("huggingface tokens", **SINGLE)
def t5_translation() -> Problem:
    sizes = {"vocab_size": V, "d_model": 4, "d_kv": 2, "d_ff": 4, "num_layers": 1, "num_heads": 2}
    options = {"decoder_start_token_id": 0, "relative_attention_num_buckets": 4}
    model = transformer("T5ForConditionalGeneration", "T5Config", **sizes, **options).float()
    y = tokens(N, 3)
    y[::3, 2] = -100
    data = {"input_ids": tokens(N, T), "labels": y}
    return problem(model, data, gauss_newton=by_labels(plain))


@case("huggingface other", **DOUBLE)
def bert_choices() -> Problem:
    data = {"input_ids": tokens(N, 2, T), "labels": tokens(N) % 2}
    return problem(bert("MultipleChoice"), data, gauss_newton=by_labels(plain))


@case("huggingface other", **DOUBLE)
def distilbert_questions() -> Problem:
    """Two losses of two outputs: a Hessian, and no Gauss-Newton matrix by logits."""
    sizes = {"vocab_size": V, "dim": 4, "n_layers": 1, "n_heads": 2, "hidden_dim": 4}
    options = {"max_position_embeddings": 6}
    model = transformer("DistilBertForQuestionAnswering", "DistilBertConfig", **sizes, **options)
    data = {"input_ids": tokens(N, T)}
    data |= {"start_positions": tokens(N) % T, "end_positions": tokens(N) % T}
    return problem(model, data)
