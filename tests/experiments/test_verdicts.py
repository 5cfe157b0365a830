"""Verdicts on results that are made up: right ones, and ones that are wrong in one way."""

from dataclasses import replace

import numpy as np
import pytest

from hyperribbon.papers.experiments import Experiment
from hyperribbon.papers.experiments.fluctuations import fig3b, fig5b, fig5c
from hyperribbon.papers.experiments.judging import combine
from hyperribbon.papers.experiments.linear_networks import (
    balance,
    bound,
    depth,
    edge,
    fig4,
    flattening,
    peak,
)
from hyperribbon.papers.experiments.ribbons import fig7
from hyperribbon.papers.experiments.subnetworks import fig3_3, fig3_4, fig3_6, fig4_2


def verdicts(module, result):
    """Judge six seeds that all gave this result: no scatter is left to hide behind."""
    experiment = Experiment(module)
    found = combine([experiment.claims(result)] * 6, experiment.comparisons)
    return {claim.id.rpartition("/")[2]: claim.verdict for claim in found}


def failing(module, result):
    """Return the claims that fail; every other one must hold."""
    found = verdicts(module, result)
    assert set(found.values()) <= {"holds", "fails"}
    return {name for name, verdict in found.items() if verdict == "fails"}


ACCURACY = {
    "reinitialize-change": [0.98, 0.975, 0.95, 0.80, 0.1],
    "reinitialize-magnitude": [0.98, 0.900, 0.85, 0.50, 0.1],
    "reinitialize-random": [0.98, 0.800, 0.60, 0.30, 0.1],
    "prune-change": [0.98, 0.950, 0.88, 0.40, 0.1],
    "prune-magnitude": [0.98, 0.970, 0.92, 0.60, 0.1],
    "prune-random": [0.98, 0.700, 0.30, 0.20, 0.1],
}


def selections(**other):
    rows = ACCURACY | {name.replace("_", "-"): ACCURACY[as_] for name, as_ in other.items()}
    tables = {name: np.tile(row, (3, 1)) for name, row in rows.items()}
    return fig3_6.Result("3 seeds", True, np.array([0, 0.5, 0.8, 0.95, 1]), tables)


def test_each_criterion_of_figure_3_6_wins_where_the_paper_says():
    shares = ("0.5", "0.8", "0.95")
    assert failing(fig3_6, selections()) == set()
    prune = selections(prune_change="prune-magnitude", prune_magnitude="prune-change")
    expected = {f"prune-magnitude-wins-{share}" for share in shares}
    assert failing(fig3_6, prune) == {*expected, "magnitude-prune-wins-0.95"}
    back = selections(
        reinitialize_change="reinitialize-magnitude", reinitialize_magnitude="reinitialize-change"
    )
    names = ("reinitialize-change-wins", "magnitude-prune-wins")
    expected = {f"{name}-{share}" for name in names for share in shares}
    expected |= {f"change-reinitialize-wins-{share}" for share in shares[:2]}
    assert failing(fig3_6, back) == {*expected, "late-decay"}
    apart = selections(prune_change="prune-random", prune_magnitude="prune-random")
    assert {"pruned-60", "prune-change-0.8"} <= failing(fig3_6, apart)
    better = selections(
        reinitialize_change="prune-change", reinitialize_magnitude="prune-magnitude"
    )
    assert "reinitialize-often-better" in failing(fig3_6, better)


@pytest.mark.parametrize("operation", ["prune", "reinitialize"])
def test_random_selection_of_figure_3_6_must_be_worse_than_both(operation):
    """It lies between the two criteria here, so it beats one of them."""
    result = selections()
    middle = (
        sum(result.accuracy[f"{operation}-{criterion}"] for criterion in ("change", "magnitude"))
        / 2
    )
    tables = result.accuracy | {f"{operation}-random": middle}
    assert failing(fig3_6, replace(result, accuracy=tables)) == {f"{operation}-random-worst"}


class Given:
    """A context whose simulations are given."""

    seed = 0

    def __init__(self, parts):
        self.parts = parts

    def map(self, work, items, label=""):
        assert len(items) == len(self.parts)
        return self.parts


