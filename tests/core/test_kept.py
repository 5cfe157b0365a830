"""Work that keeps its pieces in a folder goes on there after it was stopped, bit for bit."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon import subnetworks
from hyperribbon.core import ArgumentError
from hyperribbon.core.spectral_results import Spectrum
from hyperribbon.core.store import Kept, content_digest, remove_folder, save_tree
from hyperribbon.core.store.check import check_folder

X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
DATA = (X, (X[:, 0] > 0).long())
LOSS = nn.CrossEntropyLoss()


def network(seed):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


MODEL, START = network(0), network(1)


def criticality(folder, **changed):
    metric = subnetworks.metric_of(MODEL, DATA)
    return hr.layer_criticality(MODEL, START.state_dict(), metric, folder=folder, **changed)


def curve(folder, **changed):
    settings = {"fractions": np.linspace(0, 1, 40), "folder": folder} | changed
    states = MODEL.state_dict(), START.state_dict()
    return subnetworks.sweep_selection(MODEL, *states, DATA, **settings)


def share(folder, **changed):
    return hr.prunable(MODEL, LOSS, DATA, **({"folder": folder, "tolerance": 0.05} | changed))


def batches(folder, **changed):
    settings = {"batch_size": 10, "batches": 4, "folder": folder} | changed
    return hr.batch_sharpness(MODEL, LOSS, DATA, **settings)


def layers(folder, **changed):
    return hr.layer_curvature(hr.Hessian(MODEL, LOSS, DATA), folder=folder, **changed)


@dataclass
class Frames:
    """Tables one below the other."""

    parts: list

    def to_frame(self):
        return pd.concat(self.parts)


def tracked(folder, **changed):
    hessian, settings = hr.Hessian(MODEL, LOSS, DATA), {"k": 2, "folder": folder} | changed
    found = hr.track(lambda scale: scale * hessian, weights=[1.0, 1.1, 1.3], **settings)
    vectors = [pd.DataFrame(s.eigenvectors.numpy()) for s in found]
    assert all(s.matvecs > 0 and isinstance(s, Spectrum) for s in found)
    return Frames([*(s.to_frame() for s in found), *vectors])


def measured(folder, **changed):
    settings = {"steps": 4, "lr": 0.1, "initializations": 4} | changed
    forecast = hr.predict_manifold(MODEL, LOSS, (X[:6], DATA[1][:6]), **settings)
    found = forecast.measure(networks=3, folder=folder)
    return Frames([found.to_frame(), pd.DataFrame({"drift": found.kernel_drift})])


WORK = {
    tracked: {"seed": 1},
    measured: {"steps": 5},
    criticality: {"seed": 1},
    curve: {"operation": "prune"},
    share: {"criterion": "gradient"},
    batches: {"seed": 1},
    layers: {"k": 2},
}


def same(first, second):
    one, other = first.to_frame(), second.to_frame()
    return one.equals(other)


@pytest.mark.parametrize("work", WORK)
def test_stopped_work_goes_on_to_the_same_result(tmp_path, work, monkeypatch):
    plain, stops = work(None), 0
    add = Kept.__call__
    while True:
        left = 2

        def limited(self, name, compute):
            nonlocal left

            def counted():
                nonlocal left
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
                return compute()

            return add(self, name, counted)

        monkeypatch.setattr(Kept, "__call__", limited)
        try:
            found = work(tmp_path)
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops >= 1 and same(found, plain)
    assert check_folder(tmp_path).is_whole
    left = 0
    assert same(work(tmp_path), plain), "everything is read"


@pytest.mark.parametrize("work", WORK)
def test_another_request_does_not_read_what_is_kept(tmp_path, work):
    work(tmp_path)
    changed = WORK[work]
    assert same(work(tmp_path, **changed), work(None, **changed))


def test_other_weights_do_not_read_what_is_kept(tmp_path, monkeypatch):
    before = [work(tmp_path) for work in WORK]
    monkeypatch.setitem(globals(), "MODEL", network(2))
    for work, earlier in zip(WORK, before, strict=True):
        found = work(tmp_path)
        assert same(found, work(None))
        if work is not measured:  # which initialises its networks anew
            assert not same(found, earlier)


def test_a_damaged_piece_is_refused_and_computed_anew_after_repair(tmp_path):
    plain = batches(tmp_path)
    path = sorted(tmp_path.rglob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-3])
    assert not check_folder(tmp_path).is_whole
    with pytest.raises(ArgumentError, match="damaged"):
        batches(tmp_path)
    assert check_folder(tmp_path, repair=True).is_whole
    assert same(batches(tmp_path), plain)


def test_digests_tell_values_apart():
    parts = [1, 1.0, "1", None, [1], [[1]], {"a": 1}, {"b": 1}, np.ones(2), np.ones((2, 1))]
    parts += [torch.ones(2, dtype=torch.int8), np.ones(2, np.float32), ["a", "b"], ["ab"]]
    assert len({content_digest(part) for part in parts}) == len(parts)
    assert content_digest(torch.ones(2)) == content_digest(np.ones(2, np.float32))


def test_a_missing_list_of_the_pieces_is_found_and_made_anew(tmp_path):
    Kept(tmp_path, "request")("piece", lambda: {"x": np.arange(3.0)})
    (listed,) = tmp_path.glob("*/manifest.json")
    listed.unlink()
    assert [f.place for f in check_folder(tmp_path).findings] == [listed]
    assert check_folder(tmp_path, repair=True).is_whole and check_folder(tmp_path).is_whole
    assert Kept(tmp_path, "request")("piece", dict)["x"].tolist() == [0, 1, 2]
    assert listed.is_file() and check_folder(tmp_path).is_whole


def test_a_kill_while_a_recording_is_removed_leaves_nothing_damaged(tmp_path, monkeypatch):
    folder = tmp_path / "resume"
    recorder = hr.Recorder(folder, "1it")
    recorder.attach(network(0))
    recorder.close()
    with monkeypatch.context() as killed:
        killed.setattr("shutil.rmtree", lambda place, **_: [f.unlink() for f in place.glob("*/*")])
        remove_folder(folder)
        assert not folder.exists() and len(list(tmp_path.iterdir())) == 1
    (tmp_path / "tree").mkdir()
    save_tree(tmp_path / "tree" / "x.safetensors", {"x": 1})
    assert check_folder(tmp_path).findings == ()
    remove_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]
