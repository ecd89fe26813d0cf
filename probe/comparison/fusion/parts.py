"""Which of several tensors that lie in one differs, and whether they lie there in another order: from values, or sums of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import LACKING, Fused, Piece, read
from probe.comparison.fusion import packed
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import PARAMETER_ROLES, Side, squeezed
from probe.comparison.steps.step_half import Event, Node
from probe.matching import Place, Reason
from probe.numbers import fused
from probe.numbers.fused import Fusion, Shape
from probe.records import Phase, Role

_CLEARLY = 0.01
"""parts whose error is below this share of the largest one's do not count as different"""
_MOST_PARTS = 4
"""parts of which every order is tried"""
_SAMPLE = 4
"""columns on which an order is tried before all are read"""


@dataclass(frozen=True, slots=True)
class Joint:
    """An event of which one side has several tensors in the place of one."""

    event: Event
    parts: Side
    row: int
    whole: Side
    whole_row: int
    letter: str
    """of the side that has the parts"""
    places: tuple[Place, ...]
    fusion: Fusion
    pieces: tuple[tuple[Piece, ...], ...]

    @property
    def labels(self) -> list[str]:
        """What tells the parts from one another in their paths."""
        return labels([self.parts.reader.modules[module].path for module, _ in self.places])

    @property
    def lacking(self) -> list[str]:
        """The labels of the parts that have nothing there."""
        flat = [piece for row in self.pieces for piece in row]
        return [label for label, piece in zip(self.labels, flat, strict=True) if piece.row == LACKING]


def joint(pairs: StepPairs, event: Event) -> Joint | None:
    """Return what several tensors are in an event, None where it is about one on either side."""
    for half, other in (pairs.halves, pairs.halves[::-1]):
        side, row, module = half.side, half.row(event), half.modules[event.pair]
        combined = side.combined.get(row)
        if isinstance(combined, Fused) and (sum(map(len, combined.pieces)) > 1 or combined.fusion.reorders):
            places = (
                side.parts.get((module, half.slot(event).partition(".")[0])) if event.role in PARAMETER_ROLES else None
            )
            places = places or side.parts.get((module, ""), ())
            if not places:  # several tensors that one call returned: no module of its own for each
                return None
            return Joint(
                event, side, row, other.side, other.row(event), half.name, places, combined.fusion, combined.pieces
            )
    return None


def facts(pairs: StepPairs, event: Event, limit: float) -> Iterator[Note]:
    """Yield what is known of the parts of an event that is a finding: which of them differ."""
    found = joint(pairs, event)
    if found is None or event.is_one_sided or found.fusion.reorders:
        return
    lacking = found.lacking
    if lacking:
        what = event.slot_a.partition(".")[0] if event.role is Role.PARAM else event.role.label
        yield note("parts-without", names=tuple(lacking), what=what, side=found.letter)
    others = found.parts.given_otherwise.get(found.places[0][0], {}) if event.role is Role.OUTPUT else {}
    if others:
        first, *_ = found.labels
        odd = [label for label, (module, _) in zip(found.labels, found.places, strict=True) if module in others]
        yield note("parts-given-otherwise", names=tuple(odd), first=first, side=found.letter)
    errors = part_errors(pairs, found)
    if errors is None:
        if not lacking:
            yield note("which-part-values-would-tell", names=tuple(found.labels))
        return
    bound = _bound(errors, limit)
    wrong = tuple((label, error) for label, error in zip(found.labels, errors, strict=True) if error > bound)
    right = tuple(label for label, error in zip(found.labels, errors, strict=True) if error <= bound)
    if wrong:
        yield note("parts-differ", wrong=wrong, right=right)


