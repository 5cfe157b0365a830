"""Operators and solvers over several processes agree with one process."""

import ast
from pathlib import Path

import pytest

TREE = ast.parse((Path(__file__).parent / "checks.py").read_text())
CHECKS = [
    node.name
    for node in TREE.body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.mark.parametrize("name", CHECKS)
def test_two_ranks(two_ranks, name):
    assert not any(failures := two_ranks.run(name)), "\n".join(failures)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_four_ranks(four_ranks, name):
    assert not any(failures := four_ranks.run(name)), "\n".join(failures)
