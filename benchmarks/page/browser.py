"""A page in Chromium, and how long what a person does in it takes: from the event until the browser has drawn what comes of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FRAMES = 60
_SEARCHED = "post_att"
_DRAWN = "await new Promise(requestAnimationFrame); await new Promise((done) => setTimeout(done, 0));"
_ONCE = f"""async () => {{
  const start = performance.now();
  ACT;
  {_DRAWN}
  return [performance.now() - start];
}}"""
_MOVING = f"""async () => {{
  const times = [];
  for (let k = 1; k <= COUNT; k++) {{
    const start = performance.now();
    ACT;
    {_DRAWN}
    times.push(performance.now() - start);
  }}
  return times;
}}"""


def _click(selector: str) -> str:
    return f'document.querySelector(`{selector}`).dispatchEvent(new MouseEvent("click", {{bubbles: true}}))'


def _button(name: str) -> str:
    return f'[...document.querySelectorAll("button")].find((each) => each.textContent === "{name}").click()'


def _chosen(label: str, option: str) -> str:
    return (
        f'const select = document.querySelector(`select[aria-label="{label}"]`); '
        f'select.value = "{option}"; select.dispatchEvent(new Event("change", {{bubbles: true}}))'
    )


_TYPED = 'const search = document.getElementById("search"); search.value = TEXT; search.dispatchEvent(new Event("input", {bubbles: true}))'
ONCE: Mapping[str, str] = {
    "fold all": _button("fold"),
    "expand all": _button("unfold"),
    "fold one layer": _click('.row[aria-level="4"][aria-expanded="true"] .twist'),
    "expand one layer": _click('.row[aria-level="4"][aria-expanded="false"] .twist'),
    "choose a module": _click(".row:nth-child(12)"),
    "go to the first divergence (n)": 'document.dispatchEvent(new KeyboardEvent("keydown", {key: "n", bubbles: true}))',
    "filter by verdict": _chosen("Verdict", "inherited"),
    "filter by phase too": _chosen("Phase", "backward"),
    "clear the filter": _button("clear"),
    "clear the search": _TYPED.replace("TEXT", '""'),
    "change the colours": '[...document.querySelectorAll(".top button")].pop().click()',
    "open the graph": _click("#tab-graph"),
    "expand a module in the graph": _click(".side-a .opener"),
    "unfold a run of layers": _click(".side-a .node.run"),
    "choose a node": _click(".side-a .node:not(.run)"),
    "show the graph of backward": _chosen("Phase of the graph", "backward"),
    "back to the modules": _click("#tab-modules"),
}
"""what is done once, in this order, by what a script does in its place"""
MOVING: Mapping[str, tuple[str, int, str]] = {
    "scroll the trees": ("expand all", _FRAMES, 'document.querySelector(".rows").scrollTop = k * 520'),
    "move over the picture": (
        "expand all",
        _FRAMES,
        """const box = document.querySelector(".u-over").getBoundingClientRect();
        document.querySelector(".u-over").dispatchEvent(new MouseEvent("mousemove",
          {bubbles: true, clientX: box.left + k * 10, clientY: box.top + 40}))""",
    ),
    "search, letter by letter": (
        "clear the filter",
        len(_SEARCHED),
        _TYPED.replace("TEXT", f'"{_SEARCHED}".slice(0, k)'),
    ),
    "zoom the graph": (
        "open the graph",
        _FRAMES,
        'document.querySelector(".graph-canvas").dispatchEvent(new WheelEvent("wheel", {deltaY: k % 2 ? 9 : -9, ctrlKey: true, cancelable: true}))',
    ),
}
"""what is moved: behind what it comes, its frames, and a script of the k-th of them"""


@dataclass(frozen=True)
class Times:
    """How long something took, in milliseconds."""

    frames: tuple[float, ...]
    """by the clock: one number, or one of each frame of a movement"""
    computed: float
    """processor time of the page, of a frame"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def measured(browser: Browser, path: Path) -> dict[str, Times]:
    """Open a page from disk and do everything once; return the times of each, that of loading first."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    clock = context.new_cdp_session(page)
    clock.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(path.as_uri())
    page.wait_for_selector("#app[data-state=shown]", timeout=60_000)
    shown = page.evaluate("performance.getEntriesByName('shown')[0].startTime")
    found = {"load": Times((shown,), _worked(clock))}
    page.wait_for_selector(".panel .statistics", timeout=60_000)
    page.evaluate("new Promise(requestIdleCallback)")
    found["load, with what the panel shows"] = Times((page.evaluate("performance.now()"),), _worked(clock))
    for name, act in ONCE.items():
        found[name] = _timed(page, clock, _ONCE.replace("ACT", act))
        for moving, (before, frames, each) in MOVING.items():
            if before == name:
                found[moving] = _timed(page, clock, _MOVING.replace("COUNT", str(frames)).replace("ACT", each))
    context.close()
    return found


def _timed(page: Page, clock: Any, script: str) -> Times:
    before = _worked(clock)
    frames = page.evaluate(script)
    return Times(tuple(frames), (_worked(clock) - before) / len(frames))


def _worked(clock: Any) -> float:
    found = clock.send("Performance.getMetrics")["metrics"]
    return 1000 * next(each["value"] for each in found if each["name"] == "TaskDuration")
