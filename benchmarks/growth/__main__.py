"""`python -m benchmarks.growth`: how CPU time and memory of comparing and recording grow with modules, steps and bytes.

Every recording and every comparison is a process of its own; a comparison is the console script `probe-compare`. CPU time is user and
system time of all threads of the process, its start and its imports included. An answer that is wrong ends the program.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from benchmarks.growth.making import Run, as_text
from benchmarks.growth.measuring import BASE, OURS, Cost, compared, python, started, with_compiled_modules

MODULES = [Run(modules) for modules in (10, 100, 1_000, 10_000)]
STEPS = [Run(1_000, steps) for steps in (1, 10, 100)]
VALUES = Run(125, width=512, tokens=512, task="tensor")
AGREES, DIFFERS = "agree but for rounding", "one fault, in the last step"
EQUAL = "recorded twice, all hashes equal"
SIDES = {AGREES: {"is_rounded": True}, DIFFERS: {"is_rounded": True, "is_wrong": True}, EQUAL: {}}
"""by the pair, how its B differs from A"""
BOUNDS = {"records": (1_000, 0.5), "values": 2.0}
"""CPU seconds of a comparison of about so many records; seconds of one of two recordings with values"""
LINEAR = 1.1
"""exponent up to which growth is called linear"""
_LEAST = 0.1
"""CPU seconds, or MiB by the hundred, below which the start of the process hides the growth"""
_OFTEN = 20_000
"""records up to which a comparison is repeated"""


@dataclass(frozen=True)
class Row:
    """One comparison."""

    run: Run
    pair: str
    records: int
    """of A"""
    size: float
    """MiB of A"""
    cost: Cost


@dataclass(frozen=True)
class Recorded:
    """What recording cost beyond the training, its start and end included."""

    run: Run
    records: int
    cpu: float
    plain: float
    """CPU seconds of the training alone"""
    peak: float
    """MiB more than before"""
    is_earlier: bool
    """it was measured when the recording was made, in an earlier run with ``--keep``"""


@click.command()
@click.option("--repeats", default=5, show_default=True, help="How often a comparison of few records is made.")
@click.option("--most", default=10**6, show_default=True, help="Records of the largest recording.")
@click.option("--no-values", is_flag=True, help="Without the recordings of 1.2 GB.")
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Leave the recordings in this folder.")
@click.option(
    "--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here, the plot beside it."
)
def main(repeats: int, most: int, no_values: bool, keep: Path | None, markdown: Path | None) -> None:
    """Record, compare, print tables.

    Example: python -m benchmarks.growth --most 10000 --no-values
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with_compiled_modules(Path(temporary) / "compiled")
        python("-m", "benchmarks.growth.making", as_text(MODULES[0]), str(folder / "first.h5"))  # compiles the modules
        begun = started(BASE, repeats)
        runs = [run for run in dict.fromkeys([*MODULES, *STEPS]) if 10 * run.modules * run.steps <= most]
        recorded = [_recorded(run, folder) for run in runs]
        rows = [row for run in runs for row in _compared(run, (AGREES, DIFFERS), folder, repeats)]
        values = [] if no_values else list(_compared(VALUES, (EQUAL, AGREES, DIFFERS), folder, 3))
        spent = {} if no_values else _shares(folder)
        starts = begun, started(BASE, repeats), started(OURS, repeats)
    page = "\n".join(_page(recorded, rows, values, repeats, starts, spent))
    click.echo(page)
    if markdown:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(page + "\n", encoding="utf-8")
        _draw(rows, markdown.parent.parent / "images" / "growth.png")


def _made(run: Run, folder: Path, name: str = "a") -> tuple[Path, dict[str, float]]:
    """Record a run unless it is there; return what that cost too."""
    told = _told_of(run, folder, name)
    path = told.with_suffix(".h5")
    if not told.exists():
        told.write_text(python("-m", "benchmarks.growth.making", as_text(run), str(path)), encoding="utf-8")
    return path, json.loads(told.read_text(encoding="utf-8"))


def _told_of(run: Run, folder: Path, name: str) -> Path:
    """Return the file that says what recording a run cost; the recording lies beside it."""
    return folder / f"{run.task}-{run.modules}-{run.steps}-{name}.json"


def _recorded(run: Run, folder: Path) -> Recorded:
    is_earlier = _told_of(run, folder, "a").exists()
    found = _made(run, folder)[1]
    return Recorded(run, int(found["records"]), found["cpu"], found["plain_cpu"], found["peak"], is_earlier)


def _compared(run: Run, pairs: Sequence[str], folder: Path, repeats: int) -> Iterator[Row]:
    a, told = _made(run, folder)
    for pair in pairs:
        other = replace(run, **SIDES[pair])
        b, _ = _made(other, folder, "wrong" if other.is_wrong else "rounded" if other.is_rounded else "again")
        often = repeats if told["records"] <= _OFTEN else 1
        cost = compared(a, b, often, run.fault if other.is_wrong else "")
        click.echo(f"{run.modules} modules, {run.steps} steps, {pair}: {cost}", err=True)
        yield Row(run, pair, int(told["records"]), told["size"] / 2**20, cost)


