"""The commands ``probe export``: recordings for other programs."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Give a recording to other programs: TensorBoard, mindstudio-probe, or any that reads HDF5, .npy or safetensors.

    \b
    Example: probe export tensorboard a.h5 b.h5 -o runs
             probe export msprobe a.h5 -o dump
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
    _noted(done.notes)


def _noted(notes: Sequence[str]) -> None:
    for note in notes:
        click.echo(f"note: {harmless(note)}", err=True)


def _command(name: str, what: str, output: str) -> None:
    """Add a command that writes one recording."""

    @export_group.command(name, help=f"{what}\n\nExample: probe export {name} a.h5 -o {output}", short_help=what)
    @click.argument("file", type=click.Path())
    @click.option("-o", "--output", required=True, type=click.Path(), help="A new folder or file.")
    def command(file: str, output: str) -> None:
        from probe.exports.msprobe import export_msprobe
        from probe.exports.named import export_named

        is_one = name == "safetensors"
        count, notes = export_msprobe(file, output) if name == "msprobe" else export_named(file, output, is_one)
        click.echo(harmless(f"{count:,} tensors are in {output}"))
        _noted(notes)


_command("msprobe", "Write a dump folder of mindstudio-probe, with values where there are some.", "dump")
_command("npy", "Write every tensor with values as a .npy file, named as its place in the run.", "tensors")
_command("safetensors", "Write every tensor with values into one .safetensors file.", "a.safetensors")


@export_group.command("reprod")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("-o", "--output", required=True, type=click.Path(), help="A new folder, such as log_reprod.")
@click.option("--threshold", default=1e-6, show_default=True, help="Largest mean of absolute differences.")
@click.option("--train-threshold", type=float, help="The same for train_align.  [default: --threshold]")
def reprod_command(a: str, b: str, output: str, threshold: float, train_threshold: float | None) -> None:
    """Write the .npy files and logs of the five acceptance points of PaddlePaddle's paper reproduction guide.

    A is the reference. Exit status: 0 all points pass, 1 one does not, 2 one could not be made.

    \b
    Example: probe export reprod torch.h5 paddle.h5 -o log_reprod --train-threshold 0.0015
    """
    from probe.exports.reprod import export_reprod

    passed, notes = export_reprod(a, b, output, threshold, train_threshold)
    words = {True: "passed", False: "failed", None: "not made"}
    click.echo(harmless(f"{output}: {', '.join(f'{point} {words[each]}' for point, each in passed.items())}"))
    _noted(notes)
    raise SystemExit(1 if False in passed.values() else 2 if None in passed.values() else 0)
