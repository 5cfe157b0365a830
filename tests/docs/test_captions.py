"""Captions line by line: every figure and every stored picture of a paper is compared."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

from hyperribbon.core.store import read_json
from hyperribbon.papers.experiments import all_experiments

ROOT = Path(__file__).parents[2]
TABLES = {
    path.name.split(".")[0]: tomllib.loads(path.read_text())["figure"]
    for path in sorted((ROOT / "docs" / "papers").glob("*.captions.toml"))
}
FIGURES = [(paper, figure) for paper, table in TABLES.items() for figure in table]


@pytest.fixture(scope="module")
def stored():
    """Pictures and claims of the stored runs, by experiment."""
    found = {}
    for path in (ROOT / "docs" / "runs").glob("*/claims.json"):
        pictures = {picture.stem for picture in (path.parent / "figures").glob("*.png")}
        found[read_json(path.parent / "run.json")["id"]] = {
            "pictures": pictures,
            "claims": read_json(path),
        }
    return found


@pytest.mark.parametrize("paper", TABLES)
def test_every_figure_of_the_paper_has_rows(paper):
    printed = {
        id.split("/")[1]
        for id, experiment in all_experiments().items()
        if experiment.paper == paper and id.split("/")[1].startswith(("fig", "table"))
    }
    assert {figure["experiment"] for figure in TABLES[paper]} >= printed
    names = [figure["name"] for figure in TABLES[paper]]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("paper", "figure"), FIGURES, ids=[f"{paper}-{figure['name']}" for paper, figure in FIGURES]
)
def test_every_sentence_names_pictures_and_claims_that_exist(paper, figure, stored):
    run, shown = stored[f"{paper}/{figure['experiment']}"], set()
    for row in figure["sentence"]:
        assert set(row) <= {"caption", "pictures", "shown", "differs", "claims"}
        assert row["caption"].strip() and row["shown"].strip() and row.get("differs", "x").strip()
        assert set(row.get("claims", [])) <= {c["id"].split("/")[-1] for c in run["claims"]}
        shown |= set(row.get("pictures", []))
    same = [f for f in TABLES[paper] if f["experiment"] == figure["experiment"]]
    others = {p for f in same for row in f["sentence"] for p in row.get("pictures", [])}
    assert shown and others == run["pictures"], "a stored picture is not compared, or is missing"


def test_rows_are_rendered_with_the_verdicts_of_the_stored_run():
    spec = importlib.util.spec_from_file_location("captions", ROOT / "docs" / "captions.py")
    captions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(captions)
    same = {"caption": "a | b", "shown": "both", "pictures": ["one"], "claims": ["c", "d"]}
    other = {"caption": "e", "shown": "none", "differs": "all of it"}
    figure = {"name": "Fig. 9", "experiment": "fig9", "sentence": [same, other]}
    claims = {"p/fig9": {"claims": [{"id": "p/fig9/c", "verdict": "holds"}]}}
    page = "\n".join(captions.caption_lines("p", [figure], claims))
    row = (
        "| a \\| b | both ([one](../gallery/p/fig9-one.png)) | no. Claims: `c` holds, `d` not run |"
    )
    assert row in page and "| e | none | all of it |" in page and "### Fig. 9" in page
