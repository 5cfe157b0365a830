"""Pages of the documentation that are generated: gallery, papers, tutorials, reference, speed."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import tempfile
import tomllib
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any

import nbformat
from captions import caption_lines
from formulas import draw_formulas
from gallery import gallery_page, thumbnail
from ledger import ledger_page
from mkdocs.structure.files import File, Files
from notebooks import (
    as_notebook,
    as_page,
    download_link,
    example_notebook,
    execute,
    needs,
    title_of,
)
from packaging.version import Version
from running import put_results, run_page

import hyperribbon
from hyperribbon.core.claims import VERDICTS
from hyperribbon.core.store import read_json, write_text
from hyperribbon.papers.experiments import PAPERS, all_experiments

ROOT = Path(__file__).parents[1]
ROOMS = (
    "core",
    "operators",
    "spectra",
    "theory.ribbons",
    "theory.linear_networks",
    "theory.fluctuations",
    "theory.meanfield",
    "theory.gradient_flow",
    "recording",
    "training",
    "simulation",
    "manifold",
    "subnetworks",
    "noise",
    "prediction",
    "plots",
    "inspection",
    "experiments",
    "report",
)


VERSION = hyperribbon.__version__


def on_config(config: Any) -> Any:
    """Build the pages of each version into a folder of its own, so that older ones stay."""
    config.site_dir = str(Path(config.site_dir) / VERSION)
    config.site_name = f"{config.site_name} {VERSION}"
    config.extra["version"] = {"provider": "mike"}  # the theme's menu, which reads versions.json
    return config


def on_post_build(config: Any) -> None:
    """List the versions, newest first, and lead visitors to the newest."""
    site = Path(config.site_dir).parent
    found = [folder.name for folder in site.iterdir() if (folder / "index.html").is_file()]
    found.sort(key=Version, reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in found]
    write_text(site / "versions.json", json.dumps(listed))
    leading = f'<meta http-equiv="refresh" content="0; url={found[0]}/"/>'
    write_text(site / "index.html", f"<!doctype html><title>hyperribbon</title>{leading}\n")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    verdicts = _stored_verdicts()
    pages = {
        "gallery/index.md": _gallery(verdicts),
        "ledger.md": ledger_page(verdicts, {paper: _paper(paper) for paper in PAPERS}),
    }
    for id, experiment in all_experiments().items():
        pages[f"gallery/{id}.md"] = _experiment_page(experiment, verdicts.get(id))
    for paper in PAPERS:
        pages[f"papers/{paper}.md"] = _paper_page(paper, verdicts)
    for room in ROOMS:
        module = attrgetter(room)(hyperribbon).__name__
        pages[f"reference/{room}.md"] = f"# {room}\n\nVersion {VERSION}.\n\n::: {module}\n"
    pages["reference/index.md"] = _reference_index()
    pages["performance.md"] = _performance()
    pages |= _tutorials()
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        name = f"{path.stem}.ipynb"
        book = _run_tutorial(path)
        pages[f"tutorials/{path.stem}.md"] = (
            _tutorial_without_results(path) if book is None else as_page(book, name)
        )
        if book is not None:
            files.append(File.generated(config, f"tutorials/{name}", content=nbformat.writes(book)))
    for path in sorted((ROOT / "examples").glob("*.py")):
        content = nbformat.writes(example_notebook(path.read_text()))
        files.append(File.generated(config, f"tutorials/{path.stem}.ipynb", content=content))
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for id, stored in verdicts.items():
        for figure in stored["figures"][:1]:
            uri = f"gallery/{id}-small.webp"
            files.append(File.generated(config, uri, content=thumbnail(figure)))
        for figure in stored["figures"]:
            uri = f"gallery/{id}-{figure.stem}.png"
            files.append(File.generated(config, uri, abs_src_path=str(figure)))
    return files


_figures: dict[str, list[str]] = {}
"""Figures that the code of a page drew, by the page."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Insert stored benchmark results, and the output of the page's own code."""
    uri = page.file.src_uri
    markdown, _figures[uri] = run_page(markdown, uri, ROOT / ".cache" / "pages")
    return re.sub(
        r"<!-- measured: (\w+) -->", lambda found: _results_table(_results(found[1])), markdown
    )


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Draw the formulas of a page, and put the figures of its code where they belong."""
    return put_results(draw_formulas(html), _figures[page.file.src_uri])


def _tutorials() -> dict[str, str]:
    """Return a page for every script in examples, and the page that lists them."""
    lines = ["# Tutorials", "", "Notebooks, run when these pages were built:", ""]
    for path in sorted((ROOT / "docs" / "tutorials").glob("*.py")):
        title, about = title_of(path.read_text())
        lines.append(f"- [{title}]({path.stem}.md): {about}")
    lines += ["", "Scripts that run as they are; each takes seconds:", ""]
    pages = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        source = path.read_text()
        doc = ast.get_docstring(ast.parse(source)) or ""
        title, _, rest = doc.partition("\n")
        code = source.split('"""', 2)[2].strip()
        name = path.stem.replace("_", " ").capitalize()
        pages[f"tutorials/{path.stem}.md"] = (
            f"# {name}\n\n{title}\n{rest}\n\n```python\n{code}\n```\n\n"
            f"{download_link(f'{path.stem}.ipynb')}\n"
        )
        lines.append(f"- [{name}]({path.stem}.md): {title}")
    return pages | {"tutorials/index.md": "\n".join(lines) + "\n"}


