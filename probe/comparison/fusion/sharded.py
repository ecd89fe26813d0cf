"""What one rank holds or is given a part of, against a run that has it whole, in fewer parts or split otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.comparison.notes import Note, note
from probe.comparison.steps.step_half import StepHalf
from probe.records import Role
from probe.store.reading.reader import Reader


def side_with_parts(
    a: Reader, b: Reader, shape_a: Sequence[int], shape_b: Sequence[int], *, of_weight: bool = False
) -> str:
    """Return the side, ``A`` or ``B``, that may hold a part of what the other side has, by its number of ranks; empty if none may.

    Parameters
    ----------
    a, b
        the two recordings
    shape_a, shape_b
        of something in each, in one layout
    of_weight
        whether it is a weight: as many ranks may split it on one side and copy it on the other (FSDP against DDP)
    """
    axes = [(n, m) for n, m in zip(shape_a, shape_b, strict=False) if n != m]
    is_one_axis = len(shape_a) == len(shape_b) and len(axes) == 1
    size_a, size_b = axes[0] if is_one_axis else (math.prod(shape_a), math.prod(shape_b))
    for name, reader, other, size, whole in (("A", a, b, size_a, size_b), ("B", b, a, size_b, size_a)):
        ranks, theirs = reader.info.world_size, other.info.world_size
        may = ranks > theirs or (of_weight and is_one_axis and ranks == theirs > 1)
        if may and _is_part(size, whole, ranks):
            return name
    return ""


def _is_part(size: int, whole: int, ranks: int) -> bool:
    """Tell whether a rank may hold so much; of what cannot be divided evenly the last ones hold less."""
    splits = (math.ceil(whole / count) for count in range(2, ranks + 1) if ranks % count == 0)
    return 0 < size < whole and any(size in (part, whole % part) for part in splits)


def share_of_batch(halves: tuple[StepHalf, StepHalf]) -> Note | None:
    """Say that the model on a rank of one side was given a part of what the other side was given; None where that is not so."""
    a, b = halves
    totals = [_given(half) for half in halves]
    shapes = [(totals[0][slot], totals[1][slot]) for slot in totals[0].keys() & totals[1].keys()]
    sides = {side_with_parts(a.side.reader, b.side.reader, *each) for each in shapes if each[0] != each[1]}
    if len(sides) != 1 or not any(sides):
        return None
    part, whole = (a, b) if "A" in sides else (b, a)
    info, other = part.side.reader.info, whole.side.reader.info
    return note(
        "part-of-the-batch",
        side=part.name,
        rank=info.rank,
        ranks=info.world_size,
        other=whole.name,
        other_ranks=other.world_size,
    )


def _given(half: StepHalf) -> dict[str, tuple[int]]:
    """Return how many numbers all forward passes of a step were given, by input."""
    found: dict[str, int] = {}
    for call in half.calls:
        if call.caller < 0 and call.micro >= 0:
            for slot, rows in half.rows.get(call.key, Role.INPUT).items():
                found[slot] = found.get(slot, 0) + math.prod(half.side.shapes[rows[0]])
    return {slot: (count,) for slot, count in found.items()}
