"""Evidence from a step of `probe.comparison` and of replay."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import Fused, Piece, canonical_shape, read
from probe.comparison.result import Divergence
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import ONE_SIDED, Event, Node, StepHalf
from probe.diagnosis.evidence import NOTHING, Call, Evidence, Half, Made
from probe.records import Phase, Role
from probe.verdict.side import PARAMETER_ROLES, Place
from probe.verdict.tensors import Tensor

_MOST_SOURCES = 6
"""of the calls that an input may be made from: the last"""
_OF_CALLS = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)


@dataclass(frozen=True, eq=False)
class _Row(Tensor):
    """A record, or what several are together."""

    side: Side | None = None

    @property
    def has_values(self) -> bool:
        """Whether the values were recorded."""
        assert self.side is not None
        return self.side.has_values(self.row)

    def values(self) -> np.ndarray:
        """Return the values in the canonical layout."""
        assert self.side is not None
        return read(self.side, Piece(self.row, canonical_shape(self.side, self.row)))


def evidence_of(pairs: StepPairs, finding: Divergence) -> Evidence | None:
    """Return what a step holds about a finding; None if it names no pair of tensors."""
    event = finding.event or _event_of_loss(pairs, finding)
    if event is None or event.metrics is None:
        return None
    pair = pairs.matching.pairs[event.pair]
    node = pairs.nodes.get((event.micro, pair.a, event.call))
    sides = [
        _half(pairs, half, module, event, node)
        for half, module in zip(pairs.halves, (pair.a, pair.b), strict=True)
    ]  # fmt: skip
    return Evidence(
        finding,
        event.phase,
        event.role,
        *sides,
        finding.metrics or event.metrics,
        event.micro,
        pairs.ran,
        node is not None or event.role not in _OF_CALLS,
        pair.confidence < 1,
    )


def _event_of_loss(pairs: StepPairs, finding: Divergence) -> Event | None:
    """Return an event for a loss, which is a number and no record."""
    if finding.phase is not Phase.LOSS or not finding.a or not finding.b:
        return None
    ref = finding.a[0]
    modules = {pairs.a.reader.modules[pair.a].path: index for index, pair in enumerate(pairs.matching.pairs)}
    pair = modules.get(ref.path)
    if pair is None:
        return None
    return Event(ref.step, ref.micro, Phase.LOSS, finding.role, pair, ref.call, ref.slot, ref.slot, ONE_SIDED, ONE_SIDED,
                 finding.metrics)  # fmt: skip


def _half(pairs: StepPairs, half: StepHalf, module: int, event: Event, node: Node | None) -> Half:
    side, row, slot = half.side, half.row(event), half.slot(event)
    key = half.key(node) if node is not None else (event.micro, module, event.call)
    own = [each for each in pairs.nodes.values() if each.pair == event.pair and each.micro >= 0]
    roots = [each for each in pairs.nodes.values() if each.parent is None and each.micro >= 0]
    return Half(
        side.reader,
        side.step,
        module,
        side.canonical(module, slot) if event.role in PARAMETER_ROLES else slot,
        _tensor(side, row) if row >= 0 else NOTHING,
        _call(half, key),
        [_call(half, half.key(each)) for each in own],
        [(each.micro, _call(half, half.key(each))) for each in roots],
        _Params(half),
        {slot: _tensor(side, rows[0]) for slot, rows in half.rows.get((0, 0, 0), Role.VALUE).items()},
        functools.partial(_made_from, pairs, half, key),
    )


class _Params(dict[tuple[Phase, Role], Mapping[Place, Tensor]]):
    """What belongs to parameters, by phase and role; indexed when it is asked for."""

    def __init__(self, half: StepHalf) -> None:
        super().__init__()
        self.half = half

    def get(self, key: tuple[Phase, Role], default: object = None) -> Mapping[Place, Tensor]:  # type: ignore[override]
        """Return what belongs to parameters, by module and canonical name."""
        if key not in self:
            phase, role = key
            side, prefix = self.half.side, f"{phase.label}:"
            self[key] = {
                (module, side.canonical(module, slot[len(prefix) :])): _tensor(side, rows[-1])
                for (_, module, _), slots in self.half.rows.by_role[role].items()
                for slot, rows in slots.items()
                if slot.startswith(prefix)
            }
        return self[key]


def _call(half: StepHalf, key: Key) -> Call:
    return lambda role: {slot: _tensor(half.side, rows[0]) for slot, rows in half.rows.get(key, role).items()}


def _tensor(side: Side, row: int) -> Tensor:
    known: dict[int, Tensor] = side.__dict__.setdefault("tensors_of_hints", {})
    if row not in known:
        columns, digest = side.columns, side.digest(row)
        known[row] = _Row(
            side.shapes[row],
            side.dtypes[row],
            *(columns[name][row] for name in ("norm", "mean", "min", "max")),
            (columns["nan"][row], columns["posinf"][row], columns["neginf"][row]),
            columns["zeros"][row],
            digest if digest is None else (digest[0], digest[1], digest[-1]),
            side.sketch(row),
            axes=side.axes(row),
            reader=None if row in side.combined else side.reader,
            stored=columns["tensor"][row],
            row=row,
            side=side,
        )
    return known[row]


def _made_from(pairs: StepPairs, half: StepHalf, key: Key, before: bool) -> list[list[Made]]:
    """Return what a tensor of a call may be made from: not what calls without a counterpart returned."""
    paired = {half.key(node) for node in pairs.nodes.values()}
    own = next((c for c in half.calls if c.key == key), None)
    around = own if own is None or not before else next((c for c in half.calls if c.row == own.caller), None)
    if own is None or around is None:
        return []
    inside = [c for c in half.calls
              if c.caller == around.row and (not before or c.end < own.begin) and c.key in paired]  # fmt: skip
    found: list[list[Made]] = []
    for call in reversed(inside[-_MOST_SOURCES:]):
        for slot, rows in half.rows.get(call.key, Role.OUTPUT).items():
            whole = half.side.combined.get(rows[0])
            parts = whole.parts if isinstance(whole, Fused) else (rows[0],)
            found.append([(_path(half.side, row), slot, _tensor(half.side, row), False) for row in parts])
    given = half.rows.get(around.key, Role.INPUT).items()
    return found + [[("", slot, _tensor(half.side, rows[0]), True)] for slot, rows in given]


def _path(side: Side, row: int) -> str:
    return side.reader.modules[side.columns["module"][row]].path