def _run_tutorial(path: Path) -> Any:
    """Return a tutorial as an executed notebook, or None if a package that it needs is missing.

    Results are cached by the text of the tutorial and hyperribbon's source.
    """
    source = path.read_text()
    if any(find_spec(package) is None for package in needs(source)):
        return None
    code = "".join(file.read_text() for file in sorted((ROOT / "src").rglob("*.py")))
    key = hashlib.sha256((source + code).encode()).hexdigest()[:16]
    cached = ROOT / "build" / "tutorials" / f"{path.stem}-{key}.ipynb"
    if not cached.exists():
        with tempfile.TemporaryDirectory() as folder:
            book = execute(as_notebook(source), Path(folder))
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_text(cached, nbformat.writes(book))
    return nbformat.reads(cached.read_text(), as_version=4)


def _tutorial_without_results(path: Path) -> str:
    """Return the page of a tutorial that could not be run, with the reason."""
    title, about = title_of(path.read_text())
    missing = ", ".join(f"`{name}`" for name in needs(path.read_text()))
    return (
        f"# {title}\n\n{about}\n\n!!! note\n    This page was built without the package {missing}, "
        "so its code was not run and shows no results. Install it with "
        "`pip install 'hyperribbon[text]'` and build the pages again.\n\n"
        f"```python\n{path.read_text()}\n```\n"
    )


def _gallery(verdicts: dict[str, Any]) -> str:
    cards: dict[str, list[dict[str, Any]]] = {paper: [] for paper in PAPERS}
    for id, experiment in all_experiments().items():
        stored = verdicts.get(id)
        card = {"id": id, "title": experiment.title, "verdicts": _count_verdicts(stored)}
        cards[experiment.paper].append(card | {"figure": bool(stored and stored["figures"])})
    return gallery_page({paper: _paper(paper)["title"] for paper in PAPERS}, cards)


def _experiment_page(experiment: Any, stored: dict[str, Any] | None) -> str:
    lines = [f"# {experiment.title}", "", f"{experiment.module.__doc__.strip()}", ""]
    if stored:
        figure_id = experiment.id.split("/")[1]
        for figure in stored["figures"]:
            lines += [f"![{experiment.title}]({figure_id}-{figure.stem}.png)", ""]
        lines += [
            "| verdict | place | claim | measured | band | why |",
            "|---|---|---|---|---|---|",
        ]
        for claim in stored["claims"]:
            measured = "—" if claim["measured"] is None else f"{claim['measured']:.4g}"
            if claim["uncertainty"]:
                measured += f" ± {claim['uncertainty']:.2g}"
            cells = [claim["verdict"], claim["place"], claim["reading"], measured]
            cells += [claim["origin"], claim["why"]]
            lines.append("| " + " | ".join(str(c).replace("|", "\\|") for c in cells) + " |")
        lines += [
            "",
            f"Preset `{stored['preset']}`, {_seeds(stored)}.",
        ]
    lines += ["", "```sh", f"hyperribbon reproduce {experiment.id} --preset laptop", "```", ""]
    return "\n".join(lines)


