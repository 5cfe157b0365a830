"""Put deliberate bugs into the package, one at a time, and tell which ones no test notices.

The bugs are tables of tools/mutations.toml. Each goes into a copy of the package, on which the
tests run that should notice it: a bug is caught when one of them fails, and survives when all pass.
At the end the tests that failed run once more without any bug, since one that fails anyway has
caught nothing. What was caught is kept in .cache until the bug, the file or the tests change, so
that a run that was stopped goes on where it was.

Usage: python tools/mutate.py [--only WORD] [--jobs N] [--fresh]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
LIST = ROOT / "tools" / "mutations.toml"
STORED = ROOT / ".cache" / "mutations.json"
ALLOWED = 3  # survivors with which the run still succeeds
SECONDS = 300  # after which tests that hang have noticed the bug
PYTEST = ("-q", "-rfE", "-n0", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Bug:
    """One deliberate bug.

    Attributes:
        room: The room it is in.
        what: The bug in words.
        find: Text that occurs once in the package.
        replace: What takes its place.
        tests: Arguments of pytest that choose the tests that should notice it.
    """

    room: str
    what: str
    find: str
    replace: str
    tests: str = ""

    @property
    def arguments(self) -> list[str]:
        """The tests as pytest takes them; the folder of the room by default."""
        return shlex.split(self.tests) or [f"tests/{self.room}"]

    def place(self, texts: dict[Path, str]) -> Path:
        """Return the file that holds the text, which must occur once in all of them."""
        places = [path for path, text in texts.items() for _ in range(text.count(self.find))]
        if len(places) != 1:
            raise SystemExit(f"{self.what}: {len(places)} places instead of one for {self.find!r}")
        return places[0]


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a bug: "caught", "survived" or "unclear", by which test, how long."""

    bug: Bug
    verdict: str
    by: str
    seconds: float


def read_bugs() -> list[Bug]:
    """Return the list of bugs."""
    return [Bug(**table) for table in tomllib.loads(LIST.read_text())["bug"]]


def read_texts() -> dict[Path, str]:
    """Return the package's files, by their paths below the source folder."""
    files = sorted(SOURCE.rglob("*.py"))
    return {path.relative_to(SOURCE): path.read_text() for path in files}


