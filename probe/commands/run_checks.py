"""The commands ``probe check overflow``, ``data``, ``weights``, ``init`` and ``logprobs``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from probe.commands import shared

if TYPE_CHECKING:
    from probe.checks.outcome import CheckResult

_VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Whole tables, not only their first rows.")


def _finish(result: CheckResult, as_json: bool, *, verbose: bool = False) -> NoReturn:
    """Show what a check found, and end by its exit status."""
    from probe.checks.outcome import EXIT
    from probe.report.checks import render

    if as_json:
        shared.printed_json(result.as_json())
    else:
        shared.printed(render(result, shared.columns(), verbose=verbose))
    sys.exit(EXIT[result.status])


@click.command("overflow")
@click.argument("file", type=click.Path())
@_VERBOSE
@shared.JSON
def overflow_command(file: str, as_json: bool, verbose: bool) -> None:
    """Find the first NaN or Inf of a recording and where it was born, and numbers near the ends of their dtypes.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check overflow a.h5
    """
    from probe.checks.overflow import check_overflow

    _finish(check_overflow(file), as_json, verbose=verbose)


@click.command("data")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path(), required=False)
@click.option("--tokenizer", type=click.Path(exists=True, file_okay=False), metavar="FOLDER",
              help="A tokenizer of transformers: samples as text, and its special ids against the model's.")  # fmt: skip
@shared.JSON
def data_command(a: str, b: str | None, tokenizer: str | None, as_json: bool) -> None:
    """Check what a recorded model was given: ids, special ids, padding, mask and labels; of two runs the first sample that differs.

    Ranges of ids, and whether batches are equal, are known from statistics; the rest needs values (task="tensor").

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check data a.h5
                 probe check data a.h5 b.h5 --tokenizer FOLDER
    """
    from probe.checks.data import check_data

    _finish(check_data(a, b, tokenizer=tokenizer), as_json)


@click.command("init")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@shared.MAPPING
@shared.DIRECTION
@click.option("--alpha", default=1e-3, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="How often two seeds of one initialisation may be told apart by chance, over all parameters together.")  # fmt: skip
@_VERBOSE
@shared.JSON
def init_command(a: str, b: str, mapping: str | None, as_json: bool, verbose: bool, **options: Any) -> None:
    """Hold the initial weights of two models against each other as distributions: other seeds pass, another gain is named.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check init a.h5 b.h5 -lm map.yaml
    """
    from probe.checks.initial import check_init

    _finish(check_init(a, b, mapping, **options), as_json, verbose=verbose)


@click.command("weights")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@shared.MAPPING
@shared.DIRECTION
@click.option("--from", "source", metavar="RECORDING", help="A recording of A's model; its structure is enough.")
@click.option("--like", metavar="RECORDING", help="A recording of B's model; its structure is enough.")
@click.option(
    "--init",
    metavar="CHECKPOINT",
    help="B's model before anything was loaded: what is still equal to it was never loaded.",
)
@click.option("--before", metavar="CHECKPOINT", help="A's weights before the last update: which of B's are these.")
@click.option("--base", metavar="CHECKPOINT", help="What A was tuned from: whether B has k times the difference.")
@_VERBOSE
@shared.JSON
def weights_command(a: str, b: str, mapping: str | None, as_json: bool, verbose: bool, **options: Any) -> None:
    """Hold two trained checkpoints against each other, weight by weight: sizes, decay groups, and weights never loaded.

    A and B are files of weights, indices of several, or folders. Weights are paired by their names; else by a layer mapping, with
    recordings of both models where it names classes.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check weights reference/ ours/
                 probe check weights hf/ megatron.pt -lm map.yaml --from a.h5 --like b.h5
                 probe check weights trainer/ engine.safetensors --before step9/ --base base/
    """
    from probe.checks.weights import check_weights

    _finish(check_weights(a, b, mapping, **options), as_json, verbose=verbose)


@click.command("logprobs")
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path(), required=False)
@click.option(
    "--atol", type=float, help="Difference up to which a token is noise; 30 · 2⁻⁸, for bfloat16, if not given."
)
@click.option("--bound", "bounds", type=float, multiple=True, help="Count the tokens beyond it; may be given several times.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="TABLE.csv", help="A row for each token.")
@shared.JSON
def logprobs_command(a: str, b: str | None, as_json: bool, **options: Any) -> None:
    """Hold log-probabilities of a trainer (A) and of a rollout engine (B) against each other, token by token, and say what form their differences have.

    A and B are .npz, .jsonl or .json files with the keys of verl, slime, NeMo RL, TRL, vLLM or SGLang, or recordings with values. B may be left out
    where one file has both.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check logprobs trainer.npz engine.jsonl
                 probe check logprobs train_data_step1.jsonl -o tokens.csv
    """
    from probe.checks.logprobs import check_logprobs

    _finish(
        check_logprobs(a, b, **{name: value for name, value in options.items() if value not in (None, ())}), as_json
    )


COMMANDS: tuple[click.Command, ...] = (overflow_command, data_command, weights_command, init_command, logprobs_command)
