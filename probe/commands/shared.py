"""What several commands share: options, groups whose help shows every summary whole, printing and progress."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from probe.defaults import MIN_CONFIDENCE

if TYPE_CHECKING:
    from rich.text import Text

_WHOLE = 1000
"""characters of a summary"""
HELP = {"help_option_names": ["-h", "--help"]}
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Show all notes, not only the first three.")
JSON = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")
MAPPING = click.option(
    "-lm", "--layer-mapping", "mapping", metavar="FILE|NAME", help="Layer mapping between the two models."
)
DIRECTION = click.option(
    "--map-direction",
    "direction",
    type=click.Choice(["a-to-b", "b-to-a"]),
    help="Which side the mapping is written from.",
)
STRICT = click.option("--strict", is_flag=True, help="A line of the mapping that does nothing is an error, not a warning.")  # fmt: skip
CONFIDENCE = click.option(
    "--min-confidence", default=MIN_CONFIDENCE, show_default=True, type=click.FloatRange(0, 1),
    help="Leave out pairs of modules found without a mapping that are less sure; 1 leaves out all.",
)  # fmt: skip


class Group(click.Group):
    """A group as click has it, but no command's summary is cut at the end of a line."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and summaries of the commands."""
        rows = [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in self.list_commands(context)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def columns() -> int | None:
    """Return the width of the terminal; None where the output goes to none."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal or "COLUMNS" in os.environ else None


def printed(text: Text) -> None:
    """Print a text, in colours on a terminal."""
    from rich.console import Console

    text.rstrip()
    Console(soft_wrap=True, highlight=False).print(text)


def printed_json(values: Any) -> None:
    """Print JSON that a terminal only shows."""
    import json

    from probe.report.layout import harmless_json

    click.echo(harmless_json(json.dumps(values, indent=2, ensure_ascii=False, default=str)))


@contextlib.contextmanager
def progress(doing: str) -> Iterator[dict[str, Any]]:
    """Show a bar while something is done, on a terminal; yield the option that tells it how far that is."""
    if not sys.stderr.isatty():  # rich would end its progress by an empty line
        yield {}
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield {"progress": lambda done, total: bar.update(task, completed=done, total=total)}
