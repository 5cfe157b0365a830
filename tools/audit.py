"""Check the pinned dependencies against known vulnerabilities, with pip-audit.

Exit status 1 if one has a known vulnerability. Packages whose advisories cannot be read, as on a
machine without network access, are counted as not checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMAND = ("-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off", "-f", "json")


def summarize(packages: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Return lines to print, and the number of known vulnerabilities, from pip-audit's JSON."""
    lines, found = [], 0
    for package in packages:
        for advisory in package.get("vulns", []):
            found += 1
            fixed = ", ".join(advisory.get("fix_versions", [])) or "no version yet"
            lines.append(
                f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}"
            )
    checked = sum("skip_reason" not in package for package in packages)
    lines.append(f"{checked} of {len(packages)} packages checked, {found} known vulnerabilities.")
    if checked < len(packages):
        lines.append("The advisories of the others could not be read: not on PyPI, or no network.")
    return lines, found


def main() -> int:
    """Print the findings and return the exit status."""
    command = [sys.executable, *COMMAND, "-r", str(ROOT / "constraints.txt")]
    run = subprocess.run(command, capture_output=True, text=True)
    if not run.stdout.strip():
        print(f"Not checked: {(run.stderr.strip().splitlines() or ['no output'])[-1]}")
        return 0
    lines, found = summarize(json.loads(run.stdout)["dependencies"])
    print("\n".join(lines))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
