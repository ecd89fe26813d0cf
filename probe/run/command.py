"""The command line of ``python -m probe.run``.

What is imported here is imported before the script: no numpy, whose number of threads a script may set first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

import click

from probe import targets
from probe.errors import ProbeError
from probe.run import activation, interpreter_start
from probe.run.launching import module, run, script
from probe.run.order import RECORDING, Order, order_of

_TROUBLE = 3
"""exit status of an error in what was asked for"""
_USAGE = "-o FILE [OPTIONS] SCRIPT [ARGUMENTS]..."


@click.command(
    "python -m probe.run",
    params=[*RECORDING],
    options_metavar=_USAGE,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "allow_interspersed_args": False,
        "max_content_width": 100,
    },
)
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module, as in python -m.")
@click.option(
    "--install-hook", is_flag=True, help="Let PROBE_RECORD=FILE record every program of this Python environment."
)
@click.option("--remove-hook", is_flag=True, help="Undo --install-hook.")
@click.argument("program", nargs=-1, type=click.UNPROCESSED, metavar="")
def _command(**given: object) -> None:
    """Run a training script, and record the model that it trains.

    The script needs no line of probe and trains as under plain python. Recorded are the modules whose parameters an optimizer
    holds; a step ends where the next forward follows an optimizer's step.

    \b
    Examples:  python -m probe.run -o a.h5 --steps 0 train.py --lr 1e-4
               python -m probe.run -o a.h5 -m package.train --lr 1e-4
               torchrun --nproc-per-node 2 -m probe.run -o a.h5 train.py
    """


def main(words: Sequence[str] | None = None) -> None:
    """Do what the command line says; the script's exit status is this process's."""
    words = sys.argv[1:] if words is None else list(words)
    with _told():
        given = _command.make_context("python -m probe.run", list(words)).params
        if given["install_hook"] or given["remove_hook"]:
            click.echo(interpreter_start.install() if given["install_hook"] else interpreter_start.remove())
            return
        order = _checked(given)
        program = module(given["program"]) if given["is_module"] else script(given["program"])
    activation.begin(order)
    order.export()
    run(program)


def _checked(given: dict[str, object]) -> Order:
    """Return what is to be recorded, if it can be, before anything trains."""
    if not given["program"]:
        raise click.UsageError(f"which program? python -m probe.run {_USAGE}")
    if given["path"] is None:
        raise click.UsageError("where to? Name the recording: -o a.h5")
    order = order_of(given, str(given["path"]))
    targets.check(order.path, "--overwrite", overwrite=order.overwrite, **order.options)
    return order


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Turn errors into a line on stderr and exit status 3."""
    try:
        yield
    except click.exceptions.Exit as ended:  # --help
        sys.exit(ended.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(_TROUBLE)
    except ProbeError as error:
        click.ClickException(str(error)).show()
        sys.exit(_TROUBLE)