def test_figure_5b_draws_measured_and_predicted_eigenvalues_in_one_unit():
    H, C = np.diag([1.0, 0.5]), np.diag([0.3, 0.2])
    part = {
        "covariance": np.diag([3e-5, 4e-5]),
        "theory": np.diag([5e-5, 2e-5]),
        "discrete": np.diag([1e-5, 6e-5]),
        "hessian": H,
        "theory_noise": C,
        "burn_in": 7,
    }
    config = fig5b.Config(inputs=2, ratios=(1.5, 4.0), steps=(1, 1), lr=0.1, batch_size=10)
    result = fig5b.compute(config, Given([part, part]))
    unit = 0.1 * config.label_variance / (2 * 10)
    np.testing.assert_allclose(result.measured[0] * unit, [4e-5, 3e-5])
    np.testing.assert_allclose(result.predicted[1] * unit, [5e-5, 2e-5])
    np.testing.assert_allclose(result.discrete[0] * unit, [6e-5, 1e-5])
    np.testing.assert_allclose(result.balance[0] * unit, [0.1 / 2 * 0.2 / 0.5, 0.1 / 2 * 0.3])
    np.testing.assert_allclose(result.mean_error, np.mean([1 / 2, 1 / 5]))
    broad, dashed, dotted = fig5b.plot(result).axes[0].lines[:3]
    for line, curve in ((broad, "measured"), (dashed, "predicted"), (dotted, "balance")):
        np.testing.assert_array_equal(line.get_ydata(), getattr(result, curve)[0])


def test_figure_5b_is_judged_by_its_errors():
    two = np.ones((6, 2))
    few = np.full(6, 0.04)
    result = fig5b.Result(np.arange(6) + 1.5, two, two, two, two, few, few, np.ones(6))
    assert failing(fig5b, result) == set()
    assert failing(fig5b, replace(result, mean_error=3 * few)) == {"spectrum"}
    assert failing(fig5b, replace(result, discrete_mean_error=1.2 * few)) == {"discrete"}


def test_figure_5c_is_judged_at_the_ratio_that_each_sentence_names():
    ratios = np.array([1.02, 1.1, 2.0, 10.0, 100.0])
    result = fig5c.Result(
        ratios,
        low=np.array([0.1, 0.2, 0.4, 0.7, 0.9]),
        high=np.array([5.0, 4.0, 2.5, 1.4, 1.15]),
        balance_low=np.array([0.1, 0.2, 0.4, 0.7, 0.9]),
        balance_high=np.array([5.0, 4.0, 2.5, 1.4, 1.15]) * [1.7, 1.6, 1.2, 1.03, 1.0],
        current=np.array([0.2, 0.5, 0.3, 0.1, 0.0]),
        weakest=np.array([0.1, 0.2, 0.1, 0.0, 0.0]),
        defect=np.array([0.2, 0.5, 0.3, 0.1, 0.0]),
        balance_error=np.array([0.6, 0.5, 0.2, 0.03, 0.0]),
        anisotropy=np.array([1.0, 0.9, 0.6, 0.4, 0.15]),
    )

    def wrong(field, at, factor):
        values = getattr(result, field).copy()
        values[at] *= factor
        return failing(fig5c, replace(result, **{field: values}))

    assert failing(fig5c, result) == set()
    assert wrong("balance_error", 2, 1.5) == {"balance-at-two"}
    assert wrong("balance_error", 1, 0.4) == {"broken-balance"}
    assert wrong("anisotropy", 4, 2) == {"isotropy"}
    assert wrong("balance_low", 3, 1.1) == {"balance-at-ten"}
    assert wrong("current", 3, 10) == {"current-peak"}
    assert wrong("defect", 2, 3) == {"defect-peak"}


