"""Traces of layers where exact ones would take too many passes: estimated, with their errors."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.headlines import measure_trace
from hyperribbon.application.inspection.parts.layers import _is_ahead


def _traced(model, data, loss, seed):
    level = Level(Subject(model, loss, data), len(data[0]))
    measure_trace(level, Notebook(k=10, seed=seed))
    return level


def _language_model():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(150, 6), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 150), _ClassesSecond()
    )
    tokens = torch.randint(150, (6, 9))
    return model, (tokens[:, :-1], tokens[:, 1:])


class _ClassesSecond(nn.Module):
    def forward(self, scores):
        return scores.transpose(1, 2)


@pytest.mark.parametrize("kind", ["language model", "images"])
def test_estimates_cover_the_exact_traces(kind):
    if kind == "language model":  # 8 · 150 rows per sample
        (model, data), loss = _language_model(), nn.CrossEntropyLoss()
    else:  # 1,152 rows per sample
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1)
        )
        data, loss = (torch.randn(4, 2, 24, 24), torch.randn(4, 2, 24, 24)), nn.MSELoss()
    subject = Subject(model, loss, data)
    diagonal = subject.ggn.to_dense().diagonal().double()
    slices, layers = subject.risk.space.slices(), subject.risk.space.layers()
    exact = {
        name: float(sum(diagonal[slices[own]].sum() for own in space.names))
        for name, space in layers.items()
    }
    scores = []
    for seed in range(8):
        level = _traced(model, data, loss, seed)
        assert set(level.layer_errors) == set(exact)
        assert level.statistics["trace"].value == pytest.approx(sum(exact.values()), rel=0.15)
        scores += [
            (level.layer_traces[name] - exact[name]) / level.layer_errors[name] for name in exact
        ]
    assert np.mean(np.abs(scores) < 2.04) >= 0.8  # 95% by Student with 31 degrees of freedom
    assert abs(np.mean(scores)) < 1


def test_few_outputs_have_exact_ones():
    torch.manual_seed(0)
    data = torch.randn(20, 4), torch.randint(3, (20,))
    level = _traced(nn.Linear(4, 3), data, nn.CrossEntropyLoss(), 0)
    assert level.layer_traces
    assert not level.layer_errors


def test_no_layer_is_called_the_first_that_may_not_be():
    table = pd.DataFrame({"trace share": [0.4, 0.35], "standard error": [0.03, 0.03]})
    assert not _is_ahead(table)
    assert _is_ahead(table.assign(**{"trace share": [0.5, 0.35]}))
    assert _is_ahead(table.drop(columns="standard error"))