def agreeing(pairs: StepPairs, event: Event, limit: float) -> tuple[str, ...]:
    """Return the paths of the parts of an event that is a finding which agree, where others differ."""
    found = joint(pairs, event)
    if found is None or event.is_one_sided or found.fusion.rotary or (errors := part_errors(pairs, found)) is None:
        return ()
    bound = _bound(errors, limit)
    paths = [found.parts.reader.modules[module].path for module, _ in found.places]
    right = tuple(path for path, error in zip(paths, errors, strict=True) if error <= bound)
    return right if len(right) < len(paths) else ()


def _bound(errors: Sequence[float], limit: float) -> float:
    return max(limit if math.isfinite(limit) else 0.0, _CLEARLY * max(errors))


def without_gradient(pairs: StepPairs, event: Event) -> Note | None:
    """Say so when some parts of a parameter have no gradient at all."""
    found = joint(pairs, event)
    if found is None or not found.lacking:
        return None
    return note("parts-do-not-learn", names=tuple(found.lacking), side=found.letter)


def part_errors(pairs: StepPairs, found: Joint) -> list[float] | None:
    """Return the relative error of every part, None where values are lacking."""
    values = _values(pairs, found)
    if values is None and len(found.pieces) == 1:  # those of a stack are of all its members
        values = _sums(found)
    if values is None:
        return None
    whole, parts, fusion = values
    shapes = [[part.shape for part in row] for row in parts]
    best: list[float] | None = None
    for turned in _turned(whole, fused.whole_shape(shapes, fusion), found.event.role):
        pieces = fused.split(turned, shapes, fusion)
        errors = [_error(x, y) for row, mine in zip(pieces, parts, strict=True) for x, y in zip(row, mine, strict=True)]
        if best is None or sum(errors) < sum(best):
            best = errors
    return best


def unseen_order(pairs: StepPairs, caller: Node) -> Iterator[Note]:
    """Yield in which calls, made by another one, it was not compared in which order parts lie."""
    found = [
        text for node in pairs.nodes.values() if node.parent is caller for text in _unseen(pairs, node, lambda slot: not slot)
    ]  # fmt: skip
    yield from found[:1]
    if len(found) > 1:
        yield note("order-of-parts-not-compared-elsewhere", places=len(found) - 1)


def unseen_order_of_weights(pairs: StepPairs, node: Node) -> Iterator[Note]:
    """Yield of which of a module's own weights it was not compared in which order parts lie in them."""
    yield from list(_unseen(pairs, node, bool))[:1]


def unseen_elements(pairs: StepPairs, node: Node) -> Iterator[Note]:
    """Yield of a weight that lies otherwise on each side that nothing tells whether its elements are in their places."""
    for event in differently_laid(pairs, node)[:1]:
        shapes = [half.side.shapes[half.row(event)] for half in pairs.halves]
        yield note("places-of-elements-not-compared", slot=event.slot_a, a=shapes[0], b=shapes[1])


def unrecorded_weights(pairs: StepPairs, node: Node) -> Iterator[Note]:
    """Say so when one side alone recorded the weights of a module: what differs in it may be one of them."""
    own = [event for event in pairs.initial_weights if event.pair == node.pair]
    if own and all(event.is_one_sided and not pairs.lacks_parameter(event) for event in own):
        side = "A" if own[0].row_a >= 0 else "B"
        yield note("parameters-recorded-on-one-side", side=side)


def differently_laid(pairs: StepPairs, node: Node) -> list[Event]:
    """Return the weights of a module of which statistics alone could be compared: their elements lie otherwise."""
    own = (event for event in pairs.initial_weights if event.pair == node.pair and not event.is_one_sided)
    return [event for event in own if event.metrics is not None and event.metrics.is_lower_bound]


def _unseen(pairs: StepPairs, node: Node, is_meant: Callable[[str], bool]) -> Iterator[Note]:
    for half, other in (pairs.halves, pairs.halves[::-1]):
        side, module, path = half.side, half.modules[node.pair], other.path(other.modules[node.pair])
        if (side.has_stored_values and other.side.has_stored_values) or _has_seen_weights(pairs, node):
            continue
        for (owner, slot), places in side.parts.items():
            if owner == module and is_meant(slot) and len(places) > 1:
                names = tuple(labels([side.reader.modules[part].path for part, _ in places]))
                yield note("order-of-parts-not-compared", names=names, side=other.name, path=path)
            elif owner == module and not slot and is_meant(slot):
                yield note("order-of-rows-not-compared", side=other.name, path=path)


