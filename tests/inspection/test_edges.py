"""Networks at the edge of what can be measured: no curvature, one weight, one sample."""

import pytest
import torch
from rich.console import Console
from torch import nn

import hyperribbon as hr

INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 3


def _dead():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    return model


CASES = {
    "no curvature": (nn.Linear(4, 1), nn.L1Loss(), (INPUTS, INPUTS[:, :1])),
    "one weight": (nn.Linear(1, 1, bias=False), nn.MSELoss(), (INPUTS[:, :1], INPUTS[:, :1])),
    "one sample": (_dead(), nn.CrossEntropyLoss(), (INPUTS[:1], LABELS[:1])),
    "dead units": (_dead(), nn.CrossEntropyLoss(), (INPUTS, LABELS)),
}


@pytest.mark.parametrize("case", CASES)
def test_no_part_fails(case, tmp_path):
    model, loss, data = CASES[case]
    found = hr.inspect(model, loss, data, budget=60, k=5, console=Console(quiet=True))
    failed = {
        outcome.step: outcome.reason for outcome in found.outcomes if outcome.status == "failed"
    }
    assert failed == {}
    assert found.answers()
    found.report(tmp_path / "report.html")
