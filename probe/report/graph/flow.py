"""Who made what each module was given, in one micro-batch of one side: calls, and what code between them makes.

A tensor is recognised by its hash. What no call returned as it is given to one was made by the code of the caller; its sketch
tells of what, where that is a sum: sketches of sums are sums of sketches, whatever the order of the axes. Else it is taken for made from what nobody else was given
since, which is a guess, and said to be one.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from probe.errors import NotRecordedError
from probe.records import Role
from probe.store.reading.reader import Reader
from probe.verdict.side import Call, Side
from probe.verdict.tensors import Hash, Tensor

OUTSIDE = -1
"""in the place of a call: the program that calls the model"""
_MOST_SOURCES = 6
"""of what code made, where nothing tells which"""
_ROUNDINGS = 32.0
"""roundings by which a tensor and what it was made from may differ"""
_MOST_TERMS = 3
_MOST_TRIED = 10
"""of the tensors that may be terms, the last ones"""
_WHOLE = 1e-3
"""how near to a whole number a factor is taken for it"""
Digest = Hash | None


class Kind(enum.StrEnum):
    """What a node of the graph is."""

    CALL = "call"
    CODE = "code"
    """what the code of a module makes between the calls inside it, and returns"""
    INPUT = "input"
    """what the model is given"""


@dataclass(slots=True)
class Node:
    """A call of a module, a tensor that code makes, or one that the model is given."""

    kind: Kind
    parent: int
    """the node of the call that it happens in, −1 outside of the model"""
    module: int = OUTSIDE
    """of code, the module whose code it is"""
    call: int = 0
    """n-th call of the module in this micro-batch"""
    text: str = ""
    """of code, what was done (`Sum.label`, empty where that is not known); of an input, its name"""
    row: int = -1
    """of code and inputs, the record in which the tensor is seen first"""
    slot: str = ""
    """the name of that record"""


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that goes from one node to another one."""

    source: int
    target: int
    row: int
    """the record of it: as what the target was given, or else as what the source returned"""
    is_known: bool = True
    """not a guess"""
    learns: bool = True
    """the tensor requires gradients: not ids, masks, positions"""
    is_around: bool = False
    """the target only hands it to calls inside, to which other edges lead: what it is as a whole, for who sees no inside"""


@dataclass(slots=True)
class Flow:
    """The graph of one micro-batch: nodes in the order in which they began, those in a call behind it."""

    step: int
    micro: int
    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    makers: dict[int, int] = field(default_factory=dict)
    """of each record of what a call was given or returned, the node that made it, −1 where that is not known"""

    @property
    def calls(self) -> dict[tuple[int, int], int]:
        """By module and number of the call, the node of each."""
        return {(node.module, node.call): at for at, node in enumerate(self.nodes) if node.kind is Kind.CALL}


def recorded_step(reader: Reader, step: int | None) -> int:
    """Return a step that is to be looked at, the first when None.

    Raises
    ------
    NotRecordedError
        there is none, or not that one
    """
    known = reader.steps["step"].tolist()
    if not known:
        raise NotRecordedError(f"{reader.path.name} has no complete step")
    if step is not None and step not in known:
        raise NotRecordedError(f"{reader.path.name} has no step {step}; there are {', '.join(map(str, known[:20]))}")
    return known[0] if step is None else step


def first_micro(micros: Iterable[int]) -> int:
    """Return the first micro-batch, a pass without gradients where there is no other; 0 where nothing ran."""
    return min(micros, key=lambda micro: (micro < 0, micro), default=0)


def flow_of(side: Side, micro: int) -> Flow:
    """Return the data flow of one micro-batch of a recorded step."""
    return _Tracing(side, micro).traced()


@dataclass(slots=True)
class _Scope:
    """What there is in the code of a call while it runs."""

    rows: list[int] = field(default_factory=list)
    """records of what the call was given, and of what calls inside it returned, in their order"""
    unused: dict[Digest, int] = field(default_factory=dict)
    """of what calls inside returned or code made, what was given to nobody yet: a record of each"""
    given: dict[Digest, int] = field(default_factory=dict)
    """of what the call was given, what is given to nobody inside yet"""


