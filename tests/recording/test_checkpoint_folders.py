"""Folders of checkpoints as transformers' Trainer and Lightning write them."""

import argparse
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hyperribbon.core.checks import ArgumentError
from hyperribbon.recording.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings("ignore")


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    return transformers.BertForSequenceClassification(config)


@pytest.mark.parametrize("shard", ["5GB", "10KB"])
def test_a_folder_of_the_transformers_trainer(tmp_path, shard):
    """save_pretrained is how the Trainer writes the model; the other files are its own."""
    model, states = bert(), {}
    for step in (1000, 500, 1500):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 1
        folder = tmp_path / f"checkpoint-{step}"
        model.save_pretrained(folder, max_shard_size=shard)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(argparse.Namespace(learning_rate=1e-3), folder / "training_args.bin")
        torch.save({"cpu": torch.get_rng_state()}, folder / "rng_state.pth")
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        states[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    (tmp_path / "runs").mkdir()
    trajectory = Trajectory.from_checkpoints(tmp_path)
    assert trajectory.steps.tolist() == [500, 1000, 1500]
    for record, step in zip(trajectory, trajectory.steps, strict=True):
        found = trajectory.weights(record.index)
        assert found.keys() == states[step].keys()
        assert all(torch.equal(found[name], states[step][name]) for name in found)
    if shard == "10KB":
        assert len(list((tmp_path / "checkpoint-500").glob("model-*.safetensors"))) > 1


def test_a_shard_outside_the_folder_is_refused(tmp_path):
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"w": "../secret.safetensors"}}))
    trajectory = Trajectory.from_checkpoints(tmp_path)
    with pytest.raises(ArgumentError, match="outside its folder"):
        trajectory.weights(0)
    index.write_text("{}")
    with pytest.raises(ArgumentError, match="lists no shards"):
        trajectory.weights(0)


def lightning_classifier(lightning, settings):
    class Classifier(lightning.LightningModule):
        def __init__(self, settings=None):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(4, 2)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    return Classifier(settings)


def fit(folder, settings):
    data = TensorDataset(torch.randn(24, 4), torch.arange(24) % 2)
    lightning = pytest.importorskip("lightning.pytorch")  # here: it takes each worker seconds
    saving = lightning.callbacks.ModelCheckpoint(
        folder, every_n_train_steps=2, save_top_k=-1, save_last=True
    )
    module = lightning_classifier(lightning, settings)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saving],
        default_root_dir=folder,
    )
    trainer.fit(module, DataLoader(data, 6))
    return module


def test_a_folder_that_lightning_wrote(tmp_path):
    module = fit(tmp_path, {"lr": 0.01, "layers": [4, 2]})
    names = sorted(path.name for path in tmp_path.glob("*.ckpt"))
    assert names == [
        "epoch=0-step=2.ckpt",
        "epoch=0-step=4.ckpt",
        "epoch=1-step=6.ckpt",
        "epoch=1-step=8.ckpt",
        "last.ckpt",
    ]
    trajectory = Trajectory.from_checkpoints(tmp_path)
    assert trajectory.steps.tolist() == [2, 4, 6, 8]
    for name, tensor in module.state_dict().items():
        np.testing.assert_array_equal(trajectory.weights(-1)[name], tensor)


def test_a_lightning_checkpoint_that_carries_objects_is_refused_with_the_reason(tmp_path):
    class Settings:
        pass

    Settings.__qualname__ = "Settings"
    globals()["Settings"] = Settings
    fit(tmp_path, Settings())
    trajectory = Trajectory.from_checkpoints(tmp_path)
    with pytest.raises(ArgumentError, match=r"would run code .*Settings") as caught:
        trajectory.weights(0)
    assert "safetensors" in str(caught.value)
