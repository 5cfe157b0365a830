"""Groups of processes that stay up and run one check after another: starting one takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TIMEOUT = 60


class Ranks:
    """Processes that serve `checks.py`, joined in one gloo group.

    Args:
        size: How many.
        folder: Where they meet.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self.folder = folder
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "serve.py"), str(rank), str(size), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
            for rank in range(size)
        ]

    def run(self, name: str) -> list[str]:
        """Run a check on every rank and return what went wrong on each, "" for nothing."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(name + "\n")
            process.stdin.flush()
        return [self._answer(process) for process in self.processes]

    def _answer(self, process: subprocess.Popen) -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        return json.loads(line) if line else f"the process ended with status {process.wait()}"

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.wait(TIMEOUT)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory) -> Iterator[Ranks]:
    ranks = Ranks(2, tmp_path_factory.mktemp("two"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def four_ranks(tmp_path_factory) -> Iterator[Ranks]:
    ranks = Ranks(4, tmp_path_factory.mktemp("four"))
    yield ranks
    ranks.close()
