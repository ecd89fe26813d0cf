"""Lines of a mapping that may be to blame for what is found: those that lead to nothing, and which line made a pair."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from probe.comparison.notes import Note
from probe.mapping import LayerMapping, ParameterRule, Rule
from probe.mapping.patterns import Names
from probe.matching.result import LostLine, Pair
from probe.matching.walk import Walk
from probe.structure.tree import Tree


@dataclass(frozen=True, slots=True)
class Missed:
    """A line that leads to nothing."""

    rule: Rule | ParameterRule
    note: Note
    """what is said of it"""
    here: tuple[int, ...]
    """modules of the source that it leaves without a partner; of a parameter, the one that it belongs to"""


def missed_lines(
    walk: Walk, notes: Mapping[Rule | ParameterRule, Note], places: Mapping[ParameterRule, tuple[int, Names]]
) -> Iterator[Missed]:
    """Yield the lines that lead to nothing.

    Parameters
    ----------
    notes
        what is said of each of them
    places
        where those of parameters begin
    """
    for rule, said in notes.items():
        if isinstance(rule, Rule):
            yield Missed(rule, said, tuple(miss.module for miss in walk.wrongly_missed(rule)))
        else:
            yield Missed(rule, said, (places[rule][0],))


def lost_lines(
    missed: Iterable[Missed], mapping: LayerMapping, source: Tree, target: Tree, pairs: Iterable[Pair], left: Iterable[int], forwards: bool
) -> tuple[LostLine, ...]:  # fmt: skip
    """Return the lines that lead to nothing, with the modules of both sides that may lack a partner for it.

    In the target these are what is left in the place that holds what the line names, and what has the same path.

    Parameters
    ----------
    pairs
        from A to B
    left
        modules of the target without a partner
    forwards
        whether the source is A
    """
    there = {pair.a: pair.b for pair in pairs} if forwards else {pair.b: pair.a for pair in pairs}
    lonely = list(left)
    found = []
    for each in missed:
        is_parameter = isinstance(each.rule, ParameterRule)
        if is_parameter:
            over = {there[index] for index in each.here if index in there}
        else:
            around = {there.get(source.modules[index].parent) for index in each.here}
            paths = {source.path(index) for index in each.here}
            over = {i for i in lonely if target.modules[i].parent in around or target.path(i) in paths}
        sides = frozenset(each.here), frozenset(over)
        found.append(
            LostLine(where(each.rule, mapping), each.note, *(sides if forwards else sides[::-1]), is_parameter)
        )
    return tuple(found)


def where(rule: Rule | ParameterRule, mapping: LayerMapping) -> str:
    """Return ``line 4 of m.yaml``; of a mapping without lines what the line says."""
    return f"{f'line {rule.line}' if rule.line else rule} of {Path(mapping.name).name}"