def _has_seen_weights(pairs: StepPairs, node: Node) -> bool:
    """Tell whether it was seen in which order parts lie in all weights that a module begins the step with."""
    events = [event for event in pairs.initial_weights if event.pair == node.pair]
    found = [each for each in (joint(pairs, event) for event in events if not event.is_one_sided) if each is not None]
    return bool(found) and all(_sums(each) is not None for each in found)


def other_order(pairs: StepPairs, event: Event, limit: float) -> Note | None:
    """Say how the parts of a weight lie where they do not lie as they should; None when no other order fits either."""
    found = joint(pairs, event)
    if found is None or event.is_one_sided:
        return None
    values = _values(pairs, found)
    if values is not None and (found.fusion.axis != 0 or values[0].shape != found.parts.shapes[found.row]):
        return None
    if values is None:
        values, limit = _sums(found), max(limit, packed.ROUNDING)
        if values is not None and _error(fused.fuse(values[1], values[2]), values[0]) <= limit:
            return None  # they lie as they should: it is another matrix of a stack, or another column
    if values is None:
        return None
    whole, parts, fusion = values
    if fusion.reorders:
        return _unturned(found, whole, parts[0][0], limit)
    order, groups = next(_fitting(whole, parts, fusion, limit), ((), 0))
    if not order:
        return None
    names = found.labels[: len(order)]
    module = found.whole.reader.modules[found.whole.columns["module"][found.whole_row]].path
    is_a = found.letter == "B"
    slot = event.slot_a if is_a else event.slot_b
    return note(
        "parts-stand-in-another-order", names=tuple(names), whole=f"{module}.{slot}" if module else slot, side="A" if is_a else "B",
        actual=(tuple(names[k] for k in order), groups), expected=(tuple(names), found.fusion.groups),
        is_mapped=pairs.matching.pairs[event.pair].reason is Reason.MAPPED,
    )  # fmt: skip


def _unturned(found: Joint, whole: np.ndarray, part: np.ndarray, limit: float) -> Note | None:
    """Say that rows which a mapping takes for reordered are not."""
    if _error(part, whole) > limit:
        return None
    paths = [side.reader.modules[side.columns["module"][row]].path for side, row in (
        (found.whole, found.whole_row), (found.parts, found.row))]  # fmt: skip
    letters = "AB" if found.letter == "B" else "BA"
    code = "rows-stand-in-another-order" if found.fusion.order else "rows-of-heads-not-turned"
    return Note(code, {"side": letters[0], "path": paths[0], "other": letters[1], "there": paths[1]})


