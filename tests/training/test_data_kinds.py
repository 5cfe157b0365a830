"""hr.train takes the data that hr.Risk takes; the pair and a plain loop are the references."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.papers.training import mlp, train, train_ensemble
from hyperribbon.papers.training.sampling import epoch_batches
from hyperribbon.recording import evaluate

LOSS = nn.CrossEntropyLoss()


class Pairs(Dataset):
    """Samples by index, as most users write them."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Named(nn.Module):
    """Takes its input by name."""

    def __init__(self):
        super().__init__()
        self.body = mlp((64, 3), seed=0)

    def forward(self, pixels):
        return self.body(pixels)


def in_parts(images, size=32):
    return list(zip(*(part.split(size) for part in images), strict=True))


KINDS = {
    "list": list,
    "arrays": lambda images: tuple(part.numpy() for part in images),
    "tensor dataset": lambda images: TensorDataset(*images),
    "dataset": lambda images: Pairs(*images),
    "loader": lambda images: DataLoader(TensorDataset(*images), batch_size=32),
    "shuffled loader": lambda images: DataLoader(Pairs(*images), batch_size=32, shuffle=True),
    "batches": in_parts,
    "iterator": lambda images: iter(in_parts(images)),
}


def finals(data, model=None, **options):
    model = mlp((64, 8, 3), seed=1) if model is None else model
    options = {"epochs": 2, "lr": 0.1, "seed": 4} | options
    return train(model, LOSS, data, **options)


def same(one, two):
    return all(torch.equal(one.final[name], tensor) for name, tensor in two.final.items())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_as_the_pair_does(images, kind):
    pair = finals(images, batch_size=32, test=images)
    other = finals(KINDS[kind](images), batch_size=32, test=KINDS[kind](images))
    assert same(pair, other)
    assert pair.history["loss"].tolist() == other.history["loss"].tolist()
    assert pair.history["test_loss"].tolist() == other.history["test_loss"].tolist()
    assert pair.history["test_accuracy"].tolist() == other.history["test_accuracy"].tolist()


def test_the_batch_size_is_that_of_the_loader_unless_it_is_given(images):
    loader = DataLoader(TensorDataset(*images), batch_size=30, shuffle=True)
    assert same(finals(loader), finals(images, batch_size=30))
    assert same(finals(in_parts(images, 30)), finals(images, batch_size=30))
    assert same(finals(loader, batch_size=7), finals(images, batch_size=7))
    assert same(finals(loader, batch_size=None), finals(images, batch_size=None))
    double = tuple(torch.cat([part, part]) for part in images)
    assert same(finals(double), finals(double, batch_size=128))
    assert finals(DataLoader(Pairs(*double), batch_size=50)).steps == 8


def test_batches_of_several_inputs_and_of_names(images):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp((64, 3), seed=0)

        def forward(self, first, second):
            return self.body(first) + second.flatten(1).sum(1, keepdim=True)

    inputs, labels = images
    pair = finals(images, mlp((64, 3), seed=0))
    two = finals((inputs, torch.zeros(90, 2), labels), Sum())
    assert torch.equal(pair.final["layer1.weight"], two.final["body.layer1.weight"])
    named = finals({"pixels": inputs, "labels": labels}, Named())
    assert torch.equal(pair.final["layer1.weight"], named.final["body.layer1.weight"])
    parts = [{"pixels": x, "labels": y} for x, y in in_parts(images)]
    assert same(
        finals(parts, Named()), finals({"pixels": inputs, "labels": labels}, Named(), batch_size=32)
    )


def test_batches_that_cannot_be_joined_come_as_they_are():
    """Sequences of different lengths: the same updates as a plain loop over the batches."""

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(1, 2)

        def forward(self, x):
            return self.layer(x.mean(1, keepdim=True))

    draws = torch.Generator().manual_seed(0)
    batches = [
        (torch.randn(4, length, generator=draws), torch.randint(2, (4,), generator=draws))
        for length in (3, 5, 2)
    ]

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(batches)

    expected = Mean()
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    for inputs, targets in [*batches, *batches]:
        optimizer.zero_grad()
        LOSS(expected(inputs), targets).backward()
        optimizer.step()
    for data in (batches, DataLoader(Stream(), batch_size=None)):
        model = Mean()
        result = train(model, LOSS, data, epochs=2, lr=0.1, test=data)
        torch.testing.assert_close(model.layer.weight, expected.layer.weight, rtol=0, atol=0)
        assert result.steps == 6
        values = [LOSS(model(x), y).item() for x, y in batches]
        assert result.history["test_loss"][-1] == pytest.approx(sum(values) / 3, rel=1e-6)
        with pytest.raises(ArgumentError, match="batch_size=2"):
            train(Mean(), LOSS, data, epochs=1, lr=0.1, batch_size=2)
        with pytest.raises(ArgumentError, match="sampling='replacement'"):
            train(Mean(), LOSS, data, epochs=1, lr=0.1, sampling="replacement")


