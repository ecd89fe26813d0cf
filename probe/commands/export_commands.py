"""The commands ``probe export``: recordings for other programs."""

from __future__ import annotations

from typing import Any

import click

from probe.commands.shared import DIRECTION, MAPPING, Group, progress
from probe.errors import ConfigError
from probe.ranks.layout.files import files_of
from probe.report.layout import harmless
from probe.report.tensorboard import export_comparison, export_run
from probe.store.tree import write_tree


@click.group("export", cls=Group)
def export_group() -> None:
    """Give a recording to other programs: TensorBoard, or any that reads HDF5.

    \b
    Example: probe export tensorboard a.h5 b.h5 -o runs
             probe export tree a.h5
    """


@export_group.command("tree")
@click.argument("file", type=click.Path())
def tree_command(file: str) -> None:
    """Give every tensor stored in a recording its readable place in /tree, for h5py, HDFView and the like.

    \b
    Example: probe export tree a.h5
    """
    for path in files_of(file):
        click.echo(f"{write_tree(path)} names below /tree in {harmless(str(path))}")


@export_group.command("tensorboard")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path(), required=False)
@click.option("-o", "--output", required=True, type=click.Path(file_okay=False), help="Folder of runs, a --logdir.")
@MAPPING
@DIRECTION
@click.option("--steps", metavar="A:B", help="Which step of B is a step of A: 100:0 where B resumed at A's step 100.")
def tensorboard_command(a: str, b: str | None, output: str, **options: Any) -> None:
    """Write TensorBoard's scalars: loss, learning rate and whatever was logged, the norm of every gradient.

    Of two recordings, also the error of every module, step by step: three runs, A, B and comparison.

    \b
    Example: probe export tensorboard a.h5 -o runs
             probe export tensorboard a.h5 b.h5 -lm map.yaml -o runs
             tensorboard --logdir runs
    """
    if b is None:
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise ConfigError(f"{', '.join(given)}: for two recordings, and one was given")
        done = export_run(a, output)
    else:
        with progress("comparing") as shown:
            done = export_comparison(a, b, output, **options, **shown)
    runs = ", ".join(folder.name for folder in done.folders)
    count = f"{done.scalars:,} scalars of {done.steps} step{'' if done.steps == 1 else 's'}"
    click.echo(harmless(f"{count} are in {output} ({runs}): tensorboard --logdir {output}"))
    for note in done.notes:
        click.echo(f"note: {harmless(note)}", err=True)
