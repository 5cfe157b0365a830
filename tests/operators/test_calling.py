"""How models are called on batches, what counts as their output, and functions as models."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from hyperribbon.core import ArgumentError
from hyperribbon.operators import GGN, NTK, Fisher, Hessian, Jacobian
from hyperribbon.operators.risk.forward import as_tensor, call
from hyperribbon.operators.risk.model import FunctionModel, as_model

N = 6


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


X, X2, Y = normal(N, 4), normal(N, 2, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])


class Two(nn.Module):
    """Takes two inputs, by place or by name."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, first, second=None):
        hidden = self.a(first)
        return hidden if second is None else hidden + torch.tanh(self.b(second))


Named = namedtuple("Named", ["first", "labels"])
CALLS = {
    "tensor": (X, None, False),
    "single": ((X,), None, False),
    "pair": ((X, Y), Y, False),
    "named pair": (Named(X, Y), Y, False),
    "two in a tuple": (((X, X2), Y), Y, True),
    "three": ((X, X2, Y), Y, True),
    "two without targets": (((X, X2), None), None, True),
    "two in a tuple alone": (((X, X2),), None, True),
    "dict": ({"first": X, "second": X2}, None, True),
    "dict in a pair": (({"first": X, "second": X2}, Y), Y, True),
    **{
        key: ({"first": X, key: Y, "second": X2}, Y, True)
        for key in ("labels", "label", "targets", "target", "y")
    },
}


@pytest.mark.parametrize("name", CALLS)
def test_inputs_and_targets_of_a_batch(name):
    batch, targets, both = CALLS[name]
    torch.manual_seed(0)
    model = Two().double()
    outputs, found = call(model, batch)
    assert found is targets
    assert torch.equal(outputs, model(X, X2) if both else model(X))


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][1] is not None])
def test_every_batch_has_the_same_hessian(name, reference, close):
    batch, targets, both = CALLS[name]
    torch.manual_seed(0)
    model = Two().double()

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = model.a, model.b

        def forward(self, x):
            return Two.forward(self, x, X2 if both else None)

    params = None if both else ["a.weight", "a.bias"]
    dense = reference(Whole(), X, params).hessian(lambda f: F.cross_entropy(f, targets))
    close(Hessian(model, nn.CrossEntropyLoss(), batch, params=params).to_dense(), dense)


def test_forward_says_how():
    model = Two().double()
    assert torch.equal(call(model, (X, Y), lambda m, b: m(b[0]))[0], model(X))
    outputs, targets = call(model, (X, Y), lambda m, b: (m(b[0], X2), b[1] + 1))
    assert torch.equal(outputs, model(X, X2)) and torch.equal(targets, Y + 1)
    assert call(model, (X, Y), lambda m, b: (m(b[0]), None))[1] is None


@dataclass
class Answer:
    values: torch.Tensor
    state: object = None


