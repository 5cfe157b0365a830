"""What measuring the sharpness every 50 steps costs a training, on three kinds of networks."""

import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.recording import RecordingWarning

LOSS = nn.CrossEntropyLoss()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(28, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.lstm(x.reshape(-1, 28, 28))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, 48)
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.1, batch_first=True)
        self.body, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(48, 10)

    def forward(self, x):
        return self.head(self.body(self.embed(x.reshape(-1, 28, 28))).mean(1))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 10),
    )


NETWORKS = {"cnn": convolutional, "transformer": Transformer, "lstm": Recurrent}


def train(kind, steps, folder=None):
    """Return the processor time of a training, with a recorder or without, and the recorder."""
    torch.manual_seed(0)
    data = hr.load_data("mnist5k")
    inputs, targets = data.inputs.reshape(-1, 1, 28, 28), data.targets
    model = NETWORKS[kind]()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    draw = torch.Generator().manual_seed(1)
    recorder = None
    if folder is not None:
        recorder = hr.Recorder(
            folder, every="50it", measure="sharpness", loss=LOSS, data=(inputs, targets)
        )
    begun = time.process_time()
    if recorder is not None:
        recorder.attach(model, optimizer, total=f"{steps}it")
    for _ in range(steps):
        rows = torch.randint(0, len(inputs), (64,), generator=draw)
        value = LOSS(model(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if recorder is not None:
            recorder.step(value)
    if recorder is not None:
        recorder.close()
    return time.process_time() - begun, recorder


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_sharpness_every_fifty_steps_costs_a_tenth(kind, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # processor time is then the time on an idle machine
    try:
        plain, _ = train(kind, 50)
        steps = int(50 * max(1, 40 / plain))
        plain, _ = train(kind, steps)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RecordingWarning)
            recorded, recorder = train(kind, steps, tmp_path / kind)
    finally:
        torch.set_num_threads(threads)
    table = recorder.trajectory.metrics()
    measured = int(np.isfinite(table["sharpness"]).sum())
    print(
        f"{kind}: {steps} steps, {plain:.1f} s and {recorded:.1f} s with a recorder "
        f"({recorded / plain - 1:+.1%}), {len(table)} records, {measured} with sharpness; "
        f"{recorder.overhead}"
    )
    assert recorded <= 1.1 * plain
    assert len(table) == steps // 50 + 1 + (steps % 50 > 0)
    assert measured >= 15 and np.isnan(table["sharpness"]).sum() == recorder.overhead.left_out.get(
        "sharpness", 0
    )
