"""Sweeps: grids, resuming, processes, a Dask cluster that loses a worker."""

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

import hyperribbon as hr
from hyperribbon.core import ArgumentError, numpy_generator
from hyperribbon.papers.experiments.sweeping import SweepWarning


def measure(point):
    value = numpy_generator(point["seed"]).standard_normal(4) * point["scale"]
    return {"value": value}


def measure_slowly(point):
    marker = Path(point["marker"])
    if point["seed"] == 2 and not marker.exists():
        marker.touch()
        os._exit(1)
    time.sleep(0.05)
    return measure(point)


def test_a_grid_is_every_combination(tmp_path):
    found = hr.sweep(measure, {"scale": [1.0, 2.0], "seed": [0, 1]}, out=tmp_path)
    assert [entry["point"] for entry in found] == [
        {"scale": s, "seed": i} for s in (1.0, 2.0) for i in (0, 1)
    ]
    np.testing.assert_array_equal(2 * found[1]["result"]["value"], found[3]["result"]["value"])
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    hr.sweep(measure, [{"scale": 1.0, "seed": 0}], out=tmp_path)
    assert files == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        ({"scale": []}, {}, "no points"),
        ([], {}, "no points"),
        ({"scale": [1.0]}, {"jobs": 0}, "jobs=0"),
        ({"scale": [1.0]}, {"jobs": 2, "dask": "tcp://127.0.0.1:1"}, "cluster is given too"),
    ],
)
def test_mistakes_are_explained(tmp_path, grid, options, words):
    with pytest.raises(ArgumentError, match=words):
        hr.sweep(measure, grid, out=tmp_path, **options)


def fail_at_two(point):
    if point["seed"] == 2 and not Path(point["mended"]).exists():
        raise ValueError("two is too much")
    return measure(point)


def return_nonsense(point):
    return object() if point["seed"] else 1.0


def die_at_two(point):
    if point["seed"] == 2 and not Path(point["mended"]).exists():
        os._exit(9)
    return measure(point)


def points_of(tmp_path, count=4):
    mended = str(tmp_path / "mended")
    return [{"scale": 1.0, "seed": seed, "mended": mended} for seed in range(count)]


@pytest.fixture
def forking(monkeypatch):
    """Processes that begin at once, without importing everything anew."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: context)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_point_that_fails_does_not_stop_the_others(tmp_path, forking, jobs):
    points = points_of(tmp_path)
    with pytest.warns(SweepWarning, match=r"1 of 4 points failed.*two is too much.*retry=True"):
        found = hr.sweep(fail_at_two, points, out=tmp_path / "out", jobs=jobs)
    assert [entry["error"] is None for entry in found] == [True, True, False, True]
    assert found[2]["result"] is None
    assert found[2]["error"].splitlines()[-1] == "ValueError: two is too much"
    assert "fail_at_two" in found[2]["error"] and "sweeping.py" not in found[2]["error"]
    (tmp_path / "mended").touch()
    with pytest.warns(SweepWarning, match="1 of 4"):
        hr.sweep(fail_at_two, points, out=tmp_path / "out")
    again = hr.sweep(fail_at_two, points, out=tmp_path / "out", retry=True)
    assert [entry["error"] for entry in again] == [None] * 4
    np.testing.assert_array_equal(again[2]["result"]["value"], measure(points[2])["value"])


def test_a_result_that_cannot_be_kept_is_an_error_of_its_point(tmp_path):
    with pytest.warns(SweepWarning, match="only arrays and plain values"):
        found = hr.sweep(return_nonsense, {"seed": [0, 1]}, out=tmp_path)
    assert found[0]["result"] == 1.0 and "ArgumentError" in found[1]["error"]


def test_a_process_that_dies_costs_its_own_point_only(tmp_path, forking):
    points = points_of(tmp_path, 5)
    with pytest.warns(SweepWarning, match="1 of 5 points failed.*died"):
        found = hr.sweep(die_at_two, points, out=tmp_path / "out", jobs=2)
    assert [entry["error"] is None for entry in found] == [True, True, False, True, True]
    (tmp_path / "mended").touch()
    found = hr.sweep(die_at_two, points, out=tmp_path / "out")
    assert [entry["error"] for entry in found] == [None] * 5


def test_numpy_numbers_are_points_too(tmp_path):
    grid = {"scale": np.linspace(0.5, 1, 2), "seed": np.arange(2)}
    assert len(hr.sweep(measure, grid, out=tmp_path)) == 4
    files = len(list(tmp_path.iterdir()))
    hr.sweep(measure, {"scale": [0.5, 1.0], "seed": [0, 1]}, out=tmp_path)
    assert len(list(tmp_path.iterdir())) == files


def test_a_lost_dask_worker_costs_nothing(tmp_path):
    from distributed import Client, LocalCluster

    points = [{"scale": 1.0, "seed": seed, "marker": str(tmp_path / "marker")} for seed in range(8)]
    (tmp_path / "marker").touch()
    serial = hr.sweep(measure_slowly, points, out=tmp_path / "serial")
    (tmp_path / "marker").unlink()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        shared = hr.sweep(measure_slowly, points, out=tmp_path / "dask", dask=client)
    assert (tmp_path / "marker").exists()
    for first, second in zip(serial, shared, strict=True):
        np.testing.assert_array_equal(first["result"]["value"], second["result"]["value"])
