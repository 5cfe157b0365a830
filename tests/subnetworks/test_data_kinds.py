"""Sub-networks are measured on every kind of data that hr.Risk takes; the pair is the reference."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hyperribbon as hr
from hyperribbon.core import ArgumentError
from hyperribbon.subnetworks import (
    evaluate_states,
    fisher_saliency,
    gradient_saliency,
    metric_of,
    sweep_selection,
)

LOSS = nn.CrossEntropyLoss()


class Pairs(Dataset):
    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs, targets

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


KINDS = {
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
    "shuffled loader": lambda x, y: DataLoader(Pairs(x, y), batch_size=7, shuffle=True),
    "dataset": Pairs,
    "tensor dataset": TensorDataset,
    "batches": lambda x, y: list(zip(x.split(13), y.split(13), strict=True)),
    "iterator": lambda x, y: iter(list(zip(x.split(13), y.split(13), strict=True))),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_what_the_pair_gives(mlp, kind):
    model, initial, pair = mlp
    final = copy.deepcopy(model.state_dict())
    make = lambda: KINDS[kind](*pair)  # noqa: E731
    for measure in ("accuracy", "loss", lambda z, y: z.square().sum(1)):
        expected = evaluate_states(model, [final, initial], pair, measure=measure)
        assert torch.equal(
            evaluate_states(model, [final, initial], make(), measure=measure), expected
        )
        metric = metric_of(model, make(), measure)
        torch.testing.assert_close(metric(final), expected[0])
        torch.testing.assert_close(metric(initial), expected[1])
    one, two = (
        sweep_selection(model, final, initial, data, fractions=[0.0, 0.5, 1.0])
        for data in (pair, make())
    )
    assert torch.equal(one.values, two.values) and torch.equal(one.stderr, two.stderr)
    for saliency in (gradient_saliency, fisher_saliency):
        expected, found = saliency(model, LOSS, pair), saliency(model, LOSS, make())
        assert all(torch.equal(found[name], scores) for name, scores in expected.items())
    judged = [
        hr.layer_criticality(model, initial, metric_of(model, data)).to_frame()
        for data in (pair, make())
    ]
    assert judged[0].equals(judged[1])


@pytest.mark.parametrize("kind", KINDS)
def test_tickets_take_every_kind(mlp, kind):
    model, initial, pair = mlp
    model.load_state_dict(initial)

    def find(data, test):
        def fit(network):
            hr.train(network, LOSS, data, epochs=1, lr=0.1, batch_size=20)

        return hr.find_ticket(model, fit, metric_of(model, test), levels=1)

    by_pair = find(pair, pair)
    data = KINDS[kind](*pair)
    data = list(data) if kind == "iterator" else data
    other = find(data, KINDS[kind](*pair))
    assert by_pair.to_frame().equals(other.to_frame())
    assert by_pair.pruned == other.pruned


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 5)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


@pytest.mark.parametrize("length", [4, 5])
def test_tokens_have_an_accuracy_and_a_loss(length):
    draws = torch.Generator().manual_seed(2)
    tokens = torch.randint(7, (20, length), generator=draws)
    labels = torch.randint(5, (20, length), generator=draws)
    labels[3, 1:] = labels[7] = -100
    torch.manual_seed(0)
    model, other = Tagger(), Tagger()
    states = [model.state_dict(), other.state_dict()]
    told = labels != -100
    for measure in ("accuracy", "loss"):
        found = evaluate_states(model, states, (tokens, labels), measure=measure)
        assert found.shape == (2, 20)
        for network, row in zip((model, other), found, strict=True):
            outputs = network(tokens).detach()
            expected = (
                (outputs.argmax(-1) == labels)[told].double().mean()
                if measure == "accuracy"
                else F.cross_entropy(outputs[told], labels[told])
            )
            assert float(row.double().mean()) == pytest.approx(float(expected), rel=1e-5)
    how = {"operation": "prune", "criterion": "magnitude"}
    scan = sweep_selection(model, states[0], None, (tokens, labels), fractions=[0.0], **how)
    risk = hr.Risk(
        model, lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten()), (tokens, labels)
    )
    assert float(evaluate_states(model, states, (tokens, labels), measure="loss")[0].mean()) == (
        pytest.approx(risk.value(), rel=1e-5)
    )
    assert scan.values.shape == (1,)


def test_targets_that_are_no_labels_are_named(mlp):
    model, _, (inputs, _) = mlp
    for measure in ("accuracy", "loss"):
        with pytest.raises(ArgumentError, match="measure"):
            evaluate_states(
                model, [model.state_dict()], (inputs, torch.randn(60, 4)), measure=measure
            )
    with pytest.raises(ArgumentError, match="targets"):
        evaluate_states(model, [model.state_dict()], inputs)
    values = evaluate_states(
        model,
        [model.state_dict()],
        (inputs, torch.zeros(60, 4)),
        measure=lambda z, y: (z - y).square().mean(1),
    )
    assert values.shape == (1, 60)


def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **ends))


def test_a_language_model_is_judged_by_the_next_token():
    model = gpt2().eval()
    ids = torch.randint(0, 11, (12, 6), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[::3, 4:] = -100
    data = {"input_ids": ids, "labels": labels}
    with torch.no_grad():
        output = model(**data)
    told = labels[:, 1:] != -100
    right = (output.logits[:, :-1].argmax(-1) == labels[:, 1:])[told].double().mean()
    state = model.state_dict()
    found = {
        m: evaluate_states(model, [state], data, measure=m)[0].double()
        for m in ("accuracy", "loss")
    }
    assert float(found["accuracy"].mean()) == pytest.approx(float(right), rel=1e-5)
    assert float(found["loss"].mean()) == pytest.approx(float(output.loss), rel=1e-5)
    how = {"operation": "prune", "criterion": "magnitude"}
    scan = sweep_selection(model, state, None, data, fractions=[0.0, 0.5, 1.0], **how)
    assert float(scan.values[0]) == pytest.approx(float(right), rel=1e-5)
    for saliency in (gradient_saliency, fisher_saliency):
        scores = saliency(model, None, data)
        assert scores["transformer.wte.weight"].shape == (11, 8)
    output = model(**data)
    output.loss.backward()
    weight = model.transformer.wte.weight
    expected = (weight * weight.grad).abs().detach()
    torch.testing.assert_close(
        gradient_saliency(model, None, data)["transformer.wte.weight"], expected
    )