class _Tracing:
    """The flow under way."""

    def __init__(self, side: Side, micro: int) -> None:
        self.flow = Flow(side.step, micro)
        self.calls = [call for call in side.calls if call.micro == micro]
        self.rows: dict[tuple[Call, Role], list[int]] = {}
        """records of what calls were given and returned"""
        self.tensors: dict[int, Tensor] = {}
        self.slots: dict[int, str] = {}
        for call in self.calls:
            for role in (Role.INPUT, Role.OUTPUT):
                seen = call.seen.get(role, {})
                self.rows[call, role] = [found.row for found in seen.values()]
                self.tensors.update((found.row, found) for found in seen.values())
                self.slots.update((found.row, slot) for slot, found in seen.items())
        self.made: dict[Digest, int] = {}
        """by hash, the node that made a tensor"""
        self.edges: dict[tuple[int, int, int], Edge] = {}
        self.scopes: dict[Call | None, _Scope] = {None: _Scope()}
        self.node_of: dict[Call | None, int] = {None: OUTSIDE}
        """by call, its node"""

    def traced(self) -> Flow:
        moments = [(call.begin, 0, call) for call in self.calls] + [(call.end, 1, call) for call in self.calls]
        for _, is_end, call in sorted(moments, key=lambda each: each[:2]):
            (self._end if is_end else self._begin)(call)
        self.flow.edges = list(self.edges.values())
        return self.flow

    # Calls

    def _begin(self, call: Call) -> None:
        caller = call.caller if call.caller in self.node_of else None
        scope, rows = self.scopes[caller], self.rows[call, Role.INPUT]
        sources = [(row, self._source(row, caller)) for row in rows]
        node = self._add(Node(Kind.CALL, self.node_of[caller], call.module, call.number))
        self.node_of[call] = node
        self.scopes[call] = inner = _Scope()
        for row, source in sources:
            digest = self._digest(row)
            self.flow.makers[row] = OUTSIDE if source is None else source
            scope.unused.pop(digest, None)
            scope.given.pop(digest, None)
            if call.inner:
                inner.rows.append(row)
                inner.given[digest] = row
            if source is not None:
                self._join(source, node, row, is_around=bool(call.inner))

    def _end(self, call: Call) -> None:
        node, inner = self.node_of[call], self.scopes.pop(call)
        around = self.scopes[call.caller if call.caller in self.scopes else None]
        given = {self._digest(row) for row in self.rows[call, Role.INPUT]}
        for row in self.rows[call, Role.OUTPUT]:
            digest = self._digest(row)
            if not call.inner:
                self.made[digest] = node  # of a dropout that drops nothing too: what comes behind it comes from it
            elif digest is None or not (self._is_inside(self.made.get(digest), node) or digest in given):
                self.made[digest] = self._coded(row, inner, node, call.module)
            self.flow.makers[row] = self.made.get(digest, OUTSIDE)
            around.rows.append(row)
            around.unused[digest] = row
        if call.inner:
            self._use_up(inner, node)

    def _use_up(self, inner: _Scope, node: int) -> None:
        """Let what a call was given, and nothing is known to use, lead to the code in it where there is any."""
        codes = [at for at in range(node + 1, len(self.flow.nodes)) if self._is_code_of(at, node)]
        for digest, row in inner.given.items():
            source = self.made.get(digest)
            wanted = [at for at in codes if not self.flow.nodes[at].text]
            if source is not None and wanted and self._learns(row) <= self._learns(self.flow.nodes[wanted[0]].row):
                self._join(source, wanted[0], row, is_known=False)

    def _is_code_of(self, at: int, node: int) -> bool:
        return self.flow.nodes[at].kind is Kind.CODE and self.flow.nodes[at].parent == node

    def _is_inside(self, made: int | None, node: int) -> bool:
        while made is not None and made > node:
            made = self.flow.nodes[made].parent
        return made == node

    # Tensors

    def _source(self, row: int, caller: Call | None) -> int | None:
        """Return the node that made what a call is given; None for what is no tensor that was measured."""
        digest = self._digest(row)
        if digest is None:
            return self._unmeasured(row, caller)
        if digest not in self.made:
            if caller is None:
                slot = self.slots[row]
                self.made[digest] = self._add(Node(Kind.INPUT, OUTSIDE, text=slot, row=row, slot=slot))
            else:
                module = self.flow.nodes[self.node_of[caller]].module
                self.made[digest] = self._coded(row, self.scopes[caller], self.node_of[caller], module)
        return self.made[digest]

    def _unmeasured(self, row: int, caller: Call | None) -> int | None:
        """Without hashes, what comes next in the same code is taken for made from what came last."""
        last = self.scopes[caller].rows[-1:] or self.scopes[caller].rows
        return self.made.get(self._digest(last[0])) if last else None

    def _coded(self, row: int, scope: _Scope, around: int, module: int) -> int:
        """Add what the code of a call makes, with what it makes it from."""
        terms, text = self._terms(row, scope)
        is_known = bool(text) or len(terms) == 1
        if not text and len(terms) == 1 and self._is_same(row, terms[0]):
            source = self.made.get(self._digest(terms[0]))
            if source is not None:  # the same tensor with its axes in another order
                self._consume(scope, terms)
                return source
        sources = [(term, self.made.get(self._digest(term))) for term in terms]
        node = self._add(Node(Kind.CODE, around, module, text=text, row=row, slot=self.slots[row]))
        for term, source in sources:
            if source is not None:
                self._join(source, node, term, is_known=is_known)
        self._consume(scope, terms)
        scope.rows.append(row)
        scope.unused[self._digest(row)] = row
        return node

    def _consume(self, scope: _Scope, rows: Iterable[int]) -> None:
        for row in rows:
            scope.unused.pop(self._digest(row), None)
            scope.given.pop(self._digest(row), None)

    def _terms(self, row: int, scope: _Scope) -> tuple[list[int], str]:
        """Return the records of what a tensor was made from, and how."""
        made = self.tensors[row]
        known = ((each, self.tensors[each]) for each in scope.rows)
        alike = [at for at, x in known if sorted(x.shape) == sorted(made.shape) and x.dtype == made.dtype]
        alike = list({self._digest(each): each for each in alike}.values())
        if made.sketch is not None and made.u:
            sketches = [self.tensors[each].sketch for each in alike]
            tried = [(at, sketch) for at, sketch in enumerate(sketches) if sketch is not None]
            found = as_sum(made.sketch, [sketch for _, sketch in tried], made.u)
            if found is not None:
                return [alike[tried[term][0]] for term in found.terms], found.label
        learns = self._learns(row)
        left = [each for each in (*scope.given.values(), *scope.unused.values()) if self._learns(each) <= learns]
        if learns and any(self._learns(each) for each in left):
            left = [each for each in left if self._learns(each)]
        return left[-_MOST_SOURCES:], ""

    def _learns(self, row: int) -> bool:
        return self.tensors[row].learns

    def _digest(self, row: int) -> Digest:
        return self.tensors[row].hash

    def _is_same(self, row: int, other: int) -> bool:
        mine, theirs = self.tensors[row].sketch, self.tensors[other].sketch
        return mine is not None and theirs is not None and np.allclose(mine, theirs)

    # Nodes and edges

    def _add(self, node: Node) -> int:
        self.flow.nodes.append(node)
        return len(self.flow.nodes) - 1

    def _join(self, source: int, target: int, row: int, *, is_known: bool = True, is_around: bool = False) -> None:
        if source != target:
            edge = Edge(source, target, row, is_known, self._learns(row), is_around)
            self.edges.setdefault((source, target, row), edge)


