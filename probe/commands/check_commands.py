"""The group ``probe check``: commands that look at one run, or at what two runs start from."""

from __future__ import annotations

import click

from probe.commands import setting_checks
from probe.commands.summaries import Group


@click.group("check", cls=Group)
def check_group() -> None:
    """Checks of configurations and environments, before and beside a comparison.

    \b
    Example: probe check config config.json pretrain.sh
             probe check env a.h5 b.h5
    """


for _command in (*setting_checks.COMMANDS,):
    check_group.add_command(_command)
