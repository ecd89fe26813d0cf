"""Watching the calls of cells.

MindSpore's own hooks are compiled with everything else that ``mindspore.jit`` compiles, and that fails: a training
that runs without probe would not run with it. So the call of ``nn.Cell`` itself is replaced while cells are watched;
compiled code does not pass through it, and copies of a cell carry nothing with them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mindspore import nn

from probe.adapters.base import After, Before, Removal


@dataclass(frozen=True, eq=False, slots=True)
class Watch:
    """Who is told of the calls of one cell."""

    cell: weakref.ref[nn.Cell]
    before: Before
    after: After


watched: dict[int, list[Watch]] = {}
"""by the cells' ids"""
of_any: list[Callable[[nn.Cell], None]] = []
"""who is told of the calls of all cells"""
entering: list[nn.Cell] = []
"""the cells of whose calls somebody is being told right now"""

_plain = nn.Cell.__call__


def watch(cell: nn.Cell, before: Before, after: After) -> Removal:
    """Call ``before(args, kwargs)`` and ``after(output, raised)`` around every call of a cell."""
    key, mine = id(cell), Watch(weakref.ref(cell), before, after)

    def remove() -> None:
        watches = watched.get(key, [])
        if mine in watches:
            watches.remove(mine)
        if not watches:
            watched.pop(key, None)
        _restore()

    watched.setdefault(key, []).append(mine)
    try:
        _replace()
    except BaseException:
        remove()
        raise
    return remove


def watch_any(before: Callable[[nn.Cell], None]) -> Removal:
    """Call ``before(cell)`` before every call of any cell; those that it lets `watch` watch are watched in this call already."""

    def remove() -> None:
        if before in of_any:
            of_any.remove(before)
        _restore()

    of_any.append(before)
    _replace()
    return remove


def is_replaced() -> bool:
    """Return True if calls pass through here."""
    return nn.Cell.__call__ is _call


def _replace() -> None:
    global _plain
    if nn.Cell.__call__ is not _call:
        _plain = nn.Cell.__call__
        nn.Cell.__call__ = _call


def _restore() -> None:
    """Undo it if nothing is watched, unless somebody has replaced it once more: then calls just pass through."""
    if nn.Cell.__call__ is _call and not watched and not of_any:
        nn.Cell.__call__ = _plain


def _call(cell: nn.Cell, *args: Any, **kwargs: Any) -> Any:
    if of_any:
        _tell(cell)
    watches = [each for each in watched.get(id(cell), ()) if each.cell() is cell]
    if not watches:
        return _plain(cell, *args, **kwargs)
    entering.append(cell)
    try:
        for each in watches:
            each.before(args, kwargs)
    finally:
        entering.pop()
    try:
        output = _plain(cell, *args, **kwargs)
    except Exception:
        for each in reversed(watches):
            each.after(None, True)
        raise
    for each in reversed(watches):
        each.after(output, False)
    return output


def _tell(cell: nn.Cell) -> None:
    entering.append(cell)
    try:
        for each in tuple(of_any):
            each(cell)
    finally:
        entering.pop()
