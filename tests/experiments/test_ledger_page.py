"""The ledger page of the documentation shows every stored claim, and escapes what it shows."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest

from hyperribbon.core.claims import VERDICTS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ledger():
    spec = importlib.util.spec_from_file_location("ledger", ROOT / "docs" / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stored():
    found = {}
    for path in sorted((ROOT / "docs" / "runs").glob("*/claims.json")):
        info = json.loads((path.parent / "run.json").read_text())
        found[info["id"]] = {
            "claims": json.loads(path.read_text()),
            "preset": info["preset"],
            "seeds": len(info.get("seeds", [0])),
            "figures": sorted((path.parent / "figures").glob("*.png")),
        }
    return found


def papers():
    return {
        path.stem: tomllib.loads(path.read_text())
        for path in sorted((ROOT / "docs" / "papers").glob("*.toml"))
        if not path.stem.endswith(".captions")
    }


def test_every_stored_claim_has_a_row_with_what_it_opens_to(ledger, stored):
    page = ledger.ledger_page(stored, papers())
    claims = [claim for run in stored.values() for claim in run["claims"]]
    assert page.count("<details ") == len(claims) > 100
    for verdict in VERDICTS[:3]:
        count = sum(claim["verdict"] == verdict for claim in claims)
        assert page.count(f'data-verdict="{verdict}"') == count
    for name in ("paper", "verdict", "origin"):
        assert f'<select data-by="{name}">' in page
    slips = [slip for entry in papers().values() for slip in entry["slips"]]
    assert all(f"| {slip['place']} |" in page for slip in slips)


def test_what_a_claim_says_cannot_carry_markup(ledger, stored):
    (id, run), *_ = stored.items()
    hostile = {**run["claims"][0], "reading": "<script>x</script>", "quote": "<b>y</b>"}
    page = ledger.ledger_page({id: {**run, "claims": [hostile]}}, papers())
    assert "<script>" not in page and "<b>y" not in page
    assert "&lt;script&gt;" in page


def test_a_single_run_is_not_shown_as_a_seed(ledger, stored):
    (id, run), *_ = stored.items()
    claim = {**run["claims"][0], "seeds": [0.5], "uncertainty": 0.25, "kind": "claim"}
    page = ledger.ledger_page({id: {**run, "claims": [claim], "seeds": 1}}, papers())
    assert "one run, whose own standard error is 0.25" in page
    several = {**claim, "seeds": [0.4, 0.6]}
    page = ledger.ledger_page({id: {**run, "claims": [several], "seeds": 2}}, papers())
    assert "one run" not in page and "0.4 " in page and "2 seeds" in page


def test_what_is_missing_is_said_in_words(ledger, stored):
    (id, run), *_ = stored.items()
    empty = {"uncertainty": None, "interval": [None, None], "kind": "claim"}
    alone = {**run["claims"][0], **empty, "measured": 0.5, "seeds": [0.5]}
    alone["expected"] = {"low": None, "high": 0.25}
    page = ledger.ledger_page({id: {**run, "claims": [alone], "seeds": 1}}, papers())
    assert "<dd>0.5, no interval</dd>" in page and "<dd>at most 0.25 (" in page
    missing = {**alone, "measured": None, "seeds": [None] * 2, "expected": {"low": 2, "high": None}}
    page = ledger.ledger_page({id: {**run, "claims": [missing], "seeds": 1}}, papers())
    assert page.count("not finite") == 1 and "<dd>at least 2 (" in page
    assert "<dd>nan" not in page and "<dd>inf" not in page and "<dd>-inf" not in page
