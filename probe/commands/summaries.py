"""Groups of commands whose help shows every summary whole."""

from __future__ import annotations

import click

_WHOLE = 1000
"""characters of a summary"""


class Group(click.Group):
    """A group as click has it, but no command's summary is cut at the end of a line."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and summaries of the commands."""
        rows = [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in self.list_commands(context)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
