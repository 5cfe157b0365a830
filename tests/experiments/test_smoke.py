"""Every experiment runs at preset smoke, draws something and judges something."""

import numpy as np
import pytest

from hyperribbon.experiments import all_experiments
from hyperribbon.experiments import run as run_one


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.mark.parametrize("id", all_experiments())
def test_smoke(id, store):
    run = run_one(id, preset="smoke", out=store)
    assert run.is_complete
    claims = run.load_claims()
    assert claims
    assert len({claim.id for claim in claims}) == len(claims)
    for claim in claims:
        assert claim.id.startswith(f"{id}/")
        assert claim.reading and claim.place
        assert np.isfinite(claim.measured) or claim.verdict in ("undecided", "not comparable")
    for kind in ("png", "svg"):
        figures = list(run.figures.glob(f"*.{kind}"))
        assert figures and all(figure.stat().st_size > 2000 for figure in figures)