def environment(copy: Path) -> dict[str, str]:
    """Return an environment in which a copy of the package takes the installed one's place."""
    return os.environ | {
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",  # a file that is changed back must not meet its old code
        "HYPOTHESIS_STORAGE_DIRECTORY": str(copy / "hypothesis"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "1000",
    }


def copy_package(folder: Path) -> Path:
    """Return a copy of the package that is the one that Python imports in its environment."""
    copy = Path(shutil.copytree(SOURCE, folder))
    check = f"import hyperribbon; assert hyperribbon.__file__.startswith({str(copy)!r})"
    command = [sys.executable, "-c", check]
    subprocess.run(command, env=environment(copy), cwd=ROOT, check=True)
    return copy


def run_tests(copy: Path, arguments: list[str], seconds: float | None = None) -> tuple[int, str]:
    """Run tests on a copy of the package; return pytest's exit status and what it printed."""
    command = [sys.executable, "-m", "pytest", *arguments, *PYTEST]
    try:
        done = subprocess.run(
            command,
            env=environment(copy),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return 1, "FAILED timeout"
    return done.returncode, done.stdout + done.stderr


def failures(printed: str) -> list[str]:
    """Return the tests that failed, from pytest's summary."""
    return re.findall(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", printed, re.MULTILINE)


def try_bug(bug: Bug, path: Path, copy: Path) -> Outcome:
    """Put a bug into a copy of the package, run its tests, and take it out again."""
    started, file = time.monotonic(), copy / path
    text = file.read_text()
    file.write_text(text.replace(bug.find, bug.replace))
    try:
        status, printed = run_tests(copy, [*bug.arguments, "-x"], SECONDS)
    finally:
        file.write_text(text)
    seconds = time.monotonic() - started
    found = failures(printed)
    if status == 1 and found:
        return Outcome(bug, "caught", found[0], seconds)
    if status == 0:
        return Outcome(bug, "survived", "", seconds)
    return Outcome(bug, "unclear", f"pytest ended with {status}: {printed[-300:]}", seconds)


def key_of(bug: Bug, text: str) -> str:
    """Return what a stored outcome hangs on: the bug, the file it changes, and its tests."""
    parts = [repr(bug), text]
    for argument in bug.arguments:
        place = ROOT / argument.partition("::")[0]
        files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        parts += [file.read_text() for file in files if file.suffix == ".py" and file.is_file()]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def try_all(bugs: list[Bug], jobs: int, fresh: bool, console: Console) -> list[Outcome]:
    """Return the outcome of every bug; what is stored as caught is not tried again."""
    texts = read_texts()
    places = [bug.place(texts) for bug in bugs]
    keys = [key_of(bug, texts[path]) for bug, path in zip(bugs, places, strict=True)]
    stored = {} if fresh or not STORED.exists() else json.loads(STORED.read_text())
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            copies.put(copy_package(Path(folder).resolve() / str(number)))

        def outcome(number: int) -> Outcome:
            bug, key = bugs[number], keys[number]
            if key in stored:
                return Outcome(bug, "caught", *stored[key])
            copy = copies.get()
            try:
                tried = try_bug(bug, places[number], copy)
            finally:
                copies.put(copy)
            text = f"{tried.verdict:9} {bug.room}: {bug.what}, {tried.seconds:.0f} s"
            console.print(text, soft_wrap=True)
            return tried

        with ThreadPoolExecutor(jobs) as pool:
            found = []
            for key, tried in zip(keys, pool.map(outcome, range(len(bugs))), strict=True):
                found.append(tried)
                if tried.verdict == "caught" and key not in stored:
                    stored[key] = (tried.by, tried.seconds)
                    STORED.parent.mkdir(exist_ok=True)
                    STORED.write_text(json.dumps(stored, indent=1))
        tests = sorted({tried.by for tried in found if "::" in tried.by})
        status, printed = run_tests(copies.get(), tests) if tests else (0, "")
    if status:
        broken = failures(printed)
        kept = {key: entry for key, entry in stored.items() if entry[0] not in broken}
        STORED.write_text(json.dumps(kept, indent=1))
        told = ", ".join(broken) or printed[-1000:]
        raise SystemExit(f"These tests fail without any bug, and have caught none: {told}")
    return found


def main() -> None:
    """Try the bugs and show what became of them."""
    parser = argparse.ArgumentParser(description="Try deliberate bugs on the tests.")
    parser.add_argument("--only", default="", help="bugs with this word in room, words or tests")
    parser.add_argument("--jobs", type=int, default=1, help="bugs that are tried at once")
    parser.add_argument("--fresh", action="store_true", help="try what is stored as caught too")
    asked = parser.parse_args()
    console = Console()
    bugs = [b for b in read_bugs() if asked.only in f"{b.room} {b.what} {b.tests}"]
    found = try_all(bugs, max(asked.jobs, 1), asked.fresh, console)
    table = Table("room", "bug", "outcome", "caught by", "seconds")
    for tried in found:
        color = {"caught": "green", "survived": "red"}.get(tried.verdict, "yellow")
        name = tried.by.rpartition("/")[2]
        row = (tried.bug.room, tried.bug.what, f"[{color}]{tried.verdict}[/]")
        table.add_row(*row, name.replace("[", r"\["), f"{tried.seconds:.0f}")
    console.print(table)
    missed = [tried for tried in found if tried.verdict != "caught"]
    for tried in missed:
        console.print(f"{tried.verdict}: {tried.bug.room}: {tried.bug.what}")
    console.print(f"{len(found)} bugs, {len(found) - len(missed)} caught, {len(missed)} not.")
    sys.exit(len(missed) > ALLOWED)


if __name__ == "__main__":
    main()
