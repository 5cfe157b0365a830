"""One recorded training serves all figures; claims say what was measured, failing ones too."""

from dataclasses import replace

import numpy as np
import pytest

from hyperribbon.papers.experiments import Experiment, run
from hyperribbon.papers.experiments.context import Context
from hyperribbon.papers.experiments.subnetworks import (
    fig3_2,
    fig3_6,
    fig3_7,
    gradient_regularisation,
    tableA_2,
)


@pytest.fixture
def context(tmp_path):
    for name in ("parts", "shared"):
        (tmp_path / name).mkdir()
    return Context(0, tmp_path / "parts", tmp_path / "shared")


def test_figures_share_the_recorded_training(tmp_path):
    for id in ("subnetworks/fig3.4", "subnetworks/fig3.7", "subnetworks/tableA.2"):
        run(id, preset="smoke", out=tmp_path)
    trained = [path for path in tmp_path.glob("shared/train-*") if path.is_dir()]
    assert len(trained) == fig3_7.PRESETS["smoke"].seeds


def test_presets_with_data_differ_in_the_data_set_and_match_the_paper():
    for module in (fig3_2, fig3_6, fig3_7, tableA_2):
        config = module.PRESETS_WITH_DATA["laptop"]
        assert config.data == "mnist" and config.seeds >= 3
        assert (config.init, config.lr, config.momentum) == (0.05, 0.01, 0.9)
        assert module.PRESETS["laptop"].data == "mnist5k"


def test_reinitialising_everything_gives_the_start_and_nothing_the_end(context):
    config = replace(fig3_6.PRESETS["smoke"], points=4, seeds=1)
    result = fig3_6.compute(config, context)
    curves = result.accuracy
    for name in ("reinitialize-change", "reinitialize-magnitude", "prune-random"):
        assert curves[name][0, 0] == curves["prune-change"][0, 0]
    ends = {curves[f"reinitialize-{c}"][0, -1] for c in ("change", "magnitude", "random")}
    assert len(ends) == 1
    assert {claim.verdict for claim in Experiment(fig3_6).claims(result)} == {"not comparable"}
    assert "not comparable" not in {
        c.verdict for c in Experiment(fig3_6).claims(replace(result, full=True))
    }


def test_independence_is_judged_by_its_z_score():
    one = np.ones((6, 2))
    result = fig3_7.Result(
        fractions=np.array([0.5, 0.8]),
        ratio=one * 0.837,
        z=one * 106,
        kept=one * 0.346,
        spearman=np.full(6, 0.15),
        pearson_output=np.full(6, 0.94),
        weights=334_336,
        source="6 seeds",
        full=True,
    )
    verdicts = {
        claim.id.split("/")[-1]: claim.verdict for claim in Experiment(fig3_7).claims(result)
    }
    values = {"larger-changes-larger-values": "holds"}
    assert verdicts == {"overlap": "holds", "independent": "fails", "kept": "fails"} | values
    by_chance = replace(result, ratio=one * 0.8, z=one * 0.4, kept=one * 0.2)
    verdicts = {
        claim.id.split("/")[-1]: claim.verdict for claim in Experiment(fig3_7).claims(by_chance)
    }
    assert verdicts == {"overlap": "fails", "independent": "holds", "kept": "holds"} | values


def test_a_printed_single_run_is_met_by_a_prediction_interval():
    six = np.array([0.528, 0.580, 0.600, 0.620, 0.640, 0.699])
    layers = np.stack([six, 0.93 + 0 * six, 0.96 + 0 * six, 0.95 + 0 * six], axis=1)
    result = fig3_2.Result("6 seeds", True, np.full(6, 0.98), layers, np.ones_like(layers))
    claims = {claim.id.split("/")[-1]: claim for claim in Experiment(fig3_2).claims(result)}
    assert claims["layer1-printed"].verdict == "holds"
    narrow = replace(result, reinitialized=np.clip(layers, 0.6, None))
    claims = {claim.id.split("/")[-1]: claim for claim in Experiment(fig3_2).claims(narrow)}
    assert claims["layer1-printed"].verdict == "fails"


def test_descent_follows_the_modified_loss_with_and_without_momentum(context):
    config = gradient_regularisation.Config(halvings=3, time=0.5)
    result = gradient_regularisation.compute(config, context)
    orders = {"loss itself": 1, "modified loss": 2, "opposite sign": 1, "twice the penalty": 1}
    for name, order in orders.items():
        assert result.slopes[name] == pytest.approx(order * np.ones(3), abs=0.15), name
    assert {claim.verdict for claim in Experiment(gradient_regularisation).claims(result)} == {
        "holds"
    }
