import numpy as np
import pytest
import torch
from torch import nn

import hyperribbon as hr
from hyperribbon.core.checks import ArgumentError
from hyperribbon.spectra import density


def mass(result, low, high):
    inside = (result.grid >= low) & (result.grid <= high)
    return float(torch.trapezoid(result.values[inside], result.grid[inside]))


def smoothed(eigenvalues, result):
    """Return the exact density, every eigenvalue replaced by the same kernel."""
    distance = (result.grid.numpy()[:, None] - np.asarray(eigenvalues)) / result.width
    return np.exp(-0.5 * distance**2).mean(1) / (result.width * np.sqrt(2 * np.pi))


SPECTRA = {
    "uniform": np.linspace(-1, 1, 500),
    "clusters": np.repeat([-1.0, 0.0, 2.0], [100, 300, 100]),
    "outliers": np.concatenate([np.linspace(0, 1, 495), [3, 4, 5, 6, 7]]),
    "semicircle": 2 * np.cos(np.pi * (np.arange(500) + 0.5) / 500),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_unit_mass_and_a_band_around_it(operator_of, name):
    result = density(operator_of(SPECTRA[name]), probes=5, steps=30)
    assert float(torch.trapezoid(result.values, result.grid)) == pytest.approx(1, abs=1e-9)
    assert torch.all(result.low <= result.values)
    assert torch.all(result.values <= result.high)
    assert torch.all(result.low >= 0)


def test_cluster_weights(operator_of):
    """Weights 0.2, 0.6, 0.2; a probe of 500 coordinates is off by 0.03 at most, five by 0.013."""
    result = density(operator_of(SPECTRA["clusters"]), probes=5)
    for low, high, weight in ((-1.5, -0.5, 0.2), (-0.5, 1, 0.6), (1, 3, 0.2)):
        assert mass(result, low, high) == pytest.approx(weight, abs=0.04)


def test_an_outlier_weighs_one_over_the_dimension(operator_of):
    result = density(operator_of(SPECTRA["outliers"]), probes=20, steps=30)
    assert mass(result, 2, 8) == pytest.approx(5 / 500, rel=0.35)


@pytest.mark.parametrize("name", ["uniform", "semicircle"])
def test_close_to_the_exact_density(operator_of, name):
    eigenvalues = SPECTRA[name]
    result = density(operator_of(eigenvalues), probes=12, steps=50, width=0.15)
    exact = smoothed(eigenvalues, result)
    assert np.abs(result.values.numpy() - exact).mean() < 0.05 * exact.mean()


def covered(result, eigenvalues, above=-1.0):
    """Return the share of points at which the exact density lies in the band.

    Of those where it is above a part of its largest value.
    """
    exact = smoothed(eigenvalues, result)
    inside = (result.low.numpy() <= exact) & (exact <= result.high.numpy())
    return float(inside[exact > above * exact.max()].mean())


def modes_needed(result):
    """Return the fewest maxima that a curve within the band can have."""
    count, rising, bound = 1, True, 0.0
    for low, high in zip(result.low.tolist(), result.high.tolist(), strict=True):
        bound = max(bound, low) if rising else min(bound, high)
        if rising and high < bound:
            rising, bound = False, high
        elif not rising and low > bound:
            rising, bound, count = True, low, count + 1
    return count


def maxima(result):
    """Return how many local maxima above a thousandth of the largest are drawn."""
    v = result.values.numpy()
    inner = (v[1:-1] > v[:-2]) & (v[1:-1] >= v[2:]) & (v[1:-1] > 1e-3 * v.max())
    return int(inner.sum())


WIDE = SPECTRA | {
    "wishart": (1 + np.sqrt(0.5) * np.cos(np.pi * (np.arange(800) + 0.5) / 800)) ** 2,
    "decay": np.exp(-np.arange(600) / 40),
    "power law": 1 / np.arange(1, 801),
    "two bulks": np.concatenate([np.linspace(0, 1, 400), np.linspace(3, 3.5, 150), [6, 8, 12]]),
    "kernel": np.concatenate(
        [np.zeros(900), np.linspace(-0.5, 2, 80), [-3, -2], np.geomspace(4, 12, 18)]
    ),
}
"""The last three were added after the estimator, its bands and the share asked for were fixed."""


@pytest.mark.parametrize("options", [{}, {"probes": 4, "steps": 25}, {"width": 0.05, "steps": 20}])
@pytest.mark.parametrize("name", ["semicircle", "outliers", "kernel"])
def test_the_band_covers_the_exact_density(diagonal_of, name, options):
    """At 95% of points on average; those of one result are correlated, so 80% of one of them."""
    eigenvalues = WIDE[name]
    result = density(diagonal_of(eigenvalues, dtype=torch.float64), **options)
    assert covered(result, eigenvalues) > 0.8
    if "width" not in options:
        assert float(torch.trapezoid(result.high - result.low, result.grid)) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"probes": 4, "steps": 30}, {"width": 0.05}])
