"""Tutorials: scripts in cells (`# %%`) are run as notebooks and become pages with outputs.

By hand: python docs/notebooks.py docs/tutorials/transformer.py transformer.ipynb
"""

from __future__ import annotations

import ast
import os
import re
import sys
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

__all__ = ["as_notebook", "as_page", "download_link", "example_notebook", "execute", "needs"]
__all__ += ["title_of"]

_SECONDS = 600  # a cell that takes longer has hung


def as_notebook(source: str) -> NotebookNode:
    """Return a script as a notebook.

    A line `# %% [markdown]` begins text, whose lines are comments, and `# %%` begins code.
    """
    book = nbformat.v4.new_notebook()
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    for kind, text in re.findall(r"^# %%( \[markdown\])?\n(.*?)(?=^# %%|\Z)", source, re.M | re.S):
        if kind:
            words = re.sub(r"^# ?", "", text, flags=re.M).strip()
            book.cells.append(nbformat.v4.new_markdown_cell(words))
        else:
            book.cells.append(nbformat.v4.new_code_cell(text.replace("", "").strip()))
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number}"  # the same at every build
    return book


def needs(source: str) -> list[str]:
    """Return the packages that a script says it needs: `# needs: package` on its first lines."""
    return re.findall(r"^# needs: (\w+)$", source, re.M)


def execute(book: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell, in a folder; a cell that fails ends it."""
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
    with TemporaryDirectory() as place:  # sockets there: no port is opened
        sockets = {"transport": "ipc", "connection_file": f"{place}/kernel.json"}
        kernel = AsyncKernelManager(kernel_name="python3", ip=f"{place}/kernel", **sockets)
        where = {"metadata": {"path": str(folder)}}
        NotebookClient(book, km=kernel, timeout=_SECONDS, resources=where).execute()
    return book


def as_page(book: NotebookNode, name: str) -> str:
    """Return an executed notebook as Markdown, with its outputs and a link to itself.

    Args:
        book: The notebook.
        name: File name of the notebook beside the page.
    """
    parts = []
    for cell in book.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [shown for output in _joined(cell.outputs) if (shown := _output(output))]
    title, *rest = "\n\n".join(parts).split("\n", 1)
    return "\n\n".join([title, *rest, download_link(name)]) + "\n"


def download_link(name: str) -> str:
    """Return the button that downloads the notebook beside a page."""
    return f"[Download this page as a notebook]({name}){{ .md-button }}"


def example_notebook(source: str) -> NotebookNode:
    """Return a script with a docstring as a notebook of text and code, without results."""
    about = ast.get_docstring(ast.parse(source)) or ""
    code = source.split('"""', 2)[2].strip()
    words = "\n".join(f"# {line}".rstrip() for line in about.splitlines())
    return as_notebook(f"# %% [markdown]\n{words}\n# %%\n{code}\n")


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return outputs with what was printed in pieces as one, without what went to the log."""
    found: list[NotebookNode] = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1] = NotebookNode({**found[-1], "text": found[-1].text + output.text})
        else:
            found.append(output)
    return found


def _output(output: NotebookNode) -> str:
    """Return one output of a cell: a picture, HTML, or text."""
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```" if output.text.strip() else ""
    data = output.get("data", {})
    if "image/png" in data:
        content = data["image/png"].replace("\n", "")
        return (
            f'<img class="drawn" alt="What the code draws" src="data:image/png;base64,{content}"/>'
        )
    if data.get("text/html", "").strip():
        html = re.sub(r"\n\s*\n", "\n", data["text/html"])  # Markdown ends HTML at an empty line
        return f'<div class="output">{html}</div>'
    text = data.get("text/plain", "")
    return f"<pre class='output'>{escape(text)}</pre>" if text and "text/html" not in data else ""


def title_of(source: str) -> tuple[str, str]:
    """Return the heading of a tutorial and its first paragraph."""
    first = as_notebook(source).cells[0].source
    title, _, rest = first.partition("\n")
    return title.lstrip("# "), rest.strip().split("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    given, wanted = map(Path, sys.argv[1:])
    nbformat.write(execute(as_notebook(given.read_text()), wanted.absolute().parent), wanted)
