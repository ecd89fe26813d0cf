"""One side of a step: its module calls and observations, and what pairs of both sides are called there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from probe.comparison.distance.metrics import Metrics, Side
from probe.comparison.steps.rows import Key, Rows
from probe.matching import Matching
from probe.records import Phase, Role

ONE_SIDED = -1
"""row of an event on the side that does not have it"""


@dataclass(slots=True)
class Event:
    """One tensor as both sides saw it, or as one side alone did."""

    step: int
    micro: int
    phase: Phase
    role: Role
    pair: int
    """index into the matching's pairs"""
    call: int
    slot_a: str
    slot_b: str
    row_a: int
    row_b: int
    metrics: Metrics | None = None
    factor: float = 1.0
    """what A's elements were multiplied by before they were compared"""

    @property
    def is_one_sided(self) -> bool:
        """Tell whether only one side has it."""
        return self.row_a == ONE_SIDED or self.row_b == ONE_SIDED


@dataclass(frozen=True, slots=True)
class Call:
    """A module call of one side."""

    micro: int
    module: int
    number: int
    caller: int
    row: int
    begin: int
    end: int
    autocast: str
    training: bool
    grad_enabled: bool

    @property
    def key(self) -> Key:
        """What tells it from the other calls of its side."""
        return self.micro, self.module, self.number


@dataclass(frozen=True, slots=True)
class Loose:
    """A call without a partner."""

    micro: int
    module: int
    call: int
    begin: int
    end: int

    @property
    def key(self) -> Key:
        """What tells it from the other calls of its side."""
        return self.micro, self.module, self.call


@dataclass(slots=True, eq=False)
class Node:
    """A paired module call of one micro-batch."""

    micro: int
    pair: int
    call: int
    parent: Node | None
    """the nearest caller that is paired too"""
    begin: int
    end: int
    begin_b: int = 0
    end_b: int = 0
    autocast: str = ""
    training: tuple[bool, bool] = (True, True)
    """whether the module was in training mode, in A and in B"""
    grad_enabled: bool = True
    """on both sides"""
    call_b: int = 0
    """number of the call in B"""
    shared: Node | None = None
    """the nearest caller that is paired and calls it in B too: another than ``parent`` where another module calls it there"""
    loose_a: list[Loose] = field(default_factory=list)
    """calls of A that this one made and that have no partner, in their order"""
    loose_b: list[Loose] = field(default_factory=list)

    def callers_from_parent(self) -> Iterator[Node | None]:
        """Yield the caller, its caller … up to the one that calls it in B too; the last one is None where that is the training itself."""
        for node in (*self.ancestors(), None):
            yield node
            if node is self.shared:
                return

    def ancestors(self) -> Iterator[Node]:
        """Yield the caller, its caller …"""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


@dataclass(frozen=True, slots=True)
class StepHalf:
    """One side of a step of both recordings."""

    name: str
    """``A`` or ``B``"""
    side: Side
    rows: Rows
    calls: list[Call]
    modules: tuple[int, ...]
    """by pair of modules, this side's"""
    pair_of: Mapping[int, int]
    """by module that has a counterpart, its pair"""
    stepped: Mapping[int, int]
    """see `probe.matching.Matching.stepped_a`"""
    ignored: frozenset[int]
    """see `probe.matching.Matching.ignored_a`"""

    @classmethod
    def of(cls, name: str, side: Side, matching: Matching) -> StepHalf:
        """Index a step of a side."""
        is_a = name == "A"
        modules = tuple(pair.a if is_a else pair.b for pair in matching.pairs)
        return cls(
            name, side, Rows.of(side), calls_of(side), modules, {module: pair for pair, module in enumerate(modules)},
            matching.stepped_a if is_a else matching.stepped_b, matching.ignored_a if is_a else matching.ignored_b,
        )  # fmt: skip

    @property
    def other(self) -> str:
        """The name of the other side."""
        return "B" if self.name == "A" else "A"

    def path(self, module: int) -> str:
        """Return the path of a module."""
        return self.side.reader.modules[module].path

    def key(self, node: Node) -> Key:
        """Return the call that a paired one is on this side."""
        return node.micro, self.modules[node.pair], node.call if self.name == "A" else node.call_b

    def span(self, node: Node) -> tuple[int, int]:
        """Return when a paired call began and ended on this side."""
        return (node.begin, node.end) if self.name == "A" else (node.begin_b, node.end_b)

    def hashes(self, key: Key, role: Role) -> list[object]:
        """Return the hashes of what a call was given, or of another role of it."""
        return [self.side.digest(found[0]) for found in self.rows.get(key, role).values()]

    def loose(self, node: Node) -> list[Loose]:
        """Return the calls without a partner that a paired one made on this side."""
        return node.loose_a if self.name == "A" else node.loose_b

    def row(self, event: Event) -> int:
        """Return the row of this side's tensor."""
        return event.row_a if self.name == "A" else event.row_b

    def slot(self, event: Event) -> str:
        """Return what this side's tensor is called in its module."""
        return event.slot_a if self.name == "A" else event.slot_b


def calls_of(side: Side) -> list[Call]:
    """Return a step's calls in order, without those that activation checkpointing made again."""
    rows = side.calls
    chosen = side.counted
    first = side.first_call
    return [
        Call(int(r["micro"]), int(r["module"]), int(r["call"]), int(r["caller"]), first + int(row), int(r["seq"]),
             int(r["end"]), r["autocast"].decode(), bool(r["training"]), bool(r["grad_enabled"]))
        for row, r in zip(chosen.nonzero()[0].tolist(), rows[chosen], strict=True)
    ]  # fmt: skip
