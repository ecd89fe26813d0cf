"""The command ``probe curves``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from probe.commands.shared import DIRECTION, HELP, MAPPING, printed
from probe.curve_comparison.judge import curves
from probe.curve_comparison.result import CurveComparison
from probe.defaults import EXIT
from probe.errors import ConfigError, StoreError
from probe.report.curves import plot, table, text
from probe.report.layout import harmless, harmless_json

_FORMATS = {".json": "json", ".csv": "csv", ".txt": "text"}


@click.command("curves", context_settings=HELP)
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@MAPPING
@DIRECTION
@click.option(
    "--noise", multiple=True, type=click.Path(), metavar="A2", help="A further legitimate run of A (repeatable)."
)
@click.option("--steps", metavar="A:B", help="Which step of B is a step of A: 0:1 where B counts from 1.")
@click.option("--only", multiple=True, metavar="NAME|GLOB", help="Only these curves, and all of them decide.")
@click.option("--metric", "metrics", multiple=True, metavar="NAME:LIMIT",
              help="Its last values may differ by LIMIT: 0.15% of A's, or 0.002 (repeatable).")  # fmt: skip
@click.option("--standard", is_flag=True, help="Judge by the migration standard instead of step by step.")
@click.option("--norms", is_flag=True, help="List the gradient norms of every parameter.")
@click.option("--plot/--no-plot", "drawn", default=True, help="Draw the loss in the terminal.")
@click.option(
    "--format", "style", type=click.Choice(["text", "json", "csv"]), help="Default: text, or by the name of -o."
)
@click.option("-o", "--output", multiple=True, type=click.Path(dir_okay=False),
              help="Write to a file: .png, .svg, .txt, .json, .csv (repeatable).")  # fmt: skip
def curves_command(
    a: str, b: str, mapping: str | None, direction: str | None, noise: tuple[str, ...], steps: str | None,
    only: tuple[str, ...], metrics: tuple[str, ...], standard: bool, norms: bool, drawn: bool, style: str | None, output: tuple[str, ...],
) -> None:  # fmt: skip
    """Compare two runs step by step: loss, gradient norm, learning rate, logged numbers, norms of single gradients.

    A and B are recordings or logs, in any combination: of Megatron, MindFormers, PaddleNLP, transformers' Trainer
    (trainer_state.json, or what it prints), MindSpore's LossMonitor, TensorBoard, JSON lines or CSV. Named are the first
    step that leaves the noise band, a steady offset, and what the migration standard says.

    \b
    Exit status: 0 aligned, 1 diverged, 2 could not tell, 3 error.
    Example:     probe curves a.h5 b.h5 --noise a2.h5 -o curves.png
                 probe curves megatron.log mindformers.log --standard
                 probe curves a.csv b.csv --metric accuracy:0.15%
    """
    styles = [_style_of(name, style) for name in output]
    answer = curves(a, b, mapping, noise=noise, steps=steps, only=only or None, metrics=metrics, standard=standard,
                    direction=direction)  # fmt: skip
    for name, kind in zip(output, styles, strict=True):
        _write(answer, name, kind, norms, drawn)
    if all(kind in ("png", "svg") for kind in styles):
        _show(answer, style or "text", norms, drawn)
    if output:
        click.echo(f"{answer.verdict.value}; written: {', '.join(map(harmless, output))}", err=True)
    sys.exit(EXIT[answer.verdict])


def _style_of(output: str, style: str | None) -> str:
    """Return the format that a file's name asks for."""
    suffix = Path(output).suffix.lower()
    if suffix in plot.SUFFIXES:
        return suffix.removeprefix(".")
    found = style or (_FORMATS.get(suffix) if suffix else "text")
    if found is None:
        raise ConfigError(
            f"cannot tell the format of {output}: expected {', '.join((*plot.SUFFIXES, *_FORMATS))}, or --format"
        )
    return found


def _write(answer: CurveComparison, name: str, kind: str, norms: bool, drawn: bool) -> None:
    if kind in ("png", "svg"):
        try:
            plot.draw(answer, name)
        except ImportError as error:
            raise ConfigError(str(error)) from None
        return
    try:
        Path(name).write_text(_rendered(answer, kind, norms, drawn), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {name}: {error.strerror}") from None


def _show(answer: CurveComparison, style: str, norms: bool, drawn: bool) -> None:
    if style == "text":
        printed(text.render(answer, norms=norms, plot=drawn))
    else:
        click.echo(_rendered(answer, style, norms, drawn), nl=False)


def _rendered(answer: CurveComparison, style: str, norms: bool, drawn: bool) -> str:
    if style == "json":
        return harmless_json(json.dumps(answer.as_json(), indent=2, ensure_ascii=False)) + "\n"
    if style == "csv":
        return table.as_csv(answer, norms)
    return text.render(answer, norms=norms, plot=drawn).plain + "\n"
