"""What one rank may hold a part of, against a run that has it whole, in fewer parts or split otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.store.reading.reader import Reader


def side_with_parts(
    a: Reader, b: Reader, shape_a: Sequence[int], shape_b: Sequence[int], *, of_weight: bool = False
) -> str:
    """Return the side that may hold a part of what the other one has, by its number of ranks; empty if none may.

    A weight may be split by as many ranks on one side as copy it on the other, as FSDP against DDP.
    """
    axes = [(n, m) for n, m in zip(shape_a, shape_b, strict=False) if n != m]
    is_one_axis = len(shape_a) == len(shape_b) and len(axes) == 1
    size_a, size_b = axes[0] if is_one_axis else (math.prod(shape_a), math.prod(shape_b))
    for name, reader, other, size, whole in (("A", a, b, size_a, size_b), ("B", b, a, size_b, size_a)):
        ranks, theirs = reader.info.world_size, other.info.world_size
        may = ranks > theirs or (of_weight and is_one_axis and ranks == theirs > 1)
        splits = (math.ceil(whole / count) for count in range(2, ranks + 1) if ranks % count == 0)
        if may and 0 < size < whole and any(size in (part, whole % part) for part in splits):  # the last may hold less
            return name
    return ""
