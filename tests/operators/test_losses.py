"""Losses against torch's own values and second derivatives of formulas written out here."""

from __future__ import annotations

from functools import partial
from inspect import signature
from itertools import product
from math import log, pi

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hyperribbon.core import ArgumentError
from hyperribbon.operators import GGN, Hessian
from hyperribbon.operators.risk.loss import CallableLoss
from hyperribbon.operators.risk.torch_losses import recognise

EPS = torch.finfo(torch.float64).eps
N, C = 7, 4


def generator():
    return torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(*shape, generator=generator(), dtype=torch.float64)


def uniform(*shape, low=0.05, high=0.95):
    return low + (high - low) * torch.rand(*shape, generator=generator(), dtype=torch.float64)


def labels(*shape, classes=C):
    return torch.randint(classes, shape, generator=generator())


def signs(*shape):
    return 2.0 * torch.randint(2, shape, generator=generator()) - 1


WEIGHT = uniform(C) + 0.3
SHAPES = [(N,), (N, 1), (N, C), (N, C, 2)]


def elementwise_cases():
    """Yield (name, module type, options, outputs, targets, formula of single elements)."""
    for shape in SHAPES:
        f, y = normal(*shape), normal(*shape).flip(0) + 0.25
        bits, soft = (uniform(*shape) > 0.5).double(), uniform(*shape).flip(0)
        d = "x".join(map(str, shape))
        yield f"mse-{d}", nn.MSELoss, {}, f, y, lambda f, y: (f - y) ** 2
        yield f"l1-{d}", nn.L1Loss, {}, f, y, lambda f, y: (f - y).abs()
        for beta in (1.0, 0.3, 0.0):
            yield f"smooth{beta}-{d}", nn.SmoothL1Loss, {"beta": beta}, f, y, partial(_smooth, beta)
        for delta in (1.0, 0.4):
            yield f"huber{delta}-{d}", nn.HuberLoss, {"delta": delta}, f, y, partial(_huber, delta)
        for target in (bits, soft):
            yield f"bce-{d}", nn.BCEWithLogitsLoss, {}, 3 * f, target, _bce
            yield f"probability-{d}", nn.BCELoss, {}, uniform(*shape), target, _probability
        positive = torch.tensor(2.5, dtype=torch.float64)
        options = {"pos_weight": positive, "weight": positive / 3}
        yield f"weights-{d}", nn.BCEWithLogitsLoss, options, f, soft, partial(_bce, **options)
        counts = torch.poisson(2 * uniform(*shape), generator=generator())
        for full in (True, False):
            options = {"full": full, "log_input": True}
            yield f"poisson-{d}", nn.PoissonNLLLoss, options, f, counts, partial(_poisson, full)
            options = {"full": full, "log_input": False, "eps": 1e-3}
            formula = partial(_poisson_rate, full)
            yield f"rate-{d}", nn.PoissonNLLLoss, options, uniform(*shape), counts, formula
        yield f"soft_margin-{d}", nn.SoftMarginLoss, {}, f, signs(*shape), _soft_margin
        p = soft / soft.sum()
        yield f"kl-{d}", nn.KLDivLoss, {}, f, p, lambda f, y: y * (y.log() - f)
        options = {"log_target": True}
        yield f"log_kl-{d}", nn.KLDivLoss, options, f, p.log(), lambda f, y: y.exp() * (y - f)
    f, soft = normal(N, C), uniform(N, C).flip(0)
    options = {"weight": WEIGHT, "pos_weight": WEIGHT.flip(0)}
    yield "by_output", nn.BCEWithLogitsLoss, options, f, soft, partial(_bce, **options)
    options = {"weight": WEIGHT}
    formula = lambda f, y: WEIGHT * _probability(f, y)  # noqa: E731
    yield "by_probability", nn.BCELoss, options, uniform(N, C), soft, formula


def _smooth(beta, f, y):
    d = (f - y).abs()
    return torch.where(d < beta, d * d / (2 * max(beta, 1e-300)), d - beta / 2)


def _huber(delta, f, y):
    d = (f - y).abs()
    return torch.where(d < delta, d * d / 2, delta * (d - delta / 2))


def _bce(f, y, weight=1.0, pos_weight=1.0):
    return weight * (pos_weight * y * (1 + (-f).exp()).log() + (1 - y) * (1 + f.exp()).log())


def _probability(p, y):
    return -y * p.log() - (1 - y) * (1 - p).log()


