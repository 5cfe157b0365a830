"""Verify folders of runs, byte by byte, and move damaged files aside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open

from hyperribbon.core.checks import ArgumentError
from hyperribbon.core.store.atomic import (
    REMOVED,
    clear_leftovers,
    file_digest,
    is_locked,
    make_folder,
    open_regular,
    read_json,
    stored_path,
    write_bytes,
)
from hyperribbon.core.store.manifest import (
    COMMITTED,
    LISTED,
    MANIFEST,
    SAVE_LOCK,
    SAVING,
    Manifest,
    finish_save,
    list_files,
    read_manifest,
)
from hyperribbon.core.store.record_log import (
    COUNT,
    Damage,
    Frame,
    RecordLog,
    block_files,
    first_index,
    read_count,
    scan_block,
)
from hyperribbon.core.store.trajectory_files import (
    HEADER,
    STATUS,
    finish_trajectory,
    is_record_folder,
    lock_files,
    read_header,
    records_folder,
    replace_records,
)
from hyperribbon.core.store.trees import STATE_KEY, TREE_KEY, load_tree

_JSON_FILES = ("run.json", "claims.json", "inspection.json", "tiles.json", "cost.json")
_LEFTOVER = "left over from a killed process"


@dataclass(frozen=True)
class Finding:
    """A problem found in a stored run.

    Attributes:
        place: The file or folder.
        what: Description of the problem.
        kind: "damage" (something that was stored cannot be trusted), "leftover" (of a killed
            writer; harmless) or "note".
        done: What was done about it; empty when nothing was.
    """

    place: Path
    what: str
    kind: str = "damage"
    done: str = ""


@dataclass(frozen=True)
class FolderCheck:
    """The result of `check_folder`: how much was verified, and the damage.

    Attributes:
        trajectories: Trajectories read.
        records: Whole records in them.
        files: Other files of runs read.
        findings: Problems found.
    """

    trajectories: int
    records: int
    files: int
    findings: tuple[Finding, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the check found nothing damaged, or all damage was repaired."""
        return all(f.done or f.kind != "damage" for f in self.findings)


def check_folder(folder: str | Path, *, repair: bool = False) -> FolderCheck:
    """Check every byte of the stored runs in a folder and report damage.

    Args:
        folder: A trajectory, a run, a sweep, or a folder of these at any depth.
        repair: Keep what is whole and move the rest aside; nothing intact is deleted. Of a
            trajectory, the whole records stay; a damaged result gets the ending .damaged, and is
            computed anew when it is next needed. Temporary files of killed processes are removed.

    Returns:
        How much was read, and what was found.

    Raises:
        ArgumentError: The folder does not exist, or contains no hyperribbon runs.
    """
    folder = Path(folder)
    if not folder.is_dir():
        reason = "it is a file" if folder.is_file() else "the folder does not exist"
        raise ArgumentError("folder", str(folder), reason, "Give a folder.")
    trajectories = records = files = 0
    findings: list[Finding] = []
    for place, inside, names in os.walk(folder):
        at = Path(place)
        inside[:] = [name for name in inside if not name.startswith(REMOVED)]
        if HEADER in (*names, *inside) or any(at.glob("records*/block-*.bin")):
            own = ("weights", "state")  # others: the recording that an ensemble's member resumes
            others = [n for n in inside if n not in own and not is_record_folder(n)]
            inside[:] = [name for name in others if not name.startswith("damaged-")]
            trajectories += 1
            try:
                found = repair_trajectory(at) if repair else verify_trajectory(at)
                records += len(found.whole)
                is_busy = is_locked(at / ".lock")  # an active recorder leaves no leftovers
                findings += [f for f in found.findings if not (is_busy and f.kind == "leftover")]
            except (ArgumentError, OSError) as error:
                findings.append(Finding(at, getattr(error, "reason", str(error))))
            continue
        finish_save(at)
        read, some = _check_files(at, sorted(names), sorted(inside), repair)
        files += read
        findings += some
        inside[:] = sorted(name for name in inside if not name.startswith((SAVING, COMMITTED)))
    if not trajectories and not files and not findings:
        remedy = "Give the folder of a Recorder, or the --out folder of reproduce or sweep."
        raise ArgumentError(
            "folder", str(folder), "it does not contain a trajectory, run or sweep", remedy
        )
    return FolderCheck(trajectories, records, files, tuple(findings))


