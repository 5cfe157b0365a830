"""Fig. 1 of [ribbons]: networks of all kinds train on one low-dimensional manifold."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
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
from hyperribbon.papers.experiments import kit
from hyperribbon.papers.experiments.ribbons import _networks
from hyperribbon.papers.experiments.ribbons._shared import line_fits

TITLE = "inPCA of the training of many networks"

_PATH = np.linspace(0.0, 0.7, 15)
_DEPTH = 50  # dimensions of the embeddings compared
_SHOWN = (2, 3, 10, 50)  # of these, the ones followed with images and width
_WINDOW = 0.05  # difference of progress below which two models are compared
_WAYS = ("all → all", "nonlinear → nonlinear", "linear → all", "linear → nonlinear")
_WAY_COLORS = (kit.COLORS[1], kit.COLORS[4], kit.COLORS[2], kit.COLORS[0])
_PRINTED = {2: 0.71, 50: 0.98}  # of 50,000 images
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
_SEVERAL = "several numbers of images and widths, as in preset laptop"

STATEMENTS = (
    kit.says(
        "two-dimensions",
        "Fig. 1, caption",
        "When the inPCA embedding is computed using all the points on the left, the explained "
        "stress of the first two dimensions is about 71% (red)",
        "Two dimensions explain 71% of the stress of all models, as printed.",
        kit.Band.around(0.71, "printed", atol=0.005),
        setting=_NETWORKS,
        needs=_SCALE,
    ),
    kit.says(
        "fifty-dimensions",
        "Sec. I",
        "A mere 50 dimensions are sufficient to account for 98% of the stress",
        "Fifty dimensions explain at least 98% of the stress, as printed.",
        kit.Band.at_least(0.975, "printed"),
        setting=_NETWORKS,
        needs=_SCALE,
    ),
    kit.says(
        "geometric",
        "Sec. I",
        "the stress explained by each successive dimension decays geometrically",
        "log|λ| of the first fifty dimensions is closer to a line in i than in log i.",
        kit.Band.at_least(0.0, "words"),
        setting=_NETWORKS,
        needs=_SMALL,
        changed="2026-11-18: not comparable at any scale before; the sentence has no number, and "
        "is judged at the scale of the ones on linear models, after its number was known",
    ),
    kit.says(
        "zero-error",
        "Fig. 1, caption",
        "All nonlinear deep networks in this experiment achieve zero training error.",
        "The lowest training accuracy of a nonlinear network is one, over all numbers of images "
        "and widths.",
        kit.Band.at_least(1.0, "printed"),
        setting=f"{_NETWORKS}; training ends when every image is right, or its epochs are over",
        needs=_SMALL,
        changed="2026-11-18: networks train until they fit, not for a fixed number of epochs; at "
        "twice the rate of Nesterov's momentum one of 150 networks stayed at 80%",
    ),
    kit.says(
        "linear-embeds-all",
        "Fig. 1, caption",
        "nonlinear models can be faithfully represented in the embedding constructed using linear "
        "models (green line is close to red and orange)",
        "The explained stress of all models in the linear models' space is within 0.05 of that in "
        "their own, in two dimensions.",
        kit.Band.at_least(-0.05, "words"),
        setting=_NETWORKS,
        needs=_SMALL,
        changed="2026-11-17: two standard errors of the same run before, which is no band",
    ),
    kit.says(
        "linear-differs",
        "Fig. 1, caption",
        "there are clearly differences between the manifolds of linear and nonlinear models (blue "
        "curve is lower)",
        "In two dimensions nonlinear models fit less well into the linear models' space than into "
        "their own.",
        kit.Band.at_most(0.0, "printed"),
        setting=_NETWORKS,
        needs=_SMALL,
        changed="2026-11-18: the error comes from resampled networks; one seed was undecided",
    ),
    kit.observe(
        "images",
        "Fig. 1, caption",
        "The stress explained by two dimensions falls with the number of images, towards the 71% "
        "that the paper prints for 50,000: change per doubling of the images.",
        kit.Band.at_most(0.0, "words"),
        needs=_SEVERAL,
    ),
    kit.observe(
        "width",
        "Sec. I",
        "The stress explained by two dimensions changes by at most 0.05 when networks become twice "
        "as wide.",
        kit.Band(-0.05, 0.05, "words"),
        needs=_SEVERAL,
    ),
)


class Config(kit.Frozen):
    """What is trained (Fig. 1 of [ribbons])."""

    data: str = "mnist5k"  # name of the data set
    images: tuple[int, ...] = (100, 200, 400)  # training samples; the last are drawn
    widths: tuple[float, ...] = (0.5, 1.0, 2.0)  # of nonlinear networks; 1 for all images
    width_images: int = 200  # training samples of the other widths, one of `images`
    probe: int = 500  # most samples whose predictions make the models' coordinates
    architectures: tuple[str, ...] = _networks.ARCHITECTURES  # names
    # names of recipes (optimiser, rate, weight decay, augmentation)
    recipes: tuple[str, ...] = ("nesterov", "adam", "adam, decay, shifts")
    seeds: int = 2  # starts for each architecture and recipe
    epochs: int = 500  # passes at most; training ends when every image is right
    batch_size: int = 25  # minibatch
    snapshots: int = 12  # models kept along each training, evenly along its path
    resamples: int = 40  # of the networks, for standard errors
    # largest eigenvalue of XXᵀ/n that the inputs of linear models are scaled to. The curvature of
    # cross-entropy is at most half of it, so at 10 the recipes' largest rate, 0.01/(1 − 0.9) = 0.1,
    # times the curvature is at most a half; unscaled scattering features make the first steps
    # overshoot far from P₀.
    linear_eigenvalue: float = 10.0


PRESETS = kit.presets(
    Config(),
    smoke=Config(
        images=(30, 60),
        widths=(1.0, 2.0),
        width_images=30,
        architectures=("linear", "fully_connected"),
        recipes=("adam",),
        epochs=10,
        batch_size=20,
        snapshots=8,
        resamples=4,
    ),
    paper=Config(
        images=(250, 500, 1000, 2000, 4000),
        widths=(0.5, 1.0, 2.0, 4.0),
        width_images=1000,
        seeds=10,
        epochs=1000,
        batch_size=200,
        snapshots=40,
    ),
)

PRESETS_WITH_DATA = {
    "smoke": PRESETS["smoke"],
    "laptop": replace(PRESETS["laptop"], data="cifar10"),
    "paper": replace(PRESETS["paper"], data="cifar10", images=(500, 1000, 2000, 5000, 10_000)),
}


class Result(kit.Frozen):
    """Coordinates of models and how well they keep distances (Fig. 1 of [ribbons]).

    Arrays with one row for each study run over numbers of images at width one, then over the other
    widths; coordinates, progress and distances are those of the largest number of images.
    """

    data: str  # name of the data set
    architectures: list[str]  # names
    images: np.ndarray  # (studies,), training samples
    widths: np.ndarray  # (studies,)
    models: np.ndarray  # (studies,), snapshots of all networks
    networks: np.ndarray  # (studies,), trainings
    # (studies, 4, k), explained by 1 … k dimensions, in the four ways of building and using
    stress: np.ndarray
    # (studies, resamples, 4, k), the same for networks drawn with replacement
    resampled: np.ndarray
    accuracy: np.ndarray  # (studies, architectures, trainings), on all training samples
    epochs: np.ndarray  # (studies, architectures, trainings), passes taken
    coordinates: np.ndarray  # (models, 3)
    eigenvalues: np.ndarray  # of the centred distances, by magnitude, signed
    owner: np.ndarray  # (models,), index of the architecture
    run: np.ndarray  # (models,), index of the training
    progress: np.ndarray  # (models,), how far from ignorance to truth
    ignorance: np.ndarray  # (3,), coordinates of the model that knows nothing
    # (points, 3), coordinates of the geodesic towards the truth, up to 70% of the way
    path: np.ndarray
    apart: np.ndarray  # (architectures, architectures), mean distance of models at similar progress


def compute(config: Config, context: kit.Context) -> Result:
    """Train the networks, measure all distances, embed (Fig. 1 of [ribbons])."""
    studies = [(images, 1.0) for images in config.images]
    studies += [(config.width_images, width) for width in config.widths if width != 1]
    pairs = list(product(config.architectures, config.recipes))
    jobs = [[_job(*study, *pair) for pair in pairs] for study in studies]
    names = ("data", "probe", "epochs", "batch_size", "snapshots", "linear_eigenvalue")
    common: dict[str, Any] = {name: getattr(config, name) for name in names}
    common["seeds"] = [derive_seed(context.seed, "start", seed) for seed in range(config.seeds)]
    keys = ("samples", "width", "architecture", "recipe")
    wanted = list(dict.fromkeys(job for study in jobs for job in study))
    items = [common | dict(zip(keys, job, strict=True)) for job in wanted]
    found = context.map(_networks.train_architecture, items, "networks")
    trained = dict(zip(wanted, found, strict=True))
    groups, stress, resampled = [], [], []
    with context.progress("embeddings", len(studies) * config.resamples) as advance:
        for number, study in enumerate(jobs):
            group = _Group([trained[job] for job in study], [job[2] for job in study])
            groups.append(group)
            stress.append(group.cross_stress())
            resampled.append([])
            for draw in range(config.resamples):
                resampled[-1].append(group.resample(context.rng("networks", number, draw)))
                advance()
    depth = min(curves.shape[1] for curves in stress)
    shape = (len(studies), len(config.architectures), -1)
    last = len(config.images) - 1
    return Result(
        data=config.data,
        architectures=list(config.architectures),
        images=np.array([images for images, _ in studies]),
        widths=np.array([width for _, width in studies]),
        models=np.array([len(group.run) for group in groups]),
        networks=np.array([group.run[-1] + 1 for group in groups]),
        stress=np.array([curves[:, :depth] for curves in stress]),
        resampled=np.array([[curves[:, :depth] for curves in draws] for draws in resampled]),
        **{
            name: np.array([[trained[job][name] for job in study] for study in jobs]).reshape(shape)
            for name in ("accuracy", "epochs")
        },
        **groups[last].describe(common | {"samples": config.images[last]}, config.architectures),
    )


def _job(images: int, width: float, name: str, recipe: str) -> tuple[int, float, str, str]:
    """Return what identifies some of Fig. 1's trainings; linear models have one width."""
    return images, 1.0 if name in _networks.LINEAR else width, name, recipe


