"""How many seeds a run takes: what is asked for, or a sequential rule that keeps its error."""

import json

import numpy as np
import pytest

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.claims import Band
from hyperribbon.papers.experiments import run
from hyperribbon.papers.experiments.judging import LEVEL, combine
from hyperribbon.papers.experiments.seeds import check_seeds, level_at, looks, run_seeds
from hyperribbon.papers.experiments.statements import Ledger, exact, observe, over_seeds


def sequential(folder, draw, band, compare="run", seconds=60.0):
    """Run the rule on one claim whose number at a seed is draw(seed)."""
    ledger = Ledger(
        "paper/figure", observe("number", "here", "It lies there.", band, compare=compare)
    )

    def judge(trees, level):
        runs = [ledger.judge({"number": over_seeds(float(tree["x"]))}) for tree in trees]
        return combine(runs, ledger.comparisons(), level)

    trees, level = run_seeds(
        lambda seed: {"x": float(draw(seed))},
        judge,
        "auto",
        0,
        folder,
        seconds,
        ledger.comparisons(),
    )
    return judge(trees, level)[0], len(trees), level


def test_a_clear_claim_takes_five_seeds_and_a_close_one_more(tmp_path):
    numbers = np.random.default_rng(0).normal(0.0, 1.0, 500)
    (tmp_path / "clear").mkdir(), (tmp_path / "close").mkdir()
    band = Band(0.0, np.inf, "words")
    claim, count, level = sequential(tmp_path / "clear", lambda s: 10 + numbers[s], band, "mean")
    assert (claim.verdict, count, level) == ("holds", 5, level_at(1))
    claim, count, level = sequential(tmp_path / "close", lambda s: 0.5 + numbers[s], band, "mean")
    assert claim.verdict == "holds" and count in (8, 12, 18, 27, 41, 62, 93)
    assert claim.interval[0] > 0 and level > LEVEL


def test_seeds_that_disagree_end_it(tmp_path):
    claim, count, _ = sequential(tmp_path, lambda s: (-1) ** s, Band(0.0, np.inf, "words"))
    assert (claim.verdict, count) == ("undecided", 5)
    assert "disagree" in claim.why


def test_the_time_ends_it_and_the_claim_says_how_many_seeds_it_lacks(tmp_path):
    numbers = np.random.default_rng(1).normal(0.05, 1.0, 500)
    band = Band(0.0, np.inf, "words")
    claim, count, _ = sequential(tmp_path, lambda s: numbers[s], band, "mean", seconds=0.0)
    assert (claim.verdict, count) == ("undecided", 5)
    assert "would need about" in claim.why


def test_nothing_random_takes_two_seeds(tmp_path):
    ledger = Ledger("paper/figure", observe("number", "here", "It is one.", Band(1, 1, "words")))

    def judge(trees, level):
        return combine([ledger.judge({"number": exact(1.0)}) for _ in trees], {}, level)

    trees, level = run_seeds(lambda seed: {"x": 1.0}, judge, "auto", 0, tmp_path, 60.0, {})
    assert (len(trees), level) == (2, LEVEL)


def test_seeds_that_were_computed_before_a_kill_are_read(tmp_path):
    computed = []
    sequential(tmp_path, lambda s: computed.append(s) or 10 + s, Band(0.0, np.inf, "words"))
    sequential(tmp_path, lambda s: computed.append(s) or 10 + s, Band(0.0, np.inf, "words"))
    assert computed == [0, 1, 2, 3, 4]


def test_looking_many_times_decides_wrongly_in_at_most_five_percent(tmp_path):
    """The truth lies on the edge of the band: every decision is one too many."""
    from itertools import islice

    from scipy import stats

    numbers = np.random.default_rng(2).normal(0.0, 1.0, (20_000, 62))
    wrong = np.zeros(len(numbers), bool)
    for look, count in enumerate(islice(looks(), 7), start=1):
        seen = numbers[:, :count]
        spread = stats.t.ppf((1 + level_at(look)) / 2, count - 1) * seen.std(1, ddof=1)
        wrong |= np.abs(seen.mean(1)) > spread / np.sqrt(count)
    assert wrong.mean() < 0.05
    assert wrong.mean() > 0.02  # the rule would be useless if it never decided


def test_a_sequential_run_of_an_experiment(tmp_path):
    folder = run("fluctuations/fig3b", seeds="auto", out=tmp_path)
    info = json.loads((folder.path / "run.json").read_text())
    assert len(info["seeds"]) in (2, 5, 8, 12, 18, 27, 41, 62, 93)
    assert max(len(claim.seeds) for claim in folder.load_claims()) == len(info["seeds"])
    assert run("fluctuations/fig3b", seeds="auto", out=tmp_path).path == folder.path
    assert run("fluctuations/fig3b", out=tmp_path).path != folder.path


@pytest.mark.parametrize("seeds", [0, -1, "many", "2.5", 1.5, None])
def test_what_is_no_number_of_seeds_is_refused(seeds):
    with pytest.raises(ArgumentError, match="seeds"):
        check_seeds(seeds)
