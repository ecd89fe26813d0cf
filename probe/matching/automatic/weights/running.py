"""Running statistics of modules that are a pair, where a class of one's own calls them by other names.

They are buffers that a step writes to: the mean and the variance of a norm, averages of a codebook. Zeros and ones as training
begins, and other numbers behind a step where one side is wrong: of itself one says little. So all modules of a class are asked
together which of its buffers are equal behind the step, which before it, and which are called alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from probe.matching.initial_weights import rounded
from probe.matching.result import Matching, Reason, View
from probe.numbers.axis_sums import squeezed
from probe.numbers.statistics import dtype_of, is_float
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_SAME_VALUES, _SAME_KIND = 0.98, 0.85
_KINDS = ("mean", "var")
"""what is in the names of most"""

Numbers = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Running:
    """A buffer that a step writes to."""

    slot: str
    name: str
    """what it is called in the canonical layout"""
    shape: tuple[int, ...]
    before: Numbers | None
    after: Numbers

    @property
    def kind(self) -> str:
        """The part of its name that says what it is; empty where nothing does."""
        return next((kind for kind in _KINDS if kind in self.name.casefold()), "")


Names = tuple[str, str]
Members = list[tuple[int, int, Sequence[_Running], Sequence[_Running]]]


def match_running(matching: Matching, a: Reader, b: Reader, least: float) -> Matching:
    """Return a matching with views of running statistics that the two sides call by other names, ``least`` as sure.

    Where a mapping made a pair, it is the mapping that says what is called how.
    """
    if _names(a, [pair.a for pair in matching.pairs]) == _names(b, [pair.b for pair in matching.pairs]):
        return matching
    by_class: dict[Names, Members] = defaultdict(list)
    running_a, running_b = _running(a), _running(b)
    named_a, named_b = ({module for module, _ in views} for views in (matching.views_a, matching.views_b))
    for pair in matching.pairs:
        if pair.a in named_a or pair.b in named_b:  # a mapping says what they are
            continue
        mine, theirs = running_a.get(pair.a, ()), running_b.get(pair.b, ())
        known = {each.name for each in mine} & {each.name for each in theirs}
        mine, theirs = ([each for each in own if each.name not in known] for own in (mine, theirs))
        if mine and theirs and pair.reason is not Reason.MAPPED:
            by_class[a.modules[pair.a].class_name, b.modules[pair.b].class_name].append((pair.a, pair.b, mine, theirs))
    views = dict(matching.views_a), dict(matching.views_b)
    for members in by_class.values():
        for names, sure in _met(members).items():
            named = 0 if "running_" in names[1] else 1  # what has the usual name keeps it
            for *modules, mine, theirs in members if sure >= least else ():
                for each in (each for each in (mine, theirs)[named] if each.name == names[named]):
                    views[named].setdefault((modules[named], each.slot), View(names[1 - named], confidence=sure))
    return replace(matching, views_a=views[0], views_b=views[1])


def _names(reader: Reader, modules: Sequence[int]) -> list[set[str]]:
    """Return what the buffers of each module are called."""
    found: dict[int, set[str]] = defaultdict(set)
    for each in reader.parameters:
        if each.is_buffer:
            found[each.module].add(each.canonical_slot)
    return [found.get(module, set()) for module in modules] if found else []


def _running(reader: Reader) -> dict[int, list[_Running]]:
    """Return the buffers, by module, that the first recorded step writes to."""
    kept = (each for each in reader.parameters if each.is_buffer and is_float(dtype_of(each.dtype)))
    buffers = {(each.module, each.slot): each for each in kept}
    if not buffers or not len(reader.steps):
        return {}
    records = reader.of_step("records", int(reader.steps["step"][0]))
    before, after = (_numbers(reader, records, phase) for phase in (Phase.INIT, Phase.UPDATE))
    found: dict[int, list[_Running]] = defaultdict(list)
    for place, info in buffers.items():
        if place in after and before.get(place) != after[place]:
            shape = squeezed(info.shape)  # axes of size 1 are there for a product
            found[info.module].append(_Running(info.slot, info.canonical_slot, shape, before.get(place), after[place]))
    return found


def _numbers(reader: Reader, records: np.ndarray, phase: Phase) -> dict[tuple[int, str], Numbers]:
    rows = records[(records["role"] == Role.BUFFER) & (records["phase"] == phase)]
    columns = zip(*(rows[name].tolist() for name in ("module", "slot", "min", "max", "norm")), strict=True)
    return {
        (module, reader.slots[slot]): (rounded(low), rounded(high), rounded(norm))
        for module, slot, low, high, norm in columns
    }


def _met(members: Members) -> dict[Names, float]:
    """Return which names are a pair, and how sure that is; the best first, each name once."""
    signs: dict[Names, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for _, _, mine, theirs in members:
        for (k, x), (m, y) in product(enumerate(mine), enumerate(theirs)):
            if x.shape == y.shape:
                is_like = x.after == y.after, x.before == y.before is not None, x.kind == y.kind != "", k == m
                for which, sign in enumerate(is_like):
                    signs[x.name, y.name][which] += sign
    found: dict[Names, float] = {}
    for names in sorted(signs, key=lambda each: signs[each], reverse=True):
        if not any(set(names) & set(other) for other in found):
            after, _, kind, _ = signs[names]
            if after or kind:  # that both began with zeros says nothing
                found[names] = _SAME_VALUES if after else _SAME_KIND
    return found
