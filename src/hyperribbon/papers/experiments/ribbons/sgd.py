"""SGD in Sec. III of [ribbons]: constant noise, exact noise and simulated SGD."""

from __future__ import annotations

import numpy as np

from hyperribbon.core import ArgumentError, derive_seed
from hyperribbon.papers.experiments.judging import Measurements, over_seeds
from hyperribbon.papers.experiments.kit import COLORS, Context, Figure, Frozen, new_figure, presets
from hyperribbon.papers.experiments.ribbons import _shared
from hyperribbon.papers.experiments.statements import Band, observe, says
from hyperribbon.papers.experiments.statements import exact as exactly
from hyperribbon.papers.simulation.ribbons.trajectories import fixed_problem
from hyperribbon.theory.ribbons import Ribbon, sgd, spectrum_bound, split_index

TITLE = "Stochastic gradient descent: two models of its noise beside simulation"
RANDOM = "trained models"

_MIDDLE = slice(1, 20)
_SCALES = (0.1, 1.0, 10.0)

STATEMENTS = (
    says(
        "trade-off",
        "Sec. III, SGD",
        "If we pick a batch-size that is twice as large […] To compensate—to keep the decay rate "
        "and effectively the dimensionality of the hyper-ribbon the same—we must pick a weight "
        "initialization variance that is twice as large.",
        "With α and b doubled, doubling σw² keeps the dimension nearer to what it was than leaving "
        "σw² alone, in most settings.",
        Band.at_least(0.5, "words"),
        setting="exact noise, n = 50; 18 settings of c (0.05, 0.1, 0.2), σw/σ* (0.1, 0.3, 1) and T "
        "(100, 300), from α = 0.1 and b = 4",
    ),
    says(
        "bound-printed",
        "Sec. III, SGD",
        "λi/λ1 ≤ min{1, 4ρ^(−(i−1)) + (1/‖y‖²)(σw²/α + α/b)} for i ≤ 2k*",
        "The covariance under constant noise never exceeds the printed bound.",
        Band.at_most(1.0, "printed"),
        setting="the paper's own noise model, 60 settings of c, T and b, σw = 0.01",
    ),
    observe(
        "constant",
        "Eq. (11)",
        "Whether constant noise describes SGD does not depend on the units of the targets: its "
        "eigenvalues 2 to 20 over those of SGD are the same for targets and initial weights ten "
        "times as large.",
        Band.around(1.0, "words", atol=0.2),
        changed="2026-11-18: judged as a claim at one scale of the targets before; the printed "
        "noise has no scale of the residuals, a slip that other units turn into any verdict",
    ),
    observe(
        "bound-verified",
        "Sec. III, SGD",
        "The bound holds with T·α/b in place of α/b.",
        Band.at_most(1.0 + 1e-9, "closed form"),
    ),
    observe(
        "exact",
        "Sec. III, SGD",
        "Exact second moments give the covariance of SGD's trajectories within 2%.",
        Band.around(1.0, "closed form", atol=0.02),
        needs="the models of preset laptop",
        compare="mean",
    ),
    observe(
        "stability",
        "Sec. III, SGD",
        "α < 1/λ1 is enough for single-sample SGD to converge, as for gradient descent.",
        Band.at_least(1.0, "words"),
    ),
)


class Config(Frozen):
    """Setting of SGD beside the theories of its noise."""

    samples: int = 50  # n
    slope: float = 0.1  # c
    steps: int = 100  # T
    alpha: float = 0.1  # learning rate
    batch_sizes: tuple[int, ...] = (1, 4, 16)  # b
    sigma_w: float = 0.3  # standard deviation of the initial weights
    sigma_star: float = 1.0  # standard deviation of the true weights
    batches: int = 8  # independent batches of models trained for each b
    initialisations: int = 500  # models in a batch


PRESETS = presets(
    Config(),
    smoke=Config(batches=2, initialisations=150, steps=40),
    paper=Config(batches=20, initialisations=2000),
)