def _paper_page(paper: str, verdicts: dict[str, Any]) -> str:
    entry = _paper(paper)
    lines = [f"# {entry['title']}", "", entry["reference"], "", f"Key: `[{paper}]`", ""]
    lines += ["## Equations", "", "| equation | what it is | function |", "|---|---|---|"]
    for equation, (path, text) in entry["equations"].items():
        room = max((r for r in ROOMS if path.startswith(f"{r}.")), key=len)
        lines.append(f"| {equation} | {text} | [`{path}`](../reference/{room}.md) |")
    if "systems" in entry:
        lines += ["", "## Every system of the text", "", "| place | system | call | judged in |"]
        lines.append("|---|---|---|---|")
        keys = ("place", "system", "call", "judged")
        rows = [[system[key] for key in keys] for system in entry["systems"]]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines += ["", "## Figures and claims", "", "| experiment | what it shows | claims |"]
    lines.append("|---|---|---|")
    for id, experiment in all_experiments().items():
        if experiment.paper == paper:
            counts = _count_verdicts(verdicts.get(id)).items()
            claims = ", ".join(f"{count} {verdict}" for verdict, count in counts) or "—"
            lines.append(f"| [`{id}`](../gallery/{id}.md) | {experiment.title} | {claims} |")
    captions = ROOT / "docs" / "papers" / f"{paper}.captions.toml"
    if captions.is_file():
        lines += caption_lines(paper, tomllib.loads(captions.read_text())["figure"], verdicts)
    lines += ["", "## Errors found in print", ""]
    lines += [f"- **{slip['place']}**: {slip['text']}" for slip in entry["slips"]]
    return "\n".join(lines) + "\n"


def _count_verdicts(stored: dict[str, Any] | None) -> dict[str, int]:
    """Return the number of claims of a stored run by verdict."""
    found = [claim["verdict"] for claim in (stored or {}).get("claims", [])]
    return {verdict: found.count(verdict) for verdict in VERDICTS if verdict in found}


def _reference_index() -> str:
    lines = ["# Reference", "", f"Version {VERSION}, generated from its docstrings.", ""]
    for room in ROOMS:
        module = attrgetter(room)(hyperribbon)
        lines.append(f"- [`{room}`]({room}.md): {(module.__doc__ or '').strip().splitlines()[0]}")
    return "\n".join(lines) + "\n"


def _performance() -> str:
    lines = [
        "# Performance",
        "",
        "Every row runs hyperribbon and its peers in one process on the same work, alternating, "
        "and checks that the answers agree before it compares times. Run it with `make bench`.",
        "",
    ]
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    for path in results:
        lines += [f"## {path.stem}", "", _results_table(read_json(path)), ""]
    if not results:
        lines.append("No results are stored yet.")
    return "\n".join(lines) + "\n"


def _results(name: str) -> dict[str, Any] | None:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return read_json(path) if path.exists() else None


def _results_table(content: dict[str, Any] | None) -> str:
    """Return the stored rows of one module of benchmarks, with the machine they ran on."""
    if content is None:
        return "No results are stored yet."
    machine = ", ".join(f"{key} {value}" for key, value in content["machine"].items())
    lines = [machine, "", "| row | who | result | times ours | target | verdict |"]
    lines.append("|---|---|---|---|---|---|")
    for row in content["rows"]:
        lines += [_benchmark_line(row["row"], line) for line in row["lines"]]
    return "\n".join(lines)


def _benchmark_line(row: str, line: dict[str, Any]) -> str:
    result = f"{line['median']:.4g} s" if "median" in line else "—"
    target = f"≥ {line['target']:g}" if line.get("target") is not None else ""
    if "value" in line:
        result = f"{line['value']:.4g} {line['unit']}".strip()
        bounds = (("≥", line["low"]), ("≤", line["high"]))
        target = ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
    ratio = f"{line['ratio']:.2f}" if "ratio" in line else ""
    return f"| {row} | {line['who']} | {result} | {ratio} | {target} | {line['verdict']} |"


def _paper(paper: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "docs" / "papers" / f"{paper}.toml").read_text())


def _stored_verdicts() -> dict[str, Any]:
    """Return claims and figures of the stored runs in docs/runs, by experiment."""
    found = {}
    for path in sorted((ROOT / "docs" / "runs").glob("*/claims.json")):
        info = read_json(path.parent / "run.json")
        found[info["id"]] = {
            "claims": read_json(path),
            "preset": info["preset"],
            "seed": info["environment"]["seed"],
            "seeds": len(info.get("seeds", [0])),
            "figures": sorted((path.parent / "figures").glob("*.png")),
        }
    return found


def _seeds(stored: dict[str, Any]) -> str:
    """Return how many seeds a stored run has, in words."""
    count, first = stored["seeds"], stored["seed"]
    return f"seed {first} alone" if count == 1 else f"{count} seeds from {first}"
