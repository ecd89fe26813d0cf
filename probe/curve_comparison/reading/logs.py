"""Training logs in lines of text: Megatron's and MindFormers'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from probe.curve_comparison.reading.names import GRAD_NORM, LOSS, LR, canonical
from probe.curve_comparison.reading.series import Collector, RunCurves
from probe.errors import FormatError

MEGATRON, MINDFORMERS = "Megatron log", "MindFormers log"

_MEGATRON = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|(.*)")
_VALIDATION = re.compile(r"\b(validation|test) loss at iteration (\d+)([^|]*)\|(.*)")
_MINDFORMERS = re.compile(r"\bEpoch:\s*\[\s*(\d+)\s*/\s*\d+\s*\],\s*step:\s*\[\s*(\d+)\s*/\s*(\d+)\s*\],(.*)")
_FIELD = re.compile(r"\s*([A-Za-z][\w .()/-]*?):\s*(\[[^\]]*\]|[^,]*)(?:,|$)")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE)
_LEADING = re.compile(rf"\s*({_NUMBER.pattern})(?:\s*[A-Za-z/%]*)?\s*$", re.IGNORECASE)
_NOTHING = {"", "none", "null", "n/a"}
EXPECTED = (
    "Megatron's “iteration 1/ 500 | … | lm loss: 1.08E+01 | grad norm: 2.1 |” or "
    "MindFormers' “Epoch:[ 1/ 2], step:[ 1/ 500], loss: 10.8, …, global_norm: 2.1”"
)


def kind_of_log(text: str) -> str:
    """Return whose log lines stand in a text, or nothing."""
    for kind, pattern in ((MEGATRON, _MEGATRON), (MINDFORMERS, _MINDFORMERS)):
        if pattern.search(text):
            return kind
    return ""


def read_log(path: Path, text: str) -> RunCurves:
    """Return the curves of a log in which `kind_of_log` found lines.

    Every field with a number is taken. Steps of MindFormers are counted through all epochs.

    Raises
    ------
    FormatError
        a loss, gradient norm or learning rate is no number; with the line
    """
    kind = kind_of_log(text)
    fields = _megatron_fields if kind == MEGATRON else _mindformers_fields
    found = Collector()
    for number, line in enumerate(text.splitlines(), 1):
        for step, name, value in fields(line):
            _take(found, step, name, value, f"{path}, line {number}")
    return RunCurves(str(path), kind, found.series(), {}, found.notes)


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
