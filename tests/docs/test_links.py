"""Links lead somewhere, names exist, and what users search for has a paragraph."""

import re
from operator import attrgetter
from pathlib import Path

import pytest

import hyperribbon
from hyperribbon.papers.experiments import PAPERS, all_experiments

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
GENERATED = {
    ROOT / "docs" / name
    for name in (
        "gallery/index.md",
        "ledger.md",
        "performance.md",
        "reference/index.md",
        "tutorials/index.md",
        *(f"papers/{paper}.md" for paper in PAPERS),
        *(f"gallery/{id}.md" for id in all_experiments()),
    )
}
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.S | re.M)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SEARCHED = (
    "TensorBoard",
    "Weights & Biases",
    "Adam",
    "BatchNorm",
    "LoRA",
    "GPU",
    "Memory",
    "Mixed precision",
    "torch.compile",
)


def broken(page: Path, text: str) -> list[str]:
    """Return the links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(CODE.sub("", text)):
        target, _, place = link.partition("#")
        if "://" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if file in GENERATED:
            continue
        if not file.exists() or (place and place not in headings(file)):
            found.append(link)
    return found


def headings(file: Path) -> set[str]:
    lines = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
    return {re.sub(r"[^\w\s-]", "", line).strip().lower().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert not broken(page, page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_of_the_library_exist(page):
    for name in set(re.findall(r"\bhr\.([a-zA-Z_]\w*(?:\.[a-zA-Z_]\w*)*)", page.read_text())):
        attrgetter(name)(hyperribbon)


def test_a_broken_link_is_noticed():
    page = ROOT / "docs" / "index.md"
    text = "[a](nowhere.md) [b](faq.md#no-such-heading) [c](faq.md#gpu) `[d](no.md)`"
    assert broken(page, text) == ["nowhere.md", "faq.md#no-such-heading"]


@pytest.mark.parametrize("word", SEARCHED)
def test_what_people_search_for_has_a_heading_and_words(word):
    sections = re.split(r"^### ", (ROOT / "docs" / "faq.md").read_text(), flags=re.M)[1:]
    found = [s for s in sections if word.lower() in s.splitlines()[0].lower()]
    assert found, f"no question of the FAQ is about {word}"
    assert len(CODE.sub("", found[0]).split()) > 30
