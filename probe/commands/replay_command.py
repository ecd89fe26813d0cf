"""``probe replay``: which modules of a model are wrong by themselves, given what another one's were."""

from __future__ import annotations

import sys

import click

from probe.commands import shared
from probe.defaults import EXIT


@click.command("replay", context_settings=shared.HELP)
@click.argument("recording", type=click.Path(), metavar="A")
@click.option("--model", "factory", required=True, metavar="MODULE:FUNCTION",
              help="Makes B: returns the model, or the model and a dict of what it is called with beside A's tensors.")  # fmt: skip
@shared.MAPPING
@shared.DIRECTION
@shared.STRICT
@click.option("--step", type=int, help="Which of A's steps; default: the first that was recorded.")
@click.option("--weights", type=click.Choice(["a", "b"]), default="a", show_default=True,
              help="Whose weights the modules have; B's are compared too.")  # fmt: skip
@click.option("--reference", is_flag=True, help="Run B in float64 too: which side is further from that?")
@shared.CONFIDENCE
@click.option("--keep", type=click.Path(dir_okay=False), metavar="B.h5", help="Keep what was computed, as a recording.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Write the report to a file (.html, .txt, .json, .csv)."
)
@click.option("--top", default=20, show_default=True, help="How many further modules to list.")
@shared.VERBOSE
def replay_command(
    recording: str, factory: str, mapping: str | None, direction: str | None, strict: bool, step: int | None,
    weights: str, reference: bool, min_confidence: float, keep: str | None, output: str | None, top: int, verbose: bool,
) -> None:  # fmt: skip
    """Run each module of B alone with what A's was given, and name all that are wrong by themselves.

    \b
    Exit status: 0 none is, 1 some are, 2 could not tell, 3 error.
    Example:     probe replay a.h5 --model models:make_b -lm map.yaml
    """
    from probe.replaying.factories import model_of
    from probe.replaying.run import replay
    from probe.report.formats.saving import format_of, save
    from probe.report.left_out import qualification

    style = None if output is None else format_of(output)
    model, inputs = model_of(factory)
    found = replay(model, recording, mapping, step=step, weights=weights, inputs=inputs, direction=direction, strict=strict,
                   min_confidence=min_confidence, keep=keep, reference=reference)  # fmt: skip
    if output is None:
        from probe.report import text

        shared.printed(text.render(found, top, shared.columns(), verbose=verbose))
    else:
        save(found, output, style, top)
        click.echo(
            f"{found.verdict.value}{qualification(found.verdict, found.left_out)}; the report is in {output}", err=True
        )
    sys.exit(EXIT[found.verdict])
