"""`write_report`: run folders and stores to one HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError
from markupsafe import Markup

from hyperribbon import __version__
from hyperribbon.application.report.experiments import experiment_tabs
from hyperribbon.application.report.inspections import INSPECTION_FILE, inspection_tabs
from hyperribbon.application.report.page import DAMAGE, Page, Section, Tab, describe_damage
from hyperribbon.core.checks import ArgumentError, path, text, validate
from hyperribbon.core.store import RunFolder, ensure_folder, finish_save, write_text

TRAJECTORY_FILE = "trajectory.json"
_MARKS = ("run.json", "claims.json", INSPECTION_FILE, TRAJECTORY_FILE)


@validate()
def write_report(
    paths: Sequence[str | Path], out: str | Path, *, title: str = "hyperribbon report"
) -> Path:
    """Write runs as one HTML file that holds everything it needs.

    Args:
        paths: Folders of experiments' runs, of inspections and of recorded trainings, or folders
            that hold many of them.
        out: The file to write; replaced as a whole, or left as it was if anything fails.

        title: Heading of the page.

    Returns:
        The file written.

    Raises:
        ArgumentError: There is no run in a path, or the file cannot be written.
    """
    if isinstance(paths, str | Path) or not isinstance(paths, Sequence):
        raise ArgumentError("paths", paths, "it is not a list of folders", "Give ['runs'].")
    text("title", title)
    out = Path(path("out", out))
    if out.is_dir():
        raise ArgumentError("out", str(out), "it is a folder", "Give a file such as report.html.")
    found = [folder for given in paths for folder in _folders(Path(path("paths", given)))]
    inspections = [folder for folder in found if (folder / INSPECTION_FILE).is_file()]
    trajectories = [folder for folder in found if (folder / TRAJECTORY_FILE).is_file()]
    runs = [folder for folder in found if folder not in (*inspections, *trajectories)]
    tabs = [
        *inspection_tabs(inspections),
        *(_training_tabs(trajectories) if trajectories else []),
        *experiment_tabs([RunFolder(folder) for folder in runs]),
    ]
    subtitle = ", ".join(
        _count(len(group), noun)
        for group, noun in (
            (inspections, "inspected model"),
            (trajectories, "recorded training"),
            (runs, "experiment run"),
        )
        if group
    )
    page = Page(title, subtitle, tabs)
    ensure_folder("out", out.absolute().parent)
    text_of_page = render(page).encode("utf-8", "replace").decode()  # lone surrogates of file names
    write_text(out, text_of_page)
    return out


def render(page: Page) -> str:
    """Write the HTML text of a report."""
    environment = Environment(
        loader=PackageLoader("hyperribbon.application.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["script_json"] = _script_json
    templates = files("hyperribbon.application.report") / "templates"
    js = Markup((templates / "report.js").read_text())
    plotly = _plotly() if any(tab.has_charts for tab in page.tabs) else Markup("")
    section_template = environment.get_template("section.html.j2")

    def render_section(section: Section) -> Markup:
        try:
            return Markup(section_template.render(section=section))
        except (*DAMAGE, UndefinedError) as error:
            warning = describe_damage("this section", error)
            return Markup(section_template.render(section=Section(section.title, warning=warning)))

    tabs = [(tab.label, [render_section(section) for section in tab.sections]) for tab in page.tabs]
    return environment.get_template("report.html.j2").render(
        page=page,
        tabs=tabs,
        version=__version__,
        css=Markup((templates / "report.css").read_text()),
        js=js,
        plotly=plotly,
        scripts=Markup(" ".join(_hash(script) for script in (js, plotly) if script)),
    )


def _training_tabs(folders: list[Path]) -> list[Tab]:
    from hyperribbon.application.report.trajectories import (
        trajectory_tabs,  # draws: takes a second to load
    )

    return trajectory_tabs(folders)


def _folders(path: Path) -> list[Path]:
    for folder in (path, *path.glob("*/")):
        finish_save(folder)
    if any((path / name).is_file() for name in _MARKS):
        return [path]
    found = sorted({file.parent for name in _MARKS for file in path.glob(f"*/{name}")})
    found = [folder for folder in found if not folder.name.startswith(".")]
    if not found:
        reason = "it holds no run" if path.is_dir() else "there is no such folder"
        remedy = "Give the folder of a run, an inspection or a Recorder, or one that holds several."
        raise ArgumentError("paths", str(path), reason, remedy)
    return found


def _script_json(text: str) -> Markup:
    """Write JSON text for a script element of a report."""
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028"))


def _hash(script: str) -> str:
    """Return the hash by which a report's policy, when writing it, allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _plotly() -> Markup:
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs().replace("</script", "<\\/script"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
