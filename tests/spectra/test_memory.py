"""Traces, densities and eigenpairs stay within the bytes they are given."""

import numpy as np
import pytest
import torch

from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import density, eigsh, frobenius, trace

SIZE = 60_000
VECTOR = 4 * SIZE
SMALL = 1 << 16
OUTLIERS = np.concatenate([np.linspace(10, 30, 10), np.linspace(0, 0.05, SIZE - 10)])


@pytest.fixture
def op(diagonal_of):
    return diagonal_of(OUTLIERS)


@pytest.mark.parametrize("function", [trace, frobenius])
@pytest.mark.parametrize("vectors", [5, 12, 50])
def test_probes_and_sketch_stay_within_the_memory(op, peak_of, function, vectors):
    memory = vectors * VECTOR + SMALL
    found, held = peak_of(lambda: function(op, precision=1e-3, max_matvecs=80, memory=memory))
    assert held <= memory
    exact = OUTLIERS.sum() if function is trace else np.linalg.norm(OUTLIERS)
    assert abs(found.value - exact) <= 5 * found.stderr + 1e-4 * exact
    assert held >= 0.4 * memory


def test_less_memory_means_fewer_directions_and_a_larger_error(op):
    rich, poor = (
        trace(op, precision=1e-3, max_matvecs=100, memory=v * VECTOR + SMALL) for v in (400, 5)
    )
    assert (rich.method, poor.method) == ("krylov", "hutchinson")
    assert rich.stderr < poor.stderr


def test_probes_do_not_depend_on_the_blocks_they_are_multiplied_in(op):
    found = [
        trace(op, precision=1e-9, max_matvecs=16, memory=v * VECTOR + SMALL) for v in (5, 30, 900)
    ]
    found += [trace(op, precision=2e-3, memory=v * VECTOR + SMALL) for v in (60, 900)]
    assert found[-1].method == "krylov"
    for first, second in zip(found[:2] + found[3:4], found[1:3] + found[4:], strict=True):
        assert second.value == pytest.approx(first.value, rel=1e-6)


@pytest.mark.parametrize("steps", [4, 12])
def test_a_density_keeps_its_chain_on_disk_when_memory_is_short(diagonal_of, peak_of, steps):
    values = np.linspace(-1, 1, 200_000)
    op, vector = diagonal_of(values), 800_000
    rich = density(op, probes=2, steps=steps, memory=1e9)
    memory = 9 * vector + SMALL
    poor, held = peak_of(lambda: density(op, probes=2, steps=steps, memory=memory))
    assert held <= memory
    torch.testing.assert_close(poor.nodes, rich.nodes, rtol=0, atol=1e-6)
    torch.testing.assert_close(poor.weights, rich.weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_eigenpairs_stay_within_the_memory(diagonal_of, peak_of, storage):
    op, vector = diagonal_of(np.concatenate([[9, 8, 7, 6], np.linspace(0, 1, 99_996)])), 400_000
    memory = 36 * vector if storage == "memory" else 14 * vector
    options = {"method": "lanczos", "storage": storage, "memory": memory, "tol": 1e-2}
    spectrum, held = peak_of(lambda: eigsh(op, 3, **options))
    assert held <= memory
    np.testing.assert_allclose(spectrum.eigenvalues, [9, 8, 7], rtol=1e-2)


@pytest.mark.parametrize("function", [trace, frobenius, density])
@pytest.mark.parametrize("memory", [0, -1, "much", float("nan")])
def test_memory_is_a_positive_number(op, function, memory):
    with pytest.raises(ArgumentError, match="memory"):
        function(op, memory=memory)


@pytest.mark.parametrize("function", [trace, frobenius, density])
def test_too_little_memory_is_refused_and_the_message_says_how_much_it_takes(op, function):
    with pytest.raises(ArgumentError, match="vectors take") as caught:
        function(op, memory=VECTOR)
    needed = float(str(caught.value).split("Give memory=")[1].split(" ")[0])
    options = {"probes": 2, "steps": 3} if function is density else {"max_matvecs": 4}
    function(op, memory=1.01 * needed, **options)


def test_what_the_product_takes_counts(op):
    op.cost = lambda: type("Cost", (), {"bytes": 10**9, "flops": 1.0})()
    with pytest.raises(ArgumentError, match=r"1\.00 GB"):
        trace(op, memory=9e8)


NARROW = {  # what is asked for, and a memory (in vectors) that it cannot keep
    "lanczos": ({"method": "lanczos"}, 5),
    "in memory": ({"method": "lanczos", "storage": "memory"}, 9),
    "on disk": ({"storage": "disk"}, 5),
    "a basis": ({"storage": "memory", "basis": 60}, 50),
    "a warm start": ({"v0": torch.ones(100_000)}, 5),
}


@pytest.mark.parametrize("name", NARROW)
def test_eigenpairs_that_cannot_keep_the_memory_are_refused_with_what_they_take(
    diagonal_of, peak_of, name
):
    op, vector = diagonal_of(np.concatenate([[9, 8, 7, 6], np.linspace(0, 1, 99_996)])), 400_000
    options, vectors = NARROW[name]
    with pytest.raises(ArgumentError, match=r"memory.*takes") as caught:
        eigsh(op, 3, tol=1e-2, memory=vectors * vector, **options)
    needed = int(str(caught.value).split("Give memory=")[1].split(" ")[0])
    assert needed > vectors * vector
    spectrum, held = peak_of(lambda: eigsh(op, 3, tol=1e-2, memory=needed, **options))
    assert held <= needed
    np.testing.assert_allclose(spectrum.eigenvalues, [9, 8, 7], rtol=1e-2)


def test_a_basis_that_was_asked_for_goes_to_disk_where_memory_is_short(diagonal_of, peak_of):
    op, vector = diagonal_of(np.concatenate([[9, 8, 7, 6], np.linspace(0, 1, 99_996)])), 400_000
    memory = 40 * vector
    spectrum, held = peak_of(lambda: eigsh(op, 3, tol=1e-4, basis=60, memory=memory))
    assert held <= memory
    np.testing.assert_allclose(spectrum.eigenvalues, [9, 8, 7], rtol=1e-4)


def test_a_full_disk_is_named_where_a_basis_has_no_room_in_memory(diagonal_of, monkeypatch):
    full = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("hyperribbon.spectra.planning.shutil.disk_usage", lambda _: full)
    with pytest.raises(ArgumentError, match=r"memory.*of disk.*TMPDIR"):
        eigsh(diagonal_of(np.linspace(0, 1, 100_000)), 3, memory=12 * 400_000, method="lanczos")
