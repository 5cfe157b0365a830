"""Eigenpairs on the coordinates that samples reach are those of the whole Hessian."""

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts.headlines import Reached, hessian_end, time_product
from hyperribbon.application.inspection.sampling import spread_of_sum, standard_error


class Sentences(nn.Module):
    """A table of 60 rows, of which samples read the first few."""

    def __init__(self, activation):
        super().__init__()
        self.table, self.head = nn.Embedding(60, 4), nn.Linear(4, 3)
        self.activation = activation

    def forward(self, tokens):
        return self.head(self.activation(self.table(tokens)).mean(1))


def level_with(activation):
    torch.manual_seed(0)
    data = torch.randint(0, 12, (32, 5)), torch.arange(32) % 3
    level = Level(Subject(Sentences(activation), nn.CrossEntropyLoss(), data), 32)
    time_product(level, Notebook(k=10, seed=0))
    return level


@pytest.mark.parametrize("which", ["LA", "SA"])
def test_the_ends_are_those_of_the_whole_matrix(which):
    level, notebook = level_with(torch.tanh), Notebook(k=10, seed=0)
    found = hessian_end(level, 2, which, 1e-4, notebook)
    assert isinstance(level.reached, Reached)
    assert level.reached.shape[0] == 12 * 4 + 15
    dense = level.subject.hessian.to_dense().double()
    values = torch.linalg.eigvalsh(dense)
    expected = values[-2:].flip(0) if which == "LA" else values[:2].flip(0)
    assert torch.allclose(found.eigenvalues.double(), expected, atol=1e-5)
    vectors = found.eigenvectors.double()
    residuals = torch.linalg.vector_norm(dense @ vectors - vectors * found.eigenvalues, dim=0)
    assert bool((residuals <= found.residuals + 1e-6).all())


def test_where_nothing_bends_downwards_the_smallest_is_the_zero_of_what_is_not_reached():
    """A linear table under a mean: the Hessian of the head alone is positive semidefinite."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(6, 3, bias=False))
    inputs = torch.randn(32, 6)
    inputs[:, 3:] = 0
    level = Level(Subject(head, nn.MSELoss(), (inputs, torch.randn(32, 3))), 32)
    time_product(level, Notebook(k=10, seed=0))
    found = hessian_end(level, 1, "SA", 1e-4, Notebook(k=10, seed=0))
    assert level.reached.shape[0] == 9
    assert float(found.eigenvalues[0]) == pytest.approx(0, abs=1e-6)


def test_a_matrix_that_is_reached_everywhere_is_itself():
    subject = Subject(nn.Linear(4, 3), nn.MSELoss(), (torch.randn(32, 4), torch.randn(32, 3)))
    images = [subject.hessian @ torch.randn(15) for _ in range(2)]
    assert Reached.of(subject.hessian, images) is subject.hessian


def test_samples_with_weights_do_not_count_alike():
    data = torch.randn(64, 4), torch.arange(64) % 3
    plain = Subject(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    weighted = Subject(nn.Linear(4, 3), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 5.0])), data)
    total = Subject(nn.Linear(4, 3), nn.CrossEntropyLoss(reduction="sum"), data)
    assert plain.has_equal_samples
    assert total.has_equal_samples
    assert not weighted.has_equal_samples


def test_the_spread_of_a_sum_is_that_of_groups():
    """On average over divisions, as eight groups have it to a quarter only."""
    torch.manual_seed(0)
    data = torch.randn(800, 4) * torch.rand(800, 1), torch.arange(800) % 3
    subject = Subject(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    _, parts = subject.gauss_newton_rows.trace_parts()
    by_groups = [standard_error(subject, lambda s: float(s.ggn.trace()), seed) for seed in range(8)]
    mean = sum(error**2 for error in by_groups) / len(by_groups)
    assert spread_of_sum(parts) == pytest.approx(mean**0.5, rel=0.3)
    assert float(parts.sum()) == pytest.approx(subject.ggn.trace(), rel=1e-5)
