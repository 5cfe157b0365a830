"""Every public function that takes data takes the same kinds of data, with the same numbers."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

from contract.kinds import FUNCTIONS, KINDS
from hyperribbon.core import ArgumentError

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "data.md"
REFUSED = "a stream"
"""What every refusal of a kind of data says: the function needs samples by index."""


@cache
def expected(function):
    return FUNCTIONS[function](KINDS["pair of tensors"]())


@cache
def outcome(function, kind):
    try:
        found = FUNCTIONS[function](KINDS[kind]())
    except ArgumentError as error:
        assert REFUSED in str(error), f"{function}, {kind}: {error}"
        return "refused"
    assert found == pytest.approx(expected(function), rel=1e-7), f"{function}, {kind}"
    return "yes"


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_kind_of_data_gives_the_same_number(function):
    assert {outcome(function, kind) for kind in KINDS} <= {"yes", "refused"}


def table():
    """Return the table of the page: one row per function, one column per kind of data."""
    head = "| | " + " | ".join(KINDS) + " |\n|---" + "|:-:" * len(KINDS) + "|\n"
    rows = [
        f"| `{name}` | " + " | ".join({"yes": "✓", "refused": "–"}[outcome(name, k)] for k in KINDS)
        for name in FUNCTIONS
    ]
    return head + " |\n".join(rows) + " |\n"


def test_the_table_of_the_documentation_is_true():
    """Set HYPERRIBBON_WRITE_TABLE=1 to write it anew."""
    text = PAGE.read_text()
    before, rest = text.split("<!-- table -->\n")
    after = rest.split("<!-- end of table -->")[1]
    found = f"{before}<!-- table -->\n{table()}<!-- end of table -->{after}"
    if json.loads(os.environ.get("HYPERRIBBON_WRITE_TABLE", "0")):
        PAGE.write_text(found)
    assert found == text
