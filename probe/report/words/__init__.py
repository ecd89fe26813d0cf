"""The English of notes: for each code a template of its facts, or a function of them. No other module writes these sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from probe.comparison.notes import Note
from probe.report.words import (
    acceptance,
    findings,
    hints,
    matching,
    notes,
    optimizers,
    ranks,
    replay,
    run_checks,
    settings,
    supported,
    tensors,
    walk,
)

Words = str | Callable[..., str]

TABLES = (
    notes.WORDS,
    matching.WORDS,
    walk.WORDS,
    tensors.WORDS,
    findings.WORDS,
    hints.WORDS,
    optimizers.WORDS,
    replay.WORDS,
    supported.WORDS,
    acceptance.WORDS,
    run_checks.WORDS,
    settings.WORDS,
    ranks.WORDS,
)
WORDS: Mapping[str, Words] = {code: words for table in TABLES for code, words in table.items()}
"""by code: a template for `str.format`, or a function that is given the facts by name"""


def text(said: Note) -> str:
    """Return the English of a note."""
    words = WORDS[said.code]
    return words.format(**said.facts) if isinstance(words, str) else words(**said.facts)
