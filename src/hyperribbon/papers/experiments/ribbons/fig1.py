"""Fig. 1 of [ribbons]: networks of all kinds train on one low-dimensional manifold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hyperribbon.core import derive_seed
from hyperribbon.manifold import (
    InPCA,
    bhattacharyya,
    explained_stress,
    geodesic,
    ignorance,
    progress,
    truth,
)
from hyperribbon.papers.experiments.judging import Measurements, estimate, over_seeds
from hyperribbon.papers.experiments.kit import Context, Figure, Frozen, presets
from hyperribbon.papers.experiments.ribbons import _networks
from hyperribbon.papers.experiments.statements import Band, says
from hyperribbon.plots.style import COLORS, SEQUENTIAL, new_figure

TITLE = "inPCA of the training of many networks"

_PATH = np.linspace(0.0, 0.7, 15)
_DEPTH = 50  # dimensions of the embeddings compared
_WINDOW = 0.05  # difference of progress below which two models are compared
_WAYS = ("all → all", "nonlinear → nonlinear", "linear → all", "linear → nonlinear")
_WAY_COLORS = (COLORS[1], COLORS[4], COLORS[2], COLORS[0])
_STYLES = dict(
    zip(
        _networks.ARCHITECTURES,
        ("#00441b", "#238b45", "#74c476", "#0072B2", "#D55E00", "#CC79A7", "#E69F00", "#56B4E9"),
        strict=True,
    )
)

_NETWORKS = (
    "eight small architectures with three recipes, a few hundred images: the figure's networks "
    "have up to 50 million weights"
)
_SCALE = (
    "CIFAR-10 with 50,000 images, networks of 0.6 to 50 million weights and the 2,000 trainings "
    "of the paper's reference [1]"
)
_SMALL = "the architectures of preset laptop, on full data"

STATEMENTS = (
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
        changed="2026-11-18: the error comes from resampled networks; one seed was undecided",
    ),
)


class Config(Frozen):
    """What is trained (Fig. 1 of [ribbons])."""

    data: str = "mnist5k"  # name of the data set
    samples: int = 1000  # training samples
    probe: int = 500  # of these, the samples whose predictions make the models' coordinates
    architectures: tuple[str, ...] = _networks.ARCHITECTURES  # names
    # names of recipes (optimiser, rate, weight decay, augmentation)
    recipes: tuple[str, ...] = ("nesterov", "adam", "adam, decay, shifts")
    seeds: int = 3  # starts for each architecture and recipe
    epochs: int = 24  # passes
    batch_size: int = 50  # minibatch
    snapshots: int = 18  # models kept along each training, evenly along its path
    resamples: int = 40  # of the networks, for standard errors
    # largest eigenvalue of XXᵀ/n that the inputs of linear models are scaled to. The curvature of
    # cross-entropy is at most half of it, so at 10 the recipes' largest rate, 0.02/(1 − 0.9) = 0.2,
    # times the curvature is one; unscaled scattering features make the first steps overshoot far
    # from P₀.
    linear_eigenvalue: float = 10.0


PRESETS = presets(
    Config(),
    smoke=Config(
        samples=60,
        probe=60,
        architectures=("linear", "fully_connected"),
        recipes=("adam",),
        seeds=2,
        epochs=8,
        batch_size=20,
        snapshots=8,
        resamples=4,
    ),
    paper=Config(samples=4000, probe=2000, seeds=10, epochs=100, batch_size=200, snapshots=40),
)

PRESETS_WITH_DATA = {
    "smoke": PRESETS["smoke"],
    "laptop": Config(data="cifar10", samples=500, epochs=80, batch_size=25),
    "paper": replace(PRESETS["paper"], data="cifar10", samples=10_000, epochs=200),
}


class Result(Frozen):
    """Coordinates of all models and how well they keep distances (Fig. 1 of [ribbons])."""

    data: str  # name of the data set
    architectures: list[str]  # names
    coordinates: np.ndarray  # (models, 3)
    eigenvalues: np.ndarray  # of the centred distances, by magnitude, signed
    owner: np.ndarray  # (models,), index of the architecture
    run: np.ndarray  # (models,), index of the training
    progress: np.ndarray  # (models,), how far from ignorance to truth
    ignorance: np.ndarray  # (3,), coordinates of the model that knows nothing
    # (points, 3), coordinates of the geodesic towards the truth, up to 70% of the way
    path: np.ndarray
    # (4, k), explained by 1 … k dimensions, in the four ways of building and using
    stress: np.ndarray
    # (resamples, 2), in two dimensions: linear → all minus all → all, and linear → nonlinear minus
    # nonlinear → nonlinear, over networks drawn with replacement
    resampled: np.ndarray
    without: np.ndarray  # (architectures, k), the first of these with one architecture left out
    accuracy: np.ndarray  # (architectures, trainings of each), on training samples
    apart: np.ndarray  # (architectures, architectures), mean distance of models at similar progress


def compute(config: Config, context: Context) -> Result:
    """Train the networks, measure all distances, embed (Fig. 1 of [ribbons])."""
    seeds = [derive_seed(context.seed, "start", seed) for seed in range(config.seeds)]
    base = {**vars(config), "seeds": seeds}
    items = [
        {**base, "architecture": name, "recipe": recipe}
        for name in config.architectures
        for recipe in config.recipes
    ]
    trained = context.map(_networks.train_architecture, items, "networks")
    logs = np.concatenate([run["logs"].reshape(-1, *run["logs"].shape[2:]) for run in trained])
    lengths = [run["logs"].shape[:2] for run in trained]
    owner = np.concatenate(
        [
            np.full(seeds * points, config.architectures.index(item["architecture"]))
            for item, (seeds, points) in zip(items, lengths, strict=True)
        ]
    )
    run = np.repeat(
        np.arange(sum(seeds for seeds, _ in lengths)),
        np.concatenate([np.full(seeds, points) for seeds, points in lengths]),
    )
    distances = bhattacharyya(logs, log=True, precision="double")
    space = InPCA(3, metric="precomputed").fit(distances)
    _, labels, probe = _networks.load_task(base)
    goal = truth(labels[probe], logs.shape[2])
    landmarks = [ignorance(*goal.shape), *geodesic(ignorance(*goal.shape), goal, _PATH)]
    with np.errstate(divide="ignore"):
        marks = bhattacharyya(np.log(np.array(landmarks)), logs, log=True, precision="double")
    marks = space.transform(marks)
    along = progress(np.exp(logs.astype(float)), goal)
    count = len(config.architectures)
    is_linear = np.isin(owner, _linear(config.architectures))
    accuracy = [
        [r["accuracy"] for r, i in zip(trained, items, strict=True) if i["architecture"] == name]
        for name in config.architectures
    ]
    return Result(
        data=config.data,
        architectures=list(config.architectures),
        coordinates=space.embedding_,
        eigenvalues=space.spectrum_,
        owner=owner,
        run=run,
        progress=along,
        ignorance=marks[0],
        path=marks[1:],
        stress=_cross_stress(distances, is_linear),
        resampled=np.array(
            [
                _resample_stress(distances, run, is_linear, context.rng("networks", draw))
                for draw in range(config.resamples)
            ]
        ),
        without=_leave_one_out_stress(distances, owner, count),
        accuracy=np.array([np.concatenate(one) for one in accuracy]),
        apart=_distances_at_equal_progress(distances, owner, along, count),
    )


def _linear(architectures: tuple[str, ...]) -> list[int]:
    return [index for index, name in enumerate(architectures) if name in _networks.LINEAR]


def _resample_stress(
    distances: np.ndarray, run: np.ndarray, is_linear: np.ndarray, rng: np.random.Generator
) -> tuple[float, float]:
    """Return both differences of the stress for networks of each kind drawn with replacement."""
    chosen = [
        rng.choice(runs, len(runs))
        for runs in (np.unique(run[is_linear]), np.unique(run[~is_linear]))
    ]
    rows = np.concatenate([np.flatnonzero(run == one) for one in np.concatenate(chosen)])
    curves = _cross_stress(distances[np.ix_(rows, rows)], is_linear[rows], 2)[:, 1]
    return curves[2] - curves[0], curves[3] - curves[1]


def _cross_stress(distances: np.ndarray, is_linear: np.ndarray, most: int = _DEPTH) -> np.ndarray:
    """Return the explained stress of embeddings built from some models and used for others."""
    everyone = np.arange(len(distances))
    ways = [
        (everyone, everyone),
        (everyone[~is_linear], everyone[~is_linear]),
        (everyone[is_linear], everyone),
        (everyone[is_linear], everyone[~is_linear]),
    ]
    depth = min([most, *(len(built) - 1 for built, _ in ways)])
    curves = []
    for built, used in ways:
        space = InPCA(depth, metric="precomputed").fit(distances[np.ix_(built, built)])
        coordinates = space.transform(distances[np.ix_(used, built)])
        curves.append(
            explained_stress(distances[np.ix_(used, used)], coordinates, space.time_like_)
        )
    return np.array(curves)


def _leave_one_out_stress(distances: np.ndarray, owner: np.ndarray, count: int) -> np.ndarray:
    """Return the explained stress of all models but one architecture's, for each: (count, k)."""
    depth = min(_DEPTH, *(int((owner != left).sum()) - 1 for left in range(count)))
    curves = []
    for left in range(count):
        kept = owner != left
        space = InPCA(depth, metric="precomputed").fit(distances[np.ix_(kept, kept)])
        curves.append(space.explained_stress_)
    return np.array(curves)


