"""The memory of an inspection: counted before it is taken, and given back in time."""

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection import memory as memories
from hyperribbon.application.inspection.engine.clock import Clock
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.memory import Heap, lacking_room
from hyperribbon.application.inspection.parts.matrices import eigenpairs
from hyperribbon.application.inspection.parts.theories import no_chain, theory_bytes
from hyperribbon.core.checks import ArgumentError
from hyperribbon.operators import GGN, Rescaled, Risk
from hyperribbon.operators.gram import GramParts, structured_everywhere
from hyperribbon.operators.risk.memory import Meter
from hyperribbon.prediction.linear_layers import find_chain, find_layers
from hyperribbon.spectra import plan

LOSS = nn.CrossEntropyLoss()


@pytest.fixture
def convolutions():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten()
    data = torch.randn(24, 1, 16, 16), torch.arange(24) % 5
    return nn.Sequential(*layers, nn.Linear(8 * 144, 5)), LOSS, data


def watched(monkeypatch, sizes, limit=100.0):
    """Return how often memory is given back while the process has these sizes, one a look."""
    given, sizes = [], list(sizes)
    monkeypatch.setattr(memories, "resident", lambda: sizes[0])
    heap = Heap(limit)
    monkeypatch.setattr(memories, "give_back", lambda: given.append(sizes[0]))
    while len(sizes) > 1:
        sizes.pop(0)
        Clock(heap=heap).check()
    return given


def test_nothing_is_given_back_below_half_of_the_limit(monkeypatch):
    assert watched(monkeypatch, [1000, 1020, 1040, 1049]) == []


def test_memory_is_given_back_as_it_grows_and_not_at_every_look(monkeypatch):
    assert watched(monkeypatch, [1000, 1060, 1061, 1062, 1070, 1071]) == [1060, 1070]


def test_what_shrank_and_grew_again_is_given_back_again(monkeypatch):
    assert watched(monkeypatch, [1000, 1080, 1030, 1080]) == [1080, 1080]


def test_without_a_limit_nothing_is_given_back(monkeypatch):
    assert watched(monkeypatch, [0, 10**12], float("inf")) == []


def test_where_the_system_does_not_say_nothing_was_taken(monkeypatch):
    monkeypatch.setattr(memories, "Path", lambda path: (_ for _ in ()).throw(OSError()))
    assert memories.resident() == 0.0
    assert Heap(1.0).taken == 0.0


def test_a_rescaled_operator_takes_what_its_own_does_and_three_vectors(convolutions):
    ggn = GGN(*convolutions)
    own, size = ggn.cost(), ggn.shape[0]
    cost = Rescaled(ggn, torch.ones(size)).cost()
    assert cost.bytes == own.bytes + 3 * 4 * size
    assert cost.beside == own.beside + 3 * 8 * size


def test_the_factors_of_a_gram_matrix_are_foreseen(convolutions):
    ggn = GGN(*convolutions)
    names = structured_everywhere(ggn.risk)
    with Meter(ggn.risk.function.state.values()) as meter:
        parts = GramParts(ggn.risk, ggn._rows, names)
    assert len(parts.others) + len(parts.layers) == 6
    assert meter.live <= ggn.gram_bytes() <= 2 * meter.live


def test_the_plan_of_a_gram_matrix_counts_its_factors(convolutions, monkeypatch):
    ggn = GGN(*convolutions)

    def planned():
        routes = plan(ggn, 5, eigenvectors=False).routes
        return next(route.memory for route in routes if route.method == "gram")

    before = planned()
    monkeypatch.setattr(GGN, "gram_bytes", lambda self: 10**9)
    assert before < 10**9 < planned()


def test_a_gram_matrix_without_room_leaves_it_to_lanczos(convolutions, monkeypatch):
    ggn, notebook = Subject(*convolutions, memory=1e9).ggn, Notebook(k=12, seed=0, memory=1e9)
    exact = eigenpairs(ggn, 12, "LA", 1e-4, notebook)
    monkeypatch.setattr(GGN, "gram_bytes", lambda self: 10**9)
    found = eigenpairs(ggn, 12, "LA", 1e-4, notebook)
    assert (exact.method, found.method) == ("gram", "lanczos")
    assert torch.allclose(exact.eigenvalues, found.eigenvalues, rtol=1e-3)


def test_the_layers_of_a_chain_are_found_without_its_moments(convolutions):
    risk = Risk(*convolutions)
    assert tuple(find_layers(risk)) == find_chain(risk).layers
    assert find_layers(risk) == {"5": (5, 1152)}


def test_theory_without_room_is_left_out_and_says_what_it_takes(convolutions):
    subject = Subject(*convolutions, memory=1e8)
    needed = theory_bytes([(5, 1152)], subject.total)
    reason = no_chain(Level(subject), Notebook(k=5, seed=0, memory=1.9 * needed))
    assert f"take {needed / 1e6:.0f} MB" in reason
    assert no_chain(Level(subject), Notebook(k=5, seed=0, memory=2.1 * needed)) == ""


def test_room_is_what_was_not_taken(convolutions, monkeypatch):
    ggn = GGN(*convolutions)
    needed = ggn.cost().bytes + 8 * 4 * ggn.shape[0]
    monkeypatch.setattr(memories, "resident", lambda: 1e6)
    heap = Heap(needed + 5e6)
    heap.check_room(ggn, 8)
    monkeypatch.setattr(memories, "resident", lambda: 7e6)  # six more than at the beginning
    with pytest.raises(ArgumentError, match="8 vectors take") as caught:
        heap.check_room(ggn, 8)
    assert f"may take {(needed - 1e6) / 1e6:.0f} MB" in lacking_room(caught.value)
    Heap().check_room(ggn, 10**9)
