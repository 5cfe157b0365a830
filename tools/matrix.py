"""Run the tests on the oldest and newest versions hyperribbon names, and store what they say.

Each entry is an environment of its own under a folder outside the repository. What is tested is
a commit, unpacked beside the environments. The counts go to docs/versions.json, room by
room, so that a run that was stopped goes on where it was; the table in docs/versions.md is drawn
from them.

Usage: python tools/matrix.py [floor 2.6 2.8 2.10 2.13 newest py3.13] [--work DIR] [--remove]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STORED = ROOT / "docs" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
ROOMS = ("operators", "spectra", "core", "manifold", "training", "subnetworks")
TORCH = {"2.6": "2.6.0", "2.8": "2.8.0", "2.10": "2.10.0", "2.13": "2.13.0"}
ENTRIES = ("floor", *TORCH, "newest")
TOOLS = ("mlxtend", "pytest", "hypothesis", "psutil")
OF_THEIR_TIME = ("click==8.1.8",)  # the oldest typer warns about newer ones
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
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
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


def run_room(python: Path, tree: Path, room: str, entry: str, every: int) -> dict[str, Any]:
    """Run the tests of one room; return the counts and the names of what failed."""
    results = tree / f"{entry}-{room}.xml"
    pytest = [python, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={results}"]
    settings = {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1", "PATH": f"{python.parent}:"}
    settings["PATH"] += os.environ["PATH"]
    settings["EVERY"] = str(every)
    log = tree / f"{entry}-{room}.log"
    with log.open("w") as out:
        subprocess.run(
            [*pytest, f"tests/{room}"],
            cwd=tree,
            env={**os.environ, **settings},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    if not results.exists():
        sys.exit(f"{entry}, {room}: pytest did not run; see {log}")
    suite = next(ElementTree.parse(results).getroot().iter("testsuite"))
    count = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    names = [
        f"{case.get('classname')}.{case.get('name')}"
        for case in suite.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {
        "passed": count["tests"] - failed - count["skipped"],
        "failed": failed,
        "skipped": count["skipped"],
        "failures": names,
        "every": every,
    }


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


def write_page(stored: dict[str, Any]) -> None:
    """Store the counts and put their table between the marks of the page."""
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
    tree, commit = unpack(options.work, options.commit)
    for entry in options.entries:
        python = make_environment(entry, options.work)
        for room in options.rooms:
            if room in read_stored().get(entry, {"rooms": {}})["rooms"] and not options.again:
                continue
            found = {"commit": commit, **run_room(python, tree, room, entry, options.every)}
            stored = read_stored()
            row = stored.setdefault(entry, {"versions": versions_of(python), "rooms": {}})
            row["rooms"][room] = found
            print(f"{entry} {room}: {found['passed']} passed, {found['failed']} failed", flush=True)
            write_page(stored)
        if options.remove:
            shutil.rmtree(options.work / entry)


if __name__ == "__main__":
    main()
