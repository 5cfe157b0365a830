"""Likelihoods against integrals over their own densities, torch's distributions and draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import distributions as td
from torch import nn

from hyperribbon.core import ArgumentError
from hyperribbon.operators import Fisher, Risk
from hyperribbon.operators.risk import softmax
from hyperribbon.operators.risk.likelihoods import (
    Bernoulli,
    Categorical,
    FromDistribution,
    Gaussian,
    Laplace,
    Likelihood,
    Poisson,
    StudentT,
)

N, C = 5, 3


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


SCALES = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
SIGMA = torch.tensor([[2.0, 0.3, 0.0], [0.3, 1.0, -0.2], [0.0, -0.2, 0.5]], dtype=torch.float64)

BY_ELEMENT = {
    "bernoulli": (Bernoulli(), lambda f: td.Bernoulli(logits=f)),
    "poisson": (Poisson(), lambda f: td.Poisson(f.exp())),
    "laplace": (Laplace(0.7), lambda f: td.Laplace(f, 0.7)),
    "student": (StudentT(3.0, 0.7), lambda f: td.StudentT(3.0, f, 0.7)),
    "gaussian": (Gaussian(0.49), lambda f: td.Normal(f, 0.7)),
}


def integrated_information(distribution):
    """E[(∂ log p/∂f)²] of one output, by quadrature or a sum over all values that matter."""

    def squared_score(f, y):
        leaf = torch.tensor(f, dtype=torch.float64, requires_grad=True)
        chance = distribution(leaf).log_prob(torch.tensor(y, dtype=torch.float64))
        (slope,) = torch.autograd.grad(chance, leaf)
        return float(chance.detach().exp()) * float(slope) ** 2

    def information(f):
        support = distribution(torch.tensor(f)).support
        if support is td.constraints.boolean:
            return sum(squared_score(f, y) for y in (0.0, 1.0))
        if support is td.constraints.nonnegative_integer:
            return sum(squared_score(f, float(y)) for y in range(60))
        limits = [(-np.inf, f), (f, np.inf)]
        return sum(integrate.quad(lambda y: squared_score(f, y), *limit)[0] for limit in limits)

    return information


@pytest.mark.parametrize("name", BY_ELEMENT)
@pytest.mark.parametrize("shape", [(3,), (3, 1), (2, C), (1, C, 2)])
def test_information_is_the_mean_squared_score(name, shape):
    likelihood, distribution = BY_ELEMENT[name]
    outputs = normal(*shape)
    information = integrated_information(distribution)
    expected = torch.tensor(
        [information(float(f)) for f in outputs.reshape(-1)], dtype=torch.float64
    )
    expected = expected.reshape(shape)
    block = normal(2, *shape, seed=1)
    found = likelihood.information(outputs, None, block)
    torch.testing.assert_close(found, expected * block, rtol=1e-6, atol=1e-9)
    rows = likelihood.root(outputs, None)
    assert len(rows) == likelihood.rows(outputs) == outputs[0].numel()
    flat = rows.reshape(len(rows), len(outputs), -1)
    diagonal = torch.diag_embed(expected.reshape(len(outputs), -1))
    torch.testing.assert_close(
        torch.einsum("mni,mnj->nij", flat, flat), diagonal, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("name", BY_ELEMENT)
@pytest.mark.parametrize("shape", [(N,), (N, C)])
def test_scores_are_gradients_of_the_log_density(name, shape):
    likelihood, distribution = BY_ELEMENT[name]
    outputs = normal(*shape)
    torch.manual_seed(0)
    targets = distribution(outputs).sample().double()
    leaf = outputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(distribution(leaf).log_prob(targets).sum(), leaf)
    torch.testing.assert_close(likelihood.score(outputs, None, targets), -slope)


LIKELIHOODS = {
    **{name: pair[0] for name, pair in BY_ELEMENT.items()},
    "categorical": Categorical(),
    "gaussian matrix": Gaussian(SIGMA),
    "gaussian by output": Gaussian(SCALES),
    "gaussian on softmax": Gaussian(SIGMA, "softmax"),
    "laplace by output": Laplace(SCALES),
    "student by output": StudentT(5.0, SCALES),
    "normal": FromDistribution(lambda f: td.Normal(f[:, 0], F.softplus(f[:, 1]))),
    "lognormal": FromDistribution(lambda f: td.LogNormal(f[:, 0], F.softplus(f[:, 1]))),
    "two scales": FromDistribution(lambda f: td.Laplace(f[:, 0], f[:, 1].exp())),
    "t": FromDistribution(lambda f: td.StudentT(4.0, f[:, 0] * f[:, 1], f[:, 2].exp())),
    "independent": FromDistribution(lambda f: td.Independent(td.Poisson(f.exp()), 1)),
    "exponential": FromDistribution(lambda f: td.Exponential(F.softplus(f))),
    "geometric": FromDistribution(lambda f: td.Geometric(torch.sigmoid(f))),
    "binomial": FromDistribution(lambda f: td.Binomial(4, logits=f)),
    "classes": FromDistribution(lambda f: td.Categorical(logits=f)),
}
DRAWS = 20_000


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_drawn_scores_have_mean_zero_and_the_information_as_covariance(name):
    likelihood, outputs = LIKELIHOODS[name], normal(N, C)
    scores = likelihood.draw_scores(outputs, None, DRAWS, (0, 3))
    assert scores.shape == (DRAWS, N, C)
    mean, spread = scores.mean(0), scores.std(0) / DRAWS**0.5
    assert float(((mean.abs() + 1e-12) / (spread + 1e-12)).max()) < 5  # of 15 standard normals
    products = torch.einsum("sni,snj->snij", scores, scores)
    error = products.std(0) / DRAWS**0.5
    rows = likelihood.root(outputs, None)
    assert len(rows) == likelihood.rows(outputs)
    information = torch.einsum("mni,mnj->nij", rows, rows)
    deviations = (products.mean(0) - information).abs() / (error + 1e-9 * information.abs().max())
    assert float(deviations.max()) < 6  # of 45, with heavier tails
    block = normal(2, N, C, seed=1)
    torch.testing.assert_close(
        likelihood.information(outputs, None, block),
        torch.einsum("nij,knj->kni", information, block),
    )


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_draws_belong_to_places_in_the_data(name):
    likelihood, outputs = LIKELIHOODS[name], normal(130, C)
    state = torch.get_rng_state()
    whole = likelihood.draw_scores(outputs, None, 4, (7, 10))
    parts = [
        likelihood.draw_scores(outputs[a:b], None, 4, (7, 10 + a))
        for a, b in ((0, 1), (1, 60), (60, 130))
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-12)
    other = likelihood.draw_scores(outputs, None, 4, (8, 10))
    assert not torch.equal(other, whole)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", ["poisson", "student", "laplace"])
def test_draws_have_the_distribution_they_claim(name):
    """Scores are monotone in y here, or y can be read off them: a test of all of p(y)."""
    likelihood, outputs = LIKELIHOODS[name], torch.full((1, 1), 1.2, dtype=torch.float64)
    scores = likelihood.draw_scores(outputs, None, DRAWS, (1, 0)).reshape(-1).numpy()
    if name == "poisson":
        counts = np.bincount(np.rint(np.exp(1.2) - scores).astype(int), minlength=12)
        expected = stats.poisson(np.exp(1.2)).pmf(np.arange(12)) * DRAWS
        expected[11] += DRAWS - expected.sum()
        counts[11] += counts[12:].sum()
        assert stats.chisquare(counts[:12], expected).pvalue > 1e-4
    elif name == "laplace":
        assert set(np.round(scores * 0.7, 12)) == {-1.0, 1.0}
    else:
        torch.manual_seed(0)
        y = td.StudentT(3.0, 1.2, 0.7).sample((DRAWS,)).double().unsqueeze(1)
        theirs = likelihood.score(outputs.expand(DRAWS, 1), None, y).reshape(-1).numpy()
        assert stats.ks_2samp(scores, theirs).pvalue > 1e-4


def test_rates_from_tiny_to_huge():
    outputs = torch.tensor([[-30.0], [0.0], [12.0], [20.0]], dtype=torch.float64)
    scores = Poisson().draw_scores(outputs, None, DRAWS, (0, 0)).squeeze(2)
    z = scores[:, 1:] / (0.5 * outputs[1:, 0]).exp()
    assert bool(torch.isfinite(z).all())
    assert float((z.mean(0) * DRAWS**0.5).abs().max()) < 5
    assert float(((z.var(0) - 1) * (DRAWS / 3) ** 0.5).abs().max()) < 5
    torch.testing.assert_close(scores[:, 0], outputs[0].exp().expand(DRAWS))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["categorical", "gaussian matrix", "bernoulli", "poisson", "t"])
def test_half_precision_costs_one_rounding(name, dtype):
    likelihood, outputs = LIKELIHOODS[name], normal(N, C).to(dtype)
    block, eps = normal(2, N, C, seed=1).to(dtype), torch.finfo(dtype).eps
    found = likelihood.information(outputs, None, block)
    exact = likelihood.information(outputs.double(), None, block.double())
    assert found.dtype == likelihood.root(outputs, None).dtype == dtype
    torch.testing.assert_close(found.double(), exact, rtol=eps, atol=1e-5)
    rows = likelihood.root(outputs, None).double()
    theirs = likelihood.root(outputs.double(), None)
    torch.testing.assert_close(rows, theirs, rtol=eps, atol=1e-5)
    scores = likelihood.draw_scores(outputs, None, 3, (0, 0))
    assert scores.dtype == dtype
    expected = likelihood.draw_scores(outputs.double(), None, 3, (0, 0))
    torch.testing.assert_close(scores.double(), expected, rtol=2 * eps, atol=1e-4)


def model_of(width=C):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, width)).double()


@pytest.mark.parametrize(
    ("options", "information"),
    [
        ({"likelihood": "bernoulli"}, lambda f: torch.sigmoid(f) * (1 - torch.sigmoid(f))),
        ({"likelihood": "poisson"}, torch.exp),
        ({"likelihood": "laplace", "scale": 0.5}, lambda f: torch.full_like(f, 4.0)),
        (
            {"likelihood": "student", "df": 5.0, "scale": SCALES},
            lambda f: (6 / 8 / SCALES**2).expand_as(f),
        ),
        ({"likelihood": lambda f: td.Normal(f, 2.0)}, lambda f: torch.full_like(f, 0.25)),
        ({"likelihood": td.Exponential}, lambda f: 1 / f**2),
        ({"likelihood": Laplace(0.5)}, lambda f: torch.full_like(f, 4.0)),
    ],
    ids=["bernoulli", "poisson", "laplace", "student", "function", "class", "instance"],
)
def test_fisher_matrices(options, information, reference, close):
    network, inputs = model_of(), normal(7, 4)
    if options["likelihood"] is td.Exponential:
        network = nn.Sequential(network, nn.Softplus()).double()
    whole = reference(network, inputs)
    outputs = whole.outputs(whole.flat).detach()
    jacobian = whole.jacobian()
    dense = torch.einsum("nip,ni,niq->pq", jacobian, information(outputs), jacobian) / 7
    operator = Fisher(network, inputs, **options)
    close(operator.to_dense(), dense)
    close(operator.diagonal(), dense.diagonal())
    assert operator.trace() == pytest.approx(float(dense.trace()))
    lifted = operator.lift(torch.eye(operator.gram_size, dtype=torch.float64))
    close(lifted @ lifted.T, dense)
    close(operator.gram(), lifted.T @ lifted)
    drawn = Fisher(network, inputs, estimator="mc", samples=2000, **options).to_dense()
    # relative error of a second moment of 14,000 draws, some with heavy tails
    close(drawn, dense, 0.1)


def test_a_model_of_mean_and_spread(reference, close):
    def likelihood(f):
        return td.Normal(f[:, 0], F.softplus(f[:, 1]))

    network, inputs, targets = model_of(2), normal(7, 4), normal(7, seed=2)
    whole = reference(network, inputs)
    outputs = whole.outputs(whole.flat).detach()
    spread, slope = F.softplus(outputs[:, 1]), torch.sigmoid(outputs[:, 1])
    weights = torch.stack([1 / spread**2, 2 * slope**2 / spread**2], 1)
    jacobian = whole.jacobian()
    dense = torch.einsum("nip,ni,niq->pq", jacobian, weights, jacobian) / 7
    close(Fisher(network, inputs, likelihood=likelihood).to_dense(), dense)
    rows = whole.sample_gradients(lambda f: -likelihood(f).log_prob(targets))
    empirical = Fisher(network, (inputs, targets), likelihood=likelihood, estimator="empirical")
    close(empirical.to_dense(), rows.T @ rows / 7)
    listed = Fisher(network, [inputs, targets], likelihood=likelihood, estimator="empirical")
    close(listed.to_dense(), rows.T @ rows / 7)


def test_outputs_without_an_axis(reference, close):
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_of(1)

        def forward(self, x):
            return self.inner(x).squeeze(-1)

    network, inputs, targets = Squeezed().double(), normal(7, 4), (normal(7, seed=1) > 0).double()
    whole = reference(network, inputs)
    jacobian = whole.jacobian()[:, 0]
    for estimator, data in (("exact", inputs), ("mc", inputs), ("empirical", (inputs, targets))):
        for name in ("gaussian", "bernoulli", "laplace"):
            drawn = {"samples": 3} if estimator == "mc" else {}
            operator = Fisher(network, data, likelihood=name, estimator=estimator, **drawn)
            dense = operator.to_dense()
            assert operator.trace() == pytest.approx(float(dense.trace()))
            if (estimator, name) == ("exact", "gaussian"):
                close(dense, jacobian.T @ jacobian / 7)


def test_a_risk_gives_model_and_data(close):
    network, inputs, targets = model_of(), normal(7, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    risk = Risk(network, nn.CrossEntropyLoss(), (inputs, targets))
    close(Fisher(risk).to_dense(), Fisher(network, inputs).to_dense())
    close(
        Fisher(risk, estimator="empirical").to_dense(),
        Fisher(network, (inputs, targets), estimator="empirical").to_dense(),
    )
    with pytest.raises(ArgumentError, match="already"):
        Fisher(risk, inputs)


def test_cut_data_have_the_same_draws(close):
    network, inputs = model_of(), normal(70, 4)
    for likelihood in ("poisson", lambda f: td.Gamma(F.softplus(f), 1.0)):
        options = {"likelihood": likelihood, "estimator": "mc", "samples": 2, "params": "2.bias"}
        whole = Fisher(network, inputs, **options).to_dense()
        batches = [inputs[:13], inputs[13:66], inputs[66:]]
        parts = Fisher(network, batches, **options, memory=1e4)
        assert len(list(parts.risk.chunks())) > 1
        close(parts.to_dense(), whole)


class Shifted(Likelihood):
    """The user's own: unit noise, with all parts written out."""

    def information(self, outputs, inputs, block):
        return block

    def root(self, outputs, inputs):
        return Gaussian().root(outputs, inputs)

    def score(self, outputs, inputs, targets):
        return outputs - targets

    def draw_scores(self, outputs, inputs, samples, seed):
        return Gaussian().draw_scores(outputs, inputs, samples, seed)