def _stirling(full, y):
    big = y.clamp(min=1)
    return torch.where(y > 1, big * big.log() - big + 0.5 * (2 * pi * big).log(), 0.0) * full


def _poisson(full, f, y):
    return f.exp() - y * f + _stirling(full, y)


def _poisson_rate(full, f, y):
    return f - y * (f + 1e-3).log() + _stirling(full, y)


def _soft_margin(f, y):
    return (1 + (-y * f).exp()).log()


ELEMENTWISE = list(elementwise_cases())


def hessian(total, outputs):
    """Return the dense second derivative (size, size)."""
    found = torch.autograd.functional.hessian(total, outputs)
    return found.reshape(outputs.numel(), outputs.numel())


def check_derivatives(loss, outputs, targets, total):
    """Gradient, curvature and root of a recognised loss against those of a written-out sum."""
    leaf = outputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(total(leaf), leaf)
    torch.testing.assert_close(loss.gradient(outputs, targets), slope)
    torch.testing.assert_close(loss.total(outputs, targets), total(outputs))
    dense = hessian(total, outputs)
    block = normal(2, *outputs.shape)
    expected = (block.reshape(2, -1) @ dense).reshape(block.shape)
    torch.testing.assert_close(loss.curvature(outputs, targets, block), expected)
    torch.testing.assert_close(loss.curvature_at(outputs, targets)(block), expected)
    twice = torch.autograd.functional.hvp(lambda f: loss.total(f, targets), outputs, block[0])[1]
    torch.testing.assert_close(twice, expected[0])
    rows = loss.root(outputs, targets)
    assert rows.shape[1:] == outputs.shape
    flat = rows.reshape(len(rows), N, -1)
    blocks = torch.einsum("mni,mnj->nij", flat, flat)
    torch.testing.assert_close(torch.block_diag(*blocks), dense)


def parts_of(targets):
    if isinstance(targets, tuple):
        return zip(*(target.split(3) for target in targets), strict=True)
    return targets.split(3)


def check_value(module, outputs, targets, more=()):
    """Totals and amounts of parts make torch's value of the whole."""
    ours = recognise(module)
    ours.check(outputs, targets)
    pieces = list(zip(outputs.split(3), parts_of(targets), strict=True))
    total = sum(float(ours.total(f, y)) for f, y in pieces)
    amount = sum(ours.amount(f, y) for f, y in pieces) if ours.reduction == "mean" else 1.0
    expected = float(module(outputs, *(targets if isinstance(targets, tuple) else (targets,))))
    assert total / amount == pytest.approx(expected, rel=100 * EPS, abs=100 * EPS)
    return ours


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("case", ELEMENTWISE, ids=lambda case: case[0])
def test_losses_of_single_elements(case):
    _, kind, options, outputs, targets, formula = case
    for reduction in ("mean", "sum", *(["batchmean"] if kind is nn.KLDivLoss else [])):
        loss = check_value(kind(**options, reduction=reduction), outputs, targets)
        assert not isinstance(loss, CallableLoss)
    assert loss.is_convex
    check_derivatives(loss, outputs, targets, lambda f: formula(f, targets).sum())


