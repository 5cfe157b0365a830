import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from hyperribbon.core import ArgumentError, Band
from hyperribbon.core.store import (
    RunFolder,
    Store,
    config_hash,
    ensure_folder,
    load_tree,
    read_json,
    save_tree,
    write_json,
    write_text,
    writing,
)
from hyperribbon.papers.experiments.statements import Ledger, exact, says


def test_a_tree_comes_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    tree = {
        "array": rng.standard_normal((3, 4)),
        "scalar_array": np.array(2.5),
        "empty": np.zeros((0, 3)),
        "transposed": rng.standard_normal((3, 4)).T,
        "ints": np.arange(5),
        "flags": np.array([True, False]),
        "tensor": torch.arange(3, dtype=torch.float32),
        "list": [1, 2.5, "text", None, True, {"deep": np.ones(2)}],
        "number": np.float64(0.1),
        "nan": float("nan"),
    }
    save_tree(tmp_path / "t", tree)
    again = load_tree(tmp_path / "t")
    for key in ("array", "scalar_array", "empty", "transposed", "ints", "flags"):
        np.testing.assert_array_equal(again[key], tree[key])
        assert again[key].dtype == tree[key].dtype and again[key].shape == tree[key].shape
    np.testing.assert_array_equal(again["tensor"], [0, 1, 2])
    assert again["list"][:5] == [1, 2.5, "text", None, True]
    np.testing.assert_array_equal(again["list"][5]["deep"], np.ones(2))
    assert again["number"] == 0.1
    assert np.isnan(again["nan"])


@pytest.mark.parametrize(
    "tree", [{"x": object()}, {1: 2}, {"__array__": 3}, {"x": np.array(["a", None])}]
)
def test_what_cannot_be_stored_is_refused(tmp_path, tree):
    with pytest.raises(ArgumentError):
        save_tree(tmp_path / "t", tree)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_result_is_named(tmp_path):
    save_tree(tmp_path / "t", {"x": np.zeros(100)})
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-8])
    with pytest.raises(ArgumentError, match="result file is damaged"):
        load_tree(tmp_path / "t")


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(RuntimeError), writing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="cannot be written to"):
        ensure_folder("--out", tmp_path / "file" / "below")


@dataclass(frozen=True)
class Config:
    a: int = 1
    b: tuple[float, ...] = (0.5,)


def test_the_hash_depends_on_values_alone():
    assert config_hash(Config()) == config_hash(Config(1, (0.5,)))
    assert config_hash(Config()) != config_hash(Config(2))
    assert config_hash({"x": 1, "y": 2}) == config_hash({"y": 2, "x": 1})
    with pytest.raises(ArgumentError, match="plain values"):
        config_hash(object())


def test_a_run_keeps_config_environment_result_and_claims(tmp_path):
    run = Store(tmp_path).run("ribbons/x", Config(), 7, title="X", preset="smoke")
    assert not run.is_complete
    run.save_result({"x": np.arange(3)})
    said = says("y", "Fig. 1", "y is small", "y < 1", Band(0, 1, "words"), setting="any")
    (claim,) = Ledger("ribbons/x", said).judge({"y": exact(0.5)})
    run.save_claims([claim])
    (again,) = Store(tmp_path).runs()
    assert again.is_complete and again.info["config"] == {"a": 1, "b": [0.5]}
    assert again.info["environment"]["seed"] == 7
    assert again.info["environment"]["packages"]["torch"].startswith("2.")
    np.testing.assert_array_equal(again.load_result()["x"], [0, 1, 2])
    assert again.load_claims() == [claim]


def test_a_run_is_held_by_one_process_at_a_time(tmp_path, in_fork):
    run, said = Store(tmp_path).run("ribbons/x", Config(), 0), tmp_path / "said"

    def hold():
        try:
            with RunFolder(run.path).lock():
                said.write_text("held")
        except ValueError as error:
            said.write_text(str(error))

    def other_process():
        in_fork(hold).join()
        return said.read_text()

    with run.lock():
        assert "another process is computing this run" in other_process()
    assert other_process() == "held"


def test_processes_writing_the_same_file_leave_one_whole_version(tmp_path, in_fork):
    def write(number):
        for _ in range(40):
            save_tree(path, {"x": np.full(5000, number)})

    path = tmp_path / "tree"
    writers = [in_fork(write, number) for number in range(2)]
    seen = set()
    while any(writer.is_alive() for writer in writers):
        if path.exists():
            values = np.unique(load_tree(path)["x"])
            assert len(values) == 1
            seen.add(int(values[0]))
    assert all(writer.exitcode == 0 for writer in writers)
    assert seen <= {0, 1}
    assert sorted(Path(tmp_path).iterdir()) == [path]


def test_keys_with_slashes_stay_apart(tmp_path):
    tree = {"a/b": np.zeros(2), "a": {"b": np.ones(2)}, "a~1b": np.full(2, 3.0), "~": np.ones(1)}
    save_tree(tmp_path / "t", tree)
    again = load_tree(tmp_path / "t")
    assert again["a/b"].tolist() == [0, 0]
    assert again["a"]["b"].tolist() == [1, 1]
    assert again["a~1b"].tolist() == [3, 3]


def test_a_changed_number_in_a_result_is_named(tmp_path):
    save_tree(tmp_path / "t", {"x": np.zeros(100)})
    content = bytearray((tmp_path / "t").read_bytes())
    content[-3] ^= 1
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ArgumentError, match="checksum is wrong"):
        load_tree(tmp_path / "t")


def test_a_json_file_that_must_have_a_checksum_is_not_read_without(tmp_path):
    path = tmp_path / "run.json"
    write_json(path, {"id": "a"}, checksum=True)
    assert read_json(path, checksum=True) == {"id": "a"}
    path.write_text(path.read_text().replace('"a"', '"b"'))
    with pytest.raises(ValueError, match="its checksum is wrong"):
        read_json(path)
    write_json(path, {"id": "a"})
    assert read_json(path) == {"id": "a"}
    with pytest.raises(ValueError, match="its checksum is missing"):
        read_json(path, checksum=True)


def test_links_and_folders_are_not_replaced(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("dear")
    link.symlink_to(target)
    with pytest.raises(ArgumentError, match=r"a link to .*target, which is not replaced"):
        write_text(link, "new")
    with pytest.raises(ArgumentError, match="a folder, which is not replaced"):
        write_text(tmp_path, "new")
    assert target.read_text() == "dear" and link.is_symlink()


def test_devices_and_pipes_are_written_through(tmp_path):
    write_text(Path("/dev/null"), "nothing")
    assert Path("/dev/null").is_char_device()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="No such device"):  # nobody reads: no wait
        write_text(pipe, "new")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "new")
    assert os.read(reader, 10) == b"new" and pipe.is_fifo()
    os.close(reader)
    code = "from hyperribbon.core.store import *; from pathlib import Path; "
    code += "write_json(Path('/dev/stdout'), {'a': 1})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert json.loads(shown) == {"a": 1} and Path("/dev/stdout").is_symlink()
