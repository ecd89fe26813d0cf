"""The commands ``probe check config`` and ``env``."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from probe.commands import shared
from probe.defaults import FRAMEWORKS
from probe.errors import ConfigError

if TYPE_CHECKING:
    from probe.settings.comparing import Difference
    from probe.settings.environment import Environment

_VERBOSE = click.option("-v", "--verbose", is_flag=True, help="Everything, not only what changes numbers.")


@click.command("config")
@click.argument("a")
@click.argument("b")
@_VERBOSE
@shared.JSON
def config_command(a: str, b: str, verbose: bool, as_json: bool) -> None:
    """Hold two configurations against each other, whatever code base each of them is for.

    A and B are config.json, TrainingArguments as JSON, a YAML file of MindFormers, a shell script with --options, the
    arguments that Megatron prints, or a recording. Of one side in two files: config.json+training_args.json.

    \b
    Exit status: 0 nothing that changes numbers differs, 1 something does, 3 error.
    Example:     probe check config config.json pretrain_qwen2.sh
                 probe check config megatron.log finetune_qwen2_7b.yaml -v
    """
    from probe.report import settings as report
    from probe.settings.comparing import held_against
    from probe.settings.reading.files import read
    from probe.settings.resolving import resolved

    sides = held_against(*(resolved(read(path)) for path in (a, b)))
    sides.require_common()
    if as_json:
        shared.printed_json(report.as_json(sides))
    else:
        shared.printed(report.held(sides, shared.columns(), verbose=verbose))
    sys.exit(1 if sides.counting else 0)


@click.command("env")
@click.argument("a", type=click.Path(), required=False)
@click.argument("b", type=click.Path(), required=False)
@click.option("--framework", type=click.Choice(FRAMEWORKS), help="Import it, and look at its switches and devices too.")
@_VERBOSE
@shared.JSON
def env_command(a: str | None, b: str | None, framework: str | None, verbose: bool, as_json: bool) -> None:
    """Look at this environment, or at those of recordings: what is set, what to set for determinism, what has no effect.

    \b
    Exit status: 0 nothing is wrong, 3 error, 1 a variable has no effect, a dtype
                 that was used is not there, or two recordings differ in what
                 changes numbers.
    Example:     probe check env
                 probe check env a.h5 b.h5
    """
    from probe.report import environments as report
    from probe.settings.advising import advice

    if framework is not None and a is not None:
        raise ConfigError("--framework is for this process: expected it or recordings, not both")
    found, differences = _environments([each for each in (a, b) if each is not None], framework)
    advices = [advice(each) for each in found]
    if as_json:
        shared.printed_json(report.as_json(advices, differences))
    else:
        shared.printed(report.rendered(advices, differences, shared.columns(), verbose=verbose))
    sys.exit(1 if any(each.is_wrong for each in advices) or any(each.effect.counts for each in differences) else 0)


def _environments(files: list[str], framework: str | None) -> tuple[list[Environment], list[Difference]]:
    """Return the environments of recordings, or of this process, and what differs between two."""
    from probe.settings.comparing import held_against
    from probe.settings.environment import environment_of, this_process
    from probe.settings.resolving import resolved

    if not files:
        here = this_process()  # before a framework sets variables of its own
        return [here if framework is None else _with_switches(here, framework)], []
    found = [environment_of(file) for file in files]
    if len(found) < 2:
        return [each for _, each in found], []
    held = held_against(*(resolved(source) for source, _ in found))
    of_environment = [each for each in held.differences if each.row is not None and _is_of_environment(each)]
    return [each for _, each in found], of_environment


def _with_switches(environment: Environment, framework: str) -> Environment:
    """Import a framework and ask it for its switches."""
    try:
        facts = importlib.import_module(f"probe.adapters.{framework}.environment").environment()
    except ImportError as error:
        raise ConfigError(f"--framework {framework}: {error}; expected a framework that is installed here") from None
    return replace(environment, recorded=facts, frameworks={framework: environment.frameworks.get(framework, "")})


def _is_of_environment(difference: Difference) -> bool:
    row = difference.row
    return row is not None and (bool(row.recorded) or bool(row.variables)) and not row.recorded.startswith("group.")


COMMANDS: tuple[click.Command, ...] = (config_command, env_command)
"""what is added to ``probe check``"""
