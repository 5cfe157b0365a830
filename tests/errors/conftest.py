"""Calls are shared between the tests of bad inputs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory):
    """Work in a folder of its own, since some of the folders that are tried can be written to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setattr("os.fsync", lambda handle: None)  # a busy disk takes most of the time
        yield
