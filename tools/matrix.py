"""Run the tests on the oldest and newest versions hyperribbon names, and store what they say.

Each entry is an environment of its own under a folder outside the repository. What is tested is
a commit, unpacked beside the environments. The counts go to docs/versions.json, room by
room, so that a run that was stopped goes on where it was; the table in docs/versions.md is drawn
from them.

Usage: python tools/matrix.py [floor 2.6 2.8 2.10 2.13 newest py3.13] [--work DIR] [--remove], where
py3.13 is the newest of everything on the python3.13 of the PATH.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
ROOMS = (
    "operators",
    "spectra",
    "core",
    "manifold",
    "recording",
    "training",
    "simulation",
    "subnetworks",
)
TORCH = {"2.6": "2.6.0", "2.8": "2.8.0", "2.10": "2.10.0", "2.13": "2.13.0"}
ENTRIES = ("floor", *TORCH, "newest")
PYTHONS = ("py3.12", "py3.13", "py3.14")
TOOLS = ("mlxtend", "pytest", "hypothesis", "psutil")
OF_THEIR_TIME = ("click==8.1.8", "pyparsing==3.1.4")  # typer and matplotlib warn about newer ones
SAMPLING = """import os


def pytest_collection_modifyitems(items):
    items[:] = items[:: int(os.environ.get("EVERY", "1"))]
"""  # in the unpacked commit only
SHOWN = ("torch", "numpy", "scipy", "scikit-learn", "pandas", "zarr")


def requirements(entry: str) -> list[str]:
    """Return what pip is asked for: the floors, one torch, or the newest of everything."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    if entry == "floor":
        return [*(line.replace(">=", "==") for line in declared), *OF_THEIR_TIME]
    names = [re.split(r"[<>=!~ ]", line)[0] for line in declared]
    if entry in TORCH:
        return [f"torch=={TORCH[entry]}" if name == "torch" else name for name in names]
    return names


def make_environment(entry: str, work: Path) -> Path:
    """Make the environment of an entry, unless it is there; return its Python."""
    folder = work / entry
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    version = entry.removeprefix("py") if entry.startswith("py") else ""
    maker = shutil.which(f"python{version}") if version else sys.executable
    if maker is None:
        sys.exit(f"{entry}: there is no python{version} on the PATH")
    subprocess.run([maker, "-m", "venv", "--clear", folder], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *requirements(entry), *TOOLS], check=True)
    (folder / "complete").touch()
    return python


