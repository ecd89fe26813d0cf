"""What became of every event: one state each, and the findings. Append-only."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from probe.notes import Note
from probe.numbers.tokens import sums_of
from probe.records import Phase
from probe.verdict.distance.error import Error
from probe.verdict.noise.rung import Check
from probe.verdict.side import Place
from probe.verdict.steps.events import Event, Node


class State(StrEnum):
    """What an event is in the end."""

    EQUAL = "equal"
    AGREES = "agrees"
    """up to rounding"""
    INHERITS = "inherits"
    """its sources explain its error"""
    INTRODUCED = "introduced"
    """nothing explains its error"""
    HEALED = "healed"
    """it differs, and every use takes the difference back"""
    OPEN = "open"
    """it could not be compared, or nothing told what it is"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of one event, and what it passes on."""

    event: Event
    state: State
    error: float
    """what counts for what is made of it, at most 1"""
    u: float
    """roundoff of the least precise dtype on the way to it"""
    limit: float = math.nan
    off: float = 0.0
    """relative difference of the norms"""
    is_behind: bool = False
    """it is made of something that is wrong"""
    code: str = ""
    """why it is healed or open"""
    sources: float = math.nan
    """largest error of what it was made of"""
    check: Check | None = None
    """what was held against the limit"""
    excess: float | None = None
    """what measured noise does not explain of its error; None: all"""

    @property
    def beyond(self) -> float:
        """What counts for what is made of it, where noise is measured."""
        return self.error if self.excess is None else self.excess


@dataclass(frozen=True, slots=True)
class Sources:
    """What is known of the tensors that an event was made of."""

    error: float = 0.0
    u: float = 0.0
    off: float = 0.0
    is_wrong: bool = False
    excess: float = 0.0
    hidden: float = 0.0
    """largest error as a share of what is left beside elements that are most of a tensor"""
    own: float = 0.0
    """of what are no events: weights"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A place that is wrong."""

    step: int
    micro: int
    phase: Phase
    paths: tuple[str, ...]
    """in A; ``("",)``: the model, its loss or its optimizer as a whole"""
    event: Event | None
    error: Error | None
    limit: float
    code: str
    """why this place: a row of `probe.verdict.judge.blame`, or the rule of the phase"""
    facts: tuple[Any, ...] = ()
    """what else is known of the gap; evidence that never moves the place"""
    is_shown: bool = True
    """numbers show it, not settings alone"""
    check: Check | None = None
    """what was held against the limit"""
    is_behind: bool = False
    """what it is made of is wrong already, and explains less"""


@dataclass
class Verdicts:
    """Verdicts in the order in which they were given."""

    by_event: dict[Event, Verdict] = field(default_factory=dict)
    counts: Counter[State] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    weights: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """by module of A: error, roundoff and excess of its own parameters"""
    written: dict[Place | None, list[tuple[int, Event, Error, float | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """by place: when A found a weight written to, and what calls found"""
    differing_buffers: dict[int, Event] = field(default_factory=dict)
    """by module of A: a buffer that differs as the step begins"""
    routed: dict[Node, float] = field(default_factory=dict)
    """by call: share of the tokens whose routing rounding may have changed"""
    tokens: int = 0
    """of which mixtures of experts are given so many; 0 unless rounding changed the routing of some"""
    rows: Callable[[Event, int], np.ndarray | None] = field(default_factory=lambda: functools.lru_cache(256)(sums_of))
    unused_factor: float = 1.0
    """by which all gradients differ, and those that the optimizer used do not"""
    notes: list[str] = field(default_factory=list)
    told: list[Note] = field(default_factory=list)
    doubts: list[Note] = field(default_factory=list)
    _by_node: dict[Node, list[Verdict]] = field(default_factory=lambda: defaultdict(list))

    def add(self, verdict: Verdict) -> None:
        """Give an event its verdict."""
        self.by_event[verdict.event] = verdict
        self.counts[verdict.state] += 1
        if verdict.event.node is not None:
            self._by_node[verdict.event.node].append(verdict)

    def tell(self, said: Note) -> None:
        """Say something beside the verdict, once."""
        self.told += [said] if said not in self.told else []

    def choices(self, node: Node) -> list[Event]:
        """Return the integers in a call, and in that around it if rounding changed their routing."""
        around = [node, node.parent] if node.parent is not None and node in self.routed else [node]
        known = [each for at in around for each in (*at.inputs, *(out for one in at.inner for out in one.outputs))]
        return [each for each in (*known, *node.outputs) if each.is_paired and each.a and each.a.kind == "integer"]

    def of_node(self, node: Node) -> list[Verdict]:
        """Return the verdicts of the tensors of a call."""
        return self._by_node.get(node, [])

    def of(self, sources: Iterable[Event]) -> Sources:
        """Return the worst of what some events pass on."""
        found = [self.by_event[each] for each in sources if each in self.by_event]
        return Sources(
            max((each.error for each in found), default=0.0),
            max((max(each.u, each.event.u) for each in found), default=0.0),
            max((each.off for each in found), default=0.0),
            any(each.is_behind or each.state is State.INTRODUCED for each in found),
            max((each.beyond for each in found), default=0.0),
        )

    def error(self, event: Event | None) -> float:
        """Return the error that an event passes on; 0 without a verdict."""
        found = self.by_event.get(event) if event is not None else None
        return 0.0 if found is None else found.error

    def state(self, event: Event | None) -> State | None:
        """Return the state of an event."""
        found = self.by_event.get(event) if event is not None else None
        return None if found is None else found.state

    @property
    def is_over(self) -> bool:
        """Whether nothing can be told of what comes behind: something is missing, or backward is wrong."""
        return any(each.phase > Phase.FORWARD or each.code == "unpaired-call" for each in self.findings)

    def agrees(self, event: Event) -> bool:
        """Return True if an event is explained."""
        return self.state(event) in (State.EQUAL, State.AGREES, State.INHERITS)