def test_figure_3b_is_judged_by_slope_distance_and_trace():
    ratios = np.array([2.0, 10.0, 30.0, 100.0])
    spectrum = np.tile(np.linspace(2, 0.5, 5), (4, 1))
    result = fig3b.Result(
        ratios,
        [],
        spectrum * [[2], [1.5], [1.3], [1.2]],
        spectrum,
        1 - 1 / ratios,
        np.sqrt(2 / ratios),
    )
    assert failing(fig3b, result) == set()
    assert failing(fig3b, replace(result, mean_trace=0.8 * result.mean_trace)) == {"trace"}
    assert failing(fig3b, replace(result, noise=spectrum * 1.3)) == {"hundredfold"}
    assert failing(fig3b, replace(result, distance=ratios**-0.2)) == {"limit"}


def test_figure_3_3_asks_for_the_lost_share_of_the_accuracy():
    accuracy = np.tile([0.98, 0.97, 0.96, 0.5], (3, 4, 1))
    result = fig3_3.Result(
        thresholds=np.array([0, 0.02, 0.04, 0.4]),
        accuracy=accuracy,
        fraction=np.tile([0, 0.5, 0.95, 1.0], (3, 4, 1)),
        quantile95=np.full((3, 4), 0.04),
        largest=np.full((3, 4), 0.39),
        baseline=np.full(3, 0.98),
        source="3 seeds",
        full=True,
    )
    assert failing(fig3_3, result) == set()
    steep = replace(result, accuracy=np.tile([0.98, 0.9, 0.6, 0.5], (3, 4, 1)))
    assert failing(fig3_3, steep) == {"robust-majority"}
    moved = replace(result, quantile95=np.full((3, 4), 0.06))
    assert failing(fig3_3, moved) == {"quantile95-layer1"}
    partly = result.fraction.copy()
    partly[:, 3, 3] = 0.9
    assert failing(fig3_3, replace(result, fraction=partly)) == {"scan-complete"}
    longer = replace(
        result,
        thresholds=np.array([0, 0.02, 0.4, 0.6]),
        fraction=result.fraction[..., [0, 1, 3, 3]],
    )
    assert failing(fig3_3, longer) == {"reaches-whole-layer"}
    assert set(verdicts(fig3_3, replace(result, full=False)).values()) == {"not comparable"}


def test_figure_3_4_is_judged_at_its_last_threshold():
    accuracy = np.tile([0.98, 0.5, 0.11], (3, 1))
    layers = np.tile([0.6, 0.9], (3, 1))
    result = fig3_4.Result("3 seeds", True, np.array([0, 0.2, 0.4]), accuracy, accuracy, layers)
    assert failing(fig3_4, result) == set()
    late = replace(result, accuracy=accuracy[:, ::-1])
    assert failing(fig3_4, late) == {"guessing", "exceeds-layers"}
    assert failing(fig3_4, replace(result, layers=0.1 * layers)) == {"exceeds-layers"}


def test_figure_4_2_asks_what_is_still_to_come():
    epochs = np.arange(1, 101)
    fall = np.tile(0.01 + np.exp(-epochs / 10), (3, 1))
    flat = np.full((3, 100), 0.2)
    result = fig4_2.Result("3 seeds", True, epochs, fall, flat, np.array([50]))
    assert failing(fig4_2, result) == set()
    steady = np.tile(np.linspace(2, 0.01, 100), (3, 1))
    assert failing(fig4_2, replace(result, train_loss=steady)) == {"converged"}
    rising = np.tile(np.linspace(0.1, 0.2, 100), (3, 1))
    assert failing(fig4_2, replace(result, test_loss=rising)) == {"test-flat"}


def test_figure_4_of_linear_networks_tells_the_sum_of_the_norms_from_the_larger():
    numeric = np.array([[[10.0, 8.0], [9.0, 7.0], [9.5, 7.5]]])
    result = fig4.Result(
        ["digits"],
        np.array([1500]),
        np.array([0, 100, 1000]),
        loss=np.array([[0.5, 0.4, 0.3]]),
        numeric=numeric,
        closed_form=numeric * np.array([1.1, 1.05, 1.0005])[:, None],
        larger=np.array([[6.0, 5.0, 5.0]]),
        norm=np.array([[20.0, 18.0, 19.0]]),
    )
    assert failing(fig4, result) == set()
    near = replace(result, larger=np.array([[6.0, 5.0, 9.5001]]))
    assert failing(fig4, near) == {"sum-of-norms"}
    grown = replace(result, norm=np.array([[20.0, 21.0, 19.0]]))
    assert failing(fig4, grown) == {"flattening"}
    later = replace(result, closed_form=numeric * np.array([1.0004, 1.0003, 1.0005])[:, None])
    assert failing(fig4, later) == {"falls"}
    rough = replace(result, closed_form=numeric * np.array([1.1, 1.05, 1.005])[:, None])
    assert failing(fig4, rough) == {"end"}