# How a tensor was made from others: a sum, a difference, a multiple, the same in another form


@dataclass(frozen=True, slots=True)
class Sum:
    """Which tensors were added, by their places among those that were tried, and what each was multiplied by."""

    terms: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def label(self) -> str:
        """What was done, in a sign: ``+``, ``−``, ``× 0.125``; empty where it is the same tensor."""
        if len(self.terms) == 1:
            factor = self.factors[0]
            return "" if factor == 1.0 else f"× {factor:.4g}"
        if all(factor == 1.0 for factor in self.factors):
            return "+"
        return "−" if sorted(self.factors) == [-1.0, 1.0] else "+ ×"


def as_sum(target: np.ndarray, tried: Sequence[np.ndarray], unit: float) -> Sum | None:
    """Return the fewest tensors of which a tensor is the sum, with factors; None if there are none such.

    Parameters
    ----------
    target
        sketch of the tensor, shape (61,)
    tried
        sketches of tensors of the same shape that were there before it, in the order in which they were made
    unit
        unit roundoff of the tensor's dtype
    """
    length = float(np.linalg.norm(target))
    if not math.isfinite(length) or not length:
        return None
    last = [at for at, sketch in enumerate(tried) if np.isfinite(sketch).all() and sketch.any()][-_MOST_TRIED:]
    for count in range(1, _MOST_TERMS + 1):
        found: list[tuple[float, Sum]] = []
        for terms in itertools.combinations(last, count):
            basis = np.stack([tried[at] for at in terms], axis=1)
            factors, _, rank, _ = np.linalg.lstsq(basis, target, rcond=None)
            rest = float(np.linalg.norm(target - basis @ factors))
            if rank == count and rest <= _ROUNDINGS * unit * length:
                found.append((rest, Sum(terms, tuple(_rounded(each) for each in factors.tolist()))))
        if found:
            return min(found, key=lambda each: (each[1].label not in ("", "+"), each[0]))[1]
    return None


def _rounded(factor: float) -> float:
    whole = round(factor)
    return float(whole) if whole and abs(factor - whole) <= _WHOLE else factor
