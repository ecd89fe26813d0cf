"""What makes errors larger: attention weighs by large scores, a few large elements hide the errors of all others, large angles are coarse."""

from __future__ import annotations

import math
import re

from probe.comparison.distance.masks import MASKING
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import kind_of
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.numbers.statistics import unit_roundoff
from probe.records import ModuleInfo, Role

_ATTENTION = re.compile(r"att(entio)?n(?!.*(norm|output|proj|dropout))", re.IGNORECASE)
"""names of classes, and last names of paths; not post_attention_layernorm"""
_FILLED = -1e30
"""below this is what masks are filled with, whatever has been added to them"""
_UNEVEN = 16
"""largest element, in root mean squares, from which on a few may be most of a tensor (normal ones: 6 in a hundred million)"""
_LEAST_RMS = 0.1
"""of sines and cosines it is about 0.7, less where all angles are small"""
_ANGLE = 4
"""roundoffs that an angle may be off by, of its own size: its frequency and the product are rounded, and the exponential is not exact"""


def score_size(pairs: StepPairs, node: Node | None) -> float:
    """Return how large the scores are by which an attention weighs, on the side where they are smaller; 0.0 where a call is none.

    Of queries and keys without a common direction, divided by the root of their size, they are as large as both root mean
    squares together. Softmax makes an error of the weights out of that of the scores, which is their size times what
    queries and keys are off by, relatively.
    """
    if node is None or node.parent is None or not _is_attention(pairs, node):
        return 0.0
    inner = sorted((each for each in pairs.nodes.values() if each.parent is node), key=lambda each: each.begin)
    if any(_ATTENTION.search(info.class_name) for each in inner for info in _infos(pairs, each)):
        return 0.0  # what is around an attention, and adds to it; a projection may be called c_attn
    return min((size for half in pairs.halves if (size := _size_on(half, node, inner))), default=0.0)


def is_given_uneven(pairs: StepPairs, node: Node) -> bool:
    """Tell whether a few elements may be most of what a call is given on both sides: one channel, or the first token."""
    return all(
        any(_largest(half, row) > _UNEVEN * half.side.columns["rms"][row] for row in _floats(half, node, Role.INPUT))
        for half in pairs.halves
    )


def angle_error(pairs: StepPairs, node: Node, event: Event) -> float:
    """Return how far sines and cosines of integers may be apart, relatively; 0.0 where a tensor holds none.

    Position ids and time steps are multiplied by frequencies; of 500 radians, rounding leaves 500 roundoffs. A tensor of numbers
    from −1 to 1 may be such, with a row for each of the integers that the call was given whose code made it. Angles are those of
    float32, also where the result is rounded to 16 bits: in bfloat16 a position of 500 is off by a radian, which is a fault.
    """
    place = node.parent if event.role is Role.INPUT else node
    found = [] if place is None else [_angle_on(half, place, half.row(event)) for half in pairs.halves]
    return _ANGLE * unit_roundoff("float32") * min(found) if found else 0.0


def _angle_on(half: StepHalf, node: Node, row: int) -> float:
    """Return the largest integer that a tensor's rows may be made of, by its root mean square; 0.0 where it may not.

    What is looked up by integers is none: weights of the call's own, or of any module that is given the same integers.
    """
    columns, shapes, modules = half.side.columns, half.side.shapes, half.side.reader.modules
    size, key = columns["rms"][row], half.key(node)
    if not size >= _LEAST_RMS or not shapes[row] or columns["min"][row] < -1 or columns["max"][row] > 1:
        return 0.0
    given = [rows[0] for rows in half.rows.get(key, Role.INPUT).values()]
    count = math.prod(shapes[row][:-1])
    integers = [
        each for each in given if kind_of(half.side.dtypes[each]) == "integer" and math.prod(shapes[each]) == count
    ]
    if not integers:
        return 0.0
    looked_up = {
        digest
        for call in half.calls
        if call.micro == node.micro and modules[call.module].n_params and call.key != key
        for digest in half.hashes(call.key, Role.INPUT)
    }
    largest = max((_largest(half, each) for each in integers if half.side.digest(each) not in looked_up), default=0.0)
    own = [shapes[rows[0]] for rows in half.rows.get((0, key[1], 0), Role.PARAM).values()]
    return 0.0 if any(len(shape) == 2 and shape[0] > largest for shape in own) else largest / size


def _is_attention(pairs: StepPairs, node: Node) -> bool:
    return any(
        _ATTENTION.search(text)
        for info in _infos(pairs, node)
        for text in (info.class_name, info.path.rpartition(".")[2])
    )


def _infos(pairs: StepPairs, node: Node) -> list[ModuleInfo]:
    return [half.side.reader.modules[half.modules[node.pair]] for half in pairs.halves]


def _size_on(half: StepHalf, node: Node, inner: list[Node]) -> float:
    """Return the size of the scores on one side, 0.0 where neither queries and keys nor what holds both is known."""
    weighted = [each for each in inner if half.rows.get((0, half.modules[each.pair], 0), Role.PARAM)]
    projections = weighted[:-1] if len(weighted) > 1 else weighted  # the last one projects the result
    rows = {half.side.digest(row): row for each in projections for row in _floats(half, each, Role.OUTPUT)}
    sizes = [half.side.columns["rms"][row] for row in rows.values()]
    if not inner:
        given = _floats(half, node, Role.INPUT)
        sizes = [
            half.side.columns["rms"][row]
            for row in given
            if half.side.shapes[row][-1:] == half.side.shapes[given[0]][-1:]
        ]
        sizes = sizes if len(sizes) > 1 else []
    largest = sorted(sizes)[-2:]
    return math.prod(largest) if len(largest) > 1 else sum(largest) ** 2


def _largest(half: StepHalf, row: int) -> float:
    return max(-half.side.columns["min"][row], half.side.columns["max"][row])


def _floats(half: StepHalf, node: Node, role: Role) -> list[int]:
    """Return a side's records of a call in a role: those of floating-point numbers, without masks."""
    found = [rows[0] for rows in half.rows.get(half.key(node), role).values()]
    return [row for row in found if unit_roundoff(half.side.dtypes[row]) and not _is_mask(half, row)]


def _is_mask(half: StepHalf, row: int) -> bool:
    low, high = (half.side.columns[name][row] for name in ("min", "max"))
    return bool(low <= MASKING and (high <= 0 or low <= _FILLED))
