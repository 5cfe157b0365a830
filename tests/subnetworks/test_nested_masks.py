"""What a level of a ticket has removed stays removed at the next ones."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import hyperribbon as hr


@pytest.mark.parametrize("criterion", ["magnitude", "change"])
def test_masks_of_the_levels_are_nested(criterion):
    """By change, too: a weight that is held at zero has moved away from where it is rewound to."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    x, y = torch.randn(50, 8), torch.randint(2, (50,))
    removed = []

    def train(network):
        removed.append({n: mask == 0 for n, mask in network.named_buffers() if n.endswith("_mask")})
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()

    hr.find_ticket(
        model, train, lambda state: 0.0, levels=3, fraction=0.3, criterion=criterion, branches=()
    )
    assert len(removed) == 4 and not removed[0]
    for name in ("0.weight_mask", "2.weight_mask"):
        for earlier, later in pairwise(removed[1:]):
            assert earlier[name].any()
            assert bool((later[name] | ~earlier[name]).all())
    counts = [sum(int(mask.sum()) for mask in level.values()) for level in removed]
    assert counts == [round(80 * (1 - 0.7**level)) for level in range(4)]
