"""What is paired: calls, and tensors as both sides saw them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from probe.records import Phase, Role
from probe.verdict.side import Call, Place
from probe.verdict.tensors import Tensor


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Event:
    """One tensor as both sides saw it, or one side alone."""

    phase: Phase
    role: Role
    node: Node | None
    """the call that it belongs to; None for what belongs to a parameter"""
    place: Place | None
    """the parameter that it belongs to, in A"""
    slot_a: str
    slot_b: str
    a: Tensor | None
    b: Tensor | None
    at: int
    """when A saw it"""

    @property
    def u(self) -> float:
        """Unit roundoff of the less precise side."""
        return max((each.u for each in (self.a, self.b) if each is not None), default=0.0)

    @property
    def both(self) -> tuple[Tensor | None, Tensor | None]:
        """The tensors of A and of B."""
        return self.a, self.b

    @property
    def is_of_other_size(self) -> bool:
        """Whether both sides have it, in other sizes."""
        return self.a is not None and self.b is not None and self.a.size != self.b.size

    @property
    def is_paired(self) -> bool:
        """Whether both sides have it."""
        return self.a is not None and self.b is not None


@dataclass(eq=False, repr=False, slots=True)
class Node:
    """A call that both sides made."""

    a: Call
    b: Call
    """the first one if a side made several for the other side's one"""
    parent: Node | None
    """the innermost call around it that both sides made"""
    calls: tuple[tuple[Call, ...], tuple[Call, ...]]
    """of A and of B: one call each, or the parts of one"""
    inputs: list[Event] = field(default_factory=list)
    outputs: list[Event] = field(default_factory=list)
    values: list[Event] = field(default_factory=list)
    """what its code logged, made of its inputs and of what calls inside it returned by then"""
    inner: list[Node] = field(default_factory=list)

    def callers(self) -> Iterator[Node]:
        """Yield the call around this one, the one around that …"""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def depth(self) -> int:
        """Number of calls around it."""
        return sum(1 for _ in self.callers())