@pytest.mark.parametrize("name", WIDE)
def test_bands_cover_the_exact_density_at_ninety_percent(diagonal_of, name, options):
    eigenvalues = WIDE[name]
    op = diagonal_of(eigenvalues, dtype=torch.float64)
    shares = [covered(density(op, seed=seed, **options), eigenvalues) for seed in range(12)]
    print(name, options, round(float(np.mean(shares)), 3))
    assert np.mean(shares) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"probes": 4, "steps": 30}, {"width": 0.05}])
def test_bands_cover_where_there_are_eigenvalues(diagonal_of, options):
    """Between them all densities are zero and easy; 0.9 was asked for after 0.96 was seen."""
    shares = [
        covered(
            density(diagonal_of(values, dtype=torch.float64), seed=seed, **options), values, 1e-3
        )
        for values in WIDE.values()
        for seed in range(20, 24)
    ]
    print(options, round(float(np.mean(shares)), 3))
    assert np.mean(shares) >= 0.9


def test_one_bulk_is_drawn_with_one_peak():
    """The eigenvalues of a Wishart matrix; a kernel narrower than the nodes draws about 34."""
    factor = torch.randn(1000, 2000, generator=torch.Generator().manual_seed(0)).double()
    matrix = factor @ factor.T / 2000
    result = density(matrix)
    assert modes_needed(result) == 1
    assert maxima(result) <= 3
    narrow = density(matrix, width=(float(result.nodes[-1]) - float(result.nodes[0])) / 200)
    assert maxima(narrow) > 10
    assert modes_needed(narrow) == 1  # the band knows


def test_separate_clusters_stay_apart(diagonal_of):
    """Three nodes are exact there, so the kernel may be as narrow as it gets."""
    result = density(diagonal_of(SPECTRA["clusters"], dtype=torch.float64))
    assert modes_needed(result) == maxima(result) == 3
    assert result.width == pytest.approx(3 / 300, rel=1e-6)


def test_moments_are_those_of_the_probes(operator_of):
    """Gauss quadrature of a probe is exact for polynomials, so the mean is vᵀAv to rounding."""
    op = operator_of(SPECTRA["outliers"])
    result = density(op, probes=60, steps=10)
    mean = float(torch.trapezoid(result.values * result.grid, result.grid))
    spread = SPECTRA["outliers"].std() * np.sqrt(2 / 500 / 60)
    assert mean == pytest.approx(SPECTRA["outliers"].mean(), abs=5 * spread)


def test_products_and_seed(operator_of):
    op = operator_of(SPECTRA["uniform"])
    first = density(op, probes=3, steps=20, seed=1)
    assert first.matvecs == op.products == 60
    assert torch.equal(first.values, density(op, probes=3, steps=20, seed=1).values)
    assert not torch.equal(first.values, density(op, probes=3, steps=20, seed=2).values)


def test_a_multiple_of_the_identity(counted):
    result = density(counted(2 * torch.eye(20)), probes=2)
    assert float(result.grid[result.values.argmax()]) == pytest.approx(2, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"probes": 1}, "two or more"),
        ({"steps": 0}, "steps"),
        ({"width": 0.0}, "width"),
        ({"width": 1e-5}, "coarser"),
        ({"points": 0}, "points"),
    ],
)
def test_bad_arguments(options, words):
    with pytest.raises(ArgumentError, match=words):
        density(torch.diag(torch.arange(10.0)), **options)


