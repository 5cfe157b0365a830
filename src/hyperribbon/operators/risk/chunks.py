"""Some samples: evaluated by the model, and with the model linearised on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from hyperribbon.operators.derivatives.linearisation import Block, Linearisation
from hyperribbon.operators.risk.data import batch_size, cut
from hyperribbon.operators.risk.function import ModelFunction
from hyperribbon.operators.risk.memory import Layout

__all__ = ["BatchEvaluation", "Chunk", "GradientSums", "KeptChunks"]


class BatchEvaluation:
    """A batch on which a model is evaluated, in whole or in part."""

    def __init__(self, function: ModelFunction, batch: Any) -> None:
        self._function, self._batch = function, batch
        self.leaves: Mapping[str, torch.Tensor] = function.leaves
        self.count = batch_size(batch)
        self.targets: Any = None
        self.plain: torch.Tensor | None = None

    def plain_outputs(self) -> torch.Tensor:
        """Return the outputs of all samples by the model's own operations, without a graph."""
        with torch.inference_mode(False), torch.no_grad():
            self.plain, self.targets = self._function.plainly(self._batch)
        return self.plain

    def outputs(self, samples: slice, watcher: TorchFunctionMode | None = None) -> torch.Tensor:
        """Return the outputs (n, …) of some samples, with a graph; a watcher sees the calls."""
        whole = (samples.start, samples.stop) == (0, self.count)
        batch = self._batch if whole else cut(self._batch, samples.start, samples.stop)
        outputs, targets = self._function(batch, watcher)
        if whole:
            self.targets = targets
        return outputs

    def jvp(self, v: Block) -> torch.Tensor:
        """Return J v (n, …) by forward mode."""
        return self._function.jvp(self._batch, v)


@dataclass
class Chunk:
    """Some samples with the model linearised on them.

    Attributes:
        start: Position of the first one in the data.
        point: The model's derivatives on these samples.
        inputs: Their inputs (the whole batch when it is not a pair).
        targets: Their targets.
        amount: What they add to the divisor of a mean.
        structured: Parameters whose per-sample gradients have factors; None before that is known.
        curving: Curvature of the loss in the outputs, as a function; None before it is asked for.
    """

    start: int
    point: Linearisation
    inputs: Any
    targets: Any
    amount: float
    structured: set[str] | None = None
    curving: Callable[[torch.Tensor], torch.Tensor] | None = None

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.point.outputs)


class GradientSums:
    """Gradients (k, *shape) by name, summed over chunks of the samples.

    Attributes:
        named: The sums.
    """

    def __init__(self) -> None:
        self.named: dict[str, torch.Tensor] = {}
        self._is_own = False

    def add(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Add gradients, which are not written to."""
        if not self.named:
            self.named = dict(gradients)
        elif not self._is_own:
            self.named = {name: self.named[name] + gradients[name] for name in gradients}
            self._is_own = True
        else:
            for name, gradient in gradients.items():
                self.named[name] += gradient


class KeptChunks:
    """Chunks that keep their graphs, by their place, for one layout.

    Attributes:
        chunks: The chunks by their place.
        whole_for: The kinds of derivatives for which all chunks are kept; empty where some are not.
        own: Samples and amount of all of them.
    """

    def __init__(self) -> None:
        self._layout: tuple[int, int] | None = None
        self.chunks: dict[int, Chunk] = {}
        self.whole_for: frozenset[str] = frozenset()
        self.own: tuple[int, float] | None = None

    def chunks_for(self, layout: Layout) -> dict[int, Chunk]:
        """Return the chunks of a layout; those of another one are dropped."""
        cuts = layout.chunk, layout.kept
        if cuts != self._layout:
            self._layout, self.chunks, self.whole_for = cuts, {}, frozenset()
        return self.chunks
