"""inspect on models of ordinary size, each in a process of its own: time and peak memory."""

import json
import subprocess
import sys
import time

import pytest

MODELS = """
import torch
from torch import nn

torch.manual_seed(0)


def mlp():
    import hyperribbon as hr

    data = hr.load_data("mnist5k").flat()
    return hr.training.mlp((784, 256, 256, 256, 10)), data


def convolutional():
    def block(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())

    model = nn.Sequential(
        block(3, 32), block(32, 64), block(64, 128), nn.Dropout(0.1), nn.Flatten(),
        nn.Linear(128 * 16, 10),
    )
    return model, (torch.randn(2000, 3, 32, 32), torch.arange(2000) % 10)


def transformer():
    import transformers

    config = transformers.BertConfig(
        vocab_size=5000, hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
        intermediate_size=512, max_position_embeddings=64, num_labels=5,
    )
    data = {
        "input_ids": torch.randint(0, 5000, (600, 32)),
        "attention_mask": torch.ones(600, 32, dtype=torch.long),
        "labels": torch.arange(600) % 5,
    }
    return transformers.BertForSequenceClassification(config), data


def lightning_module():
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(
                nn.Flatten(), nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(),
                nn.Linear(100, 10),
            )

        def forward(self, x):
            return self.layers(x)

    inputs = torch.rand(3000, 1, 28, 28)
    pairs = torch.utils.data.TensorDataset(inputs, torch.arange(3000) % 10)
    return Net(), torch.utils.data.DataLoader(pairs, batch_size=64, shuffle=True)
"""

RUN = """
import json, sys, time
from rich.console import Console
import hyperribbon as hr

model, data = globals()[sys.argv[1]]()
initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
began = time.monotonic()
found = hr.inspect(
    model, nn.CrossEntropyLoss(), data, initial=initial, optimizer=0.1, console=Console(quiet=True)
)
seconds = time.monotonic() - began
lines = open("/proc/self/status").read().splitlines()
peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
statuses = {outcome.step: outcome.status for outcome in found.outcomes}
result = {"seconds": seconds, "peak": peak, "statuses": statuses, "where": found.where}
json.dump(result, sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "convolutional", "transformer", "lightning_module"])
def test_time_and_memory(name, tmp_path):
    began = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MODELS + RUN, name],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    print(f"{name}: {found['seconds']:.1f} s, {found['peak'] / 1e9:.2f} GB, {found['where']}")
    assert time.monotonic() - began < 120
    assert found["seconds"] < 66
    assert found["peak"] < 4e9
    assert "failed" not in found["statuses"].values(), found["statuses"]
    assert list(found["statuses"].values()).count("done") >= 6