class Result(Frozen):
    """Eigenvalues of P of trajectories of SGD, by batch size."""

    batch_sizes: np.ndarray  # (b,)
    descent: np.ndarray  # (n,), full-batch gradient descent
    constant: np.ndarray  # (b, n), the constant-noise model
    exact: np.ndarray  # (b, n), the exact second moments
    simulated: np.ndarray  # (b, n), SGD
    ratios: np.ndarray  # (b, batches), sum of eigenvalues 2 … 20 of SGD over exact theory, by batch
    printed_excess: float  # largest ratio of truth to the printed bound of Lemma 3 with noise
    verified_excess: float  # the same for the bound with T·α/b
    losses_exact: np.ndarray  # (b, T), expected loss
    losses_constant: np.ndarray  # (b, T)
    initialisations: int  # models in a batch
    # (18, 3), dimensions at (α, b), at (2α, 2b) with the same σw², and with 2σw²
    trade_off: np.ndarray
    # (3,), eigenvalues 2 … 20 under constant noise over exact ones, b = 1, for targets and initial
    # weights times 0.1, 1 and 10
    by_scale: np.ndarray
    divergence: float  # smallest α/λ₁⁻¹ at which SGD with b = 1 was found to diverge


def compute(config: Config, context: Context) -> Result:
    """Evaluate both theories of SGD's noise and simulate SGD."""
    setting = {"slope": config.slope, "alpha": config.alpha, "steps": [config.steps]}
    setting |= {"sigma_w": config.sigma_w, "sigma_star": config.sigma_star}
    item = _shared.training_item(config, context, **setting)
    X, y, ribbon = fixed_problem(item)
    theory = {
        noise: [
            sgd(X, y, config.sigma_w, config.alpha, config.steps, b, noise)
            for b in config.batch_sizes
        ]
        for noise in ("exact", "constant")
    }
    exact = np.array([found.spectrum() for found in theory["exact"]])
    runs = []
    for b in config.batch_sizes:
        seeds = [derive_seed(context.seed, "sgd", b, batch) for batch in range(config.batches)]
        items = [{**item, "batch_size": b, "seed": seed} for seed in seeds]
        runs.append(_shared.Trained(context, items, f"SGD, b = {b}"))
    each = np.array([trained.each[:, 0] for trained in runs])
    printed, verified = _excess()
    return Result(
        batch_sizes=np.array(config.batch_sizes),
        descent=ribbon.spectrum(),
        constant=np.array([found.spectrum() for found in theory["constant"]]),
        exact=exact,
        simulated=np.array([trained.together[0] for trained in runs]),
        ratios=each[:, :, _MIDDLE].sum(axis=2) / exact[:, None, _MIDDLE].sum(axis=2),
        printed_excess=printed,
        verified_excess=verified,
        losses_exact=np.array([found.losses for found in theory["exact"]]),
        losses_constant=np.array([found.losses for found in theory["constant"]]),
        initialisations=config.initialisations,
        trade_off=_trade_off(context),
        by_scale=np.array([_share(X, y, config, scale) for scale in _SCALES]),
        divergence=_divergence(X, y, config),
    )


def _excess() -> tuple[float, float]:
    """Return how far SGD's truth exceeds its bound for 1 < i ≤ 2k*, as printed and as verified."""
    worst = {"printed": 0.0, "verified": 0.0}
    for slope in (0.005, 0.02, 0.05, 0.1, 0.2):
        for steps in (10, 100, 1000, 10_000):
            for b in (1, 8, 64):
                ribbon = Ribbon.exponential(50, slope, sigma_w=0.01, steps=steps, batch_size=b)
                for form in worst:
                    bound = spectrum_bound(ribbon, form)
                    head = slice(1, 2 * split_index(ribbon.eigenvalues, 1.0, steps))
                    excess = (bound.truth[head] / bound.upper[head]).max()
                    worst[form] = max(worst[form], float(excess))
    return worst["printed"], worst["verified"]


def _share(X: np.ndarray, y: np.ndarray, config: Config, scale: float) -> float:
    """Return eigenvalues 2 … 20 under SGD's constant noise over those under exact noise, summed."""
    setting = scale * config.sigma_w, config.alpha, config.steps, min(config.batch_sizes)
    both = [sgd(X, scale * y, *setting, noise).spectrum() for noise in ("constant", "exact")]
    return float(both[0][_MIDDLE].sum() / both[1][_MIDDLE].sum())


