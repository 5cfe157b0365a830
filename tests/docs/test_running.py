"""Pages whose code runs when they are built."""

import runpy
from pathlib import Path

import pytest

running = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "running.py"))

PAGE = """# A page

```python
import matplotlib.figure
figure = matplotlib.figure.Figure()
figure.subplots().plot([1, 2], color="#D55E00")
print("six times seven is", 6 * 7)
```
<!-- prints -->

Words.

<!-- draws: a "line" -->
"""


def test_what_is_printed_and_drawn_stands_below_the_code():
    text, figures = running["run_page"](PAGE, "page")
    assert "\nsix times seven is 42\n```\n" in text
    assert "<!--" not in text
    page = running["put_results"](f"<p>before</p>{text}", figures)
    assert page.count("<svg") == 1
    assert 'aria-label="a &quot;line&quot;"' in page
    assert "#d55e00" in page.lower() and "#000000" not in page


def test_results_are_kept_until_the_code_changes(tmp_path):
    page = "```python\nimport time\nprint(time.perf_counter_ns())\n```\n<!-- prints -->\n"
    first, _ = running["run_page"](page, "page", tmp_path)
    again, _ = running["run_page"]("# Other words\n" + page, "page", tmp_path)
    assert again == "# Other words\n" + first
    changed, _ = running["run_page"](page.replace("print(", "print(1 + "), "page", tmp_path)
    assert changed != first


def test_a_page_without_questions_is_left_alone():
    page = "```python\nraise ValueError\n```\n"
    assert running["run_page"](page, "page") == (page, [])


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("```python\n1 / 0\n```\n<!-- prints -->\n", "ZeroDivisionError"),
        ("```python\nx = 1\n```\n<!-- draws: nothing -->\n", "makes a `figure`"),
    ],
)
def test_a_failure_names_the_page_and_the_reason(page, reason):
    with pytest.raises(RuntimeError, match=reason) as raised:
        running["run_page"](page, "concepts/x.md")
    assert "concepts/x.md" in str(raised.value)