def test_depth_must_amplify_what_the_largest_share_does():
    trained = np.array([[[1.0, 1.0, 1.0], [2.0, 3.0, 4.0]]])  # the difference grows as L − 1
    result = depth.Result(
        ["digits"],
        np.array([1, 2, 3]),
        np.array([0.1, 0.5]),
        *(np.full((1, 2), 1500), np.full((1, 2), 64)),
        *(trained, trained, 1.1 * trained),
    )
    assert failing(depth, result) == set()
    assert failing(depth, replace(result, general=1.01 * trained)) == {"general-form"}
    assert failing(depth, replace(result, printed=0.9 * trained)) == {"printed-form"}
    damped = np.array([[[1.0, 1.0, 1.0], [2.0, 4.0, 3.0]]])
    other = replace(result, trained=damped, general=damped, printed=damped)
    assert "amplified" in failing(depth, other)
    steep = np.array([[[1.0, 1.0, 1.0], [2.0, 3.0, 9.0]]])  # four times the difference, not 3/2
    other = replace(result, trained=steep, general=steep, printed=steep)
    assert failing(depth, other) == {"leading-factor"}


def test_balance_is_judged_in_each_setting():
    time = np.array([0.0, 50.0, 100.0])
    flow = np.array([[time, [0, rate, rate], time] for rate in (0.4, 0.2)])
    decays = np.array([0.003, 0.01])
    decay = np.array([[time, 5 * np.exp(-2 * value * time), time] for value in decays])
    still = np.array([time, [5.0, 5.0, 5.0], [0.3, 0.3, 0.3]])
    result = balance.Result(
        samples=5000,
        rates=np.array([0.1, 0.05]),
        flow=flow,
        decays=decays,
        decay=decay,
        small=still,
        edge=still * [[1], [1], [0.5]],
        edge_rate=0.8,
        norm=100.0,
        sharpness=np.array([2.0, 3.0]),
    )
    assert failing(balance, result) == set()
    assert failing(balance, replace(result, norm=10.0)) == {"flow"}
    assert failing(balance, replace(result, edge=still)) == {"edge"}
    assert failing(balance, replace(result, rates=np.array([0.1, 0.01]))) == {"order-of-rate"}
    assert failing(balance, replace(result, decays=2 * decays)) == {"rate-of-decay"}
    rising = decay.copy()
    rising[0, 1, 1] = 5.1
    assert failing(balance, replace(result, decay=rising)) == {"decay"}


def test_the_edge_separates_minima_that_are_stable():
    places = np.array([2.0, 0.5, -0.1])
    edges = 2 + places  # between 2, balanced, and 3, small steps
    result = edge.Result(
        data="digits",
        samples=349,
        places=places,
        rates=2 / edges,
        trained=np.array([3.0, 2.45, 1.95]),
        loss=np.array([0.1, 0.1, 0.2]),
        floor=0.1,
        balanced=2.0,
        small=3.0,
    )
    assert failing(edge, result) == set()
    assert failing(edge, replace(result, small=3.1)) == {"small-steps"}
    sharper = replace(result, trained=np.array([3.0, 2.6, 1.95]))
    assert failing(edge, sharper) == {"at-the-edge"}
    assert failing(edge, replace(result, loss=np.full(3, 0.1))) == {"beyond"}
    diverged = replace(
        result, trained=np.array([3.0, 2.45, np.nan]), loss=np.array([0.1, 0.1, np.inf])
    )
    assert failing(edge, diverged) == set()


