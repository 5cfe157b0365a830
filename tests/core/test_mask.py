import pytest
import torch

from hyperribbon.core import ArgumentError, Mask


@pytest.fixture
def first():
    return Mask({"a": torch.tensor([True, False, True]), "b": torch.tensor([[True], [False]])})


def test_counts(first):
    assert (first.count, first.size, first.fraction) == (3, 5, 0.6)
    assert (~first).count == 2
    assert Mask({}).fraction == 0.0


def test_algebra_follows_sets(first):
    second = Mask({"a": torch.tensor([True, True, False])})
    assert (first & second).count == 1
    assert (first | second).count == 4
    assert (first - second).count == 2
    assert first == (first & first)
    assert first != second


def test_entries_are_copies(first):
    entry = torch.tensor([True])
    mask = Mask({"a": entry})
    entry[0] = False
    assert mask.count == 1


def test_bad_entries_are_refused(first):
    with pytest.raises(ArgumentError, match="boolean"):
        Mask({"a": torch.ones(2)})
    with pytest.raises(ArgumentError, match="shape"):
        first & Mask({"a": torch.tensor([True])})
