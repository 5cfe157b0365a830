import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp
from hyperribbon.recording import Recorder
from hyperribbon.recording.trajectory import Trajectory

pytestmark = pytest.mark.filterwarnings(
    "ignore"
)  # of the two frameworks, about loggers and workers


def lightning_classifier(lightning):
    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(mlp((64, 8), seed=0), nn.Dropout(0.3), mlp((8, 3), seed=1))

        def forward(self, inputs):
            return self.net(inputs)

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.log("train/loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    return Classifier()


def fit(images, folder, callbacks, epochs=2, checkpoint=None, accumulate=1):
    lightning = pytest.importorskip("lightning.pytorch")  # here: it takes each worker seconds
    torch.manual_seed(0)
    module = lightning_classifier(lightning)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        callbacks=callbacks,
        accumulate_grad_batches=accumulate,
    )
    loader = DataLoader(TensorDataset(*images), 30, shuffle=True)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer, module


def test_lightning_runs_are_recorded_and_unchanged(images, tmp_path):
    _, plain = fit(images, tmp_path, [])
    recorder = Recorder(tmp_path / "a", every="1ep", probe=images[0])
    _, recorded = fit(images, tmp_path, [recorder.lightning_callback()])
    for p, q in zip(plain.parameters(), recorded.parameters(), strict=True):
        assert torch.equal(p, q)
    trajectory = Trajectory.open(tmp_path / "a")
    assert trajectory.steps.tolist() == [0, 3, 6]
    np.testing.assert_allclose(trajectory.epochs, [0, 1, 2])
    assert torch.equal(trajectory.weights(-1)["net.2.layer1.weight"], recorded.net[2].layer1.weight)
    assert np.isfinite(trajectory.metric("train.loss")[1:]).all()


def test_lightning_resumes_by_its_own_checkpoint(images, tmp_path):
    recorder = Recorder(tmp_path / "a", every="1it")
    trainer, _ = fit(images, tmp_path, [recorder.lightning_callback()], epochs=2)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    again = Recorder(tmp_path / "a", every="1it")
    fit(
        images,
        tmp_path,
        [again.lightning_callback()],
        epochs=3,
        checkpoint=tmp_path / "two.ckpt",
    )
    assert Trajectory.open(tmp_path / "a").steps.tolist() == list(range(10))
    third = Recorder(tmp_path / "a")
    with pytest.raises(ArgumentError, match="starts at 0"):
        fit(images, tmp_path, [third.lightning_callback()])


def test_accumulated_gradients_count_as_one_step(images, tmp_path):
    recorder = Recorder(tmp_path / "a", every="1it")
    fit(images, tmp_path, [recorder.lightning_callback()], epochs=2, accumulate=3)
    assert Trajectory.open(tmp_path / "a").steps.tolist() == [0, 1, 2]


def test_transformers_runs_are_recorded_and_unchanged(tmp_path):
    """A real model, driven through the callback handler as the Trainer drives it."""
    transformers = pytest.importorskip("transformers")
    from transformers.trainer_callback import CallbackHandler

    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    torch.manual_seed(0)
    first = transformers.BertForSequenceClassification(config).train()
    tokens = torch.randint(30, (12, 7))
    labels = tokens[:, 0] % 3
    finals = []
    for folder in (None, tmp_path / "a"):
        model = copy.deepcopy(first)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        callbacks = []
        if folder is not None:
            recorder = Recorder(folder, every="2it", probe={"input_ids": tokens})
            callbacks = [recorder.transformers_callback()]
        handler = CallbackHandler(callbacks, model, None, optimizer, None)
        arguments: Any = None  # the callback does not look at them
        state, control = transformers.TrainerState(), transformers.TrainerControl()
        torch.manual_seed(1)
        control = handler.on_train_begin(arguments, state, control)
        for step in range(5):
            loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            state.global_step, state.epoch = step + 1, float(step + 1)
            control = handler.on_step_end(arguments, state, control)
            control = handler.on_log(arguments, state, control, {"loss": loss.item(), "epoch": 1.0})
        handler.on_train_end(arguments, state, control)
        finals.append(model.state_dict())
    assert all(torch.equal(finals[0][k], finals[1][k]) for k in finals[0])
    trajectory = Trajectory.open(tmp_path / "a")
    assert trajectory.steps.tolist() == [0, 2, 4, 5]
    assert trajectory.predictions().shape == (4, 12, 3)
    np.testing.assert_allclose(np.exp(trajectory.predictions()).sum(-1), 1, rtol=1e-5)
    assert np.isfinite(trajectory.metric("loss")[1:]).all()
