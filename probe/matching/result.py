"""What matching finds: pairs, what several modules of one side are on the other, and what is left."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from probe.errors import ConfigError
from probe.mapping import Rule
from probe.notes import Note
from probe.numbers.fused import Fusion

Place = tuple[int, str]
"""(module, slot) of a parameter"""


def other_side(side: str) -> str:
    """Return ``B`` for ``A`` and ``A`` for ``B``."""
    return "A" if side == "B" else "B"


class Reason(enum.StrEnum):
    """Why two modules are a pair."""

    MAPPED = "mapped"
    SAME_PATH = "same path"
    SAME_STRUCTURE = "same structure"
    SAME_VALUES = "same values"


class Direction(enum.StrEnum):
    """Which side a mapping is written from."""

    A_TO_B = "a-to-b"
    B_TO_A = "b-to-a"

    @classmethod
    def named(cls, name: str | None) -> Direction | None:
        """Return a direction by its name. Raises ConfigError."""
        if name is None or name in list(cls):
            return None if name is None else cls(name)
        raise ConfigError(f"direction={name!r} is not known; expected {' or '.join(map(repr, map(str, cls)))}")


@dataclass(frozen=True, slots=True)
class Pair:
    """A module of A and the module of B that it is matched with."""

    a: int
    b: int
    reason: Reason
    confidence: float = 1.0
    has_calls: bool = True
    """whether what they are given and return is compared, not only their parameters"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """Modules of one side that are one module of the other: given the same, and what they return lies in one tensor.

    The first of the parts is also the other's partner in `Matching.pairs`.
    """

    side: str
    """``A`` or ``B``: which has the parts"""
    whole: int
    """module of the other side"""
    parts: tuple[int, ...]
    """in the order in which they lie there"""
    groups: int = 1
    """the parts lie in so many equal groups, each of which holds an equal share of every part; 0 where nothing says it"""
    rotary: int = 0
    """as in `probe.numbers.fused.Fusion`; −1 where nothing says it"""
    order: tuple[int, ...] = ()
    """as in `probe.numbers.fused.Fusion`"""
    is_known: bool = field(default=True, compare=False)
    """whether a mapping or the values say in which groups, and not a guess"""
    missing: str = field(default="", compare=False)
    """the line of a mapping, and the number in it that no recorded configuration has"""

    @property
    def ends(self) -> tuple[int, tuple[int, ...]]:
        """Module of the whole, and those of the parts."""
        return self.whole, self.parts


@dataclass(frozen=True, slots=True)
class WeightBundle:
    """Parameters of one side that lie in one parameter of the other."""

    side: str
    """``A`` or ``B``: which has the parts"""
    whole: Place
    """module and slot of the other side"""
    parts: tuple[tuple[Place, ...], ...]
    """one row for each index of a first axis that only the whole has; a single row where it has none. In a row, parts
    follow one another along ``axis``"""
    axis: int = 0
    """of the canonical layout of a part"""
    groups: int = 1
    """as in `Bundle`"""
    stacked: bool = False
    """the whole has a first axis that the parts do not have"""
    rotary: int = 0
    """as in `Bundle`"""
    shape: tuple[int, ...] = ()
    """as in `probe.numbers.fused.Fusion`"""
    order: tuple[int, ...] = ()
    """as in `probe.numbers.fused.Fusion`"""
    is_known: bool = field(default=True, compare=False)
    """as in `Bundle`"""
    missing: str = field(default="", compare=False)
    """as in `Bundle`"""
    is_mixed: bool = field(default=False, compare=False)
    """buffers on one side, as a table may be, parameters on the other: they are compared as parameters"""

    @property
    def ends(self) -> tuple[int, tuple[int, ...]]:
        """Module of the whole, and those of the parts."""
        return self.whole[0], tuple(module for row in self.parts for module, _ in row)

    @property
    def is_one_for_one(self) -> bool:
        """Whether it is one parameter for one, which may be said from either side."""
        return len(self.parts) == len(self.parts[0]) == 1 and not self.stacked and not self.rotary and self.groups == 1

    def turned_round(self) -> WeightBundle:
        """Return one parameter for one, said from the other side."""
        return replace(self, side=other_side(self.side), whole=self.parts[0][0], parts=((self.whole,),))

    @property
    def fusion(self) -> Fusion:
        """How the parts lie in the whole."""
        return Fusion(self.axis, self.groups, self.stacked, self.rotary, self.shape, self.order)


@dataclass(frozen=True, slots=True)
class View:
    """How a parameter is to be read, where a mapping says so."""

    name: str
    """its canonical slot: what the partner calls it"""
    axes: tuple[int, ...] = ()
    """order of its stored axes in the canonical layout; empty when the class says it"""
    confidence: float = 1.0
    """below 1 where it is a guess"""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Of two lists one is longer, and nothing tells by which members."""

    a: int
    """what holds the list in A"""
    b: int
    among: tuple[int, ...]
    """numbers, in their names, of the members of the longer list that may be the ones too many"""
    why: str
    """why nothing tells: ``same-weights``, ``no-same-weights`` or ``no-weights``"""


