"""The commands ``probe check overflow``, ``data``, ``weights`` and ``init``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from rich.text import Text

    from probe.checks.outcome import CheckResult

_JSON = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
_VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Whole tables, not only their first rows.")
_MAPPING = click.option(
    "-lm", "--layer-mapping", "mapping", metavar="FILE|NAME", help="Layer mapping between the two models."
)
_DIRECTION = click.option("--map-direction", "direction", type=click.Choice(["a-to-b", "b-to-a"]), help="Which side the mapping is written from.")  # fmt: skip


def _finish(result: CheckResult, render: Callable[..., Text], as_json: bool, *, verbose: bool = False) -> NoReturn:
    """Show what a check found, and end by its exit status."""
    from rich.console import Console

    from probe.checks.outcome import EXIT
    from probe.report.names import harmless_json

    if as_json:
        click.echo(harmless_json(json.dumps(result.as_json(), indent=2, ensure_ascii=False)))
    else:
        console = Console(soft_wrap=True, highlight=False)
        is_sized = console.is_terminal or "COLUMNS" in os.environ
        console.print(render(result, console.width if is_sized else None, verbose=verbose))
    sys.exit(EXIT[result.status])


@click.command("overflow")
@click.argument("file", type=click.Path())
@_VERBOSE
@_JSON
def overflow_command(file: str, as_json: bool, verbose: bool) -> None:
    """Find the first NaN or Inf of a recording and where it was born, and numbers near the ends of their dtypes.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check overflow a.h5
    """
    from probe.checks.overflow import check_overflow
    from probe.report.checks.overflow import render

    _finish(check_overflow(file), render, as_json, verbose=verbose)


@click.command("data")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path(), required=False)
@click.option("--tokenizer", type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
              help="A tokenizer of transformers: samples as text, and its special ids against the model's.")  # fmt: skip
@_JSON
def data_command(a: str, b: str | None, tokenizer: str | None, as_json: bool) -> None:
    """Check what a recorded model was given: ids, special ids, padding, mask and labels; of two runs the first sample that differs.

    Ranges of ids, and whether batches are equal, are known from statistics; the rest needs values (task="tensor").

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check data a.h5
                 probe check data a.h5 b.h5 --tokenizer FOLDER
    """
    from probe.checks.data import check_data
    from probe.report.checks.data import render

    _finish(check_data(a, b, tokenizer=tokenizer), render, as_json)


@click.command("init")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@_MAPPING
@_DIRECTION
@click.option("--alpha", default=1e-3, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="How often two seeds of one initialisation may be told apart by chance, over all parameters together.")  # fmt: skip
@_VERBOSE
@_JSON
def init_command(a: str, b: str, mapping: str | None, as_json: bool, verbose: bool, **options: Any) -> None:
    """Hold the initial weights of two models against each other as distributions: other seeds pass, another gain is named.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check init a.h5 b.h5 -lm map.yaml
    """
    from probe.checks.initial import check_init
    from probe.report.checks.initial import render

    _finish(check_init(a, b, mapping, **options), render, as_json, verbose=verbose)


@click.command("weights")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@_MAPPING
@_DIRECTION
@click.option("--from", "source", metavar="RECORDING", help="A recording of A's model; its structure is enough.")
@click.option("--like", metavar="RECORDING", help="A recording of B's model; its structure is enough.")
@click.option(
    "--init",
    metavar="CHECKPOINT",
    help="B's model before anything was loaded: what is still equal to it was never loaded.",
)
@_VERBOSE
@_JSON
def weights_command(a: str, b: str, mapping: str | None, as_json: bool, verbose: bool, **options: Any) -> None:
    """Hold two trained checkpoints against each other, weight by weight: sizes, decay groups, and weights never loaded.

    A and B are files of weights, indices of several, or folders. Weights are paired by their names; else by a layer mapping, with
    recordings of both models where it names classes.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check weights reference/ ours/
                 probe check weights hf/ megatron.pt -lm map.yaml --from a.h5 --like b.h5
    """
    from probe.checks.weights import check_weights
    from probe.report.checks.weights import render

    _finish(check_weights(a, b, mapping, **options), render, as_json, verbose=verbose)


COMMANDS: tuple[click.Command, ...] = (overflow_command, data_command, weights_command, init_command)
