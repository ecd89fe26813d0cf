"""Training logs in lines of text: Megatron's, MindFormers', and what trainers print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from probe.curve_comparison.reading import framework_logs as printed
from probe.curve_comparison.reading.framework_logs import Found, Printed
from probe.curve_comparison.reading.names import GRAD_NORM, LOSS, LR, canonical, is_of_the_machine
from probe.curve_comparison.reading.series import Collector, RunCurves
from probe.curve_comparison.reading.trainer import SUMMARY
from probe.errors import FormatError

MEGATRON, MINDFORMERS = "Megatron log", "MindFormers log"
PADDLENLP, TRAINER, LOSS_MONITOR = "PaddleNLP log", "Trainer output", "LossMonitor output"

_MEGATRON = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_VALIDATION = re.compile(r"\b(validation|test) loss at iteration (\d+)([^|]*)\|(.*)")
_MINDFORMERS = re.compile(r"\bEpoch:\s*\[\s*(\d+)\s*/\s*\d+\s*\],\s*step:\s*\[\s*(\d+)\s*/\s*(\d+)\s*\],?(.*)")
_FIELD = re.compile(r"([A-Za-z][\w .()/-]{0,199}?):\s*(\[[^\]]{0,999}\]|[^,]*)(?:,|$)")
"""a name and its value; bounded, as a long line without a colon would be gone over from each of its letters"""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE)
_LEADING = re.compile(rf"\s*({_NUMBER.pattern})(?:\s*[A-Za-z/%]*)?\s*$", re.IGNORECASE)
_NAMED = re.compile(
    rf"(?<![\w./()-])([A-Za-z_][\w./()-]{{0,199}})['\"]?(?::\s+|\s*=\s*)['\"\[]?(?:{_NUMBER.pattern})(?![\w:])",
    re.IGNORECASE,
)
"""a name and a number"""
_MOST_SHOWN = 80
"""characters of a line"""
_NOTHING = {"", "none", "null", "n/a"}
EXPECTED = (
    "Megatron's “iteration 1/ 500 | … | lm loss: 1.08E+01 | grad norm: 2.1 |” or "
    "MindFormers' “Epoch:[ 1/ 2], step:[ 1/ 500], loss: 10.8, …, global_norm: 2.1”, PaddleNLP's “loss: 10.8, …, global_step: 1”, "
    "the Trainer's “{'loss': 10.8, …, 'epoch': 0.1}” or LossMonitor's “epoch: 1 step: 1, loss is 10.8”"
)


def kind_of_log(text: str) -> str:
    """Return whose log lines stand in a text, or nothing."""
    return next((kind for kind, (is_kind, _) in _KINDS.items() if is_kind(text)), "")


def read_log(path: Path, text: str) -> RunCurves:
    """Return the curves of a log in which `kind_of_log` found lines.

    Every field with a number is taken. Steps of MindFormers and LossMonitor are counted through all epochs.

    Raises
    ------
    FormatError
        a loss, gradient norm or learning rate is no number; with the line
    """
    kind = kind_of_log(text)
    lines = text.splitlines()
    rows, notes = _KINDS[kind][1](lines)
    found = Collector()
    for row in rows:
        _take(found, row.step, row.name, row.text, f"{path}, line {row.line}")
    return found.curves(path, kind, (*notes, *_unread(lines, {row.line for row in rows})))


def _unread(lines: list[str], read: set[int]) -> Iterator[str]:
    """Say how many lines hold a number, and are none of those that were read: from the first of these on."""
    found: list[tuple[int, str]] = []
    for number in range(min(read, default=0) + 1, len(lines) + 1):
        named = [] if number in read else [*_NAMED.finditer(lines[number - 1])]
        own = [each for each in named if not is_of_the_machine(each[1])]
        if own and not any(each[1] in SUMMARY for each in named):
            found.append((number, lines[number - 1][own[0].start() :].strip()))
    if found:
        count = f"{len(found):,} lines hold numbers and are" if len(found) > 1 else "1 line holds numbers and is"
        yield f"{count} not read, first line {found[0][0]}: “{found[0][1][:_MOST_SHOWN]}”"


def _megatron_fields(line: str) -> Iterator[tuple[int, str, str]]:
    row = _MEGATRON.search(line)
    if row is not None:
        step, prefix, rest = int(row[1]), "", row[2]
    else:
        row = _VALIDATION.search(line)
        if row is None:
            return
        step, prefix, rest = int(row[2]), f"{row[1]} ", row[4]
    for part in rest.split("|"):
        name, colon, value = part.partition(":")
        if colon and name.strip():
            yield step, prefix + name.strip(), value


def _mindformers_fields(line: str) -> Iterator[tuple[int, str, str]]:
    row = _MINDFORMERS.search(line)
    if row is None:
        return
    step = (int(row[1]) - 1) * int(row[3]) + int(row[2])
    rest = row[4]
    at = 0
    if (mean := re.match(r"\s*loss:\s*\[([^/\]]*)/[^\]]*\]\s*(?:,|$)", rest)) is not None:
        yield step, LOSS, mean[1]  # the step's own loss, and its mean over those printed so far
        at = mean.end()
    for part in _FIELD.finditer(rest, at):
        yield step, part[1].strip(), part[2].strip().removeprefix("[").removesuffix("]")


def _take(found: Collector, step: int, name: str, text: str, where: str) -> None:
    number = _LEADING.match(text)
    if number is not None:
        found.add(step, name, float(number[1]), number[1])
    elif canonical(name) in (LOSS, GRAD_NORM, LR) and text.strip().lower() not in _NOTHING:
        raise FormatError(f"{where}: {name}: expected a number, got {text.strip()[:80]!r}")


def _line_by_line(fields: Callable[[str], Iterator[tuple[int, str, str]]]) -> Callable[[list[str]], Printed]:
    def read(lines: list[str]) -> Printed:
        return Printed([Found(number, *field) for number, line in enumerate(lines, 1) for field in fields(line)])

    return read


_KINDS: dict[str, tuple[Callable[[str], object], Callable[[list[str]], Printed]]] = {
    MEGATRON: (_MEGATRON.search, _line_by_line(_megatron_fields)),
    MINDFORMERS: (_MINDFORMERS.search, _line_by_line(_mindformers_fields)),
    PADDLENLP: (printed.is_paddlenlp, printed.read_paddlenlp),
    TRAINER: (printed.is_trainer, printed.read_trainer),
    LOSS_MONITOR: (printed.is_loss_monitor, printed.read_loss_monitor),
}
"""what tells a log, and what reads it; the first that fits counts"""
