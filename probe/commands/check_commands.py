"""The group ``probe check``: commands that look at one run, or at what two runs start from."""

from __future__ import annotations

import click

from probe.commands import run_checks, setting_checks
from probe.commands.shared import Group


@click.group("check", cls=Group)
def check_group() -> None:
    """Checks of one run, of what two runs start from, and of configurations and environments.

    \b
    Exit status: 0 nothing found, 1 found, 2 could not be checked, 3 error.
    Example:     probe check overflow a.h5
                 probe check data a.h5 b.h5
                 probe check weights ckpt_a ckpt_b
                 probe check init a.h5 b.h5
                 probe check logprobs trainer.npz engine.jsonl
                 probe check config config.json pretrain.sh
                 probe check env a.h5 b.h5
    """


for _command in (*run_checks.COMMANDS, *setting_checks.COMMANDS):
    check_group.add_command(_command)