def _distances_at_equal_progress(
    distances: np.ndarray, owner: np.ndarray, along: np.ndarray, count: int
) -> np.ndarray:
    """Return mean distances of architectures over pairs of models of similar progress (Fig. 1)."""
    similar = np.abs(along[:, None] - along) < _WINDOW
    table = np.zeros((count, count))
    for a in range(count):
        for b in range(count):
            pairs = similar & (owner[:, None] == a) & (owner == b)
            np.fill_diagonal(pairs, False)
            table[a, b] = distances[pairs].mean() if pairs.any() else np.nan
    return table


def plot(result: Result) -> dict[str, Figure]:
    """Draw all pairs of the first three coordinates, the explained stress, and who is near whom."""
    return {"embedding": _embedding(result), "stress": _stress(result), "apart": _pairs(result)}


def _embedding(result: Result) -> Figure:
    figure, axes = new_figure(1, 3, width="full", ratio=1.0)
    signs = np.where(result.eigenvalues[:3] < 0, " (time-like)", "")
    for axis, (i, j) in zip(axes, ((0, 1), (0, 2), (1, 2)), strict=True):
        for run in np.unique(result.run):
            points = result.coordinates[result.run == run]
            name = result.architectures[result.owner[result.run == run][0]]
            axis.plot(points[:, i], points[:, j], "-", color=_STYLES[name], lw=0.5, alpha=0.45)
            axis.plot(
                points[:, i], points[:, j], "o", color=_STYLES[name], ms=2.0, alpha=0.8, mew=0
            )
        axis.plot(result.path[:, i], result.path[:, j], "--", color="0.35", lw=0.9, zorder=1)
        axis.plot(*result.ignorance[[i, j]], "*", color="black", ms=8, zorder=5)
        axis.annotate("$P_0$", result.ignorance[[i, j]], xytext=(4, 4), textcoords="offset points")
        axis.set_xlabel(f"inPC {i + 1}{signs[i]}")
        axis.set_ylabel(f"inPC {j + 1}{signs[j]}", labelpad=1)
    handles = [
        axes[0].plot([], [], "o-", color=_STYLES[name], ms=3, label=name.replace("_", " "))[0]
        for name in result.architectures
    ]
    handles.append(axes[0].plot([], [], "--", color="0.35", lw=0.9, label="geodesic to truth")[0])
    figure.legend(handles=handles, loc="outside upper center", ncols=5, handlelength=1.2)
    return figure


def _stress(result: Result) -> Figure:
    figure, axis = new_figure(ratio=0.85)
    index = np.arange(1, result.stress.shape[1] + 1)
    for color, way, curve in zip(_WAY_COLORS, _WAYS, result.stress, strict=True):
        axis.semilogx(index, 100 * curve, "o-", color=color, ms=2.5, lw=1.2, label=way)
    axis.plot([2, 50], [71, 98], "k*", ms=7, label="paper (CIFAR-10), all → all")
    axis.set(xlabel="dimensions", ylabel="explained stress (%)", ylim=(0, 103), xlim=(0.9, 60))
    axis.set_xticks([1, 2, 3, 5, 10, 20, 50], ["1", "2", "3", "5", "10", "20", "50"])
    axis.minorticks_off()
    axis.legend(loc="lower right", title="built from → used for")
    return figure


def _pairs(result: Result) -> Figure:
    figure, axis = new_figure(ratio=0.9)
    image = axis.imshow(result.apart, cmap=SEQUENTIAL)
    middle = np.nanmean(image.get_clim())
    for (row, column), value in np.ndenumerate(result.apart):
        if np.isfinite(value):
            color = "white" if value < middle else "black"
            axis.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=6, color=color
            )
    names = [name.replace("_", " ") for name in result.architectures]
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set_yticks(range(len(names)), names)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    figure.colorbar(image, ax=axis, label="mean distance at equal progress", shrink=0.85)
    return figure