@pytest.mark.parametrize("shape", [(N, C), (N, C, 2), (N, C, 2, 3)])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weights"])
@pytest.mark.parametrize("smoothing", [0.0, 0.15])
@pytest.mark.parametrize("kind", ["labels", "ignored", "other_index", "soft"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_cross_entropy_with_every_option(shape, weight, smoothing, kind, reduction):
    outputs, targets = 2 * normal(*shape), labels(N, *shape[2:])
    ignored = 2 if kind == "other_index" else -100
    if kind == "ignored":
        targets[1], targets[-1] = -100, -100
    by = torch.ones(C).double() if weight is None else weight
    hot = F.one_hot(targets.clamp(min=0), C).movedim(-1, 1).double()
    q = torch.softmax(normal(*shape).flip(0), 1) if kind == "soft" else hot
    module = nn.CrossEntropyLoss(
        weight=weight, ignore_index=ignored, label_smoothing=smoothing, reduction=reduction
    )
    given = q if kind == "soft" else targets
    loss = check_value(module, outputs, given)
    shape_of_weight = (1, C, *(1,) * (len(shape) - 2))
    present = torch.ones_like(q[:, :1]) if kind == "soft" else (targets != ignored).unsqueeze(1)
    masses = by.reshape(shape_of_weight) * ((1 - smoothing) * q + smoothing / C) * present

    def total(f):
        return -(masses * (f - f.exp().sum(1, keepdim=True).log())).sum()

    check_derivatives(loss, outputs, given, total)


@pytest.mark.parametrize("shape", [(N, C), (N, C, 2)])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weights"])
@pytest.mark.parametrize("ignored", [-100, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_negative_log_likelihood_is_linear(shape, weight, ignored, reduction):
    outputs, targets = torch.log_softmax(normal(*shape), 1), labels(N, *shape[2:])
    module = nn.NLLLoss(weight=weight, ignore_index=ignored, reduction=reduction)
    loss = check_value(module, outputs, targets)
    by = torch.ones(C).double() if weight is None else weight
    hot = F.one_hot(targets, C).movedim(-1, 1).double() * (targets != ignored).unsqueeze(1)
    hot = hot * by.reshape(1, C, *(1,) * (len(shape) - 2))
    check_derivatives(loss, outputs, targets, lambda f: -(hot * f).sum())


def multi_margin(power, weight, margin, f, y):
    losses = torch.zeros(())
    for n, own in enumerate(y.tolist()):
        by = 1.0 if weight is None else weight[own]
        for c in set(range(C)) - {own}:
            losses = losses + by / C * torch.relu(margin - f[n, own] + f[n, c]) ** power
    return losses / len(f)


def gaussian(full, f, y):
    values, variances = y
    v = variances.clamp(min=1e-3).reshape(len(f), -1).expand_as(f)
    constant = log(2 * pi) if full else 0.0
    return 0.5 * (v.log() + (f - values) ** 2 / v + constant).mean()


def functions():
    """Yield torch.nn losses that are taken as functions, targets, and the loss written out."""
    for power, weight, margin in product([1, 2], [None, WEIGHT], [1.0, 0.3]):
        module = nn.MultiMarginLoss(p=power, margin=margin, weight=weight)
        yield module, labels(N), partial(multi_margin, power, weight, margin)
    for full, shape in product([True, False], [(N, C), (N, 1)]):
        module = nn.GaussianNLLLoss(full=full, eps=1e-3)
        yield module, (normal(N, C).flip(0), uniform(*shape)), partial(gaussian, full)
    hinge = lambda f, y: torch.where(y > 0, f, torch.relu(0.5 - f)).mean()  # noqa: E731
    yield nn.HingeEmbeddingLoss(margin=0.5), signs(N, C), hinge
    for weight in (None, WEIGHT):
        by = 1.0 if weight is None else weight
        soft = lambda f, y, by=by: (by * _bce(f, y)).mean()  # noqa: E731
        yield nn.MultiLabelSoftMarginLoss(weight=weight), (uniform(N, C) > 0.5).double(), soft


@pytest.mark.parametrize(("module", "targets", "formula"), list(functions()))
@pytest.mark.parametrize("operator", [Hessian, GGN])
def test_other_losses_of_torch_are_functions(module, targets, formula, operator, reference, close):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, C)).double(), normal(N, 3)
    truth = reference(model, x)
    dense = truth.hessian if operator is Hessian else truth.ggn
    close(operator(model, module, (x, targets)).to_dense(), dense(lambda f: formula(f, targets)))


def test_what_torch_cannot_differentiate_twice_is_refused():
    loss = CallableLoss(lambda f, y: F.multi_margin_loss(f, y, reduction="sum"))
    assert loss.judge(normal(N, C), labels(N), generator()) == "sum"
    with pytest.raises(ArgumentError, match=r"differentiated twice.*torch\.nn loss itself"):
        loss.curvature(normal(N, C), labels(N), normal(1, N, C))


@pytest.mark.parametrize(
    "function",
    [
        F.mse_loss,
        F.l1_loss,
        F.huber_loss,
        partial(F.huber_loss, delta=0.2, reduction="sum"),
        partial(F.smooth_l1_loss, beta=0.2),
        partial(F.binary_cross_entropy_with_logits, pos_weight=WEIGHT),
        partial(F.poisson_nll_loss, full=True),
        partial(F.kl_div, reduction="batchmean", log_target=True),
        F.soft_margin_loss,
        partial(F.nll_loss, weight=WEIGHT),
        partial(F.cross_entropy, label_smoothing=0.1),
    ],
    ids=lambda function: (getattr(function, "func", function)).__name__,
)
def test_functional_forms_are_recognised(function):
    name = getattr(function, "func", function).__name__
    outputs, targets = normal(N, C), uniform(N, C)
    if name in ("nll_loss", "cross_entropy"):
        targets = labels(N)
    elif name == "soft_margin_loss":
        targets = signs(N, C)
    assert not isinstance(check_value(function, outputs, targets), CallableLoss)


def test_options_that_only_the_function_has_leave_it_a_function():
    if "weight" not in signature(F.mse_loss).parameters:
        pytest.skip("torch 2.4 has no weights there")
    f, y, w = normal(N, C), normal(N, C).flip(0), uniform(N, C)
    assert isinstance(recognise(partial(F.mse_loss, weight=w)), CallableLoss)
    loss = recognise(lambda f, t: F.mse_loss(f, t[0], weight=t[1], reduction="sum"))
    assert loss.judge(f, (y, w), generator()) == "sum"
    assert float(loss.total(f, (y, w))) == pytest.approx(float((w * (f - y) ** 2).sum()))


def test_subclasses_go_by_their_own_forward():
    class Doubled(nn.MSELoss):
        def forward(self, input, target):
            return 2 * super().forward(input, target)

    f, y = normal(N, C), normal(N, C).flip(0)
    loss = recognise(Doubled())
    loss.check(f, y)
    assert float(loss.total(f, y)) / loss.amount(f, y) == pytest.approx(2 * float(F.mse_loss(f, y)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single_precision(dtype):
    """One rounding of the result is what half precision costs, not one of every partial sum."""
    outputs = (3 * torch.randn(500, C, generator=generator())).to(dtype)
    cases = [
        (nn.CrossEntropyLoss(weight=WEIGHT), labels(500)),
        (nn.MSELoss(), torch.randn(500, C, generator=generator()).flip(0)),
        (nn.BCEWithLogitsLoss(), torch.rand(500, C, generator=generator())),
        (lambda f, y: ((f - y) ** 2).sum(1).mean(), torch.randn(500, C, generator=generator())),
    ]
    single, half = torch.finfo(torch.float32).eps, torch.finfo(dtype).eps
    for module, targets in cases:
        loss, exact = recognise(module), recognise(module)
        loss.check(outputs, targets)
        exact.check(outputs.double(), targets)
        assert loss.reduction == exact.reduction == "mean"
        expected = float(exact.total(outputs.double(), targets))
        assert float(loss.total(outputs, targets)) == pytest.approx(expected, rel=100 * single)
        assert loss.amount(outputs, targets) == pytest.approx(
            exact.amount(outputs.double(), targets), rel=1e-12
        )
        block = torch.randn(2, *outputs.shape, generator=generator()).to(dtype)
        pairs = [
            (loss.gradient(outputs, targets), exact.gradient(outputs.double(), targets)),
            (
                loss.curvature(outputs, targets, block),
                exact.curvature(outputs.double(), targets, block.double()),
            ),
        ]
        for ours, theirs in pairs:
            assert ours.dtype == dtype
            torch.testing.assert_close(ours.double(), theirs, rtol=half, atol=1e-5)
        rows = loss.root(outputs[:20], pick(targets, 20))
        assert rows.dtype == dtype
        rows = rows.double().flatten(2)
        theirs = exact.root(outputs[:20].double(), pick(targets, 20)).flatten(2)
        grams = [torch.einsum("mni,mnj->nij", r, r) for r in (rows, theirs)]
        torch.testing.assert_close(*grams, rtol=4 * half, atol=4 * half)


def pick(targets, count):
    return targets[:count]


def test_saturated_binary_cross_entropy_keeps_its_relative_precision():
    outputs, targets = torch.tensor([[60.0], [-60.0]]), torch.tensor([[1.0], [0.0]])
    slope = recognise(nn.BCEWithLogitsLoss()).gradient(outputs, targets)
    exact = torch.tensor([[-1.0], [1.0]]) * torch.exp(torch.tensor(-60.0))
    torch.testing.assert_close(slope, exact, rtol=1e-5, atol=0.0)


def masked_mean(f, y):
    present = y > 0
    return ((f - y) ** 2)[present].mean()


JUDGED = {
    "mean of squares": (lambda f, y: ((f - y) ** 2).mean(), "mean"),
    "mean over samples": (lambda f, y: ((f - y) ** 2).sum(1).mean(), "mean"),
    "sum": (lambda f, y: (f - y).abs().sum(), "sum"),
    "scaled sum": (lambda f, y: (f - y).abs().sum() / 1000, "sum"),
    "signed": (lambda f, y: (f * y).mean(), "mean"),
    "masked mean": (masked_mean, "whole"),
    "norm": (lambda f, y: (f - y).norm(), "whole"),
    "batch deviation": (lambda f, y: (f - f.mean(0)).square().mean(), "whole"),
    "mean and penalty": (lambda f, y: (f - y).square().mean() + 0.5, "mean"),
    "in single precision": (lambda f, y: (f.float() - y).square().mean().float(), "mean"),
    "in half precision": (lambda f, y: (f - y).square().mean().bfloat16(), "whole"),
    "sum and constant": (lambda f, y: (f - y).square().sum() + 0.5, "whole"),
}


@pytest.mark.parametrize("name", JUDGED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [2, 7, 400])
def test_functions_are_judged_by_random_cuts(name, dtype, count):
    function, expected = JUDGED[name]
    f, y = normal(count, C).to(dtype), normal(count, C).flip(0).to(dtype)
    y[0], y[1, 0] = y[0].abs(), -1.0
    assert CallableLoss(function).judge(f, y, generator()) == expected


def test_one_odd_sample_among_many_is_seen():
    f, y = normal(2000, C), labels(2000)
    rare = y.clone()
    rare[1234] = -100
    loss = CallableLoss(lambda f, y: F.cross_entropy(f, y))
    assert loss.judge(f, y, generator()) == "mean"
    assert loss.judge(f, rare, generator()) == "whole"
    assert loss.judge(f.float(), rare, generator()) == "whole"
    weighted = CallableLoss(lambda f, y: F.nll_loss(f, y, weight=WEIGHT.to(f)))
    assert weighted.judge(f.float(), y, generator()) == "whole"
    stuck = CallableLoss(lambda f, y: F.cross_entropy(f, y, weight=WEIGHT.float()))
    assert stuck.judge(f.float(), y, generator()) == "whole"  # it takes single precision only


def test_a_loss_that_is_zero_everywhere_is_judged_at_other_outputs():
    f = normal(50, C)
    assert CallableLoss(lambda f, y: (f - y).square().sum()).judge(f, f, generator()) == "sum"
    assert CallableLoss(lambda f, y: (f - y).square().mean()).judge(f, f, generator()) == "mean"
    assert CallableLoss(lambda f, y: (f * 0).sum()).judge(f, f, generator()) == "whole"


def test_infinite_at_other_outputs_does_not_count():
    p = torch.zeros(30, C).double()
    y = labels(30)
    p[torch.arange(30), y] = uniform(30)

    def likelihood(p, y):
        return -p.gather(1, y.unsqueeze(1)).log().mean()

    assert CallableLoss(likelihood).judge(p, y, generator()) == "mean"


def test_a_single_sample_is_a_whole():
    loss = CallableLoss(lambda f, y: (f - y).square().sum())
    f, y = normal(1, C), normal(1, C) + 1
    assert loss.judge(f, y, generator()) == "whole"
    assert float(loss.total(f, y)) / loss.amount(f, y) == pytest.approx(float(C))


def test_a_whole_has_products_and_no_root():
    loss = CallableLoss(lambda f, y: (f - y).norm())
    f, y = normal(N, C), normal(N, C).flip(0)
    assert loss.judge(f, y, generator()) == "whole"
    u = normal(1, N, C)
    expected = N * torch.autograd.functional.hvp(lambda f: (f - y).norm(), f, u[0])[1]
    torch.testing.assert_close(loss.curvature(f, y, u)[0], expected)
    with pytest.raises(ArgumentError, match="no sum over samples"):
        loss.root(f, y)


def test_a_function_that_returns_no_number_is_refused():
    for value in (lambda f, y: f, lambda f, y: 1.0):
        loss = CallableLoss(value)
        for method in (lambda f, y, loss=loss: loss.judge(f, y, generator()), loss.check):
            with pytest.raises(ArgumentError, match="one number"):
                method(normal(N, C), labels(N))


class Penalised(nn.Module):
    """A learnable temperature of its own, and a penalty on somebody else's weights."""

    def __init__(self, model, parts):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))
        self.parts = [dict(model.named_parameters())[name] for name in parts]

    def forward(self, outputs, targets):
        penalty = sum(p.square().sum() for p in self.parts)
        return F.cross_entropy(outputs / self.temperature, targets) + penalty


@pytest.mark.parametrize("parts", [[], ["0.weight"], ["0.weight", "2.bias"]])
@pytest.mark.parametrize("frozen", [(), ("2.bias",), ("0.weight", "2.bias")])
def test_penalties_on_the_weights_are_found(parts, frozen):
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, C))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    outputs, targets = model(torch.randn(N, 3, generator=generator())).detach(), labels(N)
    named = dict(model.named_parameters())
    loss = recognise(Penalised(model, parts))
    with torch.no_grad():
        assert loss.reaches(outputs, targets, named) == parts
    assert recognise(nn.CrossEntropyLoss()).reaches(outputs, targets, named) == []
    assert all(p.grad is None for p in model.parameters())


