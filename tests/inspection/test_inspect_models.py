"""inspect on the kinds of models users have."""

import copy
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hyperribbon.application.inspection import Budget, inspect

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
ESSENTIAL = {"basics", "hessian", "gauss_newton", "noise", "slices"}
SECONDS = 60


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return copy.deepcopy({**model.state_dict()})


def _peak_memory() -> float:
    """Return the largest bytes this process has held, other tests' included, since the reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def _inspect(model, loss, data, quiet, **options):
    before, was_training = _state(model), model.training
    torch.manual_seed(5)
    random_state = torch.get_rng_state()
    began = time.monotonic()
    Path("/proc/self/clear_refs").write_text("5")  # the peak of the memory starts anew
    found = inspect(model, loss, data, k=6, budget=Budget(SECONDS, 2e9), console=quiet, **options)
    assert time.monotonic() - began < 1.5 * SECONDS
    assert _peak_memory() < 4e9
    assert {o.status for o in found.outcomes} <= {"done", "omitted"}, found.outcomes
    assert set(found.parts) >= ESSENTIAL
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training is was_training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random_state, torch.get_rng_state())
    return found


def test_a_network_with_batch_norm_and_dropout_in_training_mode(quiet):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 3),
    )
    model(torch.randn(64, 1, 8, 8))
    initial = _state(model)
    data = TensorDataset(torch.randn(96, 1, 8, 8), torch.arange(96) % 3)
    found = _inspect(
        model.train(),
        nn.CrossEntropyLoss(),
        DataLoader(data, 32, shuffle=True),
        quiet,
        initial=initial,
    )
    assert "subnetworks" in found.parts
    # Batch norm's running averages are used, so the loss is that of evaluation mode.
    loss = nn.CrossEntropyLoss()(copy.deepcopy(model).eval()(data.tensors[0]), data.tensors[1])
    assert found["model.loss"].value == pytest.approx(loss.item(), rel=1e-5)


def test_a_transformers_model_from_a_small_config(quiet):
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )
    model = transformers.BertForSequenceClassification(config)
    data = {
        "input_ids": torch.randint(0, 50, (48, 8)),
        "attention_mask": torch.ones(48, 8, dtype=torch.long),
        "labels": torch.arange(48) % 3,
    }
    found = _inspect(model, nn.CrossEntropyLoss(), data, quiet, initial=_state(model))
    logits = copy.deepcopy(model).eval()(**{k: v for k, v in data.items() if k != "labels"}).logits
    loss = nn.CrossEntropyLoss()(logits, data["labels"])
    assert found["model.loss"].value == pytest.approx(loss.item(), rel=1e-5)
    omitted = {o.step: o.reason for o in found.outcomes if o.status == "omitted"}
    assert "not tensors of real numbers" in omitted["Sloppiness of the data"]


def test_a_lightning_module_that_a_trainer_has_trained(quiet, tmp_path):
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    torch.manual_seed(0)
    inputs = torch.randn(64, 5)
    loader = DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16)
    model = Net()
    initial = _state(model)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    with pytest.warns():
        trainer.fit(model, loader)
    model.zero_grad(set_to_none=True)
    optimizer = trainer.optimizers[0]
    found = _inspect(
        model, nn.CrossEntropyLoss(), loader, quiet, initial=initial, optimizer=optimizer
    )
    assert "Adam" in found["stability.limit"].method
    assert found["stability.limit"].value == pytest.approx(2 * 1.9 / 0.1)
    assert "criticality" in [chart.name for chart in found.parts["subnetworks"].charts]


def test_token_scores_are_moved_by_the_loss(quiet):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 6), nn.Tanh(), nn.Linear(6, 4))
    tokens = torch.randint(0, 12, (20, 5))

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs.transpose(1, 2), targets)

    found = _inspect(model, loss, (tokens, tokens % 4), quiet)
    expected = loss(model(tokens), tokens % 4)
    assert found["model.loss"].value == pytest.approx(expected.item(), rel=1e-5)
    right = (model(tokens).argmax(-1) == tokens % 4).double().mean()
    assert found["model.accuracy"].value == pytest.approx(float(right))


def test_a_plain_network(trained, quiet):
    model, loss, data, initial = trained
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    assert "subnetworks" in _inspect(model, loss, data, quiet, initial=initial).parts
