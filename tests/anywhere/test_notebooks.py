"""A notebook that uses the library, run as Jupyter would; the tutorials' cells."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest

DOCS = Path(__file__).parents[2] / "docs"
sys.path.append(str(DOCS))

import notebooks  # noqa: E402

CELLS = """
# %%
import torch
from torch import nn

import hyperribbon as hr

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
data = torch.randn(48, 4), torch.randint(0, 3, (48,))
# %%
found = hr.inspect(model, nn.CrossEntropyLoss(), data, k=3, budget=3)
found
# %%
import time

shown = []
get_ipython().display_pub.register_hook(lambda message: (shown.append(str(message)), message)[1])

from rich.console import Console
from hyperribbon.core.progress import progress_bar

with progress_bar(Console()) as bar:
    task = bar.add_task("counting <b>", total=2)
    time.sleep(0.3)
    bar.advance(task)
print(*shown)
# %%
hr.InPCA(n_components=2).fit(torch.randn(6, 4, 3).softmax(-1))
# %%
found.summary()
"""


def run(source: str, folder: Path) -> nbformat.NotebookNode:
    """Run cells in a process of its own, as the docs do by hand."""
    script, book = folder / "script.py", folder / "book.ipynb"
    script.write_text(source)
    command = [sys.executable, str(DOCS / "notebooks.py"), str(script), str(book)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return nbformat.read(book, as_version=4)


def outputs_of(book: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    found = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not any(o.output_type == "stream" and o.name == "stderr" for o in found), found
    return found


def test_results_and_progress_in_a_notebook(tmp_path):
    book = run(CELLS, tmp_path)
    inspected, progress, embedded, told = (cell.outputs for cell in book.cells[1:])
    assert inspected[-1].output_type == "execute_result"
    assert "measured on" in inspected[-1].data["text/html"]
    (said,) = [output.text for output in progress if output.output_type == "stream"]
    assert "counting &lt;b&gt;" in said and 'value="1' in said
    assert not any("<progress" in str(o.get("data", "")) for o in outputs_of(book))
    assert "InPCA of 6 models" in embedded[-1].data["text/html"]
    assert "Sequential" in told[0].data["text/plain"]
    page = notebooks.as_page(book, "it.ipynb")
    assert "InPCA of 6 models" in page and "```python\nfound.summary()\n```" in page


TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_has_a_question_text_and_code(path):
    book = notebooks.as_notebook(path.read_text())
    kinds = [cell.cell_type for cell in book.cells]
    title, about = notebooks.title_of(path.read_text())
    assert kinds[0] == "markdown" and "?" in title and about
    assert kinds.count("code") >= 4 and kinds.count("markdown") >= 4
    for cell in book.cells:
        if cell.cell_type == "code":
            compile(cell.source, path.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path):
    source = path.read_text()
    missing = [package for package in notebooks.needs(source) if find_spec(package) is None]
    if missing:
        pytest.skip(f"{missing} is not installed: pip install 'hyperribbon[text]'")
    outputs = [o for cell in run(source, tmp_path).cells for o in cell.get("outputs", [])]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds
