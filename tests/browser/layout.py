"""Text that is clipped, overlaps other text, or hangs out of the page, in HTML and in SVG.

`python -m tests.browser.layout FOLDER --out SHOTS` serves the explorer on a folder of runs, visits
every page, and a report of the folder with all its tabs, at 390 and 1280 pixels, light and dark,
saves a picture of each and lists the faults. Exit status 1 where there are some.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
THEORY = ("ribbons", "linear", "fluctuations", "two-layers")
FAULTS = """() => {
    const slack = 2, faults = [], pieces = [];
    const width = document.documentElement.clientWidth;
    const shown = element => element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})
        && !element.closest('.unseen');
    // What ancestors cut off for good, and what they show now: scrolling brings the rest into view.
    const frames = element => {
        const all = {left: -1e9, top: -1e9, right: 1e9, bottom: 1e9};
        const cut = {...all}, seen = {...all};
        const narrow = (box, own) => {
            box.left = Math.max(box.left, own.left); box.top = Math.max(box.top, own.top);
            box.right = Math.min(box.right, own.right);
            box.bottom = Math.min(box.bottom, own.bottom);
        };
        let scrolls = false;
        for (let e = element; e instanceof Element; e = e.parentElement) {
            if (e === document.documentElement || e === document.body) { break; }
            const style = getComputedStyle(e), both = style.overflowX + style.overflowY;
            if (style.webkitLineClamp && style.webkitLineClamp !== 'none') { return null; }
            if (style.textOverflow === 'ellipsis') { return null; }
            const isSvg = e.tagName === 'svg' && both !== 'visiblevisible';
            if (/auto|scroll/.test(both)) {
                scrolls = true;
                narrow(seen, e.getBoundingClientRect());
            } else if (isSvg || /hidden|clip/.test(both)) {
                narrow(seen, e.getBoundingClientRect());
                if (!scrolls) { narrow(cut, e.getBoundingClientRect()); }
            }
        }
        return {cut, seen, scrolls};
    };
    const corners = ({left, top, right, bottom}) =>
        [[left, top], [right, top], [right, bottom], [left, bottom]];
    const add = (element, rect, text, outline) => {
        if (rect.width < 1 || rect.height < 1 || rect.right < 0) { return; }
        const found = frames(element);
        if (found === null) { return; }
        const {cut, seen, scrolls} = found, short = text.trim().slice(0, 50);
        if (rect.left < cut.left - slack || rect.right > cut.right + slack
            || rect.top < cut.top - slack || rect.bottom > cut.bottom + slack) {
            faults.push(`clipped: ${short}`);
        } else if (!scrolls && rect.right > width + slack) {
            faults.push(`beyond the page: ${short}`);
        }
        const isSeen = rect.left >= seen.left - slack && rect.right <= seen.right + slack
            && rect.top >= seen.top - slack && rect.bottom <= seen.bottom + slack;
        if (isSeen) { pieces.push({element, rect, short, outline: outline ?? corners(rect)}); }
    };
    for (const text of document.querySelectorAll('svg text')) {
        if (!text.textContent.trim() || !shown(text)) { continue; }
        // Formulas have a piece per letter; the space between these counts in a larger font.
        const letters = [...text.children].filter(e => e.textContent.trim())
            .map(e => e.getBoundingClientRect());
        if (letters.length) {
            const least = side => Math.min(...letters.map(r => r[side]));
            const most = side => Math.max(...letters.map(r => r[side]));
            const [x, y] = [least('left'), least('top')];
            const rect = new DOMRect(x, y, most('right') - x, most('bottom') - y);
            add(text, rect, text.textContent);
            continue;
        }
        const box = text.getBBox(), place = text.getScreenCTM();
        const outline = [[0, 0], [1, 0], [1, 1], [0, 1]].map(([i, j]) => {
            const point = new DOMPoint(box.x + i * box.width, box.y + j * box.height);
            const there = point.matrixTransform(place);
            return [there.x, there.y];
        });
        add(text, text.getBoundingClientRect(), text.textContent, outline);
    }
    const walker = document.createTreeWalker(document.body ?? document.documentElement, 4);
    while (walker.nextNode()) {
        const node = walker.currentNode, element = node.parentElement;
        if (!node.data.trim() || !element || element.closest('svg, script, style, noscript, option')
            || !shown(element)) { continue; }
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const rect of range.getClientRects()) { add(element, rect, node.data); }
    }
    // Two convex outlines overlap by the least of their overlaps along the normals of their edges.
    const depth = (p, q) => {
        let least = 1e9;
        for (const shape of [p, q]) {
            for (let i = 0; i < 4; i++) {
                const [a, b] = [shape[i], shape[(i + 1) % 4]];
                const length = Math.hypot(b[0] - a[0], b[1] - a[1]) || 1;
                const [x, y] = [(a[1] - b[1]) / length, (b[0] - a[0]) / length];
                const along = points => points.map(c => c[0] * x + c[1] * y);
                const [u, v] = [along(p), along(q)];
                const shared = Math.min(Math.max(...u), Math.max(...v))
                    - Math.max(Math.min(...u), Math.min(...v));
                least = Math.min(least, shared);
            }
        }
        return least;
    };
    pieces.sort((a, b) => a.rect.top - b.rect.top);
    for (let i = 0; i < pieces.length; i++) {
        const a = pieces[i];
        for (let j = i + 1; j < pieces.length && pieces[j].rect.top < a.rect.bottom - slack; j++) {
            const b = pieces[j], [p, q] = [a.element, b.element];
            if (p === q || p.contains(q) || q.contains(p)) { continue; }
            // Boxes include the space between lines, which may be shared.
            const room = Math.max(slack, 0.3 * Math.min(a.rect.height, b.rect.height));
            if (depth(a.outline, b.outline) > room) {
                faults.push(`overlap: ${a.short} / ${b.short}`);
            }
        }
    }
    return [...new Set(faults)];
}"""
SETTLED = """() => {
    const plots = [...document.querySelectorAll('.dash-graph')].filter(g => g.offsetParent);
    const text = document.querySelector('#content, main')?.innerText ?? '';
    // What a callback fills in is there, or the page would be looked at while it is empty.
    const filled = ['#runs-shown', '#live-state', '#table-count', '.page .readings'];
    const empty = filled.map(name => document.querySelector(name))
        .filter(element => element && !element.innerText.trim());
    return text.length > 20 && !empty.length && plots.every(g => g.querySelector('.main-svg'))
        && [...document.images].every(image => image.complete);
}"""
OVERLAID = "() => document.querySelector('#table-overlay')?.innerText.trim()"
DRAWN = """(i) => {
    const panel = document.querySelectorAll('[role=tabpanel]')[i];
    const charts = panel.querySelectorAll('.chart-data').length;
    return panel.querySelectorAll('.drawn .main-svg, [data-state=image]').length >= charts;
}"""


def find_faults(page: Any, seconds: int = 0) -> list[str]:
    """Return what is clipped or overlaps on a page, as it is and with everything unfolded.

    Args:
        page: Of playwright.
        seconds: What is gone by then was a chart being drawn.
    """
    found = _lasting(page, seconds)
    page.evaluate("() => document.querySelectorAll('main details').forEach(d => { d.open = true })")
    return list(dict.fromkeys([*found, *_lasting(page, seconds)]))


def _lasting(page: Any, seconds: int) -> list[str]:
    found = page.evaluate(FAULTS)
    for _ in range(seconds):
        if found:
            page.wait_for_timeout(1000)
            found = [fault for fault in page.evaluate(FAULTS) if fault in found]
    return found


def visit_explorer(page: Any, link: Any, names: list[str]) -> Iterator[str]:
    """Open every page of the explorer, and yield its name once it is drawn.

    Args:
        page: Of playwright.
        link: Returns the address of a path.
        names: Runs to open: each alone, and the first two side by side.
    """
    runs = {f"runs?run={name}": f"run-{name.replace('/', '-')}" for name in names}
    runs |= {f"live?run={name}": f"live-{name.replace('/', '-')}" for name in names[:1]}
    paths = {"": "home", "table": "table", "live": "live", "runs": "runs", **runs}
    paths |= {key: f"theory-{key}" for key in THEORY}
    for path, name in paths.items():
        page.goto(link(path))
        page.wait_for_function(SETTLED)
        if name == "table":
            ticks = page.locator("#table-body input")
            ticks.nth(0).wait_for()
            for number in range(min(2, ticks.count())):
                ticks.nth(number).check()
            page.wait_for_function(OVERLAID)
            page.wait_for_function(SETTLED)
        page.wait_for_timeout(400)
        yield name


def visit_report(page: Any, path: Path) -> Iterator[str]:
    """Open a report and each of its tabs, and yield their names."""
    page.goto(path.as_uri())
    tabs = page.locator("[role=tab]")
    for index in range(tabs.count()):
        label = tabs.nth(index).inner_text()
        tabs.nth(index).click()
        page.wait_for_function(DRAWN, arg=index)
        page.wait_for_timeout(200)
        yield f"report-{index:02d}-{label}".replace("/", "-").replace(" ", "-")


def visit_pictures(page: Any, folder: Path) -> Iterator[str]:
    """Open every SVG picture of the stored runs in a folder, and yield its name."""
    for path in sorted(folder.rglob("figures/*.svg")):
        page.goto(path.as_uri())
        yield f"picture-{path.parent.parent.name}-{path.stem}"


def main() -> int:
    """Visit everything, save pictures, and print what is wrong."""
    import threading

    from playwright.sync_api import sync_playwright
    from tests.browser.conftest import ARGUMENTS, CHROMIUM, Address

    from hyperribbon.application.explorer import serve
    from hyperribbon.application.explorer.runs.catalogue import find_entries
    from hyperribbon.application.report import write_report

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("screenshots"))
    parser.add_argument("--only", default="", help="widths and schemes, such as 390-light")
    parser.add_argument("--report", type=Path, help="a report to visit, in place of one of FOLDER")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    report = chosen.report or write_report([chosen.folder], chosen.out / "report.html")
    server = serve(chosen.folder, port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    link = Address(server.address).page
    entries = list(find_entries(chosen.folder).values())
    kinds = dict.fromkeys(entry.kind for entry in entries)
    names = [next(e.name for e in entries if e.kind == kind) for kind in kinds]
    count = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for width in WIDTHS:
            for scheme in SCHEMES:
                if chosen.only not in f"{width}-{scheme}":
                    continue
                size = {"width": width, "height": 900}
                page = browser.new_context(viewport=size, color_scheme=scheme).new_page()
                visits = [visit_explorer(page, link, names), visit_report(page, report.resolve())]
                if (width, scheme) == (1280, "light"):
                    visits.append(visit_pictures(page, chosen.folder.resolve()))
                for name in (name for visit in visits for name in visit):
                    shot = chosen.out / f"{name}-{width}-{scheme}.png"
                    if not name.startswith("picture"):
                        page.screenshot(path=shot, full_page=True)
                    for fault in find_faults(page, 5):
                        print(f"{name} {width} {scheme}: {fault}", flush=True)
                        count += 1
                page.context.close()
        browser.close()
    server.shutdown()
    print(f"{count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
