"""The command ``probe presets``."""

from __future__ import annotations

import click

from probe.commands.shared import printed, printed_json


@click.command("presets")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def presets_command(as_json: bool) -> None:
    """List the acceptance tables of --preset. Each with what it asks for, and where that is written.

    \b
    Example: probe presets
             probe compare a.h5 b.h5 --preset paddlenlp/qwen2-0.5b
    """
    from probe.answer.presets import PRESETS
    from probe.report.acceptance import presets_text

    if as_json:
        printed_json([preset.as_json() for preset in PRESETS.values()])
    else:
        printed(presets_text(PRESETS.values()))