def _trade_off(context: Context) -> np.ndarray:
    """Return SGD's dimensions before and after doubling α and b, without and with 2σw²: (18, 3)."""
    rows = []
    for slope in (0.05, 0.1, 0.2):
        item = {"samples": 50, "dimensions": 100, "slope": slope, "steps": [1], "alpha": 0.1}
        item |= {"sigma_star": 1.0, "sigma_w": 1.0, "inputs_seed": derive_seed(context.seed, slope)}
        X, y, _ = fixed_problem(item)
        for sigma_w in (0.1, 0.3, 1.0):
            for steps in (100, 300):
                ways = ((sigma_w, 0.1, 4), (sigma_w, 0.2, 8), (2**0.5 * sigma_w, 0.2, 8))
                rows.append([sgd(X, y, s, a, steps, b).dimensions() for s, a, b in ways])
    return np.array(rows)


def _divergence(X: np.ndarray, y: np.ndarray, config: Config) -> float:
    """Return the first learning rate, by steps of 10%, at which single-sample SGD diverges."""
    for alpha in np.geomspace(0.05, 1.0, 32):
        try:
            found = sgd(X, y, config.sigma_w, float(alpha), 200, 1)
        except ArgumentError:
            return float(alpha)
        if found.losses[-1] > found.losses[0]:
            return float(alpha)
    return float("inf")


def plot(result: Result) -> Figure:
    """Draw SGD's spectra and losses by batch size."""
    figure, (left, right) = new_figure(1, 2, width="full", ratio=0.75)
    _shared.draw_spectrum(left, result.descent, color="0.6", lw=2.5, label="gradient descent")
    rows = zip(
        COLORS, result.batch_sizes, result.exact, result.constant, result.simulated, strict=False
    )
    for color, b, exact, constant, simulated in rows:
        _shared.draw_spectrum(left, exact, simulated, color=color, label=f"$b={b}$")
        _shared.draw_spectrum(left, constant, color=color, ls=":")
    for color, b, exact, constant in zip(
        COLORS, result.batch_sizes, result.losses_exact, result.losses_constant, strict=False
    ):
        right.semilogy(exact, color=color, label=f"$b={b}$")
        right.semilogy(constant, color=color, ls=":")
    left.set(ylabel="eigenvalue of $P(T)$", title="(a) covariance")
    right.set(xlabel="step $t$", ylabel=r"$\mathrm{E}\|r_t\|^2/2n$", title="(b) expected loss")
    styles = {"exact noise": {}, "constant noise": {"ls": ":"}, "simulated SGD": _shared.CIRCLES}
    handles = [*left.get_legend_handles_labels()[0], *_shared.style_handles(left, styles)]
    left.set_ylim(top=30 * result.exact.max())
    left.legend(handles=handles, ncols=2, loc="upper right")
    right.legend(loc="upper right")
    return figure


def measure(result: Result) -> Measurements:
    """Measure both models of SGD's noise and the bounds."""
    small = int(result.batch_sizes.argmin())
    ratios = result.ratios[small]
    before, without, with_rule = result.trade_off.T
    each = f"one value per batch of models, b = {result.batch_sizes[small]}"
    return {
        "trade-off": exactly(
            (np.abs(with_rule - before) < np.abs(without - before)).mean(),
            f"share of the settings; the dimension changes by {np.mean(without - before):+.1f} on "
            f"average without the rule and by {np.mean(with_rule - before):+.1f} with it",
        ),
        "constant": exactly(
            result.by_scale[-1] / result.by_scale[1],
            "ratios at targets times "
            + ", ".join(f"{s:g}: {r:.3g}" for s, r in zip(_SCALES, result.by_scale, strict=True)),
        ),
        "bound-printed": exactly(
            result.printed_excess,
            "largest ratio of a relative eigenvalue to the bound; the term belongs to P, while "
            "the lemma is about T·P, so a factor T is missing",
        ),
        "bound-verified": exactly(result.verified_excess, "the same ratio"),
        "exact": over_seeds(ratios, f"eigenvalues 2 to 20 of SGD over theory, {each}"),
        "stability": over_seeds(
            [result.divergence], "smallest learning rate at which second moments grow"
        ),
    }
