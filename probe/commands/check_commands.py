"""The group ``probe check``: commands that look at one run, or at what two runs start from."""

from __future__ import annotations

import click

from probe.commands.run_checks import COMMANDS
from probe.commands.summaries import Group


@click.group("check", cls=Group)
def check_group() -> None:
    """Checks of one run, or of what two runs start from: overflow, data, weights, initialisation.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check overflow a.h5
                 probe check data a.h5 b.h5
                 probe check weights ckpt_a ckpt_b
                 probe check init a.h5 b.h5
    """


for _command in COMMANDS:
    check_group.add_command(_command)