def interactive(result: Result) -> Any:
    """Return the first three coordinates to turn around (Fig. 1 of [ribbons])."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for index, name in enumerate(result.architectures):
        lines = [
            np.vstack([result.coordinates[result.run == run], np.full((1, 3), np.nan)])
            for run in np.unique(result.run[result.owner == index])
        ]
        x, y, z = np.concatenate(lines).T
        color, title = _STYLES[name], name.replace("_", " ")
        look = {"line": {"color": color, "width": 2}, "marker": {"color": color, "size": 2}}
        figure.add_scatter3d(x=x, y=y, z=z, mode="lines+markers", name=title, **look)
    x, y, z = ([value] for value in result.ignorance)
    look = {"mode": "markers+text", "text": ["P₀"], "marker": {"color": "black", "size": 5}}
    figure.add_scatter3d(x=x, y=y, z=z, name="ignorance", **look)
    figure.update_layout(
        scene={f"{axis}axis": {"title": f"inPC {i + 1}"} for i, axis in enumerate("xyz")},
        margin={"l": 0, "r": 0, "t": 0, "b": 0},
    )
    return figure


def measure(result: Result) -> Measurements:
    """Measure the stress of the four embeddings and the fit of the networks (Fig. 1)."""
    together, nonlinear, to_all, to_nonlinear = result.stress
    depth = len(together)
    listed = ", ".join(f"{together[k - 1]:.1%} in {k}" for k in (2, 3, 10, 50) if k <= depth)
    deep = [i for i, name in enumerate(result.architectures) if name not in _networks.LINEAR]
    error = _jackknife(result.without)
    logs = np.log(np.abs(result.eigenvalues[:depth]))
    index = np.arange(1, depth + 1)
    geometric, power = (np.corrcoef(x, logs)[0, 1] ** 2 for x in (index, np.log(index)))
    small = f"{result.data}, {len(result.owner)} models of {len(result.architectures)} small kinds"
    errors, networks = result.resampled.std(axis=0, ddof=1), len(np.unique(result.run))
    drawn = f"standard error over {networks} networks drawn with replacement"
    fits = ", ".join(f"{result.architectures[i]} {result.accuracy[i].mean():.3f}" for i in deep)
    return {
        "two-dimensions": over_seeds(
            [together[1]],
            f"{small}: {listed}; leaving an architecture out moves it by {error[1]:.3f}",
            comparable=False,
        ),
        "fifty-dimensions": over_seeds(
            [together[-1]], f"at {depth} dimensions; {small}", comparable=False
        ),
        "geometric": over_seeds(
            [geometric - power],
            f"R² of log|λ| against i ({geometric:.3f}) minus that against log i ({power:.3f})",
            comparable=False,
        ),
        "zero-error": over_seeds(
            [result.accuracy[deep].min()], f"mean accuracy: {fits}", comparable=False
        ),
        "linear-embeds-all": estimate(
            to_all[1] - together[1], errors[0], f"{small}; {drawn}", freedom=networks - 1
        ),
        "linear-differs": estimate(
            to_nonlinear[1] - nonlinear[1], errors[1], f"{small}; {drawn}", freedom=networks - 1
        ),
    }


def _jackknife(without: np.ndarray) -> np.ndarray:
    """Return the standard error of a number over architectures, from leaving each one out."""
    count = len(without)
    return np.sqrt((count - 1) / count * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
