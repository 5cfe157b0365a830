"""compare_with_theory: an assumption that holds has no effect, whatever else is broken."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils import weight_norm as old_weight_norm

import hyperribbon as hr
from hyperribbon.application.inspection.engine.clock import InterruptibleRisk
from hyperribbon.application.inspection.linear import theory as ladder
from hyperribbon.application.inspection.linear.theory import compare_risk
from hyperribbon.core.data import whiten

NAMES = ladder._ORDER
SWAPPED = (*NAMES[:5], NAMES[6], NAMES[5])
INPUTS, OUTPUTS, SAMPLES = 5, 3, 60
BROKEN = [  # (assumption, whether there are biases); without any none can break that on them
    (name, biases)
    for name in (None, *NAMES)
    for biases in (False, True)
    if biases or name != "biases as one input"
]


def balanced_layers(product, width, depth, rng):
    left, values, right = np.linalg.svd(product, full_matrices=False)
    shared = values ** (1 / depth)
    hidden = np.linalg.qr(rng.standard_normal((width, len(values))))[0]
    bases = [right.T, *[hidden] * (depth - 1), left]
    return [b * shared @ a.T for a, b in itertools.pairwise(bases)]


def weighted_squares(outputs, targets):
    """Return a squared loss whose samples count differently."""
    return (targets[:, -1:] * (outputs - targets[:, :-1]) ** 2).sum()


def build(broken, with_bias, depth=3):
    """Return model, loss and data that satisfy every assumption but the broken one."""
    rng = np.random.default_rng(0)
    raw = rng.standard_normal((INPUTS + 1, SAMPLES))
    raw[-1] = 1
    if with_bias:  # centred and white beside the constant
        centred = raw[:-1] - raw[:-1].mean(1, keepdims=True)
        X = np.vstack([whiten(centred, 1.0).inputs, np.ones((1, SAMPLES))])
    else:
        X = whiten(raw[:-1], 1.4).inputs
    if broken == "white inputs":
        stretch = np.ones(len(X))
        stretch[:INPUTS] = np.linspace(0.4, 2.0, INPUTS)
        X = stretch[:, None] * X
    product = rng.standard_normal((OUTPUTS, len(X)))
    layers = balanced_layers(product, 4, depth, rng)
    Y = product @ X
    if broken == "balanced layers":
        layers[0], layers[-1] = 1.5 * layers[0], layers[-1] / 1.5
    if broken == "minimum reached":
        Y = 1.3 * Y
    if broken == "interpolated labels":
        noise = rng.standard_normal(Y.shape)
        Y = Y + noise - noise @ np.linalg.pinv(X) @ X
    modules = []
    for place, weight in enumerate(layers):
        bias = with_bias and place == 0
        late = broken == "biases as one input" and place > 0
        layer = nn.Linear(weight.shape[1] - bias, len(weight), bias=bool(bias or late))
        layer.double()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weight[:, :-1] if bias else weight))
            if bias:
                layer.bias.copy_(torch.from_numpy(weight[:, -1]))
            elif late:
                layer.bias.zero_()
        modules += [layer, nn.Tanh() if broken == "linear network" else nn.Identity()]
    inputs = torch.from_numpy((X[:-1] if with_bias else X).T.copy())
    targets, loss = torch.from_numpy(Y.T.copy()), nn.MSELoss()
    if broken == "squared loss":
        weights = torch.linspace(0.2, 2.0, SAMPLES, dtype=torch.float64).unsqueeze(1)
        targets, loss = torch.cat([targets, weights], 1), weighted_squares
    return nn.Sequential(*modules[:-1]), loss, (inputs, targets)


@pytest.mark.parametrize("order", [NAMES, SWAPPED], ids=["in order", "swapped"])
@pytest.mark.parametrize(("broken", "with_bias"), BROKEN)
def test_only_the_broken_assumption_has_an_effect(broken, with_bias, order):
    model, loss, data = build(broken, with_bias)
    risk = InterruptibleRisk(model, loss, data)
    found = compare_risk(risk, k=3, seed=0, precision=0.01, memory=None, order=order)
    # A constant input that is orthogonal to the others need not be among the sharpest directions.
    shows = "trace" if broken == "biases as one input" else "sharpness"
    for assumption in found.assumptions:
        if assumption.name == broken:
            assert not assumption.holds
            assert abs(assumption.effects[shows]) > 0.01 * getattr(found.measured, shows)
            continue
        assert assumption.value < 1e-6, assumption
        for quantity in ("sharpness", "trace"):
            effect = abs(assumption.effects[quantity])
            allowed = 1e-4 * getattr(found.measured, quantity) + 4 * found.trace_stderr
            assert effect < allowed, (assumption, quantity)
    if order == NAMES:
        cause = found.responsible(shows, "labels")
        assert (cause.name if cause else None) == broken
    shown = found.assumptions_table()["effect on sharpness"]
    assert set(shown.dropna().index) == ({broken} if broken else set())


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(input=torch.tanh(self.first(input=x)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(x + torch.relu(self.first(x)))


class Parallel(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.first(x) + self.second(x)


class Doubling(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


def frozen_body():
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


IMAGES = nn.Unflatten(1, (1, 2, 2))
OTHERS = {
    "ReLU": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
    "GELU": lambda: nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 5), nn.Linear(5, 3)),
    "convolutions": lambda: nn.Sequential(
        IMAGES, nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3, 3)
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)
    ),
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)),
    "keyword": Keyword,
    "residual": Residual,
    "frozen body": frozen_body,
    "bottleneck": lambda: nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 3)),
    "one layer": lambda: nn.Linear(4, 3),
    "softmax": lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.LogSoftmax(1)),
    "no bias": lambda: nn.Sequential(nn.Linear(4, 5, bias=False), nn.Linear(5, 3, bias=False)),
}
CHAINS = {
    "convolutions": ("4",),
    "batch norm": ("3",),
    "layer norm": ("2",),
    "residual": ("last",),
    "frozen body": ("2",),
    "one layer": ("",),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_compared_and_only_broken_assumptions_are_named(kind):
    torch.manual_seed(0)
    model = OTHERS[kind]().double()
    data = torch.randn(40, 4).double(), torch.randint(0, 3, (40,))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    entropy = nn.CrossEntropyLoss()
    loss = nn.NLLLoss() if kind == "softmax" else entropy
    found = hr.compare_with_theory(model, loss, data, k=2)
    assert found.chain.layers == CHAINS.get(kind, found.chain.layers)
    names = [f"{n}.{part}".strip(".") for n in found.chain.layers for part in ("weight", "bias")]
    names = [name for name in names if name in before]
    dense = np.linalg.eigvalsh(hr.Hessian(model, loss, data, params=names).to_dense().numpy())
    assert found.measured.sharpness == pytest.approx(dense[-1], rel=1e-4)
    assert found.measured.trace == pytest.approx(dense.sum(), abs=4 * found.trace_stderr + 1e-8)
    # The rung of the linear network is its dense Hessian under the same loss.
    x = torch.from_numpy(found.chain.inputs[:, :4] if kind == "no bias" else found.chain.inputs)
    if found.chain.has_biases:
        x = x[:, :-1]
    layers = [
        nn.Linear(w.shape[1], len(w), bias=b is not None).double()
        for w, b in zip(found.chain.weights, found.chain.biases, strict=True)
    ]
    with torch.no_grad():
        for layer, w, b in zip(layers, found.chain.weights, found.chain.biases, strict=True):
            layer.weight.copy_(torch.from_numpy(w))
            if b is not None:
                layer.bias.copy_(torch.from_numpy(b))
    alone = hr.Hessian(nn.Sequential(*layers), entropy, (x, data[1])).to_dense().numpy()
    values = np.linalg.eigvalsh(alone)
    assert found.rungs[1].sharpness == pytest.approx(values[-1], rel=1e-4)
    assert found.rungs[1].trace == pytest.approx(values.sum(), rel=1e-8)
    holding = {a.name for a in found.assumptions if a.holds}
    if kind == "softmax":
        assert "linear network" in holding
    for line in (found.summary(), repr(found)):
        assert not any(name in line for name in holding)
    total = sum(a.effects["sharpness"] for a in found.assumptions)
    assert total == pytest.approx(
        found.measured.sharpness - found.predicted("labels").sharpness, rel=1e-10
    )
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert not any(m._forward_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: parametrizations.weight_norm(nn.Linear(4, 3)), "computed from other parameters"),
        (lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), "computed from other parameters"),
        (Parallel, "a parallel or a residual path"),
        (lambda: Doubling(4, 3), "does more than W x"),
        (lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 3)), "outputs have shape"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)), "not a linear layer on vectors"),
    ],
)
def test_models_without_a_chain_are_told_why(model, reason):
    torch.manual_seed(0)
    made = model()
    data = torch.randn(20, 4), torch.randn(20, 3)
    if "Unflatten" in str(made):
        data = data[0], torch.randn(20, 2, 3)
    with pytest.raises(hr.ArgumentError, match=reason):
        hr.compare_with_theory(made, nn.MSELoss(), data)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_head_behind_a_normalised_layer_is_taken_alone():
    torch.manual_seed(0)
    for norm in (parametrizations.weight_norm, old_weight_norm):
        model = nn.Sequential(norm(nn.Linear(4, 5)), nn.Linear(5, 3)).double()
        data = torch.randn(20, 4).double(), torch.randn(20, 3).double()
        found = hr.compare_with_theory(model, nn.MSELoss(), data, k=1)
        assert found.chain.layers == ("1",)
        exact = hr.Hessian(model, nn.MSELoss(), data, params=["1.weight", "1.bias"]).to_dense()
        sharpness = float(torch.linalg.eigvalsh(exact)[-1])
        assert found.measured.sharpness == pytest.approx(sharpness, rel=1e-6)


def test_opposite_effects_are_said_to_cancel():
    model, loss, (X, Y) = build("balanced layers", with_bias=False)
    found = hr.compare_with_theory(model, loss, (X, Y))
    assert not found.cancels("sharpness", "labels")
    assert "cancel" not in found.summary()
    # A smaller target lowers the theory's sharpness where imbalance raises the measured one.
    model, loss, (X, Y) = build("white inputs", with_bias=False)
    scale = [hr.compare_with_theory(model, loss, (X, t * Y)) for t in (0.6, 1.0, 1.5, 2.2)]
    for found in scale:
        effects = [a.effects["sharpness"] for a in found.assumptions if not a.holds]
        is_hidden = sum(map(abs, effects)) > 2 * abs(sum(effects))
        assert found.cancels("sharpness", "labels") == is_hidden
        assert ("cancel" in found.summary()) == is_hidden
    assert any(found.cancels("sharpness", "labels") for found in scale)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.CrossEntropyLoss()], ids=str)
def test_inspect_shows_theory_and_measurement_of_one_loss_on_the_same_samples(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    targets = torch.randint(0, 3, (50,))
    if isinstance(loss, nn.MSELoss):
        targets = nn.functional.one_hot(targets).double()
    data = torch.randn(50, 4).double(), targets
    found = hr.inspect(model, loss, data, budget=1e4)
    dense = torch.linalg.eigvalsh(hr.Hessian(model, loss, data).to_dense())[-1]
    for key in ("theory.measured", "hessian.largest"):
        assert found[key].value == pytest.approx(float(dense), rel=1e-3)
        assert found[key].samples == 50
    alone = hr.compare_with_theory(model, loss, data)
    assert found["theory.predicted"].value == pytest.approx(alone.predicted().sharpness, rel=1e-4)
