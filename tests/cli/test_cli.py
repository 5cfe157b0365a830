"""The command line as a user meets it: messages, exit statuses, files."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from hyperribbon.application.cli.app import app, main
from hyperribbon.core import ArgumentError


def run(*arguments, monkeypatch, capsys):
    """Call main as the console script does; return (status, output, errors)."""
    monkeypatch.setattr(sys, "argv", ["hyperribbon", *map(str, arguments)])
    status = 0
    try:
        main()
    except SystemExit as stop:
        status = stop.code or 0
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def cli(monkeypatch, capsys):
    monkeypatch.setenv("HYPERRIBBON_DATA", "")  # so that what --data sets is undone
    monkeypatch.delenv("HYPERRIBBON_DATA")
    return lambda *arguments: run(*arguments, monkeypatch=monkeypatch, capsys=capsys)


def test_list_shows_ids(cli):
    status, output, _ = cli("list")
    assert status == 0 and "ribbons/fig4" in output
    status, output, _ = cli("list", "--paper", "ribbons", "--json")
    assert {"ribbons/fig4"} <= {entry["id"] for entry in json.loads(output)}


def test_list_tells_what_presets_cost(cli):
    status, output, _ = cli("list", "--paper", "ribbons", "--cost")
    assert status == 0
    (line,) = [line for line in output.splitlines() if line.startswith("ribbons/fig6")]
    assert " s, 0" in line and "about" in line and "GB" in line


def test_settings_of_ones_own_are_read_and_belong_to_one_experiment(cli, tmp_path):
    options = ("--preset", "smoke", "--out", tmp_path, "--seeds", "2", "--set", "samples=20")
    status, output, _ = cli("reproduce", "ribbons/fig4", *options)
    assert status == 0 and "4 claims" in output
    (run,) = tmp_path.glob("ribbons*/run.json")
    assert json.loads(run.read_text())["changed"] == {"samples": 20}
    status, _, error = cli("reproduce", "--paper", "ribbons", *options)
    assert status == 2 and "single experiment" in error


def test_reproduce_writes_claims(cli, tmp_path):
    claims_file = tmp_path / "claims.json"
    status, output, _ = cli(
        "reproduce", "ribbons/fig4", "--preset", "smoke", "--out", tmp_path, "--json", claims_file
    )
    assert status == 0
    claims = json.loads(claims_file.read_text())
    assert all({"quote", "reading", "origin", "seeds"} <= claim.keys() for claim in claims)
    assert "1 experiment at preset smoke: 4 claims" in output
    assert "printed: 1 holds" in output


def test_a_second_run_is_read_from_the_store(cli, tmp_path):
    arguments = ("reproduce", "ribbons/fig4", "--preset", "smoke", "--out", tmp_path)
    assert cli(*arguments)[0] == 0
    (result,) = tmp_path.glob("ribbons*/result.safetensors")
    before = result.stat().st_mtime_ns
    assert cli(*arguments)[0] == 0
    assert result.stat().st_mtime_ns == before
    assert cli(*arguments, "--fresh")[0] == 0
    assert result.stat().st_mtime_ns != before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reproduce", "ribbons/fig44"), "Did you mean"),
        (("reproduce",), "--paper, or --all"),
        (("reproduce", "--all", "--paper", "ribbons"), "expected IDs"),
        (("reproduce", "--paper", "rib"), "'ribbons'"),
        (("reproduce", "ribbons/fig4", "--preset", "huge"), "'smoke'"),
        (("reproduce", "ribbons/fig4", "--data", "/nowhere"), "folder does not exist"),
        (("reproduce", "ribbons/fig4", "--csv", "numbers.csv"), "Give the name of a folder"),
        (("reproduce", "ribbons/fig4", "--out", "/proc/none"), "cannot be written to"),
        (("reproduce", "ribbons/fig4", "--jobs", "0"), "jobs=0"),
        (("reproduce", "ribbons/fig4", "--seed", "-1"), "seed=-1"),
        (("list", "--paper", "x"), "not a known choice"),
        (("report", "/nowhere"), "/nowhere"),
        (("reproduce", "--no-such-option"), "No such option"),
        (("nonsense",), "No such command"),
    ],
)
def test_a_mistake_gives_one_message_and_status_2(cli, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    status, output, errors = cli(*arguments)
    assert status == 2
    assert words in errors + output
    assert "Traceback" not in errors + output


def test_a_truncated_data_file_gives_status_2(cli, tmp_path, monkeypatch):
    from hyperribbon.core.data import load_data
    from hyperribbon.papers.experiments.ribbons import fig4

    place = tmp_path / "MNIST" / "raw"
    place.mkdir(parents=True)
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (place / name).write_bytes(b"\0\0\x08\x03\0\0\0\x05")
    monkeypatch.setattr(fig4, "compute", lambda config, context: load_data("mnist"))
    arguments = ("reproduce", "ribbons/fig4", "--out", tmp_path / "runs", "--data", tmp_path)
    status, output, errors = cli(*arguments)
    assert status == 2
    assert "header is cut off" in errors and "Traceback" not in output + errors


def test_something_broken_gives_status_1_and_the_others_run(cli, tmp_path, monkeypatch):
    from hyperribbon.papers.experiments.ribbons import fig4

    monkeypatch.setattr(fig4, "compute", lambda config, context: 1 / 0)
    status, output, _ = cli("reproduce", "ribbons/fig4", "--out", tmp_path)
    assert status == 1 and "ZeroDivisionError" in output and "Broke: ribbons/fig4" in output


def test_report_writes_one_file(cli, tmp_path):
    cli("reproduce", "ribbons/fig4", "--preset", "smoke", "--out", tmp_path / "runs")
    status, output, _ = cli("report", tmp_path / "runs", "--out", tmp_path / "report.html")
    assert status == 0 and "report.html" in output
    page = (tmp_path / "report.html").read_text()
    assert "ribbons/fig4" in page and "holds" in page


def test_help_has_examples():
    for command in ("demo", "inspect", "list", "reproduce", "report", "explore", "plan"):
        result = CliRunner().invoke(app, [command, "--help"])
        assert result.exit_code == 0 and f"hyperribbon {command}" in result.output
    assert CliRunner().invoke(app, ["--version"]).output.startswith("hyperribbon ")


def _hear_ctrl_c():
    """Undo what shells do to commands in the background, which then ignore the signal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_a_resumable_store(tmp_path):
    command = [sys.executable, "-m", "hyperribbon", "reproduce", "fluctuations/fig5a", "--out"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, str(tmp_path)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
        preexec_fn=_hear_ctrl_c,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("fluctuations*/parts/*.safetensors")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the same command again to resume" in errors and "Traceback" not in errors
    assert not list(Path(tmp_path).rglob("*.tmp"))


FACTORY = """
import torch
import hyperribbon as hr


def make():
    data = hr.load_data("digits", limit=60).flat()
    return hr.training.mlp((64, 8, 10), seed=0), torch.nn.CrossEntropyLoss(), data
"""


def test_plan_names_the_routes(cli, tmp_path, monkeypatch):
    (tmp_path / "planned.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    status, output, _ = cli("plan", "planned.py:make", "--k", "3", "--operator", "ggn")
    assert status == 0
    assert "610 weights" in output
    assert "lanczos" in output and "dense" in output
    status, _, errors = cli("plan", "planned.py:nothing")
    assert status == 2 and "has no function nothing" in errors
    status, _, errors = cli("plan", "planned.py:make", "--operator", "kfac")
    assert status == 2 and "'hessian'" in errors


def test_a_folder_that_does_not_exist_is_not_explored(tmp_path):
    done = CliRunner().invoke(app, ["explore", str(tmp_path / "nosuch")])
    assert isinstance(done.exception, ArgumentError)
    assert "does not exist" in str(done.exception)


def test_the_shell_completes_experiments():
    environment = {"_HYPERRIBBON_COMPLETE": "complete_bash", "COMP_CWORD": "2"}
    environment |= {"COMP_WORDS": "hyperribbon reproduce ribbons/fi"}
    done = CliRunner().invoke(app, [], prog_name="hyperribbon", env=environment)
    assert "ribbons/fig4" in done.output and "fluctuations" not in done.output


def test_numbers_of_figures_are_written_as_csv(tmp_path):
    folders = ["--out", str(tmp_path / "runs"), "--csv", str(tmp_path / "csv")]
    done = CliRunner().invoke(app, ["reproduce", "ribbons/fig4", "--preset", "smoke", *folders])
    assert done.exit_code == 0, done.output
    claims = pd.read_csv(tmp_path / "csv" / "claims.csv")
    assert {"id", "measured", "verdict"} <= set(claims.columns)
    numbers = pd.read_csv(tmp_path / "csv" / "ribbons_fig4.csv")
    assert list(numbers.columns) == ["name", "index", "value"] and len(numbers) > 10