def test_flattening_needs_norm_sharpness_and_trace_to_fall_together():
    epochs = np.array([0, 100, 200, 400])
    falls = np.array([[[1.0, 0.9, 0.8, 1.2]]])
    result = flattening.Result(
        ["digits"], np.array([1500]), np.array([2]), epochs, falls, falls, falls, np.ones((1, 1))
    )
    assert failing(flattening, result) == set()
    slow = replace(result, norm=np.array([[[1.0, 1.01, 0.8, 1.2]]]))
    assert failing(flattening, slow) == {"norm"}
    sharp = replace(result, sharpness=np.array([[[1.0, 0.9, 1.1, 1.2]]]))
    assert failing(flattening, sharp) == {"sharpness"}
    apart = replace(result, trace=np.array([[[1.0, 1.1, 1.0, 1.2]]]))
    assert failing(flattening, apart) == {"together"}
    assert failing(flattening, replace(result, slope=np.full((1, 1), 1.1))) == {"alignment"}


def test_the_bound_must_hold_and_be_loose_for_unbalanced_layers_only():
    ratio = np.array([[[1.0, 1.0], [1.3, 1.2]], [[1.0, 1.0], [1.0, 1.001]]])
    ones = np.ones_like(ratio)
    result = bound.Result(5000, np.array([2, 4]), np.array([0, 10]), ratio, ones)
    assert failing(bound, result) == set()

    def with_ratio(at, value):
        values = ratio.copy()
        values[at] = value
        return failing(bound, replace(result, bound=values))

    assert with_ratio((0, 1, 0), 0.999) == {"bound"}
    assert with_ratio((0, 1, 1), 1.001) == {"not-exact"}
    assert with_ratio((0, 0, 0), 1.001) == {"two-layers"}
    assert with_ratio((1, 1, 0), 1.02) == {"balanced"}


def test_peaks_are_compared_over_shares_and_inputs():
    rising = np.array([1.0, 2.0])
    sharpness = np.array([[[rising, 4 * rising], [3 * rising, 20 * rising]]])
    samples, inputs = np.array([[1500, 349]]), np.array([64])
    result = peak.Result(
        ["digits"], samples, inputs, np.array([0.1, 0.5]), np.array([0, 10]), sharpness
    )
    assert failing(peak, result) == set()

    def scaled(at, factor):
        values = sharpness.copy()
        values[at] *= factor
        return failing(peak, replace(result, sharpness=values))

    assert scaled((0, 1, 0), 0.5) == {"simpler-white"}
    assert scaled((0, 0, 1), 6) == {"simpler-raw"}
    assert scaled((0, 0, 0), 1.45) == set()
    assert scaled((0, 1, 0), 4) == {"geometry"}
    early = replace(result, sharpness=sharpness[..., ::-1])
    assert failing(peak, early) == {"last"}


def ribbons(tail, head):
    """Batches whose first and last eigenvalues change by these factors between two times."""
    rows = np.array([[3.0, 1.0, 0.3], [1.0, 0.3, 0.1], [head, 0.2, 0.1 * tail]])
    batches = np.tile(rows, (6, 1, 1))
    steps = np.array([1, 10, 100])
    largest_P1 = np.array([1.0, 1.0, 0.11])  # times T it hardly grows
    return fig7.Result(steps, rows, rows, batches, np.full(6, 1.0), largest_P1, 600)


def test_figure_7_judges_eigenvalues_as_they_are_drawn_times_t():
    assert failing(fig7, ribbons(tail=0.5, head=0.2)) == set()
    assert failing(fig7, ribbons(tail=0.05, head=0.2)) == {"tail-grows", "tail-share"}
    assert failing(fig7, ribbons(tail=0.5, head=0.05)) == {"head-grows"}
    assert failing(fig7, ribbons(tail=2.0, head=0.2)) == {"tail-of-P"}
    alone = replace(ribbons(tail=0.5, head=0.2), largest_P1=np.array([1.0, 1.0, 0.2]))
    assert failing(fig7, alone) == {"head-cause"}
    apart = replace(ribbons(tail=0.5, head=0.2), projections=np.full(6, 2.0))
    assert failing(fig7, apart) == {"simulation"}