def _check_files(
    folder: Path, names: list[str], inside: list[str], repair: bool
) -> tuple[int, list[Finding]]:
    """Check a run's files: return how many were read, and the damage found."""
    findings: list[Finding] = []
    if not is_locked(folder / SAVE_LOCK):
        for name in (name for name in inside if name.startswith((SAVING, COMMITTED))):
            what = "an interrupted save" if name.startswith(SAVING) else "a save to be completed"
            done = _finish_or_set_aside(folder / name) if repair else ""
            findings.append(Finding(folder / name, what, "leftover", done))
    for path in clear_leftovers(folder, remove=repair):
        findings.append(Finding(path, _LEFTOVER, "leftover", "removed" if repair else ""))
    manifest, damage = _read_manifest(folder)
    read = len(manifest.files) if manifest else 0
    if manifest is not None:
        damage |= manifest.find_damage(folder)
    own = (*_JSON_FILES, "result.safetensors")
    folders = [name for name in inside if name in own or name.endswith(".safetensors")]
    for name in (*names, *folders):
        if manifest is None or (name not in manifest.files and name != MANIFEST):
            what = find_damage(folder / name)
            read += what is not None
            damage = {name: what} | damage if what else damage
    if damage and repair:
        done = _set_aside_files(folder, manifest, damage)
    else:
        done = dict.fromkeys(damage, "")
    findings += [Finding(folder / n, damage[n], "damage", done[n]) for n in sorted(damage)]
    return read, findings


def _read_manifest(folder: Path) -> tuple[Manifest | None, dict[str, str]]:
    """Check the manifest of a folder: return it, and what is damaged, by name."""
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        return None, {MANIFEST: f"it cannot be read ({error})"}
    if manifest is None and (folder / LISTED).exists():
        return None, {MANIFEST: "it is missing"}
    if manifest is None and any((folder / n).is_file() for n in ("claims.json", "inspection.json")):
        with suppress(OSError, ValueError, AttributeError):
            if read_json(folder / "run.json").get("has_manifest"):
                return None, {MANIFEST: "it is missing"}
    if manifest is not None and manifest.kind == "run":
        try:
            read_json(folder / "run.json", checksum=True)
        except (OSError, ValueError) as error:
            return manifest, {"run.json": f"it cannot be read ({error})"}
    is_result = os.path.lexists(folder / "result.safetensors")
    if manifest is None and is_result and not os.path.lexists(folder / "run.json"):
        return None, {"run.json": "it is missing"}
    return manifest, {}


def find_damage(path: Path) -> str | None:
    """Check a stored file: return its damage, "" if intact, None if no run has such files."""
    if path.name in _JSON_FILES or path.name.endswith(".error.json"):
        try:
            content = read_json(path)
        except (OSError, ValueError) as error:
            return f"it cannot be read ({error})"
        is_run = isinstance(content, dict) and "id" in content
        return "" if is_run or path.name != "run.json" else "it does not describe a run"
    if path.suffix != ".safetensors":
        return None
    if path.parent.name == "state":
        return "" if _is_whole_resume_state(path) else "the resume state is damaged"
    try:
        open_regular(path).close()
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
        if TREE_KEY in about:
            load_tree(path)
        elif STATE_KEY in about:
            from hyperribbon.core.states import load_state  # which needs torch

            load_state(path)
        else:
            return "its header is damaged" if any("digest" in a for a in about.values()) else None
    except SafetensorError as error:
        return f"it is damaged ({error})"
    except (OSError, ArgumentError) as error:
        return getattr(error, "reason", str(error))
    return ""