class Returning(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.inner, self.wrap = nn.Linear(4, 3).double(), wrap

    def forward(self, x):
        return self.wrap(self.inner(x))


class Logits(dict):
    """As the outputs of transformers: a dict whose entries are attributes."""

    def __getattr__(self, name):
        return self[name]


def test_logits_stand_for_the_output(close):
    model = Returning(lambda f: Logits(loss=None, logits=f))
    assert torch.equal(call(model, (X, Y))[0], model.inner(X))
    assert torch.equal(call(model, X, lambda m, b: m(b))[0], model.inner(X))
    ours = Hessian(model, nn.CrossEntropyLoss(), (X, Y)).to_dense()
    close(ours, Hessian(model.inner, nn.CrossEntropyLoss(), (X, Y)).to_dense())


def test_a_transformer_that_classifies(close):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=6,
        num_labels=3,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config).double().eval()
    tokens = torch.randint(11, (N, 5), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(tokens)
    mask[2, 3:] = 0
    parts = [
        transformers.BatchEncoding({"input_ids": t, "attention_mask": m, "labels": y})
        for t, m, y in zip(tokens.split(4), mask.split(4), Y.split(4), strict=True)
    ]
    options = {"params": "classifier.*"}
    ours = Hessian(model, nn.CrossEntropyLoss(), parts, **options)
    whole = {"input_ids": tokens, "attention_mask": mask}
    weights = {n: p.detach() for n, p in model.named_parameters() if n.startswith("classifier")}
    flat = torch.cat([w.reshape(-1) for w in weights.values()])

    def risk(vector):
        pieces = vector.split([w.numel() for w in weights.values()])
        named = {n: p.reshape(w.shape) for (n, w), p in zip(weights.items(), pieces, strict=True)}
        return F.cross_entropy(functional_call(model, named, kwargs=whole).logits, Y)

    close(ours.to_dense(), torch.autograd.functional.hessian(risk, flat))


REFUSED = [
    (lambda f: (f, f.sum()), X, r"tuple of tensor \(6, 3\).*not a tensor.*model\(batch\)\[0\]"),
    (lambda f: (None, f), (X, Y), r"not a tensor.*model\(batch\[0\]\)\[1\]"),
    (lambda f: {"out": f}, (X, Y), r"dict of out.*model\(batch\[0\]\)\['out'\]"),
    (lambda f: {"out": f}, {"x": X, "y": Y}, r"model\(x=batch\['x'\]\)\['out'\]"),
    (lambda f: {"out": f}, ({"x": X}, Y), r"model\(\*\*batch\[0\]\)\['out'\]"),
    (lambda f: {"out": f}, ((X,), Y), r"model\(\*batch\[0\]\)\['out'\]"),
    (Answer, (X, Y), r"Answer.*model\(batch\[0\]\)\.values"),
    (lambda f: f.argmax(1), (X, Y), "no derivatives"),
    (lambda f: torch.complex(f, f), (X, Y), "view_as_real"),
]


@pytest.mark.parametrize(("wrap", "batch", "message"), REFUSED)
def test_other_outputs_are_refused_with_an_example_that_fits(wrap, batch, message):
    outputs = call(Returning(wrap), batch)[0]
    with pytest.raises(ArgumentError, match=message):
        as_tensor(outputs, batch, None, packs=False)


def test_a_function_gets_several_outputs_as_the_model_returns_them(close):
    model = Returning(lambda f: {"mean": f[:, 0], "rest": (f[:, 1:].exp(),)})

    def loss(outputs, targets):
        assert outputs["mean"].shape == targets.shape and outputs["rest"][0].shape[1:] == (2,)
        return (outputs["mean"] - targets).square().mean() + outputs["rest"][0].mean()

    def flat_loss(f, targets):
        return (f[:, 0] - targets).square().mean() + f[:, 1:].exp().mean()

    targets = normal(N, seed=3)
    ours = Hessian(model, loss, (X, targets)).to_dense()
    close(ours, Hessian(model.inner, flat_loss, (X, targets)).to_dense())


def test_an_lstm_is_told_to_pick_its_output():
    model = nn.LSTM(4, 3, batch_first=True).double()
    sequences = normal(N, 5, 4)
    with pytest.raises(
        ArgumentError, match=r"tensor \(6, 5, 3\), tuple.*batch: model\(batch\)\[0\]"
    ):
        as_tensor(call(model, sequences)[0], sequences, None, packs=False)
    assert call(model, sequences, lambda m, b: m(b)[0])[0].shape == (N, 5, 3)


def test_inputs_that_do_not_fit_the_model():
    model = nn.Sequential(nn.Linear(4, 3)).double()
    for batch, message in (
        ((X, X2, Y), r"2 inputs.*forward=lambda model, batch: model\(batch\[0\]\)"),
        ({"x": X, "labels": Y}, r"data='x'.*missing.*model\(batch\['x'\]\)"),
        ({"labels": Y}, "missing"),
        (("name", Y), "neither a tensor nor a tuple"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call(model, batch)


def tree_function(params, x):
    hidden = torch.tanh(x @ params["layer"]["weight"].T + params["layer"]["bias"])
    return hidden @ params["head"][0].T * params["scale"]


def tree():
    layer = {"weight": normal(5, 4), "bias": normal(5, seed=1)}
    return {"layer": layer, "head": [normal(3, 5, seed=2)], "scale": 2.0}


def test_functions_of_a_tree_are_models(close):
    params = tree()
    before = {
        id(leaf): leaf.clone()
        for leaf in torch.utils._pytree.tree_leaves(params)
        if torch.is_tensor(leaf)
    }
    model = FunctionModel(tree_function, params)
    names = [name for name, _ in model.named_parameters()]
    assert names == ["layer.weight", "layer.bias", "head.0"]
    assert torch.equal(model(X), tree_function(params, X))

    def risk(weight, bias, head):
        named = {"layer": {"weight": weight, "bias": bias}, "head": [head], "scale": 2.0}
        return F.cross_entropy(tree_function(named, X), Y)

    leaves = (params["layer"]["weight"], params["layer"]["bias"], params["head"][0])
    blocks = torch.autograd.functional.hessian(risk, leaves)
    dense = torch.cat(
        [
            torch.cat([b.reshape(a.numel(), -1) for b in row], 1)
            for a, row in zip(leaves, blocks, strict=True)
        ]
    )
    close(Hessian(tree_function, nn.CrossEntropyLoss(), (X, Y), params=params).to_dense(), dense)
    assert GGN(tree_function, nn.CrossEntropyLoss(), (X, Y), params=params).trace() > 0
    for leaf in leaves:
        assert torch.equal(leaf, before[id(leaf)]) and not leaf.requires_grad
        assert type(leaf) is torch.Tensor


def test_trees_of_every_kind():
    w, b = normal(3, 4), normal(3, seed=1)
    Layer = namedtuple("Layer", ["w", "b"])
    expected = X @ w.T + b
    for params, function, names in (
        ((w, b), lambda p, x: x @ p[0].T + p[1], ["0", "1"]),
        ([w, b], lambda p, x: x @ p[0].T + p[1], ["0", "1"]),
        ({"l.w": w, "l.b": b}, lambda p, x: x @ p["l.w"].T + p["l.b"], ["l.w", "l.b"]),
        (Layer(w, b), lambda p, x: x @ p.w.T + p.b, ["0", "1"]),
        ({"a": [Layer(w, b)]}, lambda p, x: x @ p["a"][0].w.T + p["a"][0].b, ["a.0.0", "a.0.1"]),
        ({0: w, 1: b}, lambda p, x: x @ p[0].T + p[1], ["0", "1"]),
    ):
        model = FunctionModel(function, params)
        assert [name for name, _ in model.named_parameters()] == names
        torch.testing.assert_close(model(X), expected)
    alone = FunctionModel(lambda p, x: x @ p.T, w)
    assert [name for name, _ in alone.named_parameters()] == ["params"]
    both = FunctionModel(lambda p, first, second: first @ p[0].T + second @ p[1], (w, normal(2, 3)))
    assert call(both, ({"first": X, "second": X2}, Y))[0].shape == (N, 3)
    assert call(both, (X, X2, Y))[0].shape == (N, 3)


def test_shared_and_fixed_tensors(close):
    w, places = normal(4, 4), torch.tensor([1, 0, 3, 2])
    model = FunctionModel(
        lambda p, x: x[:, p["places"]] @ p["a"] @ p["b"], {"a": w, "b": w, "places": places}
    )
    assert [name for name, _ in model.named_parameters()] == ["a"]
    assert len(list(model.buffers())) == 1
    jacobian = Jacobian(model, X[:2]).to_dense()
    expected = torch.autograd.functional.jacobian(lambda w: X[:2][:, places] @ w @ w, w)
    close(jacobian, expected.reshape(8, 16))


def test_every_operator_takes_a_function():
    w = normal(3, 4)

    def function(params, x):
        return torch.tanh(x @ params.T)

    assert NTK(function, X, params=w).shape == (3 * N, 3 * N)
    assert Jacobian(function, X, params=w).shape == (3 * N, 12)
    assert Fisher(function, X, params=w).shape == (12, 12)


def test_functions_that_cannot_be_models():
    w = normal(3, 4)
    for model, params, message in (
        (3, w, "not a torch.nn.Module"),
        (tree_function, None, "not its tensors"),
        (tree_function, "w*", "not its tensors"),
        (tree_function, {}, "no floating-point tensor"),
        (tree_function, {"a": 1.0}, "no floating-point tensor"),
        (tree_function, {"forward": w}, "cannot be the name"),
        (tree_function, {"a.b": w, "a": {"b": w}}, "cannot be the name"),
        (tree_function, {"a": w, "a.b": w}, "cannot be the name"),
    ):
        with pytest.raises(ArgumentError, match=message):
            as_model(model, params)
    module = nn.Linear(2, 2)
    assert as_model(module, "w*") == (module, "w*")
