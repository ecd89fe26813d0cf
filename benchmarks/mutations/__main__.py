"""`python -m benchmarks.mutations`: is every promise guarded by a test that notices when it is broken?"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.mutations.catalogue import MUTATIONS, Mutation
from benchmarks.mutations.trial import ROOT, StaleMutation, copy_tree, patched, try_out

HEADER = ("mutation", "promise", "test", "result")
_FRAMEWORKS = ("torch", "mindspore", "paddle")
"""each in a process of its own"""
WIDTH = 200
"""Columns of the table where it does not go to a terminal."""


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Show the mutations and run nothing.")
@click.option("--check", is_flag=True, help="See whether every text is there once and every test exists; run nothing.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the table here too.")
def main(names: tuple[str, ...], only_list: bool, check: bool, markdown: Path | None) -> None:
    """Break each promise in a copy of the tree and run the test that must notice; exit status 1 if one does not.

    Example: python -m benchmarks.mutations "a note is dropped"
    """
    if check:
        _check()
        return
    known = {mutation.name: mutation for mutation in MUTATIONS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.BadParameter(f"no mutation is called {unknown[0]!r}; see --list")
    chosen = [known[name] for name in names] or list(MUTATIONS)
    results = ["not run"] * len(chosen) if only_list else _results(chosen)
    rows = [(m.name, m.promise, m.test, result) for m, result in zip(chosen, results, strict=True)]
    _print(rows)
    if markdown:
        markdown.write_text(_markdown(rows), encoding="utf-8")
    raise SystemExit(0 if only_list or set(results) == {"caught"} else 1)


def _check() -> None:
    """Raise ClickException where a text does not occur once, or a test does not exist; frameworks that are not here are passed over."""
    for mutation in MUTATIONS:
        try:
            compile(patched(ROOT, mutation), mutation.path, "exec")
        except StaleMutation as error:
            raise click.ClickException(str(error)) from error
    for framework in ("", *_FRAMEWORKS):
        if framework and importlib.util.find_spec(framework) is None:
            continue
        wanted = {
            m.test
            for m in MUTATIONS
            if (m.test.split("/")[1] if m.test.split("/")[1] in _FRAMEWORKS else "") == framework
        }
        files = sorted({test.partition("::")[0] for test in wanted})
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
        there = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
        if not wanted <= set(there):
            raise click.ClickException(f"there is no {', '.join(sorted(wanted - set(there)))}")


def _results(mutations: list[Mutation]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_tree(Path(folder))
        try:
            return [try_out(tree, mutation) for mutation in mutations]
        except StaleMutation as error:
            raise click.ClickException(str(error)) from error


def _print(rows: list[tuple[str, ...]]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    table = Table(*HEADER)
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    console.print(table)
    console.print(_summary(rows))


def _summary(rows: list[tuple[str, ...]]) -> str:
    return f"{sum(row[3] == 'caught' for row in rows)} of {len(rows)} mutations caught"


def _markdown(rows: list[tuple[str, ...]]) -> str:
    """The figures as a page; written by `--markdown`, not by hand."""
    found = Counter((promise, result == "caught") for _, promise, _, result in rows)
    files = {
        promise: len({test.partition("::")[0] for _, each, test, _ in rows if each == promise})
        for _, promise, _, _ in rows
    }
    lines = [
        "# Promises, the tests that guard them, and what those tests were seen to notice",
        "",
        "Written by `python -m benchmarks.mutations --markdown docs/evidence/promises.md`: each promise is broken on purpose",
        "in a copy of the tree, and the test must fail there and pass without. `python -m benchmarks.mutations --list` shows each",
        "mutation beside its test. Not shown: that a break that nobody thought of is noticed.",
        "",
        "| promise | mutations | caught | test files |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {promise} | {found[promise, True] + found[promise, False]} | {found[promise, True]} | {files[promise]} |"
        for promise in sorted(files)
    ]
    lines += ["", *(f"* {result}: {name} (`{test}`)" for name, _, test, result in rows if result != "caught")]
    return "\n".join([*lines, _summary(rows), ""])


if __name__ == "__main__":
    main()
