import io
import json
import time

import numpy as np
import pytest
from rich.console import Console


def run(harness, rows, module="example"):
    console = Console(file=io.StringIO(), width=200)
    sound = harness.run_rows(module, rows, console)
    document = json.loads((harness.RESULTS / f"{module}.json").read_text())
    return sound, document["rows"], console.file.getvalue()


def race(harness, peers, **options):
    settings = {
        "name": "sum",
        "work": lambda: np.arange(10.0),
        "ours": harness.Contender(np.sum),
        "peers": peers,
        "difference": harness.relative_difference,
        "tolerance": 1e-9,
    }
    return harness.Race(**(settings | options))


def test_slower_peer_gets_its_ratio_and_a_met_target(harness):
    def slow(work):
        time.sleep(0.02)
        return work.sum()

    row = race(harness, {"slow": harness.Contender(slow)}, targets={"slow": 5.0})
    sound, rows, text = run(harness, [row])
    line = rows[0]["lines"][1]
    assert sound
    assert line["verdict"] == "met"
    assert line["ratio"] > 5
    assert len(line["seconds"]) == 5
    assert "≥ 5" in text


def test_answers_that_disagree_are_not_timed(harness):
    peers = {"wrong": harness.Contender(lambda work: work.sum() + 1)}
    sound, rows, _ = run(harness, [race(harness, peers)])
    line = rows[0]["lines"][1]
    assert not sound
    assert line["verdict"] == "disagrees"
    assert "seconds" not in line


def test_a_nan_answer_disagrees(harness):
    peers = {"nan": harness.Contender(lambda work: work.sum() * float("nan"))}
    sound, rows, _ = run(harness, [race(harness, peers)])
    assert not sound
    assert rows[0]["lines"][1]["verdict"] == "disagrees"


def test_peer_that_is_not_installed_is_named(harness):
    peers = {"gone": harness.Contender(np.sum, requires="no_such_package_here")}
    sound, rows, text = run(harness, [race(harness, peers)])
    assert sound
    assert rows[0]["lines"][1]["verdict"] == "missing"
    assert "no_such_package_here is not installed" in text


def test_contenders_take_turns_and_prepare_is_not_repeated(harness):
    order = []

    def contender(name):
        return harness.Contender(
            run=lambda state: order.append(name) or 1.0,
            prepare=lambda work: order.append(f"prepare {name}"),
        )

    row = race(harness, {"peer": contender("peer")}, ours=contender("ours"), repeats=3)
    run(harness, [row])
    assert order == ["prepare ours", "prepare peer"] + ["ours", "peer"] * 4


def test_a_very_slow_peer_runs_once(harness):
    calls = []
    peers = {"slow": harness.Contender(lambda work: calls.append(1) or work.sum(), repeats=0)}
    _, rows, _ = run(harness, [race(harness, peers)])
    assert len(calls) == 1
    assert len(rows[0]["lines"][1]["seconds"]) == 1


@pytest.mark.parametrize(("value", "verdict"), [(0.3, "met"), (0.5, "missed")])
def test_limits_are_judged(harness, value, verdict):
    row = harness.Measure("tracking", lambda: [harness.Limit("ratio", value, high=0.45)])
    sound, rows, _ = run(harness, [row])
    assert sound
    assert rows[0]["lines"][0]["verdict"] == verdict


def test_a_broken_row_does_not_stop_the_others(harness):
    rows = [
        harness.Measure("broken", lambda: 1 / 0),
        harness.Measure("fine", lambda: [harness.Limit("one", 1.0)]),
    ]
    sound, written, _ = run(harness, rows)
    assert not sound
    assert [row["lines"][0]["verdict"] for row in written] == ["broke", ""]


def test_running_one_row_keeps_the_others_in_the_file(harness):
    def row(name, value):
        return harness.Measure(name, lambda: [harness.Limit("value", value)])

    run(harness, [row("a", 1.0), row("b", 2.0)])
    _, rows, _ = run(harness, [row("a", 3.0)])
    assert {r["row"]: r["lines"][0]["value"] for r in rows} == {"a": 3.0, "b": 2.0}


def test_peak_memory_counts_what_was_freed_again(harness):
    rise = harness.peak_memory(np.ones, 20_000_000)
    assert rise == pytest.approx(160e6, rel=0.1)


def test_a_number_that_could_not_be_measured_misses_its_limit(harness):
    limit = harness.Limit("time", None, high=1.0, note="fails: no such kernel")
    sound, rows, text = run(harness, [harness.Measure("row", lambda: [limit])])
    assert sound
    assert rows[0]["lines"][0]["verdict"] == "missed"
    assert "fails: no such kernel" in text


def test_a_limit_whose_answer_is_wrong_makes_the_run_unsound(harness):
    limit = harness.Limit("time", 0.5, high=1.0, agrees=False)
    sound, rows, _ = run(harness, [harness.Measure("row", lambda: [limit])])
    assert not sound
    assert rows[0]["lines"][0]["verdict"] == "disagrees"


def test_a_quick_look_takes_few_rounds_and_writes_nothing(harness, monkeypatch):
    monkeypatch.setenv(harness.QUICK, "1")
    calls = []
    row = race(harness, {}, ours=harness.Contender(lambda work: calls.append(1) or 1.0), repeats=9)
    assert harness.run_rows("example", [row], Console(file=io.StringIO()))
    assert len(calls) == 1 + 3
    assert not list(harness.RESULTS.iterdir())