def test_a_run_on_batches_as_they_are_goes_on_where_it_ended(tmp_path):
    draws = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, n, generator=draws), torch.zeros(4, 1)) for n in (3, 5, 2)]

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.scale * x.mean(1, keepdim=True)

    whole = Mean()
    train(whole, nn.MSELoss(), batches, epochs=3, lr=0.1)

    def kill(step, model):
        if step == 5:
            raise KeyboardInterrupt

    how = {"epochs": 3, "lr": 0.1}
    with pytest.raises(KeyboardInterrupt):
        recorder = hr.Recorder(tmp_path, "1it")
        train(Mean(), nn.MSELoss(), batches, recorder=recorder, on_step=kill, **how)
    again = Mean()
    train(again, nn.MSELoss(), batches, recorder=hr.Recorder(tmp_path, "1it"), **how)
    assert torch.equal(again.scale, whole.scale)
    assert hr.Trajectory.open(tmp_path).steps.tolist() == list(range(10))


def test_a_dataset_that_does_not_fit_in_memory_is_read_by_index(images, monkeypatch):
    monkeypatch.setattr("hyperribbon.recording.evaluation.allowance", lambda device: 4096.0)
    loader = DataLoader(Pairs(*images), batch_size=32, shuffle=True)
    model, expected = mlp((64, 8, 3), seed=1), mlp((64, 8, 3), seed=1)
    train(model, LOSS, loader, epochs=2, lr=0.1, seed=4)
    optimizer = torch.optim.SGD(expected.parameters(), 0.1)
    for epoch in range(2):
        for rows in epoch_batches(90, 32, scheme="shuffle", seed=4, epoch=epoch):
            optimizer.zero_grad()
            LOSS(expected(images[0][rows]), images[1][rows]).backward()
            optimizer.step()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **drop, **ends)
    return transformers.GPT2LMHeadModel(config)


def language(count=10):
    ids = torch.randint(0, 11, (count, 6), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[::3, 4:] = -100
    return {"input_ids": ids, "labels": labels}


def test_a_language_model_trains_on_its_own_loss_as_in_a_plain_loop():
    data, model, expected = language(), gpt2(), gpt2()
    result = train(model, None, data, epochs=2, lr=0.1, batch_size=None, test=data)
    optimizer = torch.optim.SGD(expected.parameters(), 0.1, fused=True)
    expected.train()
    for epoch in range(2):
        (rows,) = epoch_batches(10, 10, scheme="shuffle", seed=0, epoch=epoch)
        optimizer.zero_grad()
        expected(**{name: part[rows] for name, part in data.items()}).loss.backward()
        optimizer.step()
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(p, q)
    expected.eval()
    with torch.no_grad():
        found = expected(**data)
    assert result.history["test_loss"][-1] == pytest.approx(float(found.loss), rel=1e-5)
    told = data["labels"][:, 1:] != -100
    right = (found.logits[:, :-1].argmax(-1) == data["labels"][:, 1:])[told].double().mean()
    assert result.history["test_accuracy"][-1] == pytest.approx(float(right))


def test_a_model_without_a_loss_of_its_own_needs_one(images):
    with pytest.raises(ArgumentError, match="loss=None"):
        train(mlp((64, 3)), None, images, epochs=1, lr=0.1)
    for loss in (LOSS, nn.MSELoss()):
        for call in (lambda m, *rest: train(m, *rest, epochs=1, lr=0.1), evaluate):
            with pytest.raises(ArgumentError, match=r"data \(targets\)=None"):
                call(mlp((64, 3)), loss, images[0])


def test_augmentation_is_of_the_one_input(images):
    def double(inputs, generator):
        return 2 * inputs

    inputs, labels = images
    plain = finals((2 * inputs, labels), Named())
    for data in (images, {"pixels": inputs, "labels": labels}):
        assert same(finals(data, Named(), augment=double), plain)
    with pytest.raises(ArgumentError, match="augment"):
        finals((inputs, inputs, labels), nn.Bilinear(64, 64, 3), augment=double)


@pytest.mark.usefixtures("headlines_only")
def test_the_example_of_the_readme_runs_with_a_loader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    lines = [line for line in block.splitlines() if not line.startswith("data = ")]
    assert len(lines) == len(block.splitlines()) - 1
    inputs, targets = hr.load_data("digits").flat()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=64, shuffle=True)
    names = {"data": loader}
    with contextlib.redirect_stdout(io.StringIO()):
        exec("\n".join(lines), names)
    assert (tmp_path / "report.html").stat().st_size > 1000
    by_pair = hr.training.mlp((64, 32, 10), seed=0)
    pair = (inputs, targets)
    train(by_pair, LOSS, pair, epochs=10, lr=0.1, batch_size=64)
    for p, q in zip(names["model"].parameters(), by_pair.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [True, False])