def test_not_symmetric(counted):
    A = torch.triu(torch.ones(20, 20))
    with pytest.raises(ArgumentError, match="not symmetric"):
        density(counted(A))


def test_nodes_and_weights_integrate_polynomials(operator_of):
    """Each rule is exact for its own probe; on average over probes it gives tr f(A)/P."""
    eigenvalues = np.linspace(-1, 2, 300)
    result = density(operator_of(eigenvalues), probes=40, steps=10)
    assert len(result.nodes) == len(result.weights) == 400
    assert bool((result.nodes.diff() >= 0).all())
    assert float(result.weights.sum()) == pytest.approx(1)
    for power in (1, 2, 4):
        mean = float((result.weights * result.nodes**power).sum())
        spread = np.sqrt(2 * (eigenvalues ** (2 * power)).mean() / 300 / 40)
        assert abs(mean - (eigenvalues**power).mean()) <= 4 * spread
    assert result.method == "stochastic lanczos quadrature"


def test_bands_know_of_eigenvalues_between_the_nodes(diagonal_of):
    """Few steps leave most outliers of a network's spectrum between two nodes of both rules.

    Before the band reached over the spacing of the nodes, it covered 0.86 of these points.
    """
    rng, shares = np.random.default_rng(29), []
    for number in range(12):
        bulk = np.abs(rng.standard_normal(970)) ** 3 * 10 ** rng.uniform(-4, 0)
        eigenvalues = np.concatenate([bulk, 10 * np.arange(1, 31.0) ** -rng.uniform(0.1, 1.5)])
        op = diagonal_of(eigenvalues, dtype=torch.float64)
        result = density(op, steps=10, width=float(np.ptp(eigenvalues)) / 300, seed=number)
        exact = smoothed(eigenvalues, result)
        alone = 1 / (len(eigenvalues) * result.width * np.sqrt(2 * np.pi))
        shares.append(covered(result, eigenvalues, 0.1 * alone / exact.max()))
    assert np.mean(shares) >= 0.9


def trained_spectra():
    """Yield the Hessian or Gauss-Newton matrix of twenty trained networks with its eigenvalues."""
    inputs, labels = hr.load_data("digits", limit=120, seed=0)
    inputs = torch.as_tensor(inputs).reshape(len(inputs), -1).float()
    labels = torch.as_tensor(labels).long()
    for number in range(20):
        generator = torch.Generator().manual_seed(number)
        size = (6, 10, 14)[number % 3]
        chosen = torch.randperm(inputs.shape[1], generator=generator)[: 8 + 4 * (number % 4)]
        x = inputs[:, chosen]
        x = (x - x.mean(0)) / (x.std(0) + 0.1)
        with torch.random.fork_rng():
            torch.manual_seed(number)
            activation = (nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU)[number % 4]
            layers = [nn.Linear(x.shape[1], size), activation(), nn.Linear(size, 10)]
            if number % 5 == 0:
                layers[2:2] = [nn.Linear(size, size), activation()]
            model = nn.Sequential(*layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range((5, 60, 300)[number % 3]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
        kind = (hr.Hessian, hr.GGN)[number % 2]
        matrix = kind(model.double(), nn.CrossEntropyLoss(), (x.double(), labels)).to_dense()
        yield matrix, torch.linalg.eigvalsh(matrix).numpy()


@pytest.mark.slow
def test_bands_cover_the_spectra_of_trained_networks():
    """At 95% of points, by design; those of one result are correlated, so 90% is asked for.

    Of all points, and of those where a tenth of the density of one eigenvalue is.
    """
    everywhere, near = [], []
    for matrix, eigenvalues in trained_spectra():
        for seed in (100, 101, 102):
            result = density(matrix, seed=seed)
            exact = smoothed(eigenvalues, result)
            alone = 1 / (len(eigenvalues) * result.width * np.sqrt(2 * np.pi))
            everywhere.append(covered(result, eigenvalues))
            near.append(covered(result, eigenvalues, 0.1 * alone / exact.max()))
    print("covered", np.mean(everywhere), np.mean(near), np.sort(near)[:6])
    assert np.mean(everywhere) >= 0.9
    assert np.mean(near) >= 0.9
