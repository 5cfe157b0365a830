import gc
import sys
from pathlib import Path

import pytest


@pytest.fixture
def harness(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[2]), *sys.path])
    import benchmarks.harness

    monkeypatch.setattr(benchmarks.harness, "RESULTS", tmp_path)
    monkeypatch.setattr(gc, "collect", lambda: 0)  # half a second beside all other tests' modules
    return benchmarks.harness
