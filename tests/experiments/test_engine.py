"""The engine: caching, resuming, workers, the registry."""

import dataclasses
import hashlib
import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hyperribbon.core import ArgumentError
from hyperribbon.papers.experiments import (
    Context,
    ProcessWorkers,
    all_experiments,
    find_experiment,
    run,
    run_experiments,
    workers,
)
from hyperribbon.papers.experiments.costs import cost_of


def square(item):
    log = Path(item["log"])
    log.write_text(log.read_text() + f"{item['x']} " if log.exists() else f"{item['x']} ")
    return {"square": np.array([item["x"] ** 2.0])}


def square_quietly(item):
    return {"square": np.array([item["x"] ** 2.0]), "process": os.getpid()}


@pytest.fixture
def context(tmp_path):
    for name in ("parts", "shared"):
        (tmp_path / name).mkdir()
    return Context(3, tmp_path / "parts", tmp_path / "shared")


def test_a_map_computes_each_item_once(context, tmp_path):
    items = [{"x": x, "log": str(tmp_path / "log")} for x in (1, 2, 3)]
    first = context.map(square, items[:2])
    second = context.map(square, items)
    assert [r["square"][0] for r in second] == [1, 4, 9]
    assert [r["square"][0] for r in first] == [1, 4]
    assert (tmp_path / "log").read_text() == "1 2 3 "


def test_a_shared_computation_runs_once_for_all_runs(context, tmp_path):
    item = {"x": 5, "log": str(tmp_path / "log")}
    other = Context(9, tmp_path / "parts", tmp_path / "shared")
    assert context.shared(square, item) == other.shared(square, item) == {"square": [25.0]}
    assert (tmp_path / "log").read_text() == "5 "


def test_two_runs_divide_what_they_share_instead_of_waiting(context, tmp_path):
    begun, calls = threading.Event(), {"one": [], "two": []}

    def slow(item):
        calls[threading.current_thread().name].append(item["x"])
        if item["x"] == 0:
            begun.set()
            assert others_done.wait(20)
        elif item["x"] == 2:
            others_done.set()
        return {"x": item["x"]}

    others_done = threading.Event()
    items = [{"x": x} for x in (0, 1, 2)]
    context, second = (
        Context(seed, tmp_path / "parts", tmp_path / "shared", version="1") for seed in (3, 4)
    )
    first_run = threading.Thread(target=context.shared_map, args=(slow, items), name="one")
    first_run.start()
    assert begun.wait(20)
    found = []
    second_run = threading.Thread(
        target=lambda: found.extend(second.shared_map(slow, items)), name="two"
    )
    second_run.start()
    for thread in (first_run, second_run):
        thread.join(20)
    assert calls == {"one": [0], "two": [1, 2]}
    assert [one["x"] for one in found] == [0, 1, 2]


def test_a_shared_folder_is_filled_once(context, tmp_path):
    calls = []

    def fill(folder, item):
        calls.append(item["x"])
        (folder / "file").write_text("x")

    context = Context(3, tmp_path / "parts", tmp_path / "shared", version="1")
    folder = context.shared_folder(fill, {"x": 1})
    assert context.shared_folder(fill, {"x": 1}) == folder
    assert (folder / "file").read_text() == "x"
    assert calls == [1]


def test_streams_depend_on_seed_and_name(context, tmp_path):
    same = Context(3, tmp_path / "parts", tmp_path / "shared")
    assert context.rng("a").random() == same.rng("a").random() != same.rng("b").random()


def test_several_processes_give_the_same_results(tmp_path, context):
    (tmp_path / "parts2").mkdir()
    parallel = Context(3, tmp_path / "parts2", tmp_path / "shared", workers=ProcessWorkers(2))
    items = [{"x": x} for x in range(3)]
    results = parallel.map(square_quietly, items)
    assert [r["square"][0] for r in results] == [0, 1, 4]
    assert os.getpid() not in {r["process"] for r in results}


