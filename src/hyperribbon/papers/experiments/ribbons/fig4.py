"""Fig. 4 of [ribbons]: what the initial weights contribute to the PCA matrix, beside its bound."""

from __future__ import annotations

import numpy as np

from hyperribbon.core import numpy_generator
from hyperribbon.core.data import sloppy_inputs
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.ribbons import _shared
from hyperribbon.theory.ribbons import Ribbon, weight_bound

TITLE = "Contribution of the initial weights, closed form and bound (Eq. 9)"
RANDOM = "trained models"

_SETTING = "σw² = 1, α = 1 and c = 0.5, as printed; n = 50, as in the other figures"
STATEMENTS = (
    kit.says(
        "bound",
        "Eq. (9)",
        "the eigenvalue λi^σw is bounded above by (σw²/α)·min{1, 2Tαλi}/(2 − αλi)",
        "No eigenvalue exceeds the bound, at any training time or index.",
        kit.Band(0, 0, "printed"),
        setting=_SETTING,
    ),
    kit.says(
        "long-training",
        "Fig. 4, caption",
        "For very large training times T ≫ λ1/λn […] λi^σw decays to ∼ σw²/2α as the index i "
        "increases",
        "At T = 1e14 the last eigenvalue is σw²/(2α) within 2%.",
        kit.Band.around(1.0, "words", atol=0.02),
        setting=f"{_SETTING}; λ1/λn is 4e10",
    ),
    kit.says(
        "envelope",
        "Fig. 4, caption",
        "For larger values of i, the minimum comes from the other term and therefore λi^σw decays "
        "to much smaller values ∼ 1/(2/λn − α). This is the lower envelope of the curves above.",
        "The last eigenvalue is 1/(2/λn − α) within a factor of two, at every T below λ1/λn.",
        kit.Band(0.5, 2.0, "words"),
        setting=f"{_SETTING}; T = 1 to 10^6, λ1/λn is 4e10",
    ),
    kit.observe(
        "envelope-corrected",
        "Fig. 4, caption",
        "The last eigenvalue is 2Tσw²/(2/λn − α) within 1%, at every T below λ1/λn.",
        kit.Band.around(1.0, "closed form", atol=0.01),
    ),
    kit.says(
        "simulation",
        "Eqs. (3) and (5)",
        "The first term P1^σw(T) = (σw²/T) Σ Kd^2t K depends on the variance of initial weights",
        "Gradient descent from random weights has the closed form's variances along the "
        "eigenvectors of K, within 2% on average.",
        kit.Band.around(1.0, "closed form", atol=0.02),
        setting=_SETTING,
        needs="the models of preset laptop",
        compare="mean",
    ),
)


class Config(kit.Frozen):
    """Setting of Fig. 4 of [ribbons]."""

    samples: int = 50  # n, with as many input dimensions
    slope: float = 0.5  # c of the input eigenvalues exp(−c(i−1))
    alpha: float = 1.0  # learning rate
    # training times T drawn from the closed form
    steps: tuple[int, ...] = (1, 10, 100, 1000, 10_000, 10**6, 10**14)
    # training times at which gradient descent is run too
    simulated_steps: tuple[int, ...] = (1, 10, 100, 1000)
    batches: int = 8  # independent batches of initialisations
    initialisations: int = 500  # initial weights in a batch


PRESETS = kit.presets(
    Config(),
    smoke=Config(simulated_steps=(1, 10, 100), batches=2, initialisations=200),
    paper=Config(simulated_steps=(1, 10, 100, 1000, 10_000), batches=40),
)


class Result(kit.Frozen):
    """Eigenvalues of T·P₁^σ by training time (Fig. 4 of [ribbons])."""

    steps: np.ndarray  # (t,), training times
    closed_form: np.ndarray  # (t, n)
    bound: np.ndarray  # (t, n), Eq. (9)
    violations: int  # number of entries above the bound
    simulated_steps: np.ndarray  # (s,)
    simulated: np.ndarray  # (s, n), mean over initialisations of gradient descent
    ratios: np.ndarray  # (batches,), simulated over closed form, mean over indices at the last time
    initialisations: int  # number of initial weights simulated
    alpha: float  # learning rate
    last: float  # λn, the smallest eigenvalue of K


