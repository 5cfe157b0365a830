"""What `make audit` makes of pip-audit's answer."""

import runpy
from pathlib import Path

audit = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "audit.py"))


def test_vulnerable_packages_are_listed_and_unchecked_ones_counted():
    advisory = {"id": "CVE-2025-32434", "fix_versions": ["2.6.0"]}
    packages = [
        {"name": "torch", "version": "2.5.0", "vulns": [advisory]},
        {"name": "numpy", "version": "2.0.0", "vulns": []},
        {"name": "own", "skip_reason": "not found on PyPI"},
    ]
    lines, found = audit["summarize"](packages)
    assert found == 1
    assert lines[0] == "torch 2.5.0: CVE-2025-32434, fixed in 2.6.0"
    assert lines[1] == "2 of 3 packages checked, 1 known vulnerabilities."
    assert len(lines) == 3
    assert audit["summarize"](packages[1:2])[0] == [
        "1 of 1 packages checked, 0 known vulnerabilities."
    ]