def test_shapes_that_torch_would_broadcast_are_refused():
    f = normal(N, 1)
    for module in (nn.MSELoss(), nn.BCEWithLogitsLoss(), nn.HuberLoss(), nn.L1Loss()):
        loss = recognise(module)
        with pytest.raises(ArgumentError, match=r"shape \(7, 1\).*reshape\(-1\)"):
            loss.check(f, uniform(N))
        with pytest.raises(ArgumentError, match=r"shape \(7,\).*reshape\(-1, 1\)"):
            loss.check(f.squeeze(1), uniform(N, 1))
        with pytest.raises(ArgumentError, match="targets"):
            loss.check(f, None)


def test_what_a_loss_cannot_take_is_refused():
    f = normal(N, C)
    refused = [
        (nn.BCELoss(), f, uniform(N, C), "takes probabilities"),
        (nn.BCELoss(), torch.ones(N, 1), torch.zeros(N, 1), "exactly 0 or 1"),
        (nn.PoissonNLLLoss(), f, -uniform(N, C), "not negative"),
        (nn.NLLLoss(), f, torch.full((N,), C), "out of range"),
        (nn.NLLLoss(), f, f, "integer labels"),
        (nn.CrossEntropyLoss(ignore_index=2), f, torch.softmax(f, 1), "index to ignore"),
        (nn.CrossEntropyLoss(), f, None, "labels"),
        (nn.BCEWithLogitsLoss(weight=uniform(N, C)), f, uniform(N, C), "single samples"),
        (nn.BCEWithLogitsLoss(pos_weight=uniform(N)), normal(N), uniform(N), "single samples"),
        (nn.BCELoss(weight=uniform(N, 1)), uniform(N, C), uniform(N, C), "single samples"),
    ]
    for module, outputs, targets, reason in refused:
        with pytest.raises(ArgumentError, match=reason):
            recognise(module).check(outputs, targets)
    for module in (nn.TripletMarginLoss(), nn.CTCLoss(), nn.CosineEmbeddingLoss()):
        with pytest.raises(ArgumentError, match="more than outputs and targets"):
            recognise(module)
    for module in (nn.KLDivLoss(reduction="none"), nn.L1Loss(reduction="batchmean"), nn.MSELoss):
        with pytest.raises(ArgumentError):
            recognise(module)