class _Group:
    """All models of the networks trained on one set of images, and their distances.

    Args:
        trained: Results of `train_architecture`.
        names: The architecture of each.
    """

    def __init__(self, trained: list[dict[str, Any]], names: list[str]) -> None:
        paths = [
            (name, path) for one, name in zip(trained, names, strict=True) for path in one["logs"]
        ]
        sizes = [len(path) for _, path in paths]
        self.logs = np.concatenate([path for _, path in paths])
        self.run = np.repeat(np.arange(len(paths)), sizes)
        self.names = np.repeat(np.array([name for name, _ in paths], dtype=object), sizes)
        self.is_linear = np.isin(self.names, list(_networks.LINEAR))
        self.distances = bhattacharyya(self.logs, log=True, precision="double")

    def cross_stress(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Return Fig. 1's stress of embeddings built from some models and used for others.

        Args:
            rows: The models; all by default.

        Returns:
            (4, k), one row for each way of building and using.
        """
        rows = np.arange(len(self.run)) if rows is None else rows
        linear, nonlinear = rows[self.is_linear[rows]], rows[~self.is_linear[rows]]
        ways = [(rows, rows), (nonlinear, nonlinear), (linear, rows), (linear, nonlinear)]
        depth = min([_DEPTH, *(len(built) - 1 for built, _ in ways)])
        curves = []
        for built, used in ways:
            space = InPCA(depth, metric="precomputed").fit(self.distances[np.ix_(built, built)])
            if built is used:
                curves.append(space.explained_stress_)
                continue
            coordinates = space.transform(self.distances[np.ix_(used, built)])
            between = self.distances[np.ix_(used, used)]
            curves.append(explained_stress(between, coordinates, space.time_like_))
        return np.array(curves)

    def resample(self, rng: np.random.Generator) -> np.ndarray:
        """Return Fig. 1's explained stress for networks of each kind drawn with replacement."""
        kinds = [np.unique(self.run[kind]) for kind in (self.is_linear, ~self.is_linear)]
        chosen = np.concatenate([rng.choice(runs, len(runs)) for runs in kinds])
        return self.cross_stress(
            np.concatenate([np.flatnonzero(self.run == one) for one in chosen])
        )

    def describe(self, item: kit.Item, architectures: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Return Fig. 1's coordinates, progress, landmarks and distances at equal progress."""
        space = InPCA(3, metric="precomputed").fit(self.distances)
        _, labels, probe = _networks.load_task(item)
        goal = truth(labels[probe], self.logs.shape[2])
        start = ignorance(*goal.shape)
        landmarks = np.array([start, *geodesic(start, goal, _PATH)])
        with np.errstate(divide="ignore"):
            marks = bhattacharyya(np.log(landmarks), self.logs, log=True, precision="double")
        marks = space.transform(marks)
        along = progress(np.exp(self.logs.astype(float)), goal)
        owner = np.array([architectures.index(name) for name in self.names])
        similar = np.abs(along[:, None] - along) < _WINDOW
        np.fill_diagonal(similar, False)
        apart = np.full((len(architectures), len(architectures)), np.nan)
        for a, b in np.ndindex(apart.shape):
            near = similar & (owner[:, None] == a) & (owner == b)
            if near.any():
                apart[a, b] = self.distances[near].mean()
        return {
            "coordinates": space.embedding_,
            "eigenvalues": space.spectrum_,
            "owner": owner,
            "run": self.run,
            "progress": along,
            "ignorance": marks[0],
            "path": marks[1:],
            "apart": apart,
        }


def plot(result: Result) -> dict[str, kit.Figure]:
    """Draw Fig. 1: coordinates, explained stress and its scaling, and who is near whom."""
    return {
        "embedding": _embedding(result),
        "stress": _stress(result),
        "scaling": _scaling(result),
        "apart": _apart(result),
    }


def _embedding(result: Result) -> kit.Figure:
    figure, axes = kit.new_figure(1, 3, width="full", ratio=1.0)
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
        here: dict[str, Any] = {"xytext": (0, -13), "textcoords": "offset points", "ha": "center"}
        axis.annotate("$P_0$", result.ignorance[[i, j]], **here)
        axis.margins(0.1)
        axis.set_xlabel(f"inPC {i + 1}{signs[i]}")
        axis.set_ylabel(f"inPC {j + 1}{signs[j]}", labelpad=1)
    handles = [
        axes[0].plot([], [], "o-", color=_STYLES[name], ms=3, label=name.replace("_", " "))[0]
        for name in result.architectures
    ]
    handles.append(axes[0].plot([], [], "--", color="0.35", lw=0.9, label="geodesic to truth")[0])
    figure.legend(handles=handles, loc="outside upper center", ncols=5, handlelength=1.2)
    return figure


def _stress(result: Result) -> kit.Figure:
    figure, axis = kit.new_figure(ratio=0.85)
    largest, index = _largest(result), np.arange(1, result.stress.shape[2] + 1)
    errors = _errors(result)[largest]
    for color, way, curve, error in zip(
        _WAY_COLORS, _WAYS, result.stress[largest], errors, strict=True
    ):
        axis.semilogx(index, 100 * curve, "o-", color=color, ms=2.5, lw=1.2, label=way)
        low, high = 100 * (curve - 2 * error), 100 * (curve + 2 * error)
        axis.fill_between(index, low, high, color=color, alpha=0.2, lw=0)
    printed = 100 * np.array(list(_PRINTED.values()))
    axis.plot(list(_PRINTED), printed, "k*", ms=7, label="paper (50,000 images), all → all")
    axis.set(xlabel="dimensions", ylabel="explained stress (%)", ylim=(0, 103), xlim=(0.9, 60))
    axis.set_xticks([1, 2, 3, 5, 10, 20, 50], ["1", "2", "3", "5", "10", "20", "50"])
    axis.minorticks_off()
    axis.legend(loc="lower right", title="built from → used for")
    return figure


def _scaling(result: Result) -> kit.Figure:
    """Draw Fig. 1's stress explained by 2, 3, 10 and 50 dimensions against images and width."""
    figure, axes = kit.new_figure(1, 2, width="full", ratio=0.7, sharey=True)
    errors = _errors(result)[:, 0]
    for axis, rows, by in zip(axes, _axes(result), (result.images, result.widths), strict=True):
        for color, depth in zip(kit.shades(len(_SHOWN)), _SHOWN, strict=True):
            if depth <= result.stress.shape[2]:
                share, error = result.stress[rows, 0, depth - 1], errors[rows, depth - 1]
                look: dict[str, Any] = {"color": color, "marker": "o", "ms": 3, "capsize": 2}
                label = f"{depth} dimensions"
                axis.errorbar(by[rows], 100 * share, 200 * error, **look, lw=1.2, label=label)
                if axis is axes[0] and depth in _PRINTED:
                    axis.plot(50_000, 100 * _PRINTED[depth], "*", color=color, ms=8)
        axis.set(xscale="log")
        axis.set_xticks(by[rows], [f"{value:g}" for value in by[rows]])
        axis.minorticks_off()
    axes[0].plot([], [], "*", color="0.3", ms=8, label="paper")
    axes[0].set_xticks([*result.images[_axes(result)[0]], 50_000])
    axes[0].set_xticklabels([*(str(n) for n in result.images[_axes(result)[0]]), "50,000"])
    axes[0].set(xlabel="images", ylabel="explained stress (%)", title="(a) width 1")
    number = result.images[_axes(result)[1]][0]
    axes[1].set(xlabel="width of nonlinear networks", title=f"(b) {number} images")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    return figure


def _largest(result: Result) -> int:
    """Return the study with most images, whose networks Fig. 1 draws."""
    return int(_axes(result)[0][-1])


def _axes(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return Fig. 1's studies of width one by images, and those of equal images by width."""
    is_one = result.widths == 1
    by_images = np.flatnonzero(is_one)
    others = result.images[~is_one]
    same = result.images == (others[0] if len(others) else result.images[by_images[-1]])
    by_width = np.flatnonzero(same)
    return by_images, by_width[np.argsort(result.widths[by_width])]


def _errors(result: Result) -> np.ndarray:
    """Return standard errors of Fig. 1's explained stress over resampled networks: (s, 4, k)."""
    return result.resampled.std(axis=1, ddof=1)


def _apart(result: Result) -> kit.Figure:
    figure, axis = kit.new_figure(ratio=0.9)
    image = axis.imshow(result.apart, cmap=kit.SEQUENTIAL)
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


def measure(result: Result) -> kit.Measurements:
    """Measure the stress of the four embeddings and the fit of the networks (ribbons, Fig. 1)."""
    largest = _largest(result)
    curves, draws = result.stress[largest], result.resampled[largest]
    depth, networks = curves.shape[1], int(result.networks[largest])
    by_images, by_width = _axes(result)
    doubling = {
        "images": _per_doubling(result, result.images, by_images),
        "width": _per_doubling(result, result.widths, by_width),
    }
    listed = "; ".join(
        f"{result.images[i]} images, width {result.widths[i]:g}: "
        + ", ".join(f"{result.stress[i, 0, k - 1]:.1%} in {k}" for k in _SHOWN if k <= depth)
        for i in (*by_images, *(i for i in by_width if result.widths[i] != 1))
    )
    small = (
        f"{result.data}, {result.images[largest]} images, {result.models[largest]} models of "
        f"{networks} networks"
    )
    drawn = "standard error over networks drawn with replacement"
    geometric, power = line_fits(np.abs(result.eigenvalues[:depth]))
    shapes = [float(np.subtract(*line_fits(_magnitudes(curve)))) for curve in draws[:, 0]]
    deep = [i for i, name in enumerate(result.architectures) if name not in _networks.LINEAR]
    fits = ", ".join(
        f"{result.architectures[i]} {result.accuracy[:, i].min():.3f} after at most "
        f"{result.epochs[:, i].max():.0f} epochs"
        for i in deep
    )

    def compare(one: int, other: int) -> tuple[float, float]:
        """Return by how much two of Fig. 1's embeddings differ in two dimensions, and the error."""
        gap = draws[:, one, 1] - draws[:, other, 1]
        return curves[one, 1] - curves[other, 1], gap.std(ddof=1)

    free: dict[str, Any] = {"freedom": networks - 1}
    several = len(by_images) > 1 and len(by_width) > 1 and depth >= max(_SHOWN)
    return {
        "two-dimensions": kit.estimate(
            curves[0, 1],
            draws[:, 0, 1].std(ddof=1),
            f"{listed}; {drawn}",
            comparable=False,
            **free,
        ),
        "fifty-dimensions": kit.estimate(
            curves[0, -1],
            draws[:, 0, -1].std(ddof=1),
            f"at {depth} dimensions; {small}; {drawn}",
            comparable=False,
            **free,
        ),
        "geometric": kit.estimate(
            geometric - power,
            np.std(shapes, ddof=1),
            f"R² of log|λ| against i ({geometric:.3f}) minus that against log i ({power:.3f}); "
            f"{small}; {drawn}",
            **free,
        ),
        "zero-error": kit.exact(
            result.accuracy[:, deep].min(), f"lowest accuracy on the training images: {fits}"
        ),
        "linear-embeds-all": kit.estimate(*compare(2, 0), f"{small}; {drawn}", **free),
        "linear-differs": kit.estimate(*compare(3, 1), f"{small}; {drawn}", **free),
        **{
            name: kit.estimate(*found, f"{listed}; {drawn}", comparable=several, **free)
            for name, found in doubling.items()
        },
    }


def _magnitudes(stress: np.ndarray) -> np.ndarray:
    """Return |λ₁|, |λ₂|, … of Fig. 1's embedding, over ‖W‖, from 1 − √(1 − Σ λ²)."""
    return np.sqrt(np.maximum(-np.diff((1 - stress) ** 2, prepend=1.0), 0))


def _per_doubling(result: Result, by: np.ndarray, rows: np.ndarray) -> tuple[float, float]:
    """Return how Fig. 1's stress in two dimensions changes per doubling, and the error."""
    if len(rows) < 2:
        return np.nan, np.nan
    x = np.log2(by[rows])
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    return (
        float(weights @ result.stress[rows, 0, 1]),
        float((weights @ result.resampled[rows, :, 0, 1]).std(ddof=1)),
    )
