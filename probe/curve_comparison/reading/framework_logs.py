"""What trainers print without being asked: PaddleNLP's lines, the dicts of transformers' Trainer, MindSpore's LossMonitor."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from probe.curve_comparison.reading.trainer import SUMMARY

_LOSS, _GLOBAL_STEP = re.compile(r"\bloss: "), re.compile(r"\bglobal_step: (\d+)")
_EVALUATION = re.compile(r"\beval_\w+: ")
_FIELD = re.compile(r"([A-Za-z_][\w./]*): ([^,]*)(?:,|$)")
_DICT = re.compile(r"\{'[^{}]*\}")
_ITEM = re.compile(r"'([^']+)': ('?)([^,'}]*)\2")
_OF_A_STEP, _PLACES = frozenset({"loss", "eval_loss", "grad_norm"}), frozenset({"epoch", "global_step"})
_BAR = re.compile(r"\b(\d+)/(\d+) \[")
"""of tqdm"""
_LOSS_MONITOR = re.compile(r"\bepoch: (\d+) step: (\d+), loss is \[?([^\s\]]+)")
_STEP = "global_step"
COUNTED = "its lines have no step: they are counted 1, 2, 3 … (trainer_state.json has the steps)"


class Found(NamedTuple):
    """A number in a line."""

    line: int
    """from 1"""
    step: int
    name: str
    text: str


class Printed(NamedTuple):
    """All numbers of a log."""

    found: list[Found]
    notes: tuple[str, ...] = ()


def is_paddlenlp(text: str) -> bool:
    """Tell lines with ``loss: …, global_step: …``."""
    return "global_step: " in text and any(_paddlenlp_step(line) is not None for line in text.splitlines())


def is_trainer(text: str) -> bool:
    """Tell lines with ``{'loss': …, 'epoch': …}``."""
    found = (_items(match[0]).keys() for match in _DICT.finditer(text))
    return any(names & _OF_A_STEP and names & _PLACES for names in found)


def is_loss_monitor(text: str) -> bool:
    """Tell lines with ``epoch: 1 step: 1, loss is …``."""
    return bool(_LOSS_MONITOR.search(text))


def read_paddlenlp(lines: list[str]) -> Printed:
    """Return every field of the lines that have a step; an evaluation belongs to the step before it."""
    found, step = [], 0
    for number, line in enumerate(lines, 1):
        own = _paddlenlp_step(line)
        if own is None and not _EVALUATION.search(line):
            continue
        step = step if own is None else own
        found += [Found(number, step, name, text) for name, text in _FIELD.findall(line) if name != _STEP]
    return Printed(found)


def _paddlenlp_step(line: str) -> int | None:
    found = _GLOBAL_STEP.search(line)
    return int(found[1]) if found and _LOSS.search(line) else None


def read_trainer(lines: list[str]) -> Printed:
    """Return every item of the dicts that are printed.

    A dict has no step, except PaddleNLP's. It is that of the progress bar behind it where the bars tell all of them, else dicts are
    counted. What is printed with four digits is known no better.
    """
    rows: list[tuple[int, dict[str, str]]] = []
    bars: list[tuple[int, int, int]] = []
    for number, line in enumerate(lines, 1):
        rows += [(number, _items(text)) for text in _DICT.findall(line)]
        bars += [(number, int(bar[1]), int(bar[2])) for bar in _BAR.finditer(line)]
    rows = [(number, items) for number, items in rows if items.keys() & _OF_A_STEP]
    trained = dict.fromkeys(number for number, items in rows if "loss" in items or "grad_norm" in items)
    steps, notes = dict(zip(trained, _steps_of_bars([*trained], bars), strict=False)), ()
    if not steps and not all(_STEP in items for _, items in rows):
        steps, notes = {number: count for count, number in enumerate(trained, 1)}, (COUNTED,)
    found, step = [], 0
    for number, items in rows:
        step = int(items[_STEP]) if items.get(_STEP, "").isdecimal() else steps.get(number, step)
        left_out = {_STEP, *SUMMARY} | (set() if number in trained else {"epoch"})
        found += [Found(number, step, name, text) for name, text in items.items() if name not in left_out]
    return Printed(found, notes)


def _items(text: str) -> dict[str, str]:
    """Return names and numbers as they are printed; those in quotes have four digits, trailing zeros left out."""
    found = {}
    for name, quote, value in _ITEM.findall(text):
        try:
            found[name] = f"{float(value):.3e}" if quote and name != _STEP else value
        except ValueError:  # a text
            found[name] = value
    return found


def _steps_of_bars(trained: list[int], bars: list[tuple[int, int, int]]) -> list[int]:
    """Return the step that the bar shows when it is drawn again behind each line, if these are evenly apart."""
    if not trained or not bars:
        return []
    total = bars[0][2]  # the first is that of the training; evaluations have bars of their own
    own = [(number, step) for number, step, of in bars if of == total]
    steps = [next((step for number, step in own if number >= line), -1) for line in trained]
    gaps = {later - earlier for earlier, later in pairwise([0, *steps])}
    return steps if len(gaps) == 1 and min(gaps) > 0 else []


def read_loss_monitor(lines: list[str]) -> Printed:
    """Return the losses; steps, which are counted in each epoch, are counted through all of them."""
    rows = [
        (number, int(row[1]), int(row[2]), row[3].rstrip(","))
        for number, line in enumerate(lines, 1)
        for row in _LOSS_MONITOR.finditer(line)
    ]
    per_epoch = _steps_per_epoch([(epoch, step) for _, epoch, step, _ in rows])
    return Printed([Found(number, (epoch - 1) * per_epoch + step, "loss", text) for number, epoch, step, text in rows])


def _steps_per_epoch(places: list[tuple[int, int]]) -> int:
    """Return the steps of an epoch from the first two epochs that follow one another, printed at even intervals."""
    gaps = [after - before for (one, before), (two, after) in pairwise(places) if one == two and after > before]
    for (one, before), (two, after) in pairwise(places):
        if two == one + 1:
            return before + min(gaps) - after if gaps else before
    return 0
