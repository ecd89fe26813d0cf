"""`python -m benchmarks.mutations`: is every promise guarded by a test that notices when it is broken?"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.mutations.catalogue import MUTATIONS, Mutation
from benchmarks.mutations.trial import StaleMutation, copy_tree, try_out

HEADER = ("mutation", "promise", "test", "result")
WIDTH = 200
"""Columns of the table where it does not go to a terminal."""


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "only_list", is_flag=True, help="Show the mutations and run nothing.")
@click.option("--markdown", type=click.Path(path_type=Path, dir_okay=False), help="Write the table here too.")
def main(names: tuple[str, ...], only_list: bool, markdown: Path | None) -> None:
    """Break each promise in a copy of the tree and run the test that must notice; exit status 1 if one does not.

    Example: python -m benchmarks.mutations "a note is dropped"
    """
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
    """The table as a page; written by `--markdown`, not by hand."""
    lines = [
        "# Promises, the tests that guard them, and what those tests were seen to notice",
        "",
        "Written by `python -m benchmarks.mutations --markdown docs/evidence/promises.md`: each promise is broken on purpose",
        "in a copy of the tree, and the test must fail there and pass without.",
        "",
        "| " + " | ".join(("promise", "test", "mutation", "result")) + " |",
        "|" + "---|" * 4,
    ]
    lines += [f"| {promise} | `{test}` | {name} | {result} |" for name, promise, test, result in rows]
    return "\n".join([*lines, "", _summary(rows), ""])


if __name__ == "__main__":
    main()
