"""``probe import``: another tool's dump as a recording."""

from __future__ import annotations

import click

from probe.commands.shared import HELP


@click.command("import", context_settings=HELP)
@click.argument("source", type=click.Path(), metavar="SOURCE")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False), metavar="FILE",
              help="The recording; of several ranks a.h5 becomes a.rank00000.h5 …")  # fmt: skip
@click.option("--pattern", metavar="TEXT",
              help="Of named tensors, what their names say: '{module}.{call:int}.{role}.{slot}.npy', or a regular "
              "expression with named groups. Default: the name is a module's path, the tensor its output.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace the recording if it is there.")
def import_command(source: str, output: str, pattern: str | None, overwrite: bool) -> None:
    """Write another tool's dump as a recording, which every other command reads.

    SOURCE is a dump of mindstudio-probe (or ptdbg_ascend), PaDiff, reprod_log, MindSpore, transformers or SGLang, or any
    folder or file of named tensors.

    \b
    Example: probe import dump_path/ -o a.h5
             probe import tensors/ -o a.h5 --pattern 'step{step:int}/{module}.{role}.{slot}.npy'
    """
    from rich.console import Console

    from probe.dumps.importing import import_dump
    from probe.report import inspect

    for path in import_dump(source, output, pattern=pattern, overwrite=overwrite):
        Console(highlight=False).print(inspect.summary(path))
