"""Features of running text that every Python installation carries."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import scipy.sparse
import scipy.sparse.linalg


def token_features(
    sequences: int, tokens: int = 16, width: int = 32, words: int = 2000
) -> np.ndarray:
    """Return features of sequences of words: (sequences, tokens·width).

    The text is Python's own language reference (module pydoc_data.topics). Words get vectors from
    it by factorising their positive pointwise mutual information within four words, a classical
    stand-in for the embeddings of a language model; a sequence is the row of its words' vectors.

    Args:
        sequences: At most this many, one after the other.
        tokens: Words in a sequence.
        width: Length of a word's vector.
        words: Size of the vocabulary; the rest share one vector.
    """
    from pydoc_data.topics import topics

    text = " ".join(topics[name] for name in sorted(topics)).lower()
    found = re.findall(r"[a-z]+|[0-9]+|[^\sa-z0-9]", text)
    vocabulary = {word: i + 1 for i, (word, _) in enumerate(Counter(found).most_common(words - 1))}
    stream = np.array([vocabulary.get(word, 0) for word in found])
    vectors = _vectors(stream, words, width)
    count = min(sequences, len(stream) // tokens)
    return vectors[stream[: count * tokens]].reshape(count, tokens * width)


def _vectors(stream: np.ndarray, words: int, width: int, window: int = 4) -> np.ndarray:
    pairs = scipy.sparse.csr_matrix((words, words))
    for gap in range(1, window + 1):
        ones = np.ones(len(stream) - gap)
        pairs = pairs + scipy.sparse.csr_matrix(
            (ones, (stream[:-gap], stream[gap:])), shape=(words, words)
        )
    pairs = scipy.sparse.coo_matrix(pairs + pairs.T)
    share = np.asarray(pairs.sum(axis=1)).ravel() / pairs.sum()
    information = np.log(pairs.data / pairs.data.sum() / (share[pairs.row] * share[pairs.col]))
    positive = scipy.sparse.csr_matrix(
        (np.maximum(information, 0), (pairs.row, pairs.col)), shape=(words, words)
    )
    start = np.random.default_rng(0).standard_normal(words)
    U, singular, _ = scipy.sparse.linalg.svds(positive, k=width, v0=start)
    return U * np.sqrt(singular)
