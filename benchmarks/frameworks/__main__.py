"""`python -m benchmarks.frameworks`: are ports to PaddlePaddle and MindSpore aligned, and are faults in them named?"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

import probe
from benchmarks.frameworks.truth import FAULTS, MAPPINGS, MODELS, OPTIMIZERS, TARGETS
from probe.answer.comparison import Comparison

HEADER = ("pair", "row", "right answer", "answer", "")
WIDTH = 180
"""Columns of the table where it does not go to a terminal."""
Row = tuple[str, str, str, str, str]


@click.command()
@click.option("--target", "targets", multiple=True, type=click.Choice(TARGETS), help="Only this; may be repeated.")
@click.option("--task", type=click.Choice(["statistics", "tensor"]), default="statistics", show_default=True)
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the table here too.")
def main(targets: tuple[str, ...], task: str, markdown: Path | None) -> None:
    """Record five models in three frameworks, compare each port with PyTorch's, and print the table.

    Exit status 1 if a clean pair is not aligned, or a fault is not named at the right module and phase.
    """
    with tempfile.TemporaryDirectory() as folder:
        rows = results(Path(folder), targets or TARGETS, task)
    _print(rows)
    if markdown:
        markdown.write_text(_markdown(rows, task), encoding="utf-8")
    raise SystemExit(0 if all(row[-1] == "right" for row in rows) else 1)


def results(folder: Path, targets: tuple[str, ...], task: str) -> list[Row]:
    """Return the rows of the table."""
    for framework in ("torch", *targets):
        _work(framework, folder, task)
    return [row for target in targets for row in [*_clean(folder, target), *_faulty(folder, target)]]


def _work(framework: str, folder: Path, task: str) -> None:
    """Each framework has a process of its own: two of them cannot be loaded in any order."""
    command = [sys.executable, "-m", "benchmarks.frameworks.worker", framework, str(folder), task]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{framework}: {done.stderr[-2000:]}")


def _compare(folder: Path, target: str, model: str, a: str, b: str) -> Comparison:
    mapping = MAPPINGS.get(target, {}).get(model)
    return probe.compare(folder / f"torch-{a}.h5", folder / f"{target}-{b}.h5", mapping=mapping)


def _clean(folder: Path, target: str) -> list[Row]:
    rows = []
    for model in MODELS:
        for optimizer in OPTIMIZERS:
            label = f"{model}-{optimizer}"
            found = _compare(folder, target, model, label, label)
            is_right = found.verdict == "aligned"
            rows.append((f"torch, {target}", label, "aligned", _said(found), "right" if is_right else "WRONG"))
    return rows


def _faulty(folder: Path, target: str) -> list[Row]:
    rows = []
    for name, fault in FAULTS.items():
        found = _compare(folder, target, fault.model, f"{fault.model}-sgd", f"fault-{name}")
        wanted = f"{fault.phase} · {fault.kind} · {fault.path or 'as a whole'}"
        rows.append((f"torch, {target}", fault.planted, wanted, _said(found), _judge(found, name)))
    return rows


def _judge(found: Comparison, name: str) -> str:
    fault, first = FAULTS[name], found.first_divergence
    if found.verdict != "diverged" or first is None:
        return "MISSED"
    paths = {ref.path for ref in (*first.a, *first.b)}
    if (first.phase.label, first.kind.value) != (fault.phase, fault.kind) or paths != {fault.path}:
        return "WRONG"
    return "right"


def _said(found: Comparison) -> str:
    first = found.first_divergence
    if found.verdict != "diverged" or first is None:
        return found.verdict.value
    ref = (first.a or first.b)[0]
    return f"{first.phase.label} · {first.kind.value} · {ref.path or 'as a whole'}"


def _summary(rows: list[Row]) -> str:
    return f"{sum(row[-1] == 'right' for row in rows)} of {len(rows)} right"


def _print(rows: list[Row]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(_summary(rows))


def _markdown(rows: list[Row], task: str) -> str:
    """The figures as a page; written by `--markdown`, not by hand."""
    pairs = list(dict.fromkeys(row[0] for row in rows))
    said = {
        (pair, row, wanted): word if word == "right" else f"{word}: {answer}"
        for pair, row, wanted, answer, word in rows
    }
    faults = dict.fromkeys((row, wanted) for _, row, wanted, _, _ in rows if wanted != "aligned")
    clean = [
        (pair, [word for (at, _, wanted), word in said.items() if at == pair and wanted == "aligned"]) for pair in pairs
    ]
    lines = [
        "# Ports between frameworks",
        "",
        f"Written by `python -m benchmarks.frameworks --task {task} --markdown docs/evidence/frameworks.md`, which prints each answer. Five",
        f"models ({', '.join(MODELS)}) of [docs/examples/frameworks](../examples/frameworks) in PyTorch, PaddlePaddle and MindSpore, each with",
        f"{' and '.join(OPTIMIZERS)}, weights by `probe.convert_weights`, three steps; then one fault at a time on the side of the port. The right",
        "answers of `benchmarks/frameworks/truth.py` were written first. Not shown: large models, accelerators.",
        "",
        "| | right answer | " + " | ".join(pairs) + " |",
        "|" + "---|" * (len(pairs) + 2),
        "| without a fault | aligned | " + " | ".join(f"{words.count('right')} of {len(words)}" for _, words in clean) + " |",
        *(f"| {row} | {wanted} | " + " | ".join(said.get((pair, row, wanted), "–") for pair in pairs) + " |" for row, wanted in faults),
        "",
        *(f"* {pair}, {row}: {word}" for (pair, row, wanted), word in said.items() if wanted == "aligned" and word != "right"),
        _summary(rows),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
