"""A module that the other side has no module for, since the next one does its work too: a norm inside the linear behind it.

Transformer Engine's ``TELayerNormColumnParallelLinear`` is given what the norm of others is given. What these are given, and
what gradient they pass back, then stands for what the modules behind them are given, from the linear outwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probe.comparison.steps.side import Digest, Side
from probe.matching import Matching
from probe.records import Role
from probe.structure.tree import Tree

_PASSED_BACK = (Role.GRAD_INPUT, Role.GRAD_TOTAL)


@dataclass(frozen=True, slots=True)
class Same:
    """The record of another module; see `probe.comparison.steps.side.Combined`."""

    row: int
    digest: Digest | None
    sketch: np.ndarray | None

    def values(self, side: Side) -> np.ndarray:
        """Return the values."""
        return side.values(self.row)


@dataclass(frozen=True, slots=True)
class Inside:
    """A module whose work a module of the other side does."""

    module: int
    behind: tuple[int, ...]
    """the modules that the other side's one is beside it"""


def give_their_inputs(side: Side, name: str, matching: Matching) -> None:
    """Let what modules are given whose work the other side does elsewhere stand for what those behind them are given.

    Parameters
    ----------
    side
        a step, which is changed
    name
        ``A`` or ``B``
    matching
        see `probe.comparison.fusion.one_to_many.completed`
    """
    found = list(_found(name, matching))
    if found:
        tree = Tree(side.reader.modules)
        rows = _Rows(side)
        for each in found:
            _give(side, rows, tree, each)


def _found(name: str, matching: Matching) -> Iterator[Inside]:
    """Yield the modules without a counterpart of which the weights lie in a module that has one."""
    partner = {(p.b if name == "A" else p.a): (p.a if name == "A" else p.b) for p in matching.pairs}
    bundled = {each.whole: each.parts for each in matching.bundles if each.side == name}
    paired = {*partner.values(), *(part for parts in bundled.values() for part in parts)}
    seen: set[int] = set()
    for bundle in matching.weight_bundles:
        whole, _ = bundle.whole
        if bundle.side != name or bundle.stacked or len(bundle.parts[0]) > 1 or whole not in partner:
            continue
        ((module, _),) = bundle.parts[0]
        if module not in paired and module not in seen:
            seen.add(module)
            yield Inside(module, bundled.get(whole, (partner[whole],)))


class _Rows:
    """The rows of a side that belong to calls."""

    def __init__(self, side: Side) -> None:
        self._by: dict[tuple[int, int], list[int]] = {}
        columns = side.columns
        self.calls = list(zip(columns["micro"], columns["call"], strict=True))
        for row, (module, role) in enumerate(zip(columns["module"], columns["role"], strict=True)):
            if role in (Role.INPUT, Role.OUTPUT, *_PASSED_BACK):
                self._by.setdefault((module, role), []).append(row)

    def of(self, module: int, role: Role) -> list[int]:
        """Return the rows of a module."""
        return self._by.get((module, role), [])


def _give(side: Side, rows: _Rows, tree: Tree, inside: Inside) -> None:
    call = rows.calls
    returned = {call[row]: side.digest(row) for row in rows.of(inside.module, Role.OUTPUT)}
    first, *others = inside.behind
    for role in (Role.INPUT, *_PASSED_BACK):
        own = {call[row]: row for row in rows.of(inside.module, role)}
        for module in (*_outwards(tree, first, inside.module), *others):
            given = {
                (call[row], side.slots[row])
                for row in rows.of(module, Role.INPUT)
                if returned.get(call[row]) is not None and side.digest(row) == returned[call[row]]
            }
            for row in rows.of(module, role):
                if (call[row], side.slots[row]) not in given:
                    continue
                side.hidden.add(row)
                mine = own.get(call[row])
                if mine is not None and module not in others:
                    changed = {name: side.columns[name][row] for name in ("module", "call", "seq", "order")}
                    same = Same(mine, side.digest(mine), side.sketch(mine))
                    side.add(mine, side.slots[row], side.shapes[mine], changed, same)


def _outwards(tree: Tree, module: int, beside: int) -> Iterator[int]:
    """Yield a module and those around it, as far as they are not around another one."""
    around = {beside}
    while beside >= 0:
        around.add(beside)
        beside = tree.modules[beside].parent
    while module not in around:
        yield module
        module = tree.modules[module].parent
