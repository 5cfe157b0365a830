"""Levels: models that used to crash, numbers that do not depend on speed, nothing left empty."""

import time

import pytest
import torch
from torch import nn

from hyperribbon.application.inspection import Budget, inspect
from hyperribbon.application.inspection.engine import inspect as inspecting
from hyperribbon.application.inspection.engine import notebook as notebooks
from hyperribbon.application.inspection.engine.clock import OutOfTimeError
from hyperribbon.application.inspection.engine.inspect import MEASUREMENTS
from hyperribbon.application.inspection.engine.notebook import Level, Notebook
from hyperribbon.application.inspection.engine.scheduler import sample_sizes
from hyperribbon.application.inspection.engine.subject import Subject
from hyperribbon.application.inspection.parts import headlines, layers
from hyperribbon.application.inspection.parts.curvature import hessian_part, refine_noise_part
from hyperribbon.application.inspection.quantities import NOT_OVER_SAMPLES, Part, Quantity
from hyperribbon.core import ArgumentError
from hyperribbon.papers.training import mlp

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """Only the headline numbers, and two steps that look at the model before they begin."""
    others = [entry for entry in MEASUREMENTS if entry.name in ("sloppiness", "theory")]
    monkeypatch.setattr(inspecting, "MEASUREMENTS", (*headlines.MEASUREMENTS, *others))


FIRST = {"basics", "hessian", "gauss_newton", "layer_traces"}


class Recurrent(nn.Module):
    def __init__(self, layer, returns):
        super().__init__()
        self.layer, self.head = layer(5, 6, batch_first=True), nn.Linear(6, 3)
        self.returns = returns

    def forward(self, x):
        outputs, state = self.layer(x)
        scores = self.head(outputs[:, -1])
        return {"plain": scores, "tuple": (scores, state), "dict": {"a": scores}}[self.returns]


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(5, 1, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.attention(query=x, key=x, value=x)[0].mean(1))


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(35, 1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def _weight_normed():
    normed = nn.utils.weight_norm(nn.Linear(35, 4))
    model = nn.Sequential(nn.Flatten(), normed, nn.Tanh(), nn.Linear(4, 3))
    model(torch.randn(2, 7, 5))  # leaves a tensor with a graph behind, which cannot be copied
    return model


def _parametrised():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(35, 3))
    return nn.Sequential(nn.Flatten(), normed)


MODELS = {
    "LSTM": lambda: nn.LSTM(5, 3, batch_first=True),
    "LSTM in a model": lambda: Recurrent(nn.LSTM, "plain"),
    "GRU in a model": lambda: Recurrent(nn.GRU, "plain"),
    "a tuple": lambda: Recurrent(nn.LSTM, "tuple"),
    "a dict": lambda: Recurrent(nn.GRU, "dict"),
    "attention by keyword": Keywords,
    "weight_norm": _weight_normed,
    "parametrised weight_norm": _parametrised,
    "outputs (n,)": Flat,
}


SEVERAL = {"LSTM": lambda o: o[0], "a tuple": lambda o: o[0], "a dict": lambda o: o["a"]}
"""Which of several outputs is meant: operators ask for it too."""


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_called_or_answer_in_other_ways(name, quiet):
    torch.manual_seed(0)
    model, inputs = MODELS[name](), torch.randn(24, 7, 5)
    loss, targets = nn.CrossEntropyLoss(), torch.arange(24) % 3
    if name == "outputs (n,)":
        loss, targets = nn.MSELoss(), torch.randn(24)
    if name == "LSTM":
        loss, targets = nn.MSELoss(), torch.randn(24, 7, 3)
    options = {"k": 2, "budget": 10, "console": quiet}
    if name in SEVERAL:
        with pytest.raises(ArgumentError, match="its output is not a tensor"):
            inspect(model, loss, (inputs, targets), **options)
        options["forward"] = lambda model, batch: SEVERAL[name](model(batch[0]))
    found = inspect(model, loss, (inputs, targets), **options)
    assert set(found.parts) >= FIRST
    assert not [o for o in found.outcomes if o.status == "failed"], found.outcomes
    assert len(found.answers()) >= 4