@dataclass(frozen=True, slots=True)
class LostLine:
    """A line of the mapping that leads to nothing, and modules that may lack a partner for it."""

    where: str
    """``line 4 of m.yaml``"""
    note: Note
    """what is said of it"""
    a: frozenset[int]
    b: frozenset[int]
    is_parameter: bool = False
    """it names a parameter of these modules"""

    @property
    def text(self) -> str:
        """The note in words."""
        return str(self.note)


@dataclass(frozen=True)
class Matching:
    """All pairs, and what is left on either side."""

    pairs: tuple[Pair, ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    direction: Direction
    notes: tuple[Note, ...] = ()
    bundles: tuple[Bundle, ...] = ()
    weight_bundles: tuple[WeightBundle, ...] = ()
    views_a: Mapping[Place, View] = field(default_factory=dict)
    """of parameters that the mapping renames or turns"""
    views_b: Mapping[Place, View] = field(default_factory=dict)
    ignored_a: frozenset[int] = frozenset()
    """modules that the mapping leaves out, all below them included: neither paired nor left"""
    ignored_b: frozenset[int] = frozenset()
    stepped_a: Mapping[int, int] = field(default_factory=dict)
    """by module that only holds another one, which stands for both: that one; the module itself is neither paired nor left"""
    stepped_b: Mapping[int, int] = field(default_factory=dict)
    doubts: tuple[Doubt, ...] = ()
    """lists of which nothing tells which members one side alone has"""
    lost_lines: tuple[LostLine, ...] = ()
    """lines of the mapping that lead to nothing"""
    lines: Mapping[int, str] = field(default_factory=dict)
    """by module of A that a line of the mapping names, that line: ``line 4 of m.yaml``"""
    rules: Mapping[int, Rule] = field(default_factory=dict)
    """by module of A that a line of the mapping names, what it says"""
    mistaken: tuple[Note, ...] = ()
    """lines of the mapping that pair nothing; they are among the notes too"""
    dims: tuple[tuple[str, str], ...] = ()
    """what the mapping says of how tensors are divided over ranks, by globs of module paths"""
    part_of_other: frozenset[int] = frozenset()
    """modules of A that are a part of their partner, or hold it as a part: only what both are given is compared"""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes in words."""
        return tuple(map(str, self.notes))

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The lines of the mapping that do nothing, each as a sentence."""
        return tuple(map(str, self.mistaken))

    def partners(self, side: str) -> dict[int, int]:
        """Return the partner of each module of a side, A or B, that has one."""
        return dict((pair.a, pair.b) if side == "A" else (pair.b, pair.a) for pair in self.pairs)

    def only(self, side: str) -> tuple[int, ...]:
        """Return the modules of a side that are left."""
        return self.only_a if side == "A" else self.only_b

    def ignored(self, side: str) -> frozenset[int]:
        """Return the modules of a side that the mapping leaves out."""
        return self.ignored_a if side == "A" else self.ignored_b

    def stepped(self, side: str) -> Mapping[int, int]:
        """Return the modules of a side that only hold another one, each with that one."""
        return self.stepped_a if side == "A" else self.stepped_b

    def views(self, side: str) -> Mapping[Place, View]:
        """Return how parameters of a side are to be read, where a mapping or a guess says it."""
        return self.views_a if side == "A" else self.views_b

    def bundled(self, side: str) -> frozenset[int]:
        """Return the modules of a side that are several, or one of several, on the other side."""
        ends = ((each.parts if each.side == side else (each.whole,)) for each in self.bundles)
        return frozenset(module for modules in ends for module in modules)

    def compared_apart(self, side: str) -> frozenset[Place]:
        """Return the parameters of a side, A or B, that are compared with several, or lie in one, of the other side."""
        wholes = {each.whole for each in self.weight_bundles if each.side != side}
        parts = (part for each in self.weight_bundles if each.side == side for row in each.parts for part in row)
        return frozenset(wholes.union(parts))