def _shares(folder: Path) -> dict[str, float]:
    """Return the least of what comparing values that agree but for rounding takes, by what it is spent on."""
    a, b = (_made(run, folder, name)[0] for run, name in ((VALUES, "a"), (replace(VALUES, **SIDES[AGREES]), "rounded")))
    found = [json.loads(python("-m", "benchmarks.growth.shares", str(a), str(b))) for _ in range(3)][1:]
    return min(found, key=lambda each: each["all"])


# The page

HEAD = """# Growth

Written by `python -m benchmarks.growth --markdown docs/evidence/growth.md`: blocks of a norm and two linear layers, with a residual (five modules,
50 records a step), trained by SGD. B computes in float64 and rounds, so that nearly every computed tensor differs in its last bits; with the
fault, one norm in the middle returns 1.01 times what it should, in the last step alone. A comparison is the process `probe-compare A B`: CPU seconds
of all its threads, imports included, the median of {repeats} for the small ones (range in brackets); memory is its largest resident set. The machine has
{cores} cores and did other work too (load {load:.0f}): there CPU seconds tell more than seconds, and are more than those of an idle one.
`python -c 'import {imports}'` took {first:.2f} at the beginning and {last:.2f} at the end.

Exponents are of growth from the row above, of what comes on top of the smallest recording: 1 is linear. µs are of CPU time a record of A, on top of the
smallest recording too."""

SHARES = """
CPU seconds of comparing values that agree but for rounding, on one thread (`python -m benchmarks.growth.shares A B`, the lesser of two): {parts}, and {rest:.2f}
Python between them, of {values:.2f} for comparing values and {all:.2f} for the whole comparison behind its imports. Tensors of equal hashes are not read."""


def _page(
    recorded: Sequence[Recorded],
    rows: Sequence[Row],
    values: Sequence[Row],
    repeats: int,
    starts: tuple[float, float, float],
    spent: dict[str, float],
) -> Iterator[str]:
    """Write the page.

    Parameters
    ----------
    starts
        CPU seconds of importing what probe is built on, at the beginning and at the end, and of importing its own modules too
    spent
        `benchmarks.growth.shares.shares` of values that agree but for rounding
    """
    load = os.getloadavg()[0]
    yield HEAD.format(repeats=repeats, cores=os.cpu_count(), load=load, imports=BASE, first=starts[0], last=starts[1])
    for pair in (AGREES, DIFFERS):
        of_pair = [row for row in rows if row.pair == pair]
        base = of_pair[0]
        for title, runs in (("more modules, one step", MODULES), ("more steps of 1,000 modules", STEPS)):
            chosen = [row for run in runs for row in of_pair if row.run == run]
            if chosen:
                yield from ("", f"## Comparing: {pair}, {title}", "", *_table(chosen, base), "", _told(chosen, base))
    yield from ("", "![CPU time and memory against records, both axes logarithmic](../images/growth.png)")
    yield from ("", "## Recording", "", *_recording(recorded))
    if values:
        yield from ("", "## Values", "", *_values(values))
    yield from ("", "## Bounds", "", *_bounds(rows, values), "")
    yield f"Of the CPU time of a small comparison {starts[1]:.2f} s is importing what probe is built on, {starts[2] - starts[1]:.2f} s importing probe's own modules."
    if spent:
        # by their order: importing their names would make this process hold more, which counts for those that it starts
        *parts, values_alone, everything = spent
        told = ", ".join(f"{spent[what]:.2f} {what}" for what in parts)
        rest = spent[values_alone] - sum(spent[what] for what in parts)
        yield SHARES.format(parts=told, rest=rest, values=spent[values_alone], all=spent[everything])


def _table(rows: Sequence[Row], base: Row) -> Iterator[str]:
    yield "| modules | steps | records of A | MiB of A | CPU s | µs a record | exponent | s | peak MiB | exponent of memory |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    before: Row | None = None
    for row in rows:
        cpu, peak = row.cost.cpu - base.cost.cpu, row.cost.peak - base.cost.peak
        each = f"{cpu / (row.records - base.records) * 1e6:.0f}" if cpu > _LEAST else "–"
        exponents = "–", "–"
        if before is not None:
            exponents = (
                _exponent(before.records, row.records, before.cost.cpu - base.cost.cpu, cpu, _LEAST),
                _exponent(before.records, row.records, before.cost.peak - base.cost.peak, peak, 100 * _LEAST),
            )
        spread = f" ({row.cost.least:.2f}–{row.cost.most:.2f})" if row.cost.least < row.cost.most else ""
        yield (
            f"| {row.run.modules:,} | {row.run.steps} | {row.records:,} | {row.size:,.0f} | {row.cost.cpu:.2f}{spread} | {each} | {exponents[0]} | "
            f"{row.cost.wall:.1f} | {row.cost.peak:,.0f} | {exponents[1]} |"
        )
        before = row


