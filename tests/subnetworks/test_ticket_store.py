"""Masks and tickets in files; searches that are killed find the same ticket to the bit."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.core.store.check import check_folder
from hyperribbon.core.store.manifest import read_manifest
from hyperribbon.subnetworks import Ticket, gradient_saliency, metric_of

LOSS = nn.CrossEntropyLoss()


def task():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 10, generator=generator)
    return inputs, (inputs[:, 0] * inputs[:, 1] > 0).long()


def network():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def train(net):
    """Draw from all global generators, as loaders and augmentation do."""
    inputs, targets = task()
    optimiser = torch.optim.SGD(net.train().parameters(), lr=0.1 + 0.01 * random.random())
    for _ in range(8):
        batch = torch.randperm(200)[:50]
        optimiser.zero_grad()
        noise = 0.1 * torch.from_numpy(np.random.randn(50, 10)).float()
        LOSS(net(inputs[batch] + noise), targets[batch]).backward()
        optimiser.step()
    net.eval()


def search(folder=None, training=train, **options):
    model = network()
    how = {"levels": 3, "fraction": 0.3, "seed": 4, **options}
    return hr.find_ticket(model, training, metric_of(model, task()), folder=folder, **how)


def same(one, other):
    assert one.pruned == other.pruned and one.levels == other.levels
    for part in ("start", "final"):
        first, second = getattr(one, part), getattr(other, part)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_masks_come_back(tmp_path):
    mask = hr.select(network(), fraction=0.4)
    mask.save(tmp_path / "mask.safetensors")
    assert hr.Mask.load(tmp_path / "mask.safetensors") == mask
    with pytest.raises(ArgumentError, match="safetensors"):
        mask.save(tmp_path / "mask.pt")
    with pytest.raises(ArgumentError, match="exist"):
        hr.Mask.load(tmp_path / "other.safetensors")
    search().save(tmp_path / "ticket.safetensors")
    with pytest.raises(ArgumentError, match="boolean"):
        hr.Mask.load(tmp_path / "ticket.safetensors")
    with pytest.raises(ArgumentError, match="ticket"):
        Ticket.load(tmp_path / "mask.safetensors")


def test_a_flipped_bit_of_a_mask_is_found(tmp_path):
    path = tmp_path / "mask.safetensors"
    hr.select(network(), fraction=0.4).save(path)
    assert check_folder(tmp_path).is_whole
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="checksum"):
        hr.Mask.load(path)
    assert not check_folder(tmp_path).is_whole


def test_tickets_come_back(tmp_path):
    ticket = search()
    ticket.save(tmp_path / "ticket.safetensors")
    same(Ticket.load(tmp_path / "ticket.safetensors"), ticket)


def test_a_search_leaves_the_global_random_states_alone():
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    search()
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])


def test_a_search_that_stops_anywhere_continues_to_the_same_ticket(tmp_path):
    whole = search()
    runs = 0
    for stop in range(12):
        left = stop % 3 + 1

        def limited(net):
            nonlocal left, runs
            if left == 0:
                raise KeyboardInterrupt
            left, runs = left - 1, runs + 1
            torch.rand(7)
            train(net)

        torch.rand(stop + 1)
        try:
            found = search(tmp_path / "search", limited)
        except KeyboardInterrupt:
            continue
        break

    def plain(net):
        torch.rand(7)
        train(net)

    same(found, search(training=plain))
    assert runs == 10  # one dense, three levels with two controls; none twice
    assert whole.levels != found.levels
    (place,) = (tmp_path / "search").iterdir()
    manifest = read_manifest(place)
    assert len(manifest.files) == 10 and not manifest.find_damage(place)
    for other in ({"fraction": 0.5}, {"params": "3.*"}):  # shares nothing
        same(search(tmp_path / "search", **other), search(**other))


SCRIPT = f"""
import os, signal, sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_ticket_store as tests
import torch
torch.set_num_threads(1)
store, place, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])

def slow(net):
    time.sleep(0.1)
    tests.train(net)

if seconds:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
tests.search(store, slow).save(place)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_search_that_is_killed_finds_the_same_ticket(tmp_path, kills):
    """Kills at random moments: in a training, between two, or while a file is written."""
    draws, store, place = random.Random(1), tmp_path / "search", tmp_path / "ticket.safetensors"
    command = [sys.executable, "-c", SCRIPT, str(store), str(place)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    for _ in range(kills):
        process = subprocess.run([*command, str(draws.uniform(0.01, 0.3))], env=environment)
        assert process.returncode == -signal.SIGKILL
    assert subprocess.run([*command, "0"], env=environment).returncode == 0
    same(Ticket.load(place), search())
    assert len(list(store.glob("*/level-*.safetensors"))) == 9


def test_schedules_end_at_the_same_share():
    shares = {
        name: [1 - level.kept for level in search(schedule=name, branches=()).levels[1:]]
        for name in ("iterative", "cubic", "one-shot")
    }
    last = 1 - 0.7**3
    assert shares["iterative"] == pytest.approx([0.3, 1 - 0.49, last], abs=5e-3)
    expected = [last * (1 - (1 - level / 3) ** 3) for level in (1, 2, 3)]
    assert shares["cubic"] == pytest.approx(expected, abs=5e-3)
    assert shares["one-shot"] == pytest.approx([last], abs=5e-3)


def test_params_and_scores_of_your_own():
    seen = []

    def score(net):
        seen.append(net)
        return gradient_saliency(net, LOSS, task())

    ticket = search(params="3.*", score=score, branches=())
    assert list(ticket.pruned) == ["3.weight"] and len(seen) == 3
    with pytest.raises(ArgumentError, match="schedule"):
        search(schedule="linear")