def _fitting(
    whole: np.ndarray, parts: Sequence[Sequence[np.ndarray]], fusion: Fusion, limit: float
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield orders and numbers of groups in which the parts are the whole."""
    sizes = [part.shape[0] for part in parts[0]]
    if not 1 < len(sizes) <= _MOST_PARTS or whole.ndim < 1 + fusion.stacked:
        return
    few = [[_columns(part, 0) for part in row] for row in parts[:1]]
    sample = _columns(whole[:1] if fusion.stacked else whole, int(fusion.stacked))
    for groups in _divisors(math.gcd(*sizes)):
        for order in itertools.permutations(range(len(sizes))):
            how = Fusion(0, groups, fusion.stacked)
            if (order, groups) == (tuple(range(len(sizes))), fusion.groups):
                continue
            if _error(fused.fuse([[row[k] for k in order] for row in few], how), sample) > limit:
                continue
            if _error(fused.fuse([[row[k] for k in order] for row in parts], how), whole) <= limit:
                yield order, groups


def _columns(array: np.ndarray, axis: int) -> np.ndarray:
    """Return a few elements of each index along an axis."""
    return array.reshape(*array.shape[: axis + 1], -1)[..., :_SAMPLE]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _sums(found: Joint) -> tuple[np.ndarray, list[list[np.ndarray]], Fusion] | None:
    """Return what stands for the values where they are not stored: sums along the axis on which the parts follow one another."""
    sums = packed.along(found.parts, found.row, found.whole, found.whole_row)
    return None if sums is None else (sums.whole, [sums.parts], sums.fusion)


def _values(pairs: StepPairs, found: Joint) -> tuple[np.ndarray, list[list[np.ndarray]], Fusion] | None:
    """Return the values of the whole and of the parts in the canonical layout, and how these lie in it."""
    flat = [piece.row for row in found.pieces for piece in row if piece.row != LACKING]
    if found.event.role is Role.DELTA:
        return _updates(pairs, found)
    if not found.whole.has_values(found.whole_row) or not all(found.parts.has_values(row) for row in flat):
        return None
    whole = read(found.whole, _piece(found.whole, found.whole_row))
    return whole, [[read(found.parts, piece) for piece in row] for row in found.pieces], found.fusion


def _updates(pairs: StepPairs, found: Joint) -> tuple[np.ndarray, list[list[np.ndarray]], Fusion] | None:
    """Return the differences of the values before and after the step, where both are stored."""
    changes = []
    for half in pairs.halves if found.letter == "A" else pairs.halves[::-1]:
        side, recorded = half.side, half.rows.get((0, half.modules[found.event.pair], 0), Role.PARAM)
        slot = half.slot(found.event)
        ends = [recorded.get(f"{phase.label}:{slot}", [-1])[-1] for phase in (Phase.INIT, Phase.UPDATE)]
        if min(ends) < 0 or not all(side.has_values(row) for row in ends):
            return None
        before, after = (read(side, _piece(side, row)).astype(np.float64) for row in ends)
        changes.append(after - before)
    shapes = [[piece.shape for piece in row] for row in found.pieces]
    return changes[1], fused.split(changes[0], shapes, found.fusion), found.fusion


def _piece(side: Side, row: int) -> Piece:
    return Piece(row, tuple(side.shapes[row][axis] for axis in side.axes(row)))


def _turned(whole: np.ndarray, shape: Shape, role: Role) -> Iterator[np.ndarray]:
    """Yield the whole with its axes as the parts have them; those of an activation may stand in another order."""
    if whole.shape == shape:
        yield whole
    if role in PARAMETER_ROLES:
        if whole.shape != shape and squeezed(whole.shape) == squeezed(shape):
            yield whole.reshape(shape)
        return
    last = whole.ndim - 1
    for order in itertools.permutations(range(last)) if whole.ndim <= 4 else ():
        if order != tuple(range(last)) and tuple(whole.shape[k] for k in (*order, last)) == shape:
            yield whole.transpose(*order, last)


def _error(x: np.ndarray, y: np.ndarray) -> float:
    """Return the relative error of one array against another."""
    wide_x, wide_y = x.astype(np.float64).reshape(-1), y.astype(np.float64).reshape(-1)
    larger = max(float(np.linalg.norm(wide_x)), float(np.linalg.norm(wide_y)))
    if not math.isfinite(larger):
        return 0.0 if np.array_equal(wide_x, wide_y, equal_nan=True) else math.inf
    return float(np.linalg.norm(wide_x - wide_y)) / larger if larger else 0.0


def labels(paths: Sequence[str]) -> list[str]:
    """Return paths without what all of them begin with."""
    split = [path.split(".") for path in paths]
    shortest = min(map(len, split), default=1)
    common = next((k for k in range(shortest - 1) if len({names[k] for names in split}) > 1), shortest - 1)
    return [".".join(names[common:]) for names in split]
