"""Makes pairs of Qwen2 with 48 layers, and with some 2,000 and 20,000 modules, and measures their pages in Chromium."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import torch

from benchmarks.page.browser import MOVING, Times, chromium, measured
from benchmarks.page.pairs import PER_LAYER, compared
from probe.report.html import as_html

NODES = (48 * PER_LAYER, 2_000, 20_000)
LIMITS = {"load": 1500, "load, with what the panel shows": 1500, "open the graph": 200}
ANSWERED = 100
"""milliseconds of processor time that each may take, and what is not named"""


@dataclass(frozen=True)
class Case:
    """A pair, and what its page costs."""

    layers: int
    modules: int
    """of A"""
    tensors: int
    """pairs of them"""
    size: int
    """bytes of the page"""
    made: float
    """seconds of processor time that the page took to make, without the comparison"""
    times: dict[str, list[Times]]
    """of each way, once for each time that the page was opened"""

    @property
    def slow(self) -> list[str]:
        """The ways that take longer than they may."""
        return [name for name, found in self.times.items() if computed(found) > LIMITS.get(name, ANSWERED)]


@click.command()
@click.option("--nodes", multiple=True, type=int, default=NODES, show_default=True, help="About so many modules.")
@click.option("--repeat", default=3, show_default=True, help="How often each page is opened; medians are shown.")
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where recordings and pages are kept; recordings that are there are not made again.",
)
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the tables here too.")
def main(nodes: tuple[int, ...], repeat: int, keep: Path | None, markdown: Path | None) -> None:
    """Make the pages and measure them; exit status 1 if something is slow."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        cases = [_case(max(1, round(each / PER_LAYER)), place, repeat) for each in nodes]
    page = as_page(cases, repeat)
    click.echo(page)
    if markdown:
        markdown.write_text(page, encoding="utf-8")
    raise SystemExit(1 if any(case.slow for case in cases) else 0)


def _case(layers: int, folder: Path, repeat: int) -> Case:
    answer = compared(layers, folder)
    began = time.process_time()
    html = as_html(answer)
    made = time.process_time() - began
    path = folder / f"{layers}.html"
    path.write_text(html, encoding="utf-8")
    modules = len({slot.path_a for slot in answer.slots})
    with chromium() as browser:
        found = [measured(browser, path) for _ in range(repeat)]
    times = {name: [each[name] for each in found] for name in found[0]}
    return Case(layers, modules, len(answer.slots), path.stat().st_size, made, times)


def computed(found: list[Times]) -> float:
    """Return the processor time of a way: of several times that it was gone, the median."""
    return median(each.computed for each in found)


def as_page(cases: list[Case], repeat: int) -> str:
    """Return the figures as a page of Markdown."""
    heads = [f"{case.layers:,} layers" for case in cases]
    lines = [
        "# The HTML report in the browser",
        "",
        "Written by `python -m benchmarks.page --markdown docs/evidence/page.md`: a Qwen2 with other kernels of attention on the two sides and one "
        "wrong eps, one step of training, statistics of everything; the page opened from disk in headless Chromium at 1280×800. A time is the "
        "processor time of the page and, in brackets, what the clock showed from the event until the browser had drawn what came of it, in "
        f"milliseconds, the median of {repeat} openings. Of movements it is that of a frame; the clock's, the median and the worst.",
        "",
        f"| | {' | '.join(heads)} |",
        "|---|" + "---:|" * len(cases),
        _row("modules with numbers, on each side", [f"{case.modules:,}" for case in cases]),
        _row("pairs of tensors", [f"{case.tensors:,}" for case in cases]),
        _row("size of the page, MB", [f"{case.size / 1e6:.2f}" for case in cases]),
        _row("processor time to make the page, s (without the comparison)", [f"{case.made:.1f}" for case in cases]),
        *(_row(name, [_text(name, case.times[name]) for case in cases]) for name in cases[0].times),
        "",
        f"The program fails if loading takes more than {LIMITS['load']:,} ms of processor time, opening the graph, which is laid out then, "
        f"{LIMITS['open the graph']}, or anything else {ANSWERED}. "
        + ("Nothing does." if not any(case.slow for case in cases)
           else "Slow: " + "; ".join(f"{case.layers:,} layers: {', '.join(case.slow)}" for case in cases if case.slow) + "."),
    ]  # fmt: skip
    return "\n".join([*lines, ""])


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _text(name: str, found: list[Times]) -> str:
    clock = f"{median(median(each.frames) for each in found):,.0f}"
    if name in MOVING:
        clock += f", {median(max(each.frames) for each in found):,.0f}"
    return f"{computed(found):,.0f} ({clock})"


if __name__ == "__main__":
    main()
