"""Sweeps: grids, resuming, processes, a Dask cluster that loses a worker."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

import hyperribbon as hr
from hyperribbon.core import ArgumentError, numpy_generator


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