def compute(config: Config, context: kit.Context) -> Result:
    """Evaluate the closed form and its bound, and run gradient descent (Fig. 4 of [ribbons])."""
    bounds = [
        weight_bound(
            Ribbon.exponential(config.samples, config.slope, alpha=config.alpha, steps=steps)
        )
        for steps in config.steps
    ]
    setting = {"slope": config.slope, "alpha": config.alpha, "steps": list(config.simulated_steps)}
    items = [
        _shared.training_item(config, context, "weights", batch, **setting)
        for batch in range(config.batches)
    ]
    simulated = context.map(_simulate, items, "gradient descent")
    last = bounds[config.steps.index(config.simulated_steps[-1])].truth
    return Result(
        steps=np.array(config.steps),
        closed_form=np.array([bound.truth for bound in bounds]),
        bound=np.array([bound.upper for bound in bounds]),
        violations=int(sum(bound.violations().sum() for bound in bounds)),
        simulated_steps=np.array(config.simulated_steps),
        simulated=np.mean(simulated, axis=0),
        ratios=(np.array(simulated)[:, -1] / last).mean(axis=1),
        initialisations=config.batches * config.initialisations,
        alpha=config.alpha,
        last=float(np.exp(-config.slope * (config.samples - 1))),
    )


def _simulate(item: kit.Item) -> np.ndarray:
    """Train a batch of linear models on zero targets (Fig. 4 of [ribbons]).

    Returns:
        (s, n): for each training time, the sum over steps of the squared residual along each
        eigenvector of K, averaged over the initialisations.
    """
    samples, alpha = item["samples"], item["alpha"]
    inputs, _ = sloppy_inputs(samples, samples, item["slope"], item["inputs_seed"])
    eigenvectors = np.linalg.svd(inputs)[0]
    rng = numpy_generator(item["seed"])
    weights = rng.standard_normal((samples, item["initialisations"]))
    total = np.zeros(samples)
    recorded = []
    for step in range(1, max(item["steps"]) + 1):
        residuals = inputs @ weights / np.sqrt(samples)
        total += ((eigenvectors.T @ residuals) ** 2).mean(axis=1)
        if step in item["steps"]:
            recorded.append(total.copy())
        weights -= alpha / np.sqrt(samples) * (inputs.T @ residuals)
    return np.array(recorded)


def plot(result: Result) -> kit.Figure:
    """Draw eigenvalues against their index: closed form, bound and simulation (ribbons, Fig. 4)."""
    figure, axis = kit.new_figure(ratio=0.95)
    simulated = dict(zip(result.simulated_steps.tolist(), result.simulated, strict=True))
    for color, steps, truth, bound in zip(
        kit.COLORS, result.steps.tolist(), result.closed_form, result.bound, strict=False
    ):
        label = f"$T={_power(steps)}$"
        _shared.draw_spectrum(axis, truth, simulated.get(steps), color=color, label=label)
        _shared.draw_spectrum(axis, bound, color=color, ls=":", lw=1.2)
    axis.set(ylabel=r"eigenvalue $\lambda_i$ of $T\,P_1^{\sigma_w}(T)$", ylim=(1e-12, 4))
    axis.add_artist(axis.legend(loc="lower left", title=None, handlelength=1.2))
    styles = {"closed form": {}, "bound, Eq. (9)": {"ls": ":"}, "gradient descent": _shared.CIRCLES}
    _shared.explain_styles(axis, styles)
    return figure


def _power(steps: int) -> str:
    exponent = len(str(steps)) - 1
    return str(steps) if steps < 1000 else f"10^{{{exponent}}}"


def measure(result: Result) -> kit.Measurements:
    """Measure the bound, both limits of training time and the simulation (Fig. 4 of [ribbons])."""
    short = result.steps < 1e-3 / result.last
    tails = result.closed_form[short, -1] * (2 / result.last - result.alpha)
    corrected = tails / (2 * result.steps[short])
    return {
        "bound": kit.exact(result.violations, f"entries above the bound, of {result.bound.size}"),
        "long-training": kit.exact(
            result.closed_form[-1, -1] * 2 * result.alpha,
            f"last eigenvalue at T = {result.steps[-1]:.0e} over σw²/(2α)",
        ),
        "envelope": kit.exact(
            tails[np.abs(np.log(tails)).argmax()],
            "the ratio farthest from one; by T "
            + ", ".join(f"{t}: {r:.3g}" for t, r in zip(result.steps[short], tails, strict=True)),
        ),
        "envelope-corrected": kit.exact(
            corrected[np.abs(corrected - 1).argmax()], "the ratio farthest from one"
        ),
        "simulation": kit.over_seeds(
            result.ratios,
            f"one value per batch, {result.initialisations} models in all, T = "
            f"{result.simulated_steps[-1]}",
        ),
    }
