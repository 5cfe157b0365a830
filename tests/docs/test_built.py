"""The page on how it is built names files that exist and that a product passes through."""

import re
import sys
from pathlib import Path

import torch
from torch import nn

import hyperribbon as hr

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "hyperribbon"
PAGE = (ROOT / "docs" / "built.md").read_text()


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", PAGE))
    assert len(named) > 10
    assert [name for name in named if not (SOURCE / name).exists()] == []


def test_a_product_passes_through_the_files_that_are_named():
    walk = PAGE.split("## Along one product")[1].split("When the operator was built")[0]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", walk)) - {"operators/factored.py"}
    assert len(named) <= 8
    x, y = torch.randn(8, 3), torch.arange(8) % 3
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 3))
    operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))
    called: set[str] = set()

    def notice(frame, event, _):
        if event == "call":
            called.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        operator @ torch.ones(operator.shape[0])
    finally:
        sys.setprofile(before)
    assert {name for name in named if str(SOURCE / name) not in called} == set()
