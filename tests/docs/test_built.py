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


def test_a_product_passes_through_the_files_that_are_named_and_no_others():
    walk = PAGE.split("## Along one product")[1].split("When an operator is built")[0]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", walk)) - {"operators/factored.py"}
    x, y = torch.randn(8, 3), torch.arange(8) % 3
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    operator = hr.Hessian(model, nn.CrossEntropyLoss(), (x, y))
    vector = torch.ones(operator.shape[0])
    operator @ vector  # builds the graph
    called: list[str] = []

    def notice(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(SOURCE)):
            called.append(str(Path(file).relative_to(SOURCE)))

    before = sys.getprofile()
    sys.setprofile(notice)
    try:
        operator @ vector
    finally:
        sys.setprofile(before)
    assert set(called) == named
    assert len(named) <= 8 and len(called) <= 60
