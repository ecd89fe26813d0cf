"""Several tensors of one form that a call returns, where the other side's call returns them as one: cosines and sines of rotary embeddings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from probe.comparison.distance.combined import Piece, Pieces, add_fused
from probe.comparison.steps.side import Side
from probe.matching import Matching
from probe.numbers.fused import Fusion, Shape, whole_shape
from probe.records import Role

_Calls = dict[tuple[int, int], list[int]]
"""rows of what a module's calls returned, by micro-batch and number"""


def join_tables(a: Side, b: Side, matching: Matching) -> None:
    """Let several tensors that a call returned, and that do not learn, stand as the one that the other side's call returned.

    Parameters
    ----------
    a, b
        a step of both sides, which are changed
    matching
        which module is which
    """
    of_a, of_b = _returned(a), _returned(b)
    for pair in matching.pairs:
        mine, theirs = of_a.get(pair.a, {}), of_b.get(pair.b, {})
        for call in mine.keys() & theirs.keys():
            _join(a, pair.a, mine[call], b, theirs[call])
            _join(b, pair.b, theirs[call], a, mine[call])


def _returned(side: Side) -> dict[int, _Calls]:
    found: dict[int, _Calls] = defaultdict(lambda: defaultdict(list))
    names = ("role", "requires_grad", "module", "micro", "call")
    for row, (role, learns, module, micro, call) in enumerate(zip(*map(side.columns.get, names), strict=True)):
        if role == Role.OUTPUT and learns == 0 and row not in side.hidden:
            found[module][micro, call].append(row)
    return found


def _join(side: Side, module: int, rows: Sequence[int], other: Side, theirs: Sequence[int]) -> None:
    if len(rows) < 2 or len(theirs) != 1 or len({(side.shapes[row], side.dtypes[row]) for row in rows}) > 1:
        return
    pieces = [Piece(row, side.shapes[row]) for row in rows]
    for how, fusion in _ways(pieces):
        if whole_shape([[piece.shape for piece in each] for each in how], fusion) == tuple(other.shapes[theirs[0]]):
            side.hidden.update(rows)
            add_fused(side, how, fusion, (module, side.slots[rows[0]]))
            return


def _ways(pieces: Sequence[Piece]) -> Iterator[tuple[Pieces, Fusion]]:
    """Yield how several may lie in one: stacked, or one after the other along the first axis or the last one."""
    shape: Shape = pieces[0].shape
    yield tuple((piece,) for piece in pieces), Fusion(stacked=True)
    for axis in (0, len(shape) - 1) if shape else ():
        yield (tuple(pieces),), Fusion(axis)
