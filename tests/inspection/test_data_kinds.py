"""Data of every kind that operators take are counted and drawn alike by inspect and compare."""

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    TensorDataset,
)

import hyperribbon as hr
from hyperribbon.application.inspection.copies import as_source
from hyperribbon.operators.risk.batches import batch_size

LOSS = nn.CrossEntropyLoss()
QUIET = Console(quiet=True)
INPUTS = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(60) % 3
BATCHES = [(INPUTS[i : i + 20], LABELS[i : i + 20]) for i in (0, 20, 40)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(INPUTS, LABELS, strict=True))


class Again:
    """Batches, as often as they are asked for."""

    def __iter__(self):
        return iter(BATCHES)


class Samples:
    """A length and an index, and nothing else."""

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return INPUTS[index], LABELS[index]


class Both(nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        self.inner = _model()

    def forward(self, first, second):
        return self.inner(first + second)


KINDS = {
    "pair": lambda: (INPUTS, LABELS),
    "pair in a list": lambda: [INPUTS, LABELS],
    "arrays": lambda: (INPUTS.numpy(), LABELS.numpy()),
    "batches": lambda: list(BATCHES),
    "generator": lambda: (batch for batch in BATCHES),
    "dataset": lambda: TensorDataset(INPUTS, LABELS),
    "loader": lambda: DataLoader(TensorDataset(INPUTS, LABELS), batch_size=7, shuffle=True),
    "batch sampler": lambda: DataLoader(
        TensorDataset(INPUTS, LABELS),
        batch_sampler=BatchSampler(SequentialSampler(INPUTS), 7, False),
    ),
    "sequence": Samples,
}
STREAMS = {
    "stream": Stream,
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=7),
    "iterable": Again,
    "loader of batches": lambda: DataLoader(BATCHES, batch_size=None),
}


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def _loss(data):
    return hr.Risk(_model(), LOSS, data).value()


def _source(data):
    return as_source(_model(), data)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_counted_and_the_same_ones_drawn(kind):
    source = _source(KINDS[kind]())
    assert source.total == 60
    few, expected = (s.few(10, seed=4) for s in (source, _source((INPUTS, LABELS))))
    assert few.total == 10
    assert _loss(few) == pytest.approx(_loss(expected), rel=1e-6)
    assert _loss(source) == pytest.approx(_loss((INPUTS, LABELS)), rel=1e-6)


@pytest.mark.parametrize("kind", STREAMS)
def test_streams_give_their_first_batches_and_leave_the_random_state_alone(kind):
    source, before = _source(STREAMS[kind]()), torch.get_rng_state()
    assert source.total is None
    batches = list(source.few(10, seed=0).batches())
    assert torch.equal(before, torch.get_rng_state())
    assert 10 <= sum(map(batch_size, batches)) <= 60
    assert torch.equal(batches[0][0][:7], INPUTS[:7])


def test_batches_of_different_shapes_are_counted_and_drawn_from():
    shapes = [(torch.zeros(4, 3), torch.zeros(4)), (torch.zeros(6, 5), torch.zeros(6))]
    source = _source(shapes)
    assert source.total == 10
    few = list(source.few(7, seed=0).batches())
    assert sum(map(batch_size, few)) == 7
    assert {batch[0].shape[1] for batch in few} == {3, 5}


@pytest.mark.parametrize(
    "data", [[], [(torch.zeros(3), torch.tensor(1))], iter(())], ids=["none", "samples", "ended"]
)
def test_what_holds_no_batches_is_refused(data):
    with pytest.raises(hr.core.checks.ArgumentError, match="data"):
        _source(data)


@pytest.mark.parametrize("kind", ["batches", "dicts", "two inputs"])
def test_inspect_takes_batches_dicts_and_several_inputs(kind):
    expected = _numbers(_model(), (INPUTS, LABELS))
    if kind == "two inputs":
        found = _numbers(Both(), [((x / 2, x / 2), y) for x, y in BATCHES])
    elif kind == "dicts":
        data = [{"first": x / 2, "second": x / 2, "labels": y} for x, y in BATCHES]
        found = _numbers(Both(), data)
    else:
        found = _numbers(_model(), list(BATCHES))
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-4), name


def _numbers(model, data):
    found = hr.inspect(model, LOSS, data, budget=60, k=3, console=QUIET)
    names = ("loss", "gradient", "accuracy", "trace", "sharpness")
    return {n: q.value for n, q in found.statistics.items() if n.split("@")[0] in names}


def test_compare_takes_batches():
    other = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    tables = [
        {
            d.name: d.difference
            for d in hr.compare(_model(), other, loss=LOSS, data=data).differences
        }
        for data in ((INPUTS, LABELS), list(BATCHES))
    ]
    assert tables[0] == pytest.approx(tables[1], rel=1e-5, abs=1e-7)


def test_labels_that_the_loss_ignores_are_no_wrong_answers():
    scores = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
    labels = scores.argmax(1)
    labels[:, 2:], labels[4] = -100, -100
    model = nn.Linear(4, 4, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4))
    found = hr.inspect(model, LOSS, (scores, labels), budget=60, console=QUIET)
    assert found.statistics["accuracy@5"].value == 1
