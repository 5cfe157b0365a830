"""Layers that see the positions of all samples below each other, and weights kept as (in, out)."""

import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.operators.derivatives import rules

LOSS = nn.CrossEntropyLoss()


class Transposed(nn.Module):
    """The linear layer of GPT-2: a weight (in, out) and torch.addmm on flattened positions."""

    def __init__(self, inputs, outputs, is_flat=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(0.1 * torch.randn(outputs))
        self.is_flat = is_flat

    def forward(self, x):
        if not self.is_flat:
            return x @ self.weight + self.bias
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1)


class Tokens(nn.Module):
    """Positions that are flattened before an embedding, a norm and a linear layer."""

    def __init__(self, order="samples first"):
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 4), nn.LayerNorm(4)
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.shift = nn.Parameter(0.1 * torch.randn(5))
        self.order = order

    def forward(self, tokens):
        count, length = tokens.shape
        if self.order != "samples first":
            tokens = tokens.t()
        flat = tokens.reshape(-1)
        hidden = torch.tanh(self.inner(self.norm(self.table(flat))) + self.shift)
        shape = (count, length) if self.order == "samples first" else (length, count)
        axis = 1 if self.order == "samples first" else 0
        return self.head(hidden.reshape(*shape, 5).mean(axis))


def _real(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return (model.double(), torch.randn(6, 4, 3).double(), torch.randint(3, (6,)))


def _tokens(order):
    torch.manual_seed(0)
    return Tokens(order).double(), torch.randint(7, (6, 4)), torch.randint(3, (6,))


class Pooled(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x).mean(1)


def _gpt(is_flat):
    torch.manual_seed(1)
    return _real(Pooled(Transposed(3, 5, is_flat), nn.Tanh(), Transposed(5, 3, is_flat)))


class Gains(nn.Module):
    """Parameters that multiply: gains on both sides, the weight of an RMS norm, one number."""

    def __init__(self, is_flat):
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(3, 4), nn.RMSNorm(4), nn.Linear(4, 3)
        self.left, self.right = (nn.Parameter(torch.randn(*shape)) for shape in ((4,), (1, 4)))
        self.heat, self.shift = (nn.Parameter(torch.tensor(number)) for number in (0.7, 0.2))
        self.is_flat = is_flat

    def forward(self, x):
        count = len(x)
        hidden = self.inner(x.reshape(-1, 3) if self.is_flat else x)
        hidden = self.norm(self.left * hidden.tanh() * self.right)
        return self.head(hidden.reshape(count, -1, 4).mean(1)) * self.heat + self.shift


class Again(nn.Module):
    """One layer after itself, as a recurrent network that is written out."""

    def __init__(self):
        super().__init__()
        self.inner, self.step, self.head = nn.Linear(3, 5), Transposed(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        hidden = torch.zeros(len(x), 5, dtype=x.dtype)
        for now in x.unbind(1):
            hidden = torch.tanh(self.inner(now) + self.step(hidden))
        return self.head(hidden)


class Placed(nn.Module):
    """Positions and a token that all samples share, in the ways that transformers write them."""

    def __init__(self, length=4):
        super().__init__()
        self.inner, self.head = nn.Linear(3, 4), nn.Linear(4, 3)
        self.table, self.other = nn.Embedding(length, 4), nn.Embedding(length + 2, 4, padding_idx=1)
        self.code, self.token = (
            nn.Parameter(torch.randn(1, 9, 4)),
            nn.Parameter(torch.randn(1, 1, 4)),
        )
        self.places = torch.arange(length)

    def forward(self, x):
        hidden = self.inner(x) + self.table(self.places)
        hidden += self.other(self.places.unsqueeze(0))
        hidden = torch.cat([self.token.expand(len(x), -1, -1), hidden.tanh()], dim=1)
        return self.head((hidden + self.code[:, : hidden.shape[1]]).tanh().mean(1))


CASES = {
    "places": lambda: _real(Placed()),
    "again": lambda: _real(Again()),
    "gains": lambda: _real(Gains(False)),
    "gains of flat positions": lambda: _real(Gains(True)),
    "addmm": lambda: _gpt(True),
    "matmul": lambda: _gpt(False),
    "flat tokens": lambda: _tokens("samples first"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_has_factors(name):
    model, inputs, targets = CASES[name]()
    risk = hr.Risk(model, LOSS, (inputs, targets))
    chunk = next(iter(risk.chunks()))
    assert risk.structured(chunk) == set(risk.space.names)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_shared_positions_whatever_the_number_of_samples(count):
    model, inputs, targets = _real(Placed())
    data = torch.cat([inputs, inputs.flip(0) / 2])[:count], torch.cat([targets, targets])[:count]
    risk = hr.Risk(model, LOSS, data)
    assert risk.structured(next(iter(risk.chunks()))) == set(risk.space.names)
    _check(hr.GGN(risk))


def test_positions_that_are_used_twice_have_no_factors_and_are_right():
    class Twice(Placed):
        def forward(self, x):
            place = self.table(self.places)
            return self.head(((self.inner(x) + place).tanh() + place).mean(1))

    model, inputs, targets = _real(Twice())
    risk = hr.Risk(model, LOSS, (inputs, targets))
    assert "table.weight" not in risk.structured(next(iter(risk.chunks())))
    _check(hr.GGN(risk))


def test_positions_in_another_order_have_none_and_are_right_all_the_same():
    model, inputs, targets = _tokens("positions first")
    risk = hr.Risk(model, LOSS, (inputs, targets))
    chunk = next(iter(risk.chunks()))
    assert risk.structured(chunk) == {"head.weight", "head.bias"}
    _check(hr.GGN(risk))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [hr.GGN, hr.GradientCovariance])
@pytest.mark.parametrize("part", ["all", "some entries"])
def test_what_factors_give_is_the_matrix(name, kind, part):
    model, inputs, targets = CASES[name]()
    mask = None
    if part == "some entries":
        generator = torch.Generator().manual_seed(3)
        named = model.named_parameters()
        mask = hr.Mask({n: torch.rand(p.shape, generator=generator) < 0.6 for n, p in named})
    _check(kind(model, LOSS, (inputs, targets), mask=mask))


def _check(operator):
    dense = operator.to_dense()
    scale = dense.diagonal().sum()
    torch.testing.assert_close(operator.diagonal(), dense.diagonal(), rtol=1e-10, atol=1e-12)
    assert operator.trace() == pytest.approx(float(scale), rel=1e-10)
    ours = torch.linalg.eigvalsh(operator.gram()).flip(0)
    theirs = torch.linalg.eigvalsh(dense).flip(0)
    common = min(len(ours), len(theirs))
    torch.testing.assert_close(ours[:common], theirs[:common], rtol=1e-9, atol=1e-11 * float(scale))


class Routed(nn.Module):
    """Rows that reach a layer in an order that depends on the data, none of them at times."""

    def __init__(self, first, second):
        super().__init__()
        self.inner, self.rare, self.order = nn.Linear(3, 4), nn.Linear(3, 4), (first, second)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        first, second = self.order
        rows = torch.argsort(x[:, 0]) if len(x) == 6 else torch.arange(len(x))
        twice = torch.cat([x[rows][first::2], x[rows][second::2]]).repeat_interleave(2, 0)
        hidden = self.inner(twice).tanh().reshape(len(x), 2, 4).mean(1)
        hidden = torch.cat([hidden, self.rare(x[:0])])
        back = torch.cat([rows[first::2], rows[second::2]])
        return self.head(torch.zeros_like(hidden).index_copy(0, back, hidden))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rows_of_other_samples_are_not_taken_for_positions(order):
    torch.manual_seed(0)
    model = Routed(*order).double()
    data = torch.randn(6, 3).double(), torch.randint(3, (6,))
    for kind in (hr.GGN, hr.GradientCovariance):
        _check(kind(model, LOSS, data))


def test_one_sample_has_no_scatter():
    torch.manual_seed(0)
    data = torch.randn(1, 4), torch.randint(3, (1,))
    operator = hr.GradientCovariance(nn.Linear(4, 3), LOSS, data)
    assert not (operator @ torch.randn(operator.shape[0])).any()
    assert hr.eigsh(operator, 1).eigenvalues.abs().max() == 0


def test_a_trace_that_would_take_thousands_of_passes_is_estimated():
    class Scaled(nn.Module):
        """A weight that reaches the outputs through an operation without factors."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 100))

        def forward(self, x):
            return torch.einsum("ni,io->no", x, self.weight.sin())

    torch.manual_seed(0)
    data = torch.randn(50, 3), torch.randint(100, (50,))
    operator = hr.GGN(Scaled(), LOSS, data)
    assert not operator.has_exact_trace
    exact = operator.trace()
    found = hr.trace(operator)
    assert exact == pytest.approx(float(operator.to_dense().diagonal().sum()), rel=1e-4)
    assert abs(found.value - exact) <= 5 * found.stderr + 1e-3 * exact


def test_two_ways_of_writing_one_network_have_one_trace():
    torch.manual_seed(2)
    first = Pooled(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    second = Pooled(Transposed(3, 5), nn.Tanh(), Transposed(5, 3)).double()
    with torch.no_grad():
        for own, other in zip(first.parameters(), second.parameters(), strict=True):
            other.copy_(own.t() if own.ndim == 2 else own)
    data = torch.randn(8, 4, 3).double(), torch.randint(3, (8,))
    traces = [hr.GGN(model, LOSS, data).trace() for model in (first, second)]
    assert traces[0] == pytest.approx(traces[1], rel=1e-12)


def test_a_rule_that_fails_leaves_the_slow_way(monkeypatch):
    def fails(name, back):
        raise IndexError("not understood after all")

    monkeypatch.setitem(rules.RULES, "rms_norm", lambda args, kwargs: {id(kwargs["weight"]): fails})
    model, inputs, targets = _real(Gains(False))
    risk = hr.Risk(model, LOSS, (inputs, targets))
    assert risk.structured(next(iter(risk.chunks()))) == set(risk.space.names) - {"norm.weight"}
    _check(hr.GGN(risk))


def test_a_table_that_a_recurrent_layer_reads_keeps_its_factors():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(7, 4), nn.LSTM(4, 3, batch_first=True)

        def forward(self, tokens):
            return self.inner(self.table(tokens))[0][:, -1]

    torch.manual_seed(0)
    data = torch.randint(7, (6, 4)), torch.randint(3, (6,))
    risk = hr.Risk(Words().double(), LOSS, data)
    assert "table.weight" in risk.structured(next(iter(risk.chunks())))
    _check(hr.GGN(risk))
