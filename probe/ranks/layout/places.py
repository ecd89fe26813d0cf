"""Which rank is where: its place in each of the groups that divide a run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from probe.ranks.layout.groups import ORDER
from probe.records import RunInfo

ALL = "ranks"
"""the one group of a run of which no groups were recorded"""

_OVER_TP = ("sp", "etp")
_OF_EXPERTS = ("ep", "etp")

Coordinates = tuple[tuple[str, int], ...]
"""(group, place in it) for some groups"""


@dataclass(frozen=True)
class Layout:
    """The groups of a run's ranks."""

    world_size: int
    ranks: tuple[int, ...]
    """those of which there are files, in order"""
    groups: Mapping[str, Mapping[int, tuple[int, ...]]]
    """by name and rank, the ranks of the group that the rank is in; those of one rank are left out"""
    alone: frozenset[str] = frozenset()
    """groups that were recorded, and have one rank each"""

    @classmethod
    def of(cls, runs: Iterable[RunInfo]) -> Layout:
        """Return the layout of a set of recordings, one of each rank."""
        infos = sorted(runs, key=lambda info: info.rank)
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        recorded: set[str] = set()
        for info in infos:
            for name, group in _groups(info).items():
                recorded.add(name)
                if len(group) > 1 and info.rank in group:
                    found.setdefault(name, {})[info.rank] = group
        world = max((info.world_size for info in infos), default=1)
        if not found and world > 1:
            found = {ALL: {info.rank: tuple(range(world)) for info in infos}}
        ordered = sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
        groups = {name: found[name] for name in ordered}
        return cls(world, tuple(info.rank for info in infos), groups, frozenset(recorded - groups.keys()))

    def meant(self, name: str) -> str:
        """Return the group that a name in dims stands for: sequence parallelism, and that of experts, go over tp where they have none."""
        is_other = name in _OVER_TP and name not in self.groups and name not in self.alone
        return "tp" if is_other else name

    def size(self, name: str) -> int:
        """Return how many ranks a group has; 1 where there is no such group."""
        return max((len(group) for group in self.groups.get(name, {}).values()), default=1)

    def place(self, rank: int, name: str) -> int:
        """Return a rank's place in its group, from 0."""
        group = self.groups.get(name, {}).get(rank)
        return group.index(rank) if group else 0

    def at(self, rank: int, names: Sequence[str]) -> Coordinates:
        """Return the places of a rank in some groups."""
        return tuple((name, self.place(rank, name)) for name in names)

    @functools.cached_property
    def dividing(self) -> tuple[str, ...]:
        """Groups that divide the ranks together: each rank has another place in them; those that cut across them are left out.

        Groups of experts lie across those of data: they divide nothing further.
        """
        chosen: list[str] = []
        told = 1
        for name in sorted(self.groups, key=lambda name: name in _OF_EXPERTS):
            further = len({self.at(rank, [*chosen, name]) for rank in self.ranks})
            if further > told:
                chosen.append(name)
                told = further
            if told == len(self.ranks):
                break
        return tuple(chosen)

    def contradiction(self) -> str:
        """Return which ranks disagree on a group; empty where none do."""
        for name, by_rank in self.groups.items():
            for rank, group in by_rank.items():
                for other in group:
                    theirs = by_rank.get(other)
                    if theirs is not None and theirs != group:
                        return f"rank {rank} recorded that its {name} group is {_listed(group)}, rank {other} that it is {_listed(theirs)}"
        return ""


def _groups(info: RunInfo) -> dict[str, tuple[int, ...]]:
    groups = info.parallel.get("groups")
    if not isinstance(groups, dict):
        return {}
    return {
        str(name): tuple(ranks) for name, ranks in groups.items()
        if isinstance(ranks, list) and all(type(rank) is int for rank in ranks)
    }  # fmt: skip


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