def test_losses_that_are_not_convex_have_no_root():
    f, y = normal(N, C), uniform(N, C)
    concave = recognise(nn.BCEWithLogitsLoss(pos_weight=-WEIGHT * 5))
    assert not concave.is_convex
    with pytest.raises(ArgumentError, match="not convex"):
        concave.root(f, y)
    concave = recognise(nn.CrossEntropyLoss(weight=-WEIGHT))
    assert not concave.is_convex
    with pytest.raises(ArgumentError, match="not convex"):
        concave.root(f, labels(N))
    with pytest.raises(ArgumentError, match="not convex"):
        recognise(nn.MultiMarginLoss(p=2, weight=-WEIGHT)).root(f, labels(N))


@pytest.mark.parametrize(
    "loss", [nn.L1Loss(), nn.HuberLoss(delta=0.1), nn.SmoothL1Loss(), nn.SoftMarginLoss()]
)
@pytest.mark.parametrize("operator", [Hessian, GGN])
def test_a_model_with_one_output_a_sample_without_an_axis(loss, operator, reference, close):
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

        def forward(self, x):
            return self.layers(x).squeeze(-1)

    torch.manual_seed(0)
    model, inputs, targets = Squeezed().double(), normal(N, 3), signs(N).double()
    whole = reference(model, inputs)
    matrix = operator(model, loss, (inputs, targets))
    dense = whole.hessian if operator is Hessian else whole.ggn
    close(matrix.to_dense(), dense(lambda f: loss(f, targets)))
    if operator is GGN:
        gram = matrix.gram()
        assert gram.shape == (matrix.gram_size, matrix.gram_size)
        assert matrix.trace() == pytest.approx(float(gram.trace()))