def _finish_or_set_aside(folder: Path) -> str:
    """Complete a save that a check finds committed, or set it aside; return what was done."""
    finish_save(folder.parent)
    if not folder.exists():
        return "completed"
    set_aside(folder)
    return "moved aside"


def _set_aside_files(
    folder: Path, manifest: Manifest | None, damage: dict[str, str]
) -> dict[str, str]:
    """Set the damaged files aside that a check has found; return what was done, by name."""
    is_inspection = os.path.lexists(folder / "inspection.json")
    done: dict[str, str] = {}
    if MANIFEST in damage:
        (folder / LISTED).unlink(missing_ok=True)  # until the files are listed again
    for name in damage:
        if name == "inspection.json" or (name == "run.json" and damage[name] == "it is missing"):
            done[name] = ""  # the other files do not say what it held
            continue
        there = os.path.lexists(folder / name)
        set_aside(folder / name)
        later = "inspect again to have it" if is_inspection else "it is recomputed when next needed"
        done[name] = f"{'moved aside; ' if there else ''}{later}"
    is_run = (folder / "claims.json").exists() and not is_inspection
    if is_run and {"result.safetensors", MANIFEST} & damage.keys():  # what follows from these
        set_aside(folder / "claims.json")
    rest = [name for name in (manifest.files if manifest else ()) if (folder / name).is_file()]
    if manifest is not None and not (MANIFEST in damage or "inspection.json" in damage):
        state = "running" if manifest.kind == "run" else manifest.state
        replace(manifest, state=state, files=list_files(folder, rest)).write(folder)
    elif (folder / "inspection.json").is_file() and "inspection.json" not in damage:
        Manifest("inspection", files=list_files(folder)).write(folder)
    return done


def set_aside(path: Path) -> None:
    """Rename what a check found damaged to end in .damaged, so that it is no longer read."""
    if os.path.lexists(path):
        endings = (".damaged", *(f".{number}.damaged" for number in range(2, 10_000)))
        free = (path.with_name(path.name + ending) for ending in endings)
        path.rename(next(target for target in free if not os.path.lexists(target)))


