"""`python -m benchmarks.peers`: dumps by the real tools, compared by probe and by the tools themselves.

The tools are installed once, in environments of their own below build/peers; frameworks and probe come from the running one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click

import probe
from benchmarks.markdown import table
from benchmarks.megatron_core.environment import environment
from benchmarks.peers.tools import said
from benchmarks.peers.truth import FAULTS, MSPROBE, PADIFF, Pair, pairs

REPO = Path(__file__).parents[2]
PACKAGES = {MSPROBE: ("mindstudio-probe==26.2.0", "einops", "openpyxl", "et_xmlfile"), PADIFF: ("padiff==0.2.0",)}
HEADER = ("dumps", "planted", "right answer", "probe", "", "the tool's own answer")
Row = tuple[str, str, str, str, str, str]


@click.command()
@click.option("--padiff", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="A checkout of PaDiff's repository: 0.2.0 on PyPI writes no dumps.")  # fmt: skip
@click.option("--speed/--no-speed", default=True, help="Measure what an import costs too.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the page here too.")
def main(padiff: Path | None, speed: bool, markdown: Path | None) -> None:
    """Dump 20 faults and 10 clean pairs, compare them, and print the table.

    Exit status 1 if a wrong module is named, or a clean pair is called diverged.
    """
    work, pythons = REPO / "build" / "peers" / "work", {}
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for tool, packages in PACKAGES.items():
        pythons[tool] = environment(REPO / "build" / "peers" / tool, packages)
    _run([sys.executable, "-m", "benchmarks.frameworks.worker", "torch", str(work), "statistics"], None)
    sides = dict.fromkeys((side.tool, side.framework, side.task) for pair in pairs() for side in (pair.a, pair.b))
    for tool, framework, task in sides:
        if tool == MSPROBE or padiff is not None:
            command = [str(pythons[tool]), "-m", "benchmarks.peers.worker", tool, framework, task, str(work)]
            _run(command, padiff if tool == PADIFF else None)
    os.environ["PYTHONPATH"] = os.pathsep.join(str(each) for each in (padiff, REPO) if each)
    rows = [_row(pair, work / "dumps", pythons[pair.a.tool]) for pair in pairs()]
    measured = json.loads(_run([sys.executable, "-m", "benchmarks.peers.speed"], None)) if speed else None
    page = _page(rows, measured)
    click.echo(page)
    if markdown:
        markdown.write_text(page, encoding="utf-8")
    raise SystemExit(any(row[4] in ("WRONG", "FALSE ALARM") for row in rows))


def _run(command: list[str], before: Path | None) -> str:
    """Run a command in the repository, with a folder before it where modules are looked for; return what it printed last."""
    path = os.pathsep.join(str(each) for each in (before, REPO) if each)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=REPO)
    if done.returncode:
        raise click.ClickException(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def _row(pair: Pair, folder: Path, python: Path) -> Row:
    fault = FAULTS.get(pair.b.name)
    sides = f"{pair.a.tool}, {pair.a.framework} and {pair.b.framework}, {pair.b.task}"
    planted = fault.planted if fault else f"nothing, {pair.b.name}{', other kernels' if pair.b.is_again else ''}"
    wanted = pair.path or "aligned, or undecided with the reason"
    if not (folder / pair.b.label).exists():
        return sides, planted, wanted, "not run", "not run", "0.2.0 writes no dumps"
    found = probe.compare(folder / pair.a.label, folder / pair.b.label)
    first, verdict = found.first_divergence, found.verdict.value
    if first is None:
        answer = verdict if verdict == "aligned" else f"{verdict}: {', '.join(each.code for each in found.reasons)}"
        word = "MISSED" if fault else "right"
    else:
        paths = {each.path for each in (*first.a, *first.b)}
        answer = f"{', '.join(sorted(paths))} ({first.phase.label})"
        word = "FALSE ALARM" if not fault else "right" if paths == {pair.path} else "WRONG"
    return sides, planted, wanted, answer, word, said(python, pair, folder)


def _page(rows: list[Row], measured: dict[str, float] | None) -> str:
    faulty, clean = rows[:20], rows[20:]
    named, right = (sum(row[4] == "right" for row in part) for part in (faulty, clean))
    at_once = sum(row[5].split(" ")[0].rstrip(";") == row[2] for row in faulty)
    quiet = sum(row[5].startswith("passes") for row in clean)
    text = f"""# Dumps of other tools

Written by `python -m benchmarks.peers --padiff CHECKOUT --markdown docs/evidence/dumps.md`. mindstudio-probe 26.2.0 and PaDiff are installed in
environments of their own and dump two steps of three models (bert, cnn, lstm) of [docs/examples/frameworks](../examples/frameworks); side A is PyTorch.
MindSpore on a CPU has no kernel for the norm that mindstudio-probe calls, which is given one. PaDiff is its repository at commit 0a86a80: 0.2.0 on PyPI writes no dumps.
The right answers of `benchmarks/peers/truth.py` were written first. The tools' own answers are of the first step: mindstudio-probe's `compare` (with `-cm` for
MindSpore, where it marks other dtypes and `requires_grad` too) the first tensor that it marks as error, or else as warning; PaDiff's `check_report` and `check_params` with the tolerance 1e-4 of its README.
Not shown: large models, accelerators, graph mode.

**Faults named at the module: {named} of {len(faulty)}; wrong names: {sum(row[4] == "WRONG" for row in faulty)}. Clean pairs aligned, or undecided with the reason: {right} of {len(clean)}.**
What the tools mark first is that module for {at_once} of {len(faulty)}; they pass {quiet} of {len(clean)} clean pairs.

{table(HEADER, rows)}"""
    if measured is None:
        return text
    rounds = len(measured["all"]["import"])  # type: ignore[index]
    return f"""{text}
## What an import costs

A dump of mindstudio-probe with values, {measured["bytes"] / 1e9:.2f} GB in {os.cpu_count()} cores' machine; medians of {rounds} rounds in one process, in each of which its bytes
were read, it was imported, and as many bytes were written as the recording has; the system held nothing of the files before.

{table(("", "seconds"), ((name, f"{measured[key]:.1f}") for name, key in (("reading its bytes", "read"), ("importing it", "import"), ("writing as many", "write"))))}
An import takes {measured["import"] / measured["read"]:.1f} times as long as reading (aim: 2), and {measured["import"] / (measured["read"] + measured["write"]):.1f} times as long as reading and writing; the process had {measured["memory"] / 2**20:.0f} MiB at most (aim: 300).
"""


if __name__ == "__main__":
    main()
