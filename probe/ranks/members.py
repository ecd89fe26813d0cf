"""The ranks of a run, each with its file, its place, and what its modules and parameters are in the whole."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.ranks.layout.groups import DATA
from probe.ranks.layout.places import ALL, Layout
from probe.ranks.tree import Facts, Union, facts_by_name
from probe.records import ModuleInfo, Role
from probe.store.reading.reader import Reader

SEQUENCE = "cp"
"""the group whose ranks have parts of each sequence"""
_FSDP = "FSDP"
"""how the classes of modules begin that FSDP2 shards"""
_UNNAMED = "mesh"
"""how the only dimension of a mesh is called that has no name"""


@dataclass(frozen=True)
class Member:
    """A rank."""

    number: int
    reader: Reader
    rank: int
    places: Mapping[str, int]
    """by group, its place in it"""
    stage: int
    part: int
    """which share of the batch it is given"""
    parts: np.ndarray
    """by module of its file, which share that module works on: an expert on those of all ranks of its group, of which this is the first"""
    module_of: np.ndarray
    """by module of its file, that of the whole"""
    modules: Mapping[str, Facts]
    """by path in its file, what the program says of it by attributes"""
    parameters: Mapping[str, Facts]
    """by name in its file, likewise"""


@dataclass(frozen=True)
class Shares:
    """How the batch is divided over ranks."""

    groups: tuple[str, ...]
    """whose ranks are given other samples, from the outermost"""
    batch: int
    """shares of the batch"""
    sequence: int
    """parts of each sequence, which are counted first"""

    @property
    def count(self) -> int:
        """How many shares there are in all."""
        return self.batch * self.sequence


def members_of(readers: Sequence[Reader], layout: Layout, union: Union, shares: Shares) -> list[Member]:
    """Return the ranks of a run in their order."""
    places = [{name: layout.place(reader.info.rank, name) for name in layout.groups} for reader in readers]
    parts = [0] * len(readers)
    for name in shares.groups:
        parts = [part * layout.size(name) + each[name] for part, each in zip(parts, places, strict=True)]
    found = []
    for number, reader in enumerate(readers):
        rank, module_of = reader.info.rank, np.array(union.index_of[number], np.int32)
        group = [
            k for k, other in enumerate(readers) if other.info.rank in layout.groups.get("ep", {}).get(rank, (rank,))
        ]
        held = set.intersection(*(set(union.index_of[k]) for k in group))
        own = np.where(np.isin(module_of, list(held)), parts[number], min(parts[k] for k in group))
        said = facts_by_name(reader, "modules"), facts_by_name(reader, "parameters")
        at = places[number], union.stages[number], parts[number]
        found.append(Member(number, reader, rank, *at, own, module_of, *said))
    return found


def shares_of(readers: Sequence[Reader], layout: Layout, stages: Sequence[int]) -> Shares:
    """Return how the batch is divided: over groups of data whose ranks are given other inputs; those that are given the same are copies."""
    is_data = DATA | {SEQUENCE, ALL}
    if any(module.class_name.startswith(_FSDP) for module in readers[0].modules):
        is_data = is_data | {_UNNAMED}
    names = [name for name in reversed(layout.groups) if name in is_data]
    given = {
        reader.info.rank: _given(reader) for reader, stage in zip(readers, stages, strict=True) if stage == min(stages)
    }
    chosen = sorted((name for name in names if _differ(name, layout, given)), key=SEQUENCE.__eq__)
    batch = math.prod(layout.size(name) for name in chosen if name != SEQUENCE)
    return Shares(tuple(chosen), batch, layout.size(SEQUENCE) if SEQUENCE in chosen else 1)


def _differ(name: str, layout: Layout, given: Mapping[int, object]) -> bool:
    """Return True if ranks that differ in their place in one group alone are given other inputs."""
    sets: dict[object, set[object]] = {}
    for rank, inputs in given.items():
        key = layout.at(rank, [other for other in layout.dividing if other != name])
        sets.setdefault(key, set()).add(inputs)
    known = [each for each in sets.values() if None not in each]
    return not known or any(len(each) > 1 for each in known)


def _given(reader: Reader) -> object:
    """Return the hashes of what the model is given first; None where nothing was recorded of it."""
    for row in reader.steps[:1]:
        rows = reader.of_step("records", int(row["step"]))
        is_given = (rows["role"] == Role.INPUT) & np.isin(rows["module"], models_of(reader.modules))
        chosen = rows[is_given & (rows["hash_kind"] != 0)]
        if len(chosen):
            first = chosen[chosen["micro"] == chosen["micro"][0]]
            return tuple(sorted(zip(first["hash_lo"].tolist(), first["hash_hi"].tolist(), strict=True)))
    return None


def models_of(modules: Sequence[ModuleInfo]) -> list[int]:
    """Return the roots, and the models of a list in their place."""
    roots = [index for index, module in enumerate(modules) if module.parent < 0]
    lists = {root for root in roots if modules[root].class_name == "list"}
    return [*roots, *(k for k, module in enumerate(modules) if module.parent in lists)]