def test_what_has_no_derivatives_still_has_a_loss_and_says_why(quiet):
    with torch.random.fork_rng():
        model = torch.jit.script(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    data = torch.randn(24, 5), torch.arange(24) % 3

    class Opaque(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.inner(x) * self.scale

    for opaque in (Opaque(), model):
        found = inspect(opaque, nn.CrossEntropyLoss(), data, budget=5, console=quiet)
        assert found["model.loss"].value > 0
        assert found.answers()
        assert "TorchScript" in " ".join(o.reason for o in found.outcomes)


def test_what_cannot_be_evaluated_is_refused(quiet):
    with pytest.raises(ArgumentError):
        inspect(
            nn.Linear(4, 3),
            nn.CrossEntropyLoss(),
            (torch.randn(9, 5), torch.arange(9) % 3),
            budget=5,
            console=quiet,
        )


def test_levels_are_nested_and_end_with_everything():
    assert sample_sizes(1_000_000) == (8, 64, 512, 4096, 1_000_000)
    assert sample_sizes(512) == (8, 64, 512)


class Slow(nn.Module):
    """The same function, slower by a time that depends on nothing."""

    def __init__(self, model, seconds):
        super().__init__()
        self.model, self.seconds = model, seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return self.model(x)


@pytest.mark.parametrize("widths", [(6, 12, 3), (6, 40, 3)])
def test_statistics_do_not_depend_on_speed(classified, quiet, widths, monkeypatch):
    """On a clock that stands still, and on one that runs on whenever it is looked at."""
    model, loss, found = mlp(widths, "tanh", seed=1), nn.CrossEntropyLoss(), []
    for tick in (0.0, 0.1):
        now = [0.0]

        def look(now=now, tick=tick):
            now[0] += tick
            return now[0]

        with monkeypatch.context() as patch:
            patch.setattr(time, "monotonic", look)
            found.append(inspect(model, loss, classified, k=12, budget=20, console=quiet))
    quick, slow = found
    common = set(quick.statistics) & set(slow.statistics)
    assert {"loss@8", "sharpness@8", "trace@8"} <= common
    for name in common:
        # Single precision, and pieces of the data that may be cut elsewhere.
        first, second = quick.statistics[name], slow.statistics[name]
        assert second.value == pytest.approx(first.value, rel=1e-5), name
        if NOT_OVER_SAMPLES not in second.certainty:  # for lack of time, and it says so
            assert second.error == pytest.approx(first.error, rel=1e-3, abs=1e-6 * abs(first.value))
    assert set(slow.statistics) < set(quick.statistics)
    assert slow.missing
    assert all(seconds > 0 for seconds in slow.missing.values())


def test_statistics_are_of_fixed_numbers_of_directions(trained, quiet):
    model, loss, data, _ = trained
    found = inspect(model, loss, data, k=50, budget=20, console=quiet)
    assert {"share10@240", "share50@240", "rank50@240", "ratio10@240"} <= set(found.statistics)
    fewer = inspect(model, loss, data, k=5, budget=20, console=quiet)
    assert not {"share10@240", "share50@240"} & set(fewer.statistics)
    assert not any("share5@" in name for name in fewer.statistics)
    assert found.headlines()["statistic"].is_unique


def test_a_small_network_has_all_pairs_at_once(quiet):
    """1,654 weights: the matrix is written out, and all fifty pairs are there."""
    data = torch.randn(20, 20), torch.arange(20) % 10
    model = mlp((20, 53, 10), seed=0)
    assert sum(p.numel() for p in model.parameters()) == 1653
    found = inspect(model, nn.CrossEntropyLoss(), data, budget=20, console=quiet)
    assert len(found.parts["gauss_newton"].arrays["eigenvalues"]) == 50
    assert "share50@20" in found.statistics


def test_planning_is_inside_the_budget(quiet):
    """A model whose every evaluation takes long ends in time, with what it has."""
    model = Slow(mlp((6, 4, 3), seed=0), 0.25)
    data = torch.randn(600, 6), torch.arange(600) % 3
    began = time.monotonic()
    found = inspect(model, nn.CrossEntropyLoss(), data, budget=Budget(4, 1e8), console=quiet)
    # One product, or the check of the derivatives, is not interrupted: some thirty evaluations.
    assert time.monotonic() - began < 4 + 30 * 0.25
    assert "model.loss" in {quantity.key for quantity in found}
    assert found.answers()


def test_no_superlative_over_a_part(trained, quiet, monkeypatch):
    """The sharpest layer is named only when every layer was measured."""
    model, loss, data, _ = trained
    traces = {"layer1": 1.0, "layer2": 3.0, "layer3": 2.0}
    level, calls = Level(Subject(model, loss, data), layer_traces=traces), []
    notebook = Notebook(k=2, seed=0, levels=[level])
    assert "sharpest" in layers.layers_part(level, notebook).readings[0]

    def eigsh(block, *arguments, **options):
        calls.append(block.shape[0])
        if len(calls) > 1:
            raise OutOfTimeError
        return original(block, *arguments, **options)

    original = notebooks.eigsh
    monkeypatch.setattr(notebooks, "eigsh", eigsh)
    part = layers.layers_part(level, notebook)
    assert part.readings == part.quantities == []
    assert part.tables["Sharpness by layer"]["layer"].tolist() == ["layer2 (Linear)"]
    assert "1 of 3 layers, those with the largest traces" in part.shortened[0]


def test_steps_are_given_ten_directions_where_they_are_known(trained):
    """A level of more samples that knows the sharpest direction alone does not replace them."""
    model, loss, data, _ = trained
    whole, notebook = Subject(model, loss, data), Notebook(k=10, seed=0)
    few, many = Level(whole.with_samples(64, 0), 64), Level(whole, 240)
    notebook.levels = [few, many]
    for level in notebook.levels:
        headlines.measure_sharpness(level, notebook)
    headlines.measure_ends(few, notebook)
    assert notebook.finest("sharpness") is many
    assert notebook.hessian.eigenvectors.shape[1] == 10


def test_a_sharpness_that_has_not_converged_is_a_bound_under_another_name(trained, monkeypatch):
    _, loss, data, _ = trained
    model, notebook = mlp((6, 40, 20, 3), "tanh", seed=1), Notebook(k=10, seed=0)

    def hurried(*arguments, **options):
        return original(*arguments, **{**options, "max_matvecs": 4})

    original = notebooks.eigsh
    monkeypatch.setattr(notebooks, "eigsh", hurried)
    level = Level(Subject(model, loss, data), 240)
    notebook.levels = [level]
    with pytest.raises(OutOfTimeError, match="not converged"):
        headlines.measure_sharpness(level, notebook)
    (bound,) = hessian_part(notebook).quantities
    assert bound.key == "hessian.least"
    assert "sharpness@240" not in notebook.statistics()
    true = torch.linalg.eigvalsh(level.subject.hessian.to_dense().double())[-1]
    assert bound.value <= float(true) * (1 + 1e-5)


def test_the_noise_scale_is_of_the_most_samples(trained):
    model, loss, data, _ = trained
    scale = Quantity("noise_scale", "Noise scale", 330.0, 9.0, "how", "sure", 4000)
    level = Level(Subject(model, loss, data), statistics={"noise_scale": scale})
    notebook = Notebook(k=2, seed=0, levels=[level])
    few = Quantity("noise.scale", "Noise scale", 35.0, 31.0, "how", "sure", 64)
    other = Quantity("noise.alignment", "Overlap", 0.5, 0.0, "how", "sure")
    part = Part("noise", "Gradient noise", "Noise", [few, other])
    assert [q.value for q in refine_noise_part(notebook, part).quantities] == [330.0, 0.5]
    level.statistics["noise_scale"] = Quantity("noise_scale", "", 330.0, 9.0, "how", "sure", 64)
    assert refine_noise_part(notebook, part).quantities == [few, other]
    assert [q.key for q in refine_noise_part(notebook, None).quantities] == ["noise.scale"]
