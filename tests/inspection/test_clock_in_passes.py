"""The clock is looked at in the middle of passes that take many rows, not only before them."""

import time

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection.engine.clock import Clock, OutOfTimeError
from hyperribbon.application.inspection.engine.subject import Subject


class Ending(Clock):
    """A clock that has run out when it is looked at for the n-th time."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def check(self):
        self.looks -= 1
        if self.looks <= 0:
            raise OutOfTimeError("the time is up")


class Sines(nn.Module):
    """300 outputs of a weight that has no factors."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 300))

    def forward(self, x):
        return x @ self.weight.sin()


@pytest.mark.parametrize("model", [Sines(), nn.Linear(3, 300)], ids=["no factors", "factors"])
@pytest.mark.parametrize("work", ["trace_parts", "diagonal"])
def test_a_pass_of_many_rows_ends_in_the_middle(model, work):
    data = torch.randn(4, 3), torch.randn(4, 300)
    subject = Subject(model, nn.MSELoss(), data)
    rows = subject.gauss_newton_rows
    getattr(rows, work)()  # to the end
    subject.risk.clock = Ending(4)  # one look at the data, and one at every 64 of 300 rows
    with pytest.raises(OutOfTimeError):
        getattr(rows, work)()


def test_no_piece_begins_that_would_end_too_late():
    """The last piece took longer than the time that is left."""
    subject = Subject(nn.Linear(3, 2), nn.MSELoss(), (torch.randn(4, 3), torch.randn(4, 2)))
    _ = subject.hessian @ subject.vector
    subject.clock.end = time.monotonic() + 60
    _ = subject.hessian @ subject.vector
    assert 0 < subject.clock.piece < 30
    subject.clock.piece = 90.0
    assert subject.clock.is_late()
    with pytest.raises(OutOfTimeError):
        subject.hessian @ subject.vector


def test_a_measurements_share_of_the_time_ends_with_the_budget():
    clock = Clock(time.monotonic() + 5)
    end = clock.end
    with clock.at_most(60):
        assert clock.end == end
    with clock.at_most(1):
        assert clock.left <= 1
    assert clock.end == end
