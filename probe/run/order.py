"""What is to be recorded of a program: the options of ``python -m probe.run``, which children of it inherit by their environment."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from probe.errors import ConfigError

PATH = "PROBE_RECORD"
"""environment variable: the file to record to"""
OPTIONS = "PROBE_RECORD_OPTIONS"
"""environment variable: the other options, as on the command line"""


@dataclass(frozen=True)
class Order:
    """A recording that was asked for."""

    path: Path
    """absolute: the program may change its folder"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """of `probe.start`: task, steps, modules …"""
    models: tuple[str, ...] = ()
    """names of what is to be recorded, ``module:attribute``; the model is looked for if there are none"""
    overwrite: bool | None = None
    quiet: bool = False
    on_signal: str | None = None
    on_file: str | None = None
    forwards: int | None = None
    """as `probe.arm` takes them; it records from the first step on if there is neither signal nor file"""
    is_inherited: bool = False
    """by the environment: then this process may be one that trains nothing"""

    @property
    def waits(self) -> bool:
        """Whether a signal or a file begins the recording."""
        return self.on_signal is not None or self.on_file is not None

    def export(self) -> None:
        """Let the processes that this one starts find the order in their environment."""
        os.environ[PATH], os.environ[OPTIONS] = str(self.path), shlex.join(self.words())

    def words(self) -> list[str]:
        """Return the options as they are written on a command line, without the file."""
        own = {name: getattr(self, name) for name in _OWN if name != "path"}
        values = {**self.options, **own}
        found: list[str] = []
        for option in RECORDING:
            value = values.get(option.name or "")
            if value and option.is_flag:
                found.append(option.opts[0])
            elif value:
                several = value if isinstance(value, (list, tuple)) else [value]
                found += [word for each in several for word in (option.opts[0], str(each))]
        return found

    @staticmethod
    def claim() -> None:
        """Let the processes that are started from now on record nothing: this one does."""
        for name in (PATH, OPTIONS):
            os.environ.pop(name, None)


def _listed(text: Sequence[str]) -> list[str] | None:
    """Return what an option names, which is repeated or separated by commas; None where it isn't given."""
    return [part.strip() for each in text for part in each.split(",") if part.strip()] or None


def _numbers(context: click.Context, option: click.Parameter, text: Sequence[str]) -> list[int] | None:
    found = _listed(text)
    if found is not None and not all(part.isdecimal() for part in found):
        raise click.BadParameter(f"{','.join(text)!r}; expected numbers from 0, such as 0,3", context, option)
    return None if found is None else [int(part) for part in found]


def _texts(context: click.Context, option: click.Parameter, text: Sequence[str]) -> list[str] | None:
    return _listed(text)


RECORDING: tuple[click.Option, ...] = (
    click.Option(["-o", "--output", "path"], metavar="FILE", help="The recording. Several ranks write a.rank00000.h5 and so on."),
    click.Option(["--model", "models"], multiple=True, metavar="MODULE:ATTRIBUTE",
                 help="What to record, an object or a class by its name; default: what an optimizer trains. Repeatable."),
    click.Option(["--level"], help="module (default), mix (operations inside modules too) or op."),
    click.Option(["--task"], help="statistics (default), tensor, structure or norms."),
    click.Option(["--steps"], multiple=True, callback=_texts, help='Which steps: 0,10-20 or "every 100"; default all.'),
    click.Option(["--ranks"], multiple=True, callback=_numbers, help="Which ranks: 0,3; default all."),
    click.Option(["--modules"], multiple=True, callback=_texts, metavar="GLOBS", help="Which modules, by path or class; ! in front leaves out."),
    click.Option(["--phases"], multiple=True, callback=_texts, help="init, forward, loss, backward, gradient, update."),
    click.Option(["--tensors"], multiple=True, callback=_texts, metavar="GLOBS", help="Modules whose values are recorded."),
    click.Option(["--tokens"], metavar="A:B", help="Of inputs and outputs, these tokens alone: 128:160."),
    click.Option(["--on-nonfinite"], is_flag=True, help="After NaN or Inf, record the next step in full."),
    click.Option(["--on-loss-jump"], type=float, metavar="FACTOR", help="The same after a loss above FACTOR times the median."),
    click.Option(["--batch"], help="With --task norms: what is kept of a batch: hash (default), ids or all."),
    click.Option(["--compression"], help="Of values: lz4 (faster) or zstd (smaller); default none."),
    click.Option(["--points"], metavar="FILE", help="Values inside the code of modules, from a YAML or JSON file."),
    click.Option(["--routing"], metavar="FILE", help="A recording whose routers' choices of experts are taken."),
    click.Option(["--config"], metavar="FILE", help="Options from a YAML or JSON file."),
    click.Option(["--on-signal"], metavar="NAME", help="Record from one such signal (SIGUSR2) to the next."),
    click.Option(["--on-file"], metavar="FILE", help="Record while this file exists."),
    click.Option(["--forwards"], type=click.IntRange(1), metavar="N", help="With either: end after N forwards."),
    click.Option(["--overwrite"], is_flag=True, help="Replace an earlier recording."),
    click.Option(["--quiet"], is_flag=True, help="Say nothing about what is recorded."),
)  # fmt: skip
"""one for each option of `probe.start` that can be written in a shell"""
_OWN = ("path", "models", "overwrite", "quiet", "on_signal", "on_file", "forwards")
"""those that are no options of what is recorded"""


def order_of(given: Mapping[str, Any], path: str, is_inherited: bool = False) -> Order:
    """Return an order from the parsed options.

    Parameters
    ----------
    given
        values by the names of `RECORDING`
    path
        where to record to
    is_inherited
        whether they come from the environment

    Raises
    ------
    ConfigError
        a model's name isn't one
    """
    for name in given["models"]:
        module, colon, attribute = name.partition(":")
        if not (module and colon and attribute):
            raise ConfigError(
                f"--model {name}: expected MODULE:ATTRIBUTE, for example __main__:model or train:trainer.model"
            )
    options = {each.name: given[each.name] for each in RECORDING if each.name not in _OWN and given[each.name]}
    for name in ("config", "points", "routing"):
        if name in options:
            options[name] = str(Path(options[name]).absolute())
    file = given["on_file"] and str(Path(given["on_file"]).absolute())
    if given["forwards"] and not (file or given["on_signal"]):
        raise ConfigError("--forwards goes with --on-signal or --on-file; otherwise take --steps")
    return Order(
        Path(path).absolute(), options, tuple(given["models"]), given["overwrite"] or None, bool(given["quiet"]),
        given["on_signal"], file, given["forwards"], is_inherited,
    )  # fmt: skip


def inherited() -> Order:
    """Return the order that stands in the environment.

    Raises
    ------
    ConfigError
        an option makes no sense
    """
    try:
        words = shlex.split(os.environ.get(OPTIONS, ""))
        given = (
            click.Command(OPTIONS, params=list(RECORDING), add_help_option=False)
            .make_context(OPTIONS, list(words))
            .params
        )
    except (ValueError, click.ClickException) as error:
        raise ConfigError(f"{OPTIONS}: {getattr(error, 'message', error)}") from None
    return order_of(given, os.environ[PATH], is_inherited=True)