def test_ensembles_take_every_kind(images, kind, together):
    options = {"seeds": [0, 1], "epochs": 1, "lr": 0.1, "batch_size": 32, "together": together}
    options |= {"probe": images[0][:5]}
    make = {
        "small": lambda seed: mlp((64, 4, 3), seed=seed),
        "flat": lambda s: mlp((64, 3), seed=s),
    }
    pair = train_ensemble(make, LOSS, images, test=images, **options)
    other = train_ensemble(make, LOSS, KINDS[kind](images), test=images, **options)
    for one, two in zip(pair, other, strict=True):
        assert same(one.result, two.result)
        assert (one.predictions == two.predictions).all()


def test_ensembles_of_batches_by_name(images):
    inputs, labels = images
    data, probe = {"pixels": inputs, "labels": labels}, {"pixels": inputs[:5]}
    how = {"seeds": [0, 1], "epochs": 1, "lr": 0.1, "probe": probe}
    runs = [
        train_ensemble(lambda seed: Named(), LOSS, data, together=together, **how)
        for together in (True, False)
    ]
    for one, two in zip(*runs, strict=True):
        for name, tensor in one.result.final.items():
            torch.testing.assert_close(tensor, two.result.final[name])
        torch.testing.assert_close(one.predictions, two.predictions)


class Tagger(nn.Module):
    """Scores (n, T, C) of every token."""

    def __init__(self, classes=5):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, classes)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def flat_loss(outputs, targets):
    return F.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1))


@pytest.mark.parametrize("length", [4, 5])  # as many tokens as classes, too
@pytest.mark.parametrize("batch_size", [2000, 3])
def test_tokens_are_counted_whatever_the_axis_of_the_classes(length, batch_size):
    draws = torch.Generator().manual_seed(2)
    tokens = torch.randint(7, (20, length), generator=draws)
    labels = torch.randint(5, (20, length), generator=draws)
    labels[3, 1:] = labels[7] = -100
    model = Tagger()
    outputs = model(tokens).detach()
    told = labels != -100
    expected = (outputs.argmax(-1) == labels)[told].double().mean()

    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, tokens):
            return self.inner(tokens).transpose(1, 2)

    for network, loss in ((model, flat_loss), (Turned(), LOSS), (Turned(), F.cross_entropy)):
        found = evaluate(network, loss, (tokens, labels), batch_size=batch_size)
        assert found["accuracy"] == pytest.approx(float(expected))
        assert found["loss"] == pytest.approx(float(flat_loss(outputs, labels)), rel=1e-6)


def test_an_axis_of_classes_in_the_wrong_place_is_named():
    data = torch.zeros(6, 4, dtype=torch.long), torch.zeros(6, 4, dtype=torch.long)
    for call in (lambda m, *rest: train(m, *rest, epochs=1, lr=0.1), evaluate, hr.Risk):
        with pytest.raises(ArgumentError, match=r"CrossEntropyLoss.*\(6, 5, 4\)"):
            call(Tagger(), LOSS, data)


def test_samples_count_alike_in_batches_of_different_size_and_numbers_have_no_accuracy(images):
    model = mlp((64, 3), seed=0)
    outputs = model(images[0]).detach()
    uneven = list(zip(*(part.split([50, 7, 33]) for part in images), strict=True))
    found = evaluate(model, LOSS, uneven, batch_size=11)
    assert found["loss"] == pytest.approx(float(LOSS(outputs, images[1])), rel=1e-6)
    assert found["accuracy"] == float((outputs.argmax(1) == images[1]).double().mean())
    without = nn.CrossEntropyLoss(ignore_index=0)
    counted = images[1] != 0
    expected = (outputs.argmax(1) == images[1])[counted].double().mean()
    assert evaluate(model, without, images)["accuracy"] == pytest.approx(float(expected))
    targets = torch.randn(90, 3)
    assert list(evaluate(model, nn.MSELoss(), (images[0], targets))) == ["loss"]
    counts = torch.randint(5, (90, 3))
    poisson = nn.PoissonNLLLoss()
    assert list(evaluate(model, poisson, (images[0], counts))) == ["loss"]
    one = mlp((64, 1), seed=0)
    how = lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], y.float())  # noqa: E731
    assert list(evaluate(one, how, (images[0], images[1] % 2))) == ["loss"]