def test_a_likelihood_of_ones_own(close):
    network, inputs = model_of(), normal(7, 4)
    own = Fisher(network, inputs, likelihood=Shifted())
    theirs = Fisher(network, inputs, likelihood="gaussian")
    close(own.to_dense(), theirs.to_dense())
    close(own.gram(), theirs.gram())


def test_what_has_no_closed_form_says_so():
    network, inputs = model_of(), normal(7, 4)

    def gamma(f):
        return td.Gamma(F.softplus(f), 1.0)

    with pytest.raises(ArgumentError, match=r"Gamma has no closed form.*estimator='mc'"):
        Fisher(network, inputs, likelihood=gamma)
    with pytest.raises(ArgumentError, match="StudentT has no closed form"):
        Fisher(network, inputs, likelihood=lambda f: td.StudentT(F.softplus(f)))
    targets = F.softplus(normal(7, 3, seed=1))
    rows = Fisher(network, (inputs, targets), likelihood=gamma, estimator="empirical")
    assert rows.trace() > 0
    assert Fisher(network, inputs, likelihood=gamma, estimator="mc").trace() > 0


@pytest.mark.parametrize("validates", [True, False])
def test_likelihoods_that_cannot_be_used(validates, monkeypatch):
    monkeypatch.setattr(td.Distribution, "_validate_args", validates)  # torch.compile turns it off
    network, inputs = model_of(), normal(7, 4)
    wrong = [
        ({"likelihood": "weibull"}, "known choice"),
        ({"likelihood": 3}, "neither a name"),
        ({"likelihood": Laplace}, "neither a name"),
        ({"likelihood": "student"}, "degrees of freedom"),
        ({"likelihood": "student", "df": -1.0}, "greater than zero"),
        ({"likelihood": "laplace", "scale": 0.0}, "greater than zero"),
        ({"likelihood": "laplace", "scale": torch.tensor([1.0, -1.0, 1.0])}, "positive"),
        ({"likelihood": "laplace", "scale": torch.ones(2)}, r"shape \(3,\)"),
        ({"likelihood": "poisson", "outputs": "softmax"}, "of likelihood='gaussian'"),
        ({"likelihood": lambda f: td.Normal(f, f)}, "does not take the outputs"),
        ({"likelihood": lambda f: f}, "no distribution"),
        ({"likelihood": lambda f: td.Normal(f.mean(), 1.0)}, "no distribution"),
        ({"likelihood": "gaussian", "variance": torch.ones(2)}, "3 outputs"),
        ({"likelihood": "gaussian", "variance": -torch.ones(3)}, "positive definite"),
    ]
    for options, reason in wrong:
        with pytest.raises(ArgumentError, match=reason):
            Fisher(network, inputs, **options)
    data = (inputs, normal(7, 2, seed=1))
    for name in ("poisson", "laplace", lambda f: td.Normal(f, 1.0)):
        with pytest.raises(ArgumentError, match="targets"):
            Fisher(network, data, likelihood=name, estimator="empirical")


@pytest.mark.parametrize("scale", [0.0, 3.0, 60.0])
@pytest.mark.parametrize("top", [0, 1])
def test_the_root_of_softmax_has_one_row_less_than_classes_and_loses_no_digits(scale, top):
    """Each entry of RᵀR is that of diag p − ppᵀ, on the scale of its own row and column."""
    logits = normal(4, C)
    logits[:, top] += scale
    rows = softmax.covariance_root(torch.softmax(logits, 1))
    assert rows.shape == (C - 1, 4, C)
    found = torch.einsum("jni,njk->nik", rows, rows.transpose(0, 1))
    p = torch.softmax(logits, 1)
    units = torch.eye(C, dtype=p.dtype)[:, None].expand(C, 4, C)
    expected = softmax.covariance_product(p, units).transpose(0, 1)
    size = expected.diagonal(dim1=1, dim2=2).sqrt()
    assert bool(((found - expected).abs() <= 1e-13 * size[:, :, None] * size[:, None]).all())