@dataclass
class TrajectoryCheck:
    """The result of verifying a trajectory.

    Attributes:
        folder: The trajectory.
        whole: Its whole records: content, and the frame that holds the arrays.
        findings: Problems found.
        tail: Where a truncated last record begins, if there is one.
    """

    folder: Path
    whole: list[tuple[dict[str, Any], Frame]] = field(
        default_factory=list[tuple[dict[str, Any], Frame]]
    )
    findings: list[Finding] = field(default_factory=list[Finding])
    tail: Damage | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether the check found any damaged data."""
        return any(finding.kind == "damage" for finding in self.findings)

    def add(self, place: Path, what: str, kind: str = "damage") -> None:
        """Add a finding of the check, one for each damaged place."""
        if kind != "damage" or all(f.place != place or f.kind != kind for f in self.findings):
            self.findings.append(Finding(place, what, kind))


def verify_trajectory(folder: Path) -> TrajectoryCheck:
    """Check every byte of a stored trajectory without changing it.

    Raises an ArgumentError where a newer hyperribbon wrote it, or a name leads outside the folder.

    Returns:
        The whole records and the findings.
    """
    found = TrajectoryCheck(folder)
    records = _find_records(found)
    if records is not None:
        _verify_blocks(found, records)
    found.whole = [(_verify_weights(found, content), frame) for content, frame in found.whole]
    for path in sorted((folder / "state").glob("*")):
        if not _is_whole_resume_state(path):
            found.add(path, "the resume state is damaged")
    steps = [content["step"] for content, _ in found.whole]
    if (folder / "state").is_dir() and steps:
        name = f"step-{steps[-1]}"
        if not list(folder.glob(f"state/{name}-*.safetensors")):
            found.add(
                folder / "state" / name, "there is no resume state; the records can be read", "note"
            )
    for place in (folder, records or folder / "records", folder / "weights", folder / "state"):
        for path in clear_leftovers(place, remove=False):
            found.add(path, _LEFTOVER, "leftover")
    _verify_manifest(found)
    return found


def _verify_manifest(found: TrajectoryCheck) -> None:
    folder = found.folder
    status: Any = {}
    if os.path.lexists(folder / STATUS):
        try:
            is_new = (folder / MANIFEST).exists()
            status = read_json(folder / STATUS, checksum=is_new)
            if not {"state", "changed"} <= status.keys():
                found.add(folder / STATUS, "it does not describe a recording")
        except (OSError, ValueError, AttributeError) as error:
            found.add(folder / STATUS, f"it cannot be read ({error})")
    try:
        manifest = read_manifest(folder)
    except ValueError as error:
        found.add(folder / MANIFEST, f"it cannot be read ({error})")
        return
    if manifest is not None:
        for name, what in manifest.find_damage(folder).items():
            found.add(folder / name, what)
        if manifest.kind == "recording" and not os.path.lexists(folder / STATUS):
            found.add(folder / STATUS, "it is missing")
    elif isinstance(status, dict) and status.get("has_manifest"):
        found.add(folder / MANIFEST, "it is missing")


def repair_trajectory(folder: Path) -> TrajectoryCheck:
    """Check and repair a trajectory while nobody writes; keep what is whole.

    Records keep their steps and are counted anew. Damaged files get the ending .damaged and the
    old records go to a folder damaged-1; none is deleted.

    Returns:
        What was found before the repair.

    Raises:
        ArgumentError: As `verify_trajectory`, or a recorder is writing to it.
    """
    recorder = FileLock(folder / ".lock")
    try:
        recorder.acquire(timeout=0)
    except Timeout:
        raise ArgumentError(
            "folder", str(folder), "a recorder is writing to it", "Repair it when that has ended."
        ) from None
    try:
        with lock_files(folder):
            found = verify_trajectory(folder)
            if found.is_damaged:
                _keep_whole(found)
            elif found.tail is not None:
                _cut_tail(folder, found.tail)
            for finding in found.findings:
                if finding.kind == "leftover" and finding.what == _LEFTOVER:
                    clear_leftovers(finding.place.parent)
    finally:
        recorder.release()
    done = {"damage": "set aside; the rest is kept", "leftover": "removed", "note": ""}
    found.findings = [replace(f, done=done[f.kind]) for f in found.findings]
    return found


def _make_aside(folder: Path) -> Path:
    """Make a folder for what a repair takes out of a trajectory."""
    return make_folder(folder / f"damaged-{1 + len(list(folder.glob('damaged-*')))}")


def _keep_whole(found: TrajectoryCheck) -> None:
    """Repair after a check: write whole records anew; move the old and all damaged files aside."""
    folder = found.folder
    places = {f.place for f in found.findings if f.kind == "damage"}
    old = [path for path in folder.glob("records*") if is_record_folder(path.name)]
    if not (folder / HEADER).is_file():
        set_aside(folder / HEADER)
    replace_records(folder, _rows(found))
    aside = _make_aside(folder)
    for path in old:
        path.rename(aside / path.name)
    had_manifest = os.path.lexists(folder / MANIFEST)
    if had_manifest:
        (folder / MANIFEST).rename(aside / MANIFEST)
    for path in places - {folder / HEADER}:
        set_aside(path)
    if (folder / "complete").is_file():  # whoever filled the folder shall do so again
        (folder / "complete").rename(aside / "complete")
    if had_manifest or folder / MANIFEST in places:
        finish_trajectory(folder, RecordLog(records_folder(folder, read_header(folder))))


def _cut_tail(folder: Path, tail: Damage) -> None:
    """Repair after a check: cut off what a killed write left at the end; a copy is kept."""
    with open(tail.block, "r+b") as file:
        file.seek(tail.start)
        aside = _make_aside(folder)
        write_bytes(aside / f"{tail.block.name}.tail", file.read())
        file.truncate(tail.start)


def _find_records(found: TrajectoryCheck) -> Path | None:
    """Return the folder of the record blocks to check, or None where there is none."""
    folder = found.folder
    try:
        header = read_header(folder)
        records = records_folder(folder, header)
        if records.is_dir() and (what := _find_damage_of_count(records)):
            found.add(records / COUNT, what)
        return records
    except ArgumentError as error:
        if "newer hyperribbon" in error.reason or "outside" in error.reason:
            raise
        found.add(folder / HEADER, error.reason.removeprefix("it is damaged: "))
    candidates = [path for path in folder.glob("records*") if is_record_folder(path.name)]
    filled = [path for path in candidates if block_files(path)]
    return max(filled, key=lambda path: path.stat().st_mtime_ns, default=None)


def _find_damage_of_count(records: Path) -> str:
    """Check the file that has the number of records; return its damage."""
    try:
        return "it is missing" if read_count(records) is None else ""
    except ArgumentError:
        return "it does not count records"


def _verify_blocks(found: TrajectoryCheck, records: Path) -> None:
    if not records.is_dir():
        found.add(records, "the folder of the records is missing")
    files: list[Path] = []
    for block in block_files(records):
        try:
            open_regular(block).close()
            files.append(block)
        except OSError as error:
            found.add(block, f"it cannot be read ({error})")
    reported = 0
    with suppress(ArgumentError):  # damage of the count is a finding of its own
        reported = read_count(records) or 0
    items = [(block, item) for block in files for item in scan_block(block)]
    expected = 0
    for number, (block, item) in enumerate(items):
        if isinstance(item, Damage) or not item.is_whole():
            if number == len(items) - 1 and block == files[-1] and expected >= reported:
                found.tail = Damage(block, item.start, item.end)
                found.add(block, "truncated last record", "leftover")
            else:
                found.add(block, f"record {expected} is damaged")
            expected += 1
            continue
        index = item.content["index"]
        if index > expected:
            found.add(block, f"{index - expected} records before record {index} are missing")
        if not _is_record(item.content, found.whole[-1][0] if found.whole else None):
            found.add(block, f"record {index} does not belong to this trajectory")
        else:
            found.whole.append((item.content, item))
        expected = index + 1
    if expected < reported:
        found.add(records, f"the last {reported - expected} of {reported} records are missing")
    if files and first_index(files[0]) > 0:
        found.add(records, "the first block is missing")


def _verify_weights(found: TrajectoryCheck, content: dict[str, Any]) -> dict[str, Any]:
    if content["weights"] is None:
        return content
    path = stored_path(found.folder, content["weights"])
    if not os.path.lexists(path):
        found.add(path, f"the weights of step {content['step']} are missing")
    elif not _is_whole_state(path, content.get("digest")):
        found.add(path, f"the weights of step {content['step']} are damaged")
    else:
        return content
    return content | {"weights": None, "digest": None}


def _rows(found: TrajectoryCheck) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
    for content, frame in found.whole:
        plain = {k: v for k, v in content.items() if k not in ("index", "predictions")}
        yield plain, {name: frame.read(name) for name in frame.arrays}


def _is_record(content: dict[str, Any], earlier: dict[str, Any] | None) -> bool:
    is_one = type(content.get("step")) is int and {"epoch", "weights", "metrics"} <= content.keys()
    return is_one and (earlier is None or earlier["step"] < content["step"])


def _is_whole_state(path: Path, digest: str | None) -> bool:
    try:
        if digest is not None:
            return file_digest(path) == digest
        open_regular(path).close()
        with safe_open(path, framework="numpy"):
            return True
    except (OSError, SafetensorError):
        return False


def _is_whole_resume_state(path: Path) -> bool:
    try:
        return path.suffix != ".safetensors" or file_digest(path) == path.stem.rpartition("-")[2]
    except OSError:
        return False
