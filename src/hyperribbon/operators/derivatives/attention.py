"""Torch's multi-head attention from linear layers, whose weights then have factors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_FLAGS = ("add_zero_attn", "use_separate_proj_weight")
_TENSORS = ("bias_k", "bias_v", "static_k", "static_v")
_NAMES = (
    "query",
    "key",
    "value",
    "embed_dim_to_check",
    "num_heads",
    "in_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
    "add_zero_attn",
    "dropout_p",
    "out_proj_weight",
    "out_proj_bias",
)


def self_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return F.multi_head_attention_forward's result, from linear layers that can be seen.

    Of self-attention without dropout; NotImplemented of any other. Samples are the first axis of
    what the linear layers are given.
    """
    call: dict[str, Any] = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    x, dropout = call["query"], call["dropout_p"] if call.get("training", True) else 0.0
    is_unusual = any(call.get(name) not in (None, False) for name in _FLAGS)
    is_unusual = is_unusual or any(call.get(name) is not None for name in _TENSORS)
    is_unusual = is_unusual or x is not call["key"] or x is not call["value"] or x.ndim != 3
    if is_unusual or dropout or call["in_proj_weight"] is None:
        return NotImplemented
    length, count, width = x.shape
    heads, wants_shares = call["num_heads"], call.get("need_weights", True)
    joint = F.linear(x.transpose(0, 1), call["in_proj_weight"], call["in_proj_bias"])
    parts = joint.view(count, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    is_causal = call.get("is_causal", False) and call.get("key_padding_mask") is None
    is_causal = is_causal and not wants_shares  # the mask is then not looked at
    mask, shares = None if is_causal else _mask(call, heads, joint), None
    q, k, v = parts.unbind(0)
    if wants_shares:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
        shares = torch.softmax(scores if mask is None else scores + mask, -1)
        mixed = shares @ v
        shares = shares.mean(1) if call.get("average_attn_weights", True) else shares
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
    mixed = mixed.transpose(1, 2).reshape(count, length, width)
    outputs = F.linear(mixed, call["out_proj_weight"], call["out_proj_bias"])
    return outputs.transpose(0, 1), shares


def _mask(call: dict[str, Any], heads: int, like: torch.Tensor) -> torch.Tensor | None:
    """Return what is added to the attention scores, from masks of positions and of padding."""
    mask, padding = call.get("attn_mask"), call.get("key_padding_mask")
    mask, padding = (None if m is None else _added(m, like) for m in (mask, padding))
    if mask is not None and mask.ndim == 3:
        mask = mask.view(-1, heads, *mask.shape[1:])
    if padding is not None:
        padding = padding[:, None, None, :]
        return padding if mask is None else mask + padding
    return mask


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
