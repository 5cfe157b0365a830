"""Random projection of the weights that preserves distances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from hyperribbon.core.checks import count, validate
from hyperribbon.core.generators import torch_generator

_PIECE = 1 << 18  # weights taken at once


class Projection:
    r"""A random projection of all weights to k numbers, fixed over a run.

    Every weight is added with a random sign to one of k sums, chosen at random (a count sketch):

    $$(S w)_j = \sum_{i:\,h(i)=j} s_i w_i,\qquad
      \mathrm{E}\,\lVert S w\rVert^2 = \lVert w\rVert^2,\qquad
      \mathrm{Var}\,\lVert S w\rVert^2 \le \tfrac{2}{k}\lVert w\rVert^4$$

    so squared lengths and distances along a run have a relative error of about √(2/k): 4.5% for k =
    1,000, whatever the number of weights. Projected weights are stored under the name "projection";
    `Trajectory.weight_vector` and PCA take them as they are.

    Args:
        k: Dimension of the projection.
        seed: Random seed; runs of the same model with the same seed are comparable.

    >>> w = {"a": torch.ones(3, 4), "b": torch.arange(5.0)}
    >>> Projection(8, seed=1)(w).shape
    torch.Size([8])
    """

    @validate(k=count)
    def __init__(self, k: int = 1000, seed: int = 0) -> None:
        self.k, self.seed = int(k), int(seed)
        self._places: torch.Tensor | None = None  # (P,) of int32: ±(place + 1)

    def __call__(self, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the projection (k,) of named tensors, taken in their order."""
        flat = [tensor.detach().reshape(-1).cpu() for tensor in weights.values()]
        total = torch.zeros(self.k, dtype=torch.float64, device="cpu")
        for tensor, places in zip(flat, self._parts(map(len, flat)), strict=True):
            for values, there in zip(tensor.split(_PIECE), places.split(_PIECE), strict=True):
                signed = values.double() * there.sign()
                total += torch.bincount(there.abs() - 1, weights=signed, minlength=self.k)
        return total.float()

    def _parts(self, lengths: Iterable[int]) -> tuple[torch.Tensor, ...]:
        """Return where the projection puts every weight, with its sign, tensor by tensor."""
        lengths = list(lengths)
        size = sum(lengths)
        if self._places is None or len(self._places) != size:
            draw = torch_generator(self.seed, "projection")
            options = {"generator": draw, "dtype": torch.int32, "device": "cpu"}
            places = torch.randint(1, self.k + 1, (size,), **options)
            self._places = places * (2 * torch.randint(0, 2, (size,), **options) - 1)
        return self._places.split(lengths)