def test_every_experiment_keeps_the_contract():
    experiments = all_experiments()
    assert "ribbons/fig4" in experiments
    for id, experiment in experiments.items():
        file = Path(experiment.module.__file__)
        assert id == f"{file.parent.name}/{id.split('/')[1]}"
        assert id.split("/")[1].replace("-", "_").replace(".", "_") == file.stem
        assert set(experiment.module.PRESETS) == {"smoke", "laptop", "paper"}
        assert experiment.title and experiment.module.__doc__


def test_an_unknown_experiment_names_near_ones():
    with pytest.raises(ArgumentError, match="ribbons/fig4"):
        find_experiment("ribbon/fig4")
    with pytest.raises(ArgumentError, match="preset"):
        run("ribbons/fig4", preset="huge")


def test_a_helper_of_a_paper_is_no_experiment():
    with pytest.raises(ArgumentError, match="no such experiment"):
        find_experiment("ribbons/_parts")


def test_another_statement_makes_another_run(monkeypatch):
    experiment = find_experiment("ribbons/fig1")
    before = experiment.code
    first, *others = experiment.module.STATEMENTS
    changed = (dataclasses.replace(first, reading="Something else."), *others)
    monkeypatch.setattr(experiment.module, "STATEMENTS", changed)
    assert experiment.code != before


def digest(folder):
    files = [
        *folder.glob("ribbons*/result.safetensors"),
        *folder.glob("ribbons*/claims.json"),
        *folder.glob("ribbons*/figures/*"),
    ]
    assert len(files) == 4
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)]


def test_a_killed_run_resumes_to_the_same_bits(tmp_path, in_fork):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run("ribbons/fig4", preset="laptop", out=whole)
    process = in_fork(partial(run, preset="laptop", out=killed), "ribbons/fig4")
    deadline = time.monotonic() + 120
    while not list(killed.glob("ribbons*/parts/*.safetensors")):
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not list(killed.glob("ribbons*/result.safetensors"))
    survivors = {f: f.stat().st_mtime_ns for f in killed.glob("ribbons*/parts/*.safetensors")}
    assert survivors

    seen = []
    original = Context.map

    def spy(self, function, items, label=None):
        seen.extend(f.stat().st_mtime_ns == t for f, t in survivors.items())
        return original(self, function, items, label)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Context, "map", spy)
        run("ribbons/fig4", preset="laptop", out=killed)
    assert seen and all(seen)
    assert digest(killed) == digest(whole)


def test_side_by_side_the_longest_experiments_begin_first():
    begun = []

    class Recording:
        def run(self, function, jobs, lost=None):
            begun.extend(job[0] for job in jobs)
            return iter(())

    ids = ["ribbons/fig4", "subnetworks/fig4.1", "nothing/here", "subnetworks/tickets"]
    seconds = {id: cost_of(find_experiment(id), "laptop").seconds for id in ids if "here" not in id}
    assert len(set(seconds.values())) == 3
    assert list(run_experiments(ids, workers=Recording(), preset="laptop")) == []
    assert begun == [*sorted(seconds, key=seconds.get, reverse=True), "nothing/here"]


def test_what_was_finished_before_is_reported_once(context, tmp_path):
    told = []

    class Told:
        def start(self, label, total):
            return total

        def advance(self, handle, count=1):
            told.append(count)

        def finish(self, handle):
            pass

    items = [{"x": x, "log": str(tmp_path / "log")} for x in (1, 2, 3)]
    context.map(square, items[:2])
    Context(3, tmp_path / "parts", tmp_path / "shared", progress=Told()).map(square, items)
    assert sum(told) == 3


def test_processes_divide_the_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 9)
    given = []
    monkeypatch.setattr(workers, "ProcessPoolExecutor", lambda *a, **options: given.append(options))
    for processes in (1, 4, 20):
        ProcessWorkers(processes)._pool(1)
    assert [options["initargs"] for options in given] == [(9,), (2,), (1,)]
