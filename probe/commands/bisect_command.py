"""``probe bisect``: from two commands to the line of code that makes the difference."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.commands import shared
from probe.defaults import EXIT
from probe.errors import RecordingError

if TYPE_CHECKING:
    from probe.answer.comparison import Comparison


@click.command("bisect", context_settings=shared.HELP)
@click.option("--a", "first", required=True, metavar="COMMAND", help="Trains A: 'python train_a.py --lr 1e-4'.")
@click.option("--b", "second", required=True, metavar="COMMAND", help="Trains B.")
@shared.MAPPING
@click.option("-o", "--output", "folder", default="bisect", show_default=True, type=click.Path(file_okay=False, path_type=Path),
              help="Keep the recordings here; those that are there already are not made again.")  # fmt: skip
@click.option("--steps", default="0,1", show_default=True, help="Which steps are compared.")
def bisect_command(first: str, second: str, mapping: str | None, folder: Path, steps: str) -> None:
    """Run two programs, find the first module that differs, run them again, and name the operation inside it.

    The programs need no line of probe; let them end soon after the steps that are compared.

    \b
    Exit status: 0 aligned, 1 diverged, 2 undecided, 3 error.
    Example:     probe bisect --a 'python train_a.py' --b 'python train_b.py' -lm map.yaml
    """
    from probe.comparing import compare

    commands = {"a": first, "b": second}
    found = compare(*(_recorded(commands[side], folder / f"{side}.h5", ["--steps", steps]) for side in "ab"), mapping)
    inside = _inside(found)
    if inside is None:
        _show(found)
    step, modules = inside
    names = [path or "the whole model" for path in modules]
    click.echo(f"differs first in {' | '.join(names)}, step {step}: recorded again with its operations", err=True)
    again = {side: ["--steps", str(step), *_looking_into(path)] for side, path in zip("ab", modules, strict=True)}
    name = "".join(letter if letter.isalnum() else "-" for letter in names[0])
    _show(compare(*(_recorded(commands[side], folder / f"{side}-{name}.h5", again[side]) for side in "ab"), mapping))


def _inside(found: Comparison) -> tuple[int, tuple[str, str]] | None:
    """Return the step and the modules of A and of B whose code is to be looked into; None where that tells no more."""
    from probe.records import Phase

    first = found.first_divergence
    if first is None or first.phase not in (Phase.FORWARD, Phase.BACKWARD) or not (first.a and first.b):
        return None
    return first.a[0].step, (first.a[0].path, first.b[0].path)


def _looking_into(path: str) -> list[str]:
    """Return the options that record the operations of a module, and their values; of a whole model no values, which may be too many."""
    return ["--level", "mix", *(["--task", "tensor", "--modules", path, "--modules", f"{path}.*"] if path else [])]


def _show(found: Comparison) -> None:
    from probe.report import text

    shared.printed(text.render(found, 3, shared.columns()))
    sys.exit(EXIT[found.verdict])


def _recorded(command: str, path: Path, options: Sequence[str]) -> Path:
    """Return a recording of a program; make it unless a complete one is there."""
    if not _is_complete(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        words = recording(command, [*options, "--overwrite", "--quiet", "-o", str(path)])
        click.echo(f"$ {shlex.join(words)}", err=True)
        status = subprocess.run(words, check=False).returncode
        if status or not path.exists():
            what = f"ended with status {status}" if status else "ended, and no model was recorded"
            raise RecordingError(f"{command!r} {what}; what it printed is above")
    return path


def recording(command: str, options: Sequence[str]) -> list[str]:
    """Return a command that runs a Python program, as one that records it.

    Raises
    ------
    RecordingError
        it names no script and no module
    """
    words = shlex.split(command)
    at = next((place for place, word in enumerate(words) if place and (word == "-m" or word.endswith(".py"))), 0)
    if not at:
        raise RecordingError(
            f"{command!r}: expected a program such as 'python train.py' or 'torchrun -m package.train'"
        )
    return [*words[:at], "-m", "probe.run", *options, *words[at:]]


def _is_complete(path: Path) -> bool:
    from probe.errors import ProbeError
    from probe.store.reading.reader import Reader

    try:
        with Reader(path) as reader:
            return reader.info.closed
    except ProbeError:
        return False