def _told(rows: Sequence[Row], base: Row) -> str:
    """Say whether it grows linearly, by the largest recording and the first that is large enough to tell."""
    said = []
    for what, quantity, least in (("CPU time", "cpu", _LEAST), ("memory", "peak", 100 * _LEAST)):
        more = [(row.records, getattr(row.cost, quantity) - getattr(base.cost, quantity)) for row in rows]
        (n, of_n), (m, of_m) = next((each for each in more if each[1] >= least), more[-1]), more[-1]
        if n < m:
            found = math.log(of_m / of_n) / math.log(m / n)
            said.append(
                f"{what} grows {'no more than linearly' if found <= LINEAR else '**more than linearly**'} ({found:.2f})"
            )
    return f"From the first that tells to the largest, {', '.join(said)}." if said else ""


def _exponent(n: int, m: int, of_n: float, of_m: float, least: float) -> str:
    """Return the power with which something grows; a dash where it is too little to tell."""
    if min(of_n, of_m) < least:
        return "–"
    found = math.log(of_m / of_n) / math.log(m / n)
    return f"{found:.2f}" if found <= LINEAR else f"**{found:.2f}**"


def _recording(recorded: Sequence[Recorded]) -> Iterator[str]:
    yield "CPU seconds beyond those of the training alone, `probe.start` and `probe.stop` included; memory beyond what the training held."
    yield ""
    if any(each.is_earlier for each in recorded):
        yield "Rows with * were measured in an earlier run, under another load, whose recordings were kept (`--keep`)."
        yield ""
    yield "| modules | steps | records | CPU s of the training | CPU s more | µs a record | peak MiB more |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    base = recorded[0]
    for each in recorded:
        cpu = each.cpu - base.cpu
        of_one = f"{cpu / (each.records - base.records) * 1e6:.0f}" if cpu > _LEAST else "–"
        yield (
            f"| {each.run.modules:,}{'*' if each.is_earlier else ''} | {each.run.steps} | {each.records:,} | {each.plain:.2f} | {each.cpu:.2f} | {of_one} | "
            f"{each.peak:,.0f} |"
        )


def _values(rows: Sequence[Row]) -> Iterator[str]:
    yield f'{rows[0].run.modules} modules of width {rows[0].run.width}, one step, `task="tensor"`; both files are in the system\'s cache.'
    yield ""
    yield "| pair | records of A | MiB of A | CPU s | s | peak MiB |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in rows:
        yield (
            f"| {row.pair} | {row.records:,} | {row.size:,.0f} | {row.cost.cpu:.2f} ({row.cost.least:.2f}–{row.cost.most:.2f}) | "
            f"{row.cost.wall:.2f} | {row.cost.peak:,.0f} |"
        )


def _bounds(rows: Sequence[Row], values: Sequence[Row]) -> Iterator[str]:
    records, seconds = BOUNDS["records"]  # type: ignore[misc]
    yield "| | measured | bound | held |"
    yield "|---|---:|---:|---|"
    for row in rows:
        if row.run == Run(records // 10):
            yield _held(f"{row.records:,} records, {row.pair}, CPU s", row.cost.cpu, seconds)
    for row in values:
        yield _held(f"values, {row.pair}, CPU s", row.cost.cpu, float(BOUNDS["values"]))  # type: ignore[arg-type]
        yield _held(f"values, {row.pair}, s", row.cost.wall, float(BOUNDS["values"]))  # type: ignore[arg-type]


def _held(what: str, measured: float, bound: float) -> str:
    return f"| {what} | {measured:.2f} | ≤ {bound} | {'yes' if measured <= bound else '**no**'} |"


def _draw(rows: Sequence[Row], path: Path) -> None:
    """Draw CPU time and memory against records, with a line that is linear."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for panel, quantity, label in zip(panels, ("cpu", "peak"), ("CPU seconds", "largest memory, MiB"), strict=True):
        for pair, color in ((AGREES, "tab:blue"), (DIFFERS, "tab:orange")):
            for runs, mark, axis in ((MODULES, "o-", "modules"), (STEPS, "s--", "steps")):
                found = [row for run in runs for row in rows if row.run == run and row.pair == pair]
                panel.loglog([row.records for row in found], [getattr(row.cost, quantity) for row in found], mark,
                             color=color, label=f"{pair}: more {axis}", markersize=4)  # fmt: skip
        most = max(rows, key=lambda row: row.records)
        ends = most.records / 100, most.records
        panel.loglog(
            ends, [getattr(most.cost, quantity) * end / most.records for end in ends], ":", color="gray", label="linear"
        )
        panel.set(xlabel="records of A", ylabel=label)
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