def unpack(work: Path, commit: str) -> tuple[Path, str]:
    """Unpack a commit into a folder named after it."""
    asked = ["git", "-C", ROOT, "rev-parse", "--short", commit]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    tree = work / f"tree-{commit}"
    if not tree.exists():
        tree.mkdir(parents=True)
        archive = subprocess.Popen(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", tree], stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            sys.exit("git archive failed")
        (tree / "conftest.py").write_text(SAMPLING)
    return tree, commit


def versions_of(python: Path) -> dict[str, str]:
    """Return the versions that are installed."""
    code = (
        "import json, platform, sys\nfrom importlib.metadata import version\n"
        "found = {name: version(name) for name in sys.argv[1:]}\n"
        "print(json.dumps({'python': platform.python_version(), **found}))"
    )
    run = subprocess.run([python, "-c", code, *SHOWN], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def run_rooms(
    python: Path, tree: Path, rooms: Sequence[str], entry: str, every: int
) -> dict[str, dict[str, Any]]:
    """Run the tests of some rooms in one process; return the counts and failures of each."""
    results = tree / f"{entry}-{'-'.join(rooms)}.xml"
    pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={results}"]
    settings = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    settings["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    settings["EVERY"] = str(every)
    log = results.with_suffix(".log")
    results.unlink(missing_ok=True)
    with log.open("w") as out:
        subprocess.run(
            [*pytest, *(f"tests/{room}" for room in rooms)],
            cwd=tree,
            env={**os.environ, **settings},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    if not results.exists():
        sys.exit(f"{entry}, {rooms}: pytest did not run; see {log}")
    return {room: {**counts, "every": every} for room, counts in count(results, rooms).items()}


def count(results: Path, rooms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return how many tests of each room passed, and which did not, from pytest's XML.

    A test both of whose body and clean-up fail is there twice, and counted once.
    """
    empty = {"passed": 0, "failed": 0, "skipped": 0}
    found: dict[str, dict[str, Any]] = {room: {**empty, "failures": []} for room in rooms}
    told: dict[str, str] = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}".lstrip(".")
        is_bad = case.find("failure") is not None or case.find("error") is not None
        kind = "failed" if is_bad else "skipped" if case.find("skipped") is not None else "passed"
        if told.get(name) != "failed":
            told[name] = kind
    for name, kind in told.items():
        room = found[name.split(".")[1]]
        room[kind] += 1
        room["failures"] += [name] * (kind == "failed")
    return found


def table(stored: dict[str, Any]) -> str:
    """Return the counts as a table in Markdown."""
    head = "| environment | Python | " + " | ".join(SHOWN) + " | " + " | ".join(ROOMS) + " |"
    lines = [head, "|---" * (2 + len(SHOWN) + len(ROOMS)) + "|"]
    for entry, row in stored.items():
        cells = [entry, row["versions"]["python"], *(row["versions"][name] for name in SHOWN)]
        for room in ROOMS:
            found = row["rooms"].get(room)
            text = "–" if found is None else f"{found['passed']}"
            if found is not None and found.get("every", 1) > 1:
                text += f" (1 in {found['every']})"
            if found is not None and found["failed"]:
                text += f", {found['failed']} failed"
            cells.append(text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_stored() -> dict[str, Any]:
    """Return the counts of earlier runs."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def row_of(stored: dict[str, Any], entry: str, versions: dict[str, str]) -> dict[str, Any]:
    """Return the row of an entry; counts of other versions than these are dropped from it."""
    if entry not in stored or stored[entry]["versions"] != versions:
        stored[entry] = {"versions": versions, "rooms": {}}
    return stored[entry]


def write_page(stored: dict[str, Any]) -> None:
    """Store the counts and put their table between the marks of the page."""
    order = [*ENTRIES, *PYTHONS]
    stored = {entry: stored[entry] for entry in sorted(stored, key=order.index)}
    STORED.write_text(json.dumps(stored, indent=1) + "\n")
    before, rest = PAGE.read_text().split("<!-- counts -->\n", 1)
    after = rest.split("<!-- end of counts -->", 1)[1]
    marks = "<!-- counts -->\n", "\n<!-- end of counts -->"
    PAGE.write_text(before + table(stored).join(marks) + after)


def main() -> None:
    """Make the environments that are asked for, run the tests in each, store the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("entries", nargs="*", default=ENTRIES)
    parser.add_argument("--work", type=Path, default=Path("/tmp/hyperribbon-matrix"))
    parser.add_argument("--again", action="store_true", help="run rooms that were run before")
    parser.add_argument("--remove", action="store_true", help="remove an environment after its run")
    parser.add_argument("--rooms", nargs="*", default=ROOMS)
    parser.add_argument("--commit", default="HEAD", help="what is tested")
    parser.add_argument("--every", type=int, default=1, help="run each nth test only")
    options = parser.parse_args()
    if unknown := set(options.entries) - {*ENTRIES, *PYTHONS}:
        sys.exit(f"{unknown}: there are {[*ENTRIES, *PYTHONS]}")
    tree, commit = unpack(options.work, options.commit)
    for entry in options.entries:
        python = make_environment(entry, options.work)
        versions = versions_of(python)
        known = row_of(read_stored(), entry, versions)["rooms"]
        rooms = [room for room in options.rooms if room not in known or options.again]
        # One by one, a run that is stopped loses one room; a few tests of each are faster together.
        groups = [[room] for room in rooms] if options.every == 1 else [rooms] * bool(rooms)
        for some in groups:
            begun = time.monotonic()
            found = run_rooms(python, tree, some, entry, options.every)
            stored = read_stored()
            for room, counts in found.items():
                row_of(stored, entry, versions)["rooms"][room] = {"commit": commit, **counts}
                print(f"{entry} {room}: {counts['passed']} passed, {counts['failed']} failed")
            print(f"{time.monotonic() - begun:.0f} s", flush=True)
            write_page(stored)
        if options.remove:
            shutil.rmtree(options.work / entry)


if __name__ == "__main__":
    main()
