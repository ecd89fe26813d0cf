"""The English of notes: for each code a template of its facts, or a function of them. No other module writes these sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from probe.notes import Note, within
from probe.report.words import curves
from probe.report.words.forms import SENTENCES, filled
from probe.report.words.told import TOLD

Words = str | Callable[..., str]


TABLES: Sequence[Mapping[str, Words]] = (*SENTENCES.values(), TOLD, curves.WORDS)
WORDS: Mapping[str, Words] = {code: words for table in TABLES for code, words in table.items()}
"""by code: a template (`probe.report.words.forms`), or a function that is given the facts by name"""


def text(said: Note) -> str:
    """Return the English of a note."""
    words = WORDS[said.code]
    return filled(words, said.facts) if isinstance(words, str) else words(**said.facts)


def texts(said: Iterable[Note]) -> tuple[str, ...]:
    """Return the English of notes, each once: of those that differ in their step, and in what was measured there, the first."""
    found: dict[object, tuple[str, dict[int, None]]] = {}
    for each in said:
        steps = [part.facts["step"] for part in within(each) if isinstance(part, Note) and "step" in part.facts]
        key = _apart_from_step(each) if steps else str(each)
        found.setdefault(key, (str(each), {}))[1].update(dict.fromkeys(steps[:1]))
    return tuple(dict.fromkeys(f"{first}{_also_in(list(steps)[1:])}" for first, steps in found.values()))


def _apart_from_step(fact: object) -> object:
    """Return a note or a fact without steps and measured numbers."""
    if isinstance(fact, Note):
        return fact.code, *(_apart_from_step(value) for name, value in fact.facts.items() if name != "step")
    if isinstance(fact, (list, tuple)):
        return tuple(map(_apart_from_step, fact))
    return None if isinstance(fact, float) else str(fact)


def _also_in(steps: Sequence[int]) -> str:
    """Name further steps: `` (also in steps 1–9)``."""
    if not steps:
        return ""
    is_run = len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1
    listed = f"{steps[0]}–{steps[-1]}" if is_run else ", ".join(map(str, steps))
    return f" (also in step{'s' if len(steps) > 1 else ''} {listed})"
