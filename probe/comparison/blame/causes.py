"""Causes that have words of their own: an active Dropout, a NaN that is born, another dtype from the same."""

from __future__ import annotations

import math

from probe.comparison.distance.metrics import Status, kind_of
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Event, Loose, Node, StepHalf
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_NOT_FINITE = (("nan", "NaN"), ("posinf", "+Inf"), ("neginf", "-Inf"))
_SHARE = 1e-3
"""of the elements that a Dropout must take away to be called active"""


def is_dropout(class_name: str) -> bool:
    """Tell whether a class is a Dropout, by its name."""
    return "dropout" in class_name.casefold()


def dropout(pairs: StepPairs, node: Node) -> Note | None:
    """Say on which sides a Dropout is active, by the zeros that it returns and was not given; nothing where it is on neither."""
    shares = {half.name: _taken_away(half, half.key(node)) for half in pairs.halves}
    active = {name: share for name, share in shares.items() if share > _SHARE}
    if not active:
        return None
    if len(active) == len(shares):
        return note("dropout-active-on-both-sides", a=shares["A"], b=shares["B"])
    ((side, share),) = active.items()
    return note("dropout-active-on-one-side", side=side, share=share)


def dropout_alone(half: StepHalf, loose: Loose) -> tuple[Note, Note] | None:
    """Say that a Dropout which the other side has no module for is active, and what to look at; nothing where it is not."""
    share = _taken_away(half, loose.key)
    if share <= _SHARE:
        return None
    said = note("dropout-called-on-one-side", path=half.path(loose.module), side=half.name, share=share)
    return said, note("same-dropout-rate")


def _taken_away(half: StepHalf, key: Key) -> float:
    """Return the share of zeros that a Dropout returns and was not given; 0.0 for other modules."""
    side, found = half.side, [half.rows.get(key, role) for role in (Role.INPUT, Role.OUTPUT)]
    if not is_dropout(side.reader.modules[key[1]].class_name) or not all(found):
        return 0.0
    given, returned = ([slot[0] for slot in each.values()] for each in found)
    zeros = side.columns["zeros"]
    return float((zeros[returned[0]] - zeros[given[0]]) / max(1, math.prod(side.shapes[returned[0]])))


def hint_of_dropout(said: Note | None) -> Note | None:
    """Return what to look at where a Dropout is active on one side, as `dropout` said it; nothing where it is on both."""
    return note("same-dropout-rate") if said is not None and said.code == "dropout-active-on-one-side" else None


def returns_input(pairs: StepPairs, event: Event, half: StepHalf) -> tuple[Note, ...]:
    """Say so where the call behind an output returns what it was given, bit for bit, on a side."""
    node = pairs.nodes.get((event.micro, pairs.matching.pairs[event.pair].a, event.call))
    if event.role is not Role.OUTPUT or node is None:
        return ()
    digest = half.side.digest(half.row(event))
    if digest is None or digest not in half.hashes(half.key(node), Role.INPUT):
        return ()
    return (note("call-returns-its-input", path=half.path(half.modules[event.pair]), side=half.name),)


def born(pairs: StepPairs, node: Node | None, event: Event) -> Note | None:
    """Say where NaN or Inf is born: in a tensor, though all that it was made from is finite; nothing where none is."""
    if event.metrics is None or event.metrics.status is not Status.NONFINITE:
        return None
    for half in reversed(pairs.halves):
        side, row = half.side, half.row(event)
        counts = _counts(side, row)
        if counts:
            given = _given(half, node, event)
            is_finite = bool(given) and not any(_counts(side, each) for each in given)
            size = math.prod(side.shapes[row])
            return note("not-finite-from-here", counts=counts, size=size, side=half.name, of_finite=is_finite)
    return None


def changed_dtype(pairs: StepPairs, node: Node, event: Event) -> Note | None:
    """Say so when a call returns another dtype than its partner, though both run one class on the same dtypes."""
    dtypes = pairs.a.dtypes[event.row_a], pairs.b.dtypes[event.row_b]
    if dtypes[0] == dtypes[1] or {*map(kind_of, dtypes)} != {"float"} or not _are_alike(pairs, node):
        return None
    return note("returns-another-dtype", a=dtypes[0], b=dtypes[1])


def _are_alike(pairs: StepPairs, node: Node) -> bool:
    """Tell whether framework, class, and the dtypes of inputs, of parameters below and of autocast are the same."""
    given = [_given_dtypes(half, node) for half in pairs.halves]
    if not given[0] or given[0] != given[1]:
        return False
    run = [(half.side.reader, half.modules[node.pair]) for half in pairs.halves]
    what = [(reader.info.framework, reader.modules[module].class_name) for reader, module in run]
    if what[0] != what[1]:
        return False
    held = [_held_dtypes(reader, module) for reader, module in run]
    autocast = [
        next((call.autocast for call in half.calls if call.key == key), "")
        for half in pairs.halves
        for key in [half.key(node)]
    ]
    return held[0] == held[1] and autocast[0] == autocast[1]


def _given_dtypes(half: StepHalf, node: Node) -> set[str]:
    """Return the dtypes of the numbers that a call was given."""
    dtypes = [half.side.dtypes[found[0]] for found in half.rows.get(half.key(node), Role.INPUT).values()]
    return {dtype for dtype in dtypes if kind_of(dtype) == "float"}


def _held_dtypes(reader: Reader, module: int) -> set[str]:
    """Return the dtypes of the parameters of a module and below."""
    path = reader.modules[module].path
    prefix = f"{path}." if path else ""
    return {p.dtype for p in reader.parameters if not p.is_buffer and p.names[0].startswith(prefix)}


def _counts(side: Side, row: int) -> tuple[tuple[int, str], ...]:
    """Return how many elements of a record are not finite, and which number they are."""
    found = ((int(side.columns[name][row]), title) for name, title in _NOT_FINITE)
    return tuple((count, title) for count, title in found if count)


def _given(half: StepHalf, node: Node | None, event: Event) -> list[int]:
    """Return the rows of one side that a tensor was made from, as far as they belong to its own module."""
    rows, module, slot = half.rows, half.modules[event.pair], half.slot(event)
    if event.phase is Phase.UPDATE:
        found = rows.get((0, module, 0), Role.PARAM_GRAD).get(f"{Phase.UPDATE.label}:{slot.partition('.')[0]}", [])
        return found[-1:]
    if event.phase is Phase.GRADIENT:
        return rows.by_module(Role.GRAD_OUTPUT).get(module, [])
    if node is None:
        return []
    role = {Role.OUTPUT: Role.INPUT, Role.GRAD_INPUT: Role.GRAD_OUTPUT, Role.GRAD_TOTAL: Role.GRAD_OUTPUT}.get(
        event.role
    )
    taken = [] if role is None else [found[0] for found in rows.get(half.key(node), role).values()]
    parameters = rows.get((0, module, 0), Role.PARAM)
    prefix = f"{Phase.INIT.label}:"
    return taken + ([found[-1] for slot, found in parameters.items() if slot.startswith(prefix)] if taken else [])
