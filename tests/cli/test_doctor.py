"""The command that looks at a machine."""

import torch
from typer.testing import CliRunner

import hyperribbon.application.cli.doctor as room
from hyperribbon.application.cli.app import app


def test_this_machine_is_well():
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert torch.__version__ in result.output
    assert "6.0000000" in result.output and "right" in result.output


def test_a_device_that_is_wrong_or_fails_is_told(monkeypatch):
    monkeypatch.setattr(room, "_largest_eigenvalue", lambda device: 6.1)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 1 and "wrong" in result.output

    def broken(device):
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(room, "_largest_eigenvalue", broken)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["doctor"])
    assert result.exit_code == 1 and "no kernel image" in result.output
