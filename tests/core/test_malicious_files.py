"""Checkpoints that hide code run nothing, whatever version of torch reads them."""

import io
import os
import pickle
import tarfile

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.application.cli import models
from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.states import load_state, load_tensors_only, torch_version
from hyperribbon.recording.resume_state import read_parts


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def write_zip(path, trap):
    torch.save({"weight": torch.ones(2), "trap": trap}, path)


def write_legacy(path, trap):
    torch.save({"weight": trap}, path, _use_new_zipfile_serialization=False)


def write_pickle(path, trap):
    path.write_bytes(pickle.dumps(trap))


def write_tar(path, trap):
    """The oldest format, whose parts old versions of torch unpickled even with weights_only."""
    with tarfile.open(path, "w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            content = pickle.dumps(trap)
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


WRITERS = {"zip": write_zip, "legacy": write_legacy, "pickle": write_pickle, "tar": write_tar}
READERS = {
    "load_state": load_state,
    "resume": read_parts,
    "checkpoints": lambda path: hr.Trajectory.from_checkpoints(path.parent).weights(0),
    "optimizer": lambda path: models._load_optimizer(
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), path
    ),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("ending", ["pt", "pth", "bin", "ckpt"])
def test_hidden_code_does_not_run(tmp_path, reader, writer, ending):
    trap = tmp_path / "sprung"
    path = tmp_path / "files" / f"step-1.{ending}"
    path.parent.mkdir()
    WRITERS[writer](path, Trap(trap))
    with pytest.raises(ArgumentError):
        READERS[reader](path)
    assert not trap.exists()


def test_tensors_are_read_from_torch_2_6_on(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "state.pt")
    if torch_version() < (2, 6):
        with pytest.raises(ArgumentError, match="CVE-2025-32434"):
            load_tensors_only(tmp_path / "state.pt")
    else:
        assert load_state(tmp_path / "state.pt")["weight"].tolist() == [1, 1]
