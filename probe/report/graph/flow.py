"""Who made what each module was given, in one micro-batch of one side: calls, and what code between them makes.

A tensor is recognised by its hash. What no call returned as it is given to one was made by the code of the caller; its sketch
tells of what, where that is a sum (`probe.report.graph.sums`). Else it is taken for made from what nobody else was given
since, which is a guess, and said to be one.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Call, calls_of
from probe.numbers.statistics import unit_roundoff
from probe.records import Role
from probe.report.graph.sums import as_sum

OUTSIDE = -1
"""in the place of a call: the program that calls the model"""
_MOST_SOURCES = 6
"""of what code made, where nothing tells which"""
Digest = object


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
        self.side, self.flow = side, Flow(side.step, micro)
        self.calls = [call for call in calls_of(side) if call.micro == micro]
        self.rows = _rows(side, micro)
        self.made: dict[Digest, int] = {}
        """by hash, the node that made a tensor"""
        self.edges: dict[tuple[int, int, int], Edge] = {}
        self.scopes: dict[int, _Scope] = {OUTSIDE: _Scope()}
        self.node_of: dict[int, int] = {OUTSIDE: OUTSIDE}
        """by the row of a call, its node"""
        self.calls_inside = {call.caller for call in self.calls}

    def traced(self) -> Flow:
        moments = [(call.begin, 0, call) for call in self.calls] + [(call.end, 1, call) for call in self.calls]
        for _, is_end, call in sorted(moments, key=lambda each: each[:2]):
            (self._end if is_end else self._begin)(call)
        self.flow.edges = list(self.edges.values())
        return self.flow

    # Calls

    def _begin(self, call: Call) -> None:
        caller = call.caller if call.caller in self.node_of else OUTSIDE
        scope = self.scopes[caller]
        rows = self.rows.get((call.module, call.number, Role.INPUT), [])
        sources = [(row, self._source(row, caller)) for row in rows]
        node = self._add(Node(Kind.CALL, self.node_of[caller], call.module, call.number))
        self.node_of[call.row] = node
        self.scopes[call.row] = inner = _Scope()
        for row, source in sources:
            digest = self.side.digest(row)
            self.flow.makers[row] = OUTSIDE if source is None else source
            scope.unused.pop(digest, None)
            scope.given.pop(digest, None)
            if call.row in self.calls_inside:
                inner.rows.append(row)
                inner.given[digest] = row
            if source is not None:
                self._join(source, node, row, is_around=call.row in self.calls_inside)

    def _end(self, call: Call) -> None:
        node, inner = self.node_of[call.row], self.scopes.pop(call.row)
        around = self.scopes[call.caller if call.caller in self.scopes else OUTSIDE]
        given = {self.side.digest(row) for row in self.rows.get((call.module, call.number, Role.INPUT), [])}
        for row in self.rows.get((call.module, call.number, Role.OUTPUT), []):
            digest = self.side.digest(row)
            if call.row not in self.calls_inside:
                self.made[digest] = node  # of a dropout that drops nothing too: what comes behind it comes from it
            elif digest is None or not (self._is_inside(self.made.get(digest), node) or digest in given):
                self.made[digest] = self._coded(row, inner, node, call.module)
            self.flow.makers[row] = self.made.get(digest, OUTSIDE)
            around.rows.append(row)
            around.unused[digest] = row
        if call.row in self.calls_inside:
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

    def _source(self, row: int, caller: int) -> int | None:
        """Return the node that made what a call is given; None for what is no tensor that was measured."""
        digest = self.side.digest(row)
        if digest is None:
            return self._unmeasured(row, caller)
        if digest not in self.made:
            if caller == OUTSIDE:
                slot = self.side.slots[row]
                self.made[digest] = self._add(Node(Kind.INPUT, OUTSIDE, text=slot, row=row, slot=slot))
            else:
                module = self.flow.nodes[self.node_of[caller]].module
                self.made[digest] = self._coded(row, self.scopes[caller], self.node_of[caller], module)
        return self.made[digest]

    def _unmeasured(self, row: int, caller: int) -> int | None:
        """Without hashes, what comes next in the same code is taken for made from what came last."""
        last = self.scopes[caller].rows[-1:] or self.scopes[caller].rows
        return self.made.get(self.side.digest(last[0])) if last else None

    def _coded(self, row: int, scope: _Scope, around: int, module: int) -> int:
        """Add what the code of a call makes, with what it makes it from."""
        terms, text = self._terms(row, scope)
        is_known = bool(text) or len(terms) == 1
        if not text and len(terms) == 1 and self._is_same(row, terms[0]):
            source = self.made.get(self.side.digest(terms[0]))
            if source is not None:  # the same tensor with its axes in another order
                self._consume(scope, terms)
                return source
        sources = [(term, self.made.get(self.side.digest(term))) for term in terms]
        node = self._add(Node(Kind.CODE, around, module, text=text, row=row, slot=self.side.slots[row]))
        for term, source in sources:
            if source is not None:
                self._join(source, node, term, is_known=is_known)
        self._consume(scope, terms)
        scope.rows.append(row)
        scope.unused[self.side.digest(row)] = row
        return node

    def _consume(self, scope: _Scope, rows: Iterable[int]) -> None:
        for row in rows:
            scope.unused.pop(self.side.digest(row), None)
            scope.given.pop(self.side.digest(row), None)

    def _terms(self, row: int, scope: _Scope) -> tuple[list[int], str]:
        """Return the records of what a tensor was made from, and how."""
        side = self.side
        target, shape = side.sketch(row), sorted(side.shapes[row])
        unit = unit_roundoff(side.dtypes[row])
        alike = [each for each in scope.rows if sorted(side.shapes[each]) == shape and side.dtypes[each] == side.dtypes[row]]  # fmt: skip
        alike = list({side.digest(each): each for each in alike}.values())
        if target is not None and unit:
            sketches = [side.sketch(each) for each in alike]
            tried = [(at, sketch) for at, sketch in enumerate(sketches) if sketch is not None]
            found = as_sum(target, [sketch for _, sketch in tried], unit)
            if found is not None:
                return [alike[tried[term][0]] for term in found.terms], found.label
        learns = self._learns(row)
        left = [each for each in (*scope.given.values(), *scope.unused.values()) if self._learns(each) <= learns]
        if learns and any(self._learns(each) for each in left):
            left = [each for each in left if self._learns(each)]
        return left[-_MOST_SOURCES:], ""

    def _learns(self, row: int) -> bool:
        return bool(self.side.columns["requires_grad"][row])

    def _is_same(self, row: int, other: int) -> bool:
        mine, theirs = self.side.sketch(row), self.side.sketch(other)
        return mine is not None and theirs is not None and np.allclose(mine, theirs)

    # Nodes and edges

    def _add(self, node: Node) -> int:
        self.flow.nodes.append(node)
        return len(self.flow.nodes) - 1

    def _join(self, source: int, target: int, row: int, *, is_known: bool = True, is_around: bool = False) -> None:
        if source != target:
            edge = Edge(source, target, row, is_known, self._learns(row), is_around)
            self.edges.setdefault((source, target, row), edge)


def _rows(side: Side, micro: int) -> dict[tuple[int, int, Role], list[int]]:
    """Return the records of what calls were given and returned, the first of each slot."""
    found: dict[tuple[int, int, Role], dict[str, int]] = defaultdict(dict)
    columns = (side.columns[name] for name in ("micro", "module", "call", "role"))
    for row, (at, module, call, role) in enumerate(zip(*columns, strict=True)):
        if at == micro and role in (Role.INPUT, Role.OUTPUT) and row not in side.combined:
            found[module, call, Role(role)].setdefault(side.slots[row], row)
    return {key: list(slots.values()) for key, slots in found.items()}
