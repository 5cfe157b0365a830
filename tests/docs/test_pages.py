"""Pages of several versions beside each other, and examples as notebooks."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import hyperribbon

ROOT = Path(__file__).parents[2]


@pytest.fixture
def hooks(monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import hooks

    yield hooks
    for name in ("hooks", "notebooks"):
        sys.modules.pop(name, None)


def test_every_version_keeps_its_pages(hooks, tmp_path):
    config = SimpleNamespace(site_dir=str(tmp_path), site_name="hyperribbon", extra={})
    hooks.on_config(config)
    for version in ("0.0.9", "0.0.10", Path(config.site_dir).name):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").write_text("pages")
    hooks.on_post_build(config)
    listed = [entry["version"] for entry in json.loads((tmp_path / "versions.json").read_text())]
    assert listed == [hyperribbon.__version__, "0.0.10", "0.0.9"]
    assert f"url={hyperribbon.__version__}/" in (tmp_path / "index.html").read_text()
    assert hyperribbon.__version__ in hooks._reference_index()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_an_example_is_a_notebook_with_the_same_code(path, hooks):
    book = hooks.example_notebook(path.read_text())
    about, code = book.cells
    assert about.cell_type == "markdown" and code.cell_type == "code"
    assert code.source == path.read_text().split('"""', 2)[2].strip()
    assert f"({path.stem}.ipynb)" in hooks._tutorials()[f"tutorials/{path.stem}.md"]
