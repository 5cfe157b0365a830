"""What [ribbons] says of its two largest figures, the networks (Fig. 1) and the phases (Fig. 8)."""

from __future__ import annotations

from hyperribbon.experiments.statements import Band, Statement, observe, says

__all__ = ["FIG1", "FIG8", "simulation_says"]

_NETWORKS = (
    "eight small architectures with three recipes, a few hundred images: the figure's networks "
    "have up to 50 million weights"
)
_SCALE = (
    "CIFAR-10 with 50,000 images, networks of 0.6 to 50 million weights and the 2,000 trainings "
    "of the paper's reference [1]"
)
_SMALL = "the architectures of preset laptop, on full data"

FIG1 = (
    says(
        "two-dimensions",
        "Fig. 1, caption",
        "When the inPCA embedding is computed using all the points on the left, the explained "
        "stress of the first two dimensions is about 71% (red)",
        "Two dimensions explain 71% of the stress of all models, as printed.",
        Band.around(0.71, "printed", atol=0.005),
        setting=_NETWORKS,
        needs=_SCALE,
        compare="prediction",
    ),
    says(
        "fifty-dimensions",
        "Sec. I",
        "A mere 50 dimensions are sufficient to account for 98% of the stress",
        "Fifty dimensions explain at least 98% of the stress, as printed.",
        Band.at_least(0.975, "printed"),
        setting=_NETWORKS,
        needs=_SCALE,
    ),
    says(
        "geometric",
        "Sec. I",
        "the stress explained by each successive dimension decays geometrically",
        "log|λ| of the first fifty dimensions is closer to a line in i than in log i.",
        Band.at_least(0.0, "words"),
        setting=_NETWORKS,
        needs=_SCALE,
    ),
    says(
        "zero-error",
        "Fig. 1, caption",
        "All nonlinear deep networks in this experiment achieve zero training error.",
        "The lowest training accuracy of a nonlinear network is one.",
        Band.at_least(1.0, "printed"),
        setting=_NETWORKS,
        needs=f"{_SCALE}, with its recipes, which the paper does not print",
    ),
    says(
        "linear-embeds-all",
        "Fig. 1, caption",
        "nonlinear models can be faithfully represented in the embedding constructed using linear "
        "models (green line is close to red and orange)",
        "The explained stress of all models in the linear models' space is within 0.05 of that in "
        "their own, in two dimensions.",
        Band.at_least(-0.05, "words"),
        setting=_NETWORKS,
        needs=_SMALL,
        changed="2026-11-17: two standard errors of the same run before, which is no band",
    ),
    says(
        "linear-differs",
        "Fig. 1, caption",
        "there are clearly differences between the manifolds of linear and nonlinear models (blue "
        "curve is lower)",
        "In two dimensions nonlinear models fit less well into the linear models' space than into "
        "their own.",
        Band.at_most(0.0, "printed"),
        setting=_NETWORKS,
        needs=_SMALL,
    ),
)

_MAP = "n = 50, targets at their typical size; the paper does not print n"

FIG8 = (
    says(
        "ridge",
        "Sec. II.C, on Fig. 8 (a)",
        "There appears to be a straight line (log T ∝ c) along which the dimensionality is larger",
        "At ratio 3, ln T of the largest dimension is linear in c, to one spacing of the grid.",
        Band.at_most(1.0, "words"),
        setting=_MAP,
        needs="the grid of preset laptop",
    ),
    says(
        "few-dimensions",
        "Sec. II.C, on Fig. 8 (e)",
        "there is a contiguous region in (T, c, σ*/σw)-space with σ*/σw ≳ 9 where the hyper-ribbon "
        "has fewer than three dimensions",
        "Above a ratio of 9, the points with fewer than three dimensions are one connected region.",
        Band(1, 1, "printed"),
        setting=f"{_MAP}; 2 ≤ T ≤ 1e5 and 0.02 ≤ c ≤ 1, ratios up to 40",
        needs="the grid of preset laptop",
        changed="2026-11-17: before, every point above 9 had to have fewer than three dimensions, "
        "which the sentence does not say",
    ),
    says(
        "low-dimensional",
        "Sec. II.C, on Fig. 8 (a)",
        "For small initialization variance σ*/σw ≫ 1, the hyper-ribbon is very low-dimensional for "
        "most training times T and slope c.",
        "At ratio 4.8 the ribbon has at most 10 of 50 dimensions on more than half of the map.",
        Band.at_least(0.5, "words"),
        setting=f"{_MAP}; 4.8 is the contour that the paper takes for a slice of (a)",
    ),
    observe(
        "ridge-slope",
        "Fig. 8 (a-c)",
        "The line is T ≈ 1/λn, so its slope is n − 1 = 49, as far as the grid can tell.",
        Band(-1, 1, "closed form"),
        needs="the grid of preset laptop",
    ),
    says(
        "simulation",
        "Eqs. (3) and (5)",
        "As the number of random initializations N goes to infinity, we can separate the PCA "
        "matrix P into two components",
        "Trained models have the predicted dimension, within one, at every point tried.",
        Band.at_most(1, "closed form"),
        setting=f"{_MAP}; ratio 3, five slopes, up to three training times",
        needs="the models of preset laptop",
    ),
)


def simulation_says(setting: str, margin: float = 0.02) -> Statement:
    """Return the statement that trained models have the second moment of the closed form."""
    return says(
        "simulation",
        "Eqs. (3) and (5)",
        "As the number of random initializations N goes to infinity, we can separate the PCA "
        "matrix P into two components",
        "The second moment of trained models is P1: along its leading eigenvectors the variances "
        f"agree within {margin:.0%}.",
        Band.around(1.0, "closed form", atol=margin),
        setting=setting,
        needs="the models of preset laptop",
        compare="mean",
    )
