"""The command line in several processes, and what happens when one of them dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

import hyperribbon as hr
from hyperribbon.application.inspection.loading import load_factory
from hyperribbon.core.store import read_json

FACTORY = str(Path(__file__).parent / "factory.py")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.mark.usefixtures("headlines_only")
def test_torchrun_inspects_with_shared_samples(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(_free_port()),
        "-m",
        "hyperribbon",
        "inspect",
        f"{FACTORY}:make",
        "--k",
        "2",
        "--seconds",
        "4",
        "--out",
        str(tmp_path / "out"),
    ]
    run = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("Tables and figures are in") == 1
    assert "failed" not in run.stdout
    together = read_json(tmp_path / "out" / "inspection.json")["statistics"]
    model, loss, data = load_factory(f"{FACTORY}:make")()
    alone = hr.inspect(model, loss, data, k=2, budget=4, console=Console(quiet=True))
    for name in ("loss@8", "sharpness@8"):
        found = together[name]["value"]
        assert found == pytest.approx(alone.statistics[name].value, rel=1e-3), name


def test_a_killed_rank_ends_the_others_with_a_message_and_nothing_written(tmp_path):
    port = str(_free_port())
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "hyperribbon",
                "inspect",
                f"{FACTORY}:make_differently",
                "--k",
                "20",
                "--seconds",
                "300",
                "--out",
                "out",
            ],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "test",
                "PYTHONUNBUFFERED": "1",
            },
        )
        for rank in range(2)
    ]
    survivor, victim = ranks
    assert survivor.stdout is not None
    assert survivor.stdout.readline()  # measuring begins
    time.sleep(1)
    os.kill(victim.pid, signal.SIGKILL)
    killed = time.monotonic()
    _, errors = survivor.communicate(timeout=60)
    assert time.monotonic() - killed < 30
    assert survivor.returncode == 1
    assert "rank 0 of 2 lost contact with the other processes during" in " ".join(errors.split())
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    victim.communicate()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
