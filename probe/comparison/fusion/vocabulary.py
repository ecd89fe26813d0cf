"""A vocabulary that one side has padded: more rows of its embedding and output weight, more columns of what is computed over it.

That is no fault by itself: the part that both have is compared. From statistics it can be told only where the padding is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from probe.comparison.distance.combined import Piece, canonical_shape, joint_digest, read
from probe.comparison.fusion.sharded import side_with_parts
from probe.comparison.steps.side import PARAMETER_ROLES, Digest, Side, kind_of, squeezed
from probe.matching import Matching
from probe.records import Role


@dataclass(frozen=True, slots=True)
class Cut:
    """A tensor without its padding; see `probe.comparison.steps.side.Combined`."""

    row: int
    axis: int
    shape: tuple[int, ...]
    """in the canonical layout, without the padding"""
    digest: Digest | None
    sketch: np.ndarray | None = None

    @property
    def parts(self) -> tuple[int, ...]:
        """The row of the whole."""
        return (self.row,)

    def values(self, side: Side) -> np.ndarray:
        """Return the values that are no padding, in the canonical layout."""
        whole = read(side, Piece(self.row, canonical_shape(side, self.row)))
        return whole[: self.shape[0]] if self.axis == 0 else whole[..., : self.shape[-1]]


@dataclass
class Vocabulary:
    """The sizes that a step's vocabularies have on the two sides, and what was compared without its padding.

    Parameters
    ----------
    a, b
        the step
    matching
        which module is which
    """

    a: Side
    b: Side
    matching: Matching
    sizes: set[tuple[int, int]] = field(init=False)
    """in A and in B, where they differ"""
    _cut: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """rows without padding, by side, row and size"""

    def __post_init__(self) -> None:
        given = [_given_integers(side) for side in (self.a, self.b)]
        weights = [_weights(side) for side in (self.a, self.b)]
        self.sizes = {
            (shape[0], other[0])
            for pair in self.matching.pairs
            if _is_embedding(self.a, pair.a, given[0]) and _is_embedding(self.b, pair.b, given[1])
            for name, shape in weights[0].get(pair.a, {}).items()
            for other in [weights[1].get(pair.b, {}).get(name, ())]
            if len(shape) == len(other) == 2
            and shape[0] != other[0]
            and shape[1] == other[1]
            and not side_with_parts(self.a.reader, self.b.reader, shape, other, of_weight=True)
        }

    def is_padded(self, a: Side, i: int, b: Side, j: int) -> bool:
        """Tell whether two records are alike but for the size of the vocabulary."""
        return bool(self.sizes) and self._axis(a, i, b, j) is not None

    def sizes_of(self, a: Side, i: int, b: Side, j: int) -> tuple[int, int] | None:
        """Return the sizes of the vocabulary in two records that differ in it alone."""
        axis = self._axis(a, i, b, j)
        return None if axis is None else (canonical_shape(a, i)[axis], canonical_shape(b, j)[axis])

    def without(self, a: Side, i: int, b: Side, j: int) -> tuple[int, int]:
        """Return the rows of two records without the padding; as they are where there is none, or where that is not known."""
        axis = self._axis(a, i, b, j) if self.sizes else None
        if axis is None:
            return i, j
        is_a = math.prod(a.shapes[i]) > math.prod(b.shapes[j])
        (larger, row), (smaller, other) = ((a, i), (b, j)) if is_a else ((b, j), (a, i))
        if not (a.has_values(i) and b.has_values(j)) and not _has_zeros_beside(larger, row, smaller, other):
            return i, j
        cut = self._without(larger, row, axis, canonical_shape(smaller, other)[axis])
        return (cut, j) if is_a else (i, cut)

    def _axis(self, a: Side, i: int, b: Side, j: int) -> int | None:
        """Return the axis, in the canonical layout, along which one of two records is padded."""
        role = a.columns["role"][i]
        axis = 0 if role in PARAMETER_ROLES else -1
        shapes = canonical_shape(a, i), canonical_shape(b, j)
        if not all(shapes) or (shapes[0][axis], shapes[1][axis]) not in self.sizes:
            return None
        rest = [squeezed(shape[1:] if axis == 0 else shape[:-1]) for shape in shapes]
        is_like = rest[0] == rest[1] if axis == 0 else math.prod(rest[0]) == math.prod(rest[1])
        kinds = {kind_of(a.dtypes[i]), kind_of(b.dtypes[j])}
        return axis if is_like and kinds == {"float"} else None

    def _without(self, side: Side, row: int, axis: int, size: int) -> int:
        key = id(side), row, size
        if key not in self._cut:
            whole = canonical_shape(side, row)
            shape = (size, *whole[1:]) if axis == 0 else (*whole[:-1], size)
            extra, columns = math.prod(whole) - math.prod(shape), side.columns
            share = math.sqrt(math.prod(whole) / math.prod(shape))
            changed = {
                "zeros": columns["zeros"][row] - extra, "mean": columns["mean"][row] * share**2,
                "rms": columns["rms"][row] * share,
            }  # fmt: skip
            self._cut[key] = side.add(row, side.slots[row], shape, changed,
                                      Cut(row, axis, shape, joint_digest([side.digest(row)], shape)))  # fmt: skip
        return self._cut[key]


def _given_integers(side: Side) -> set[int]:
    """Return the modules that are given integers."""
    columns = side.columns
    return {
        module
        for row, (module, role) in enumerate(zip(columns["module"], columns["role"], strict=True))
        if role == Role.INPUT and kind_of(side.dtypes[row]) == "integer"
    }


def _is_embedding(side: Side, module: int, given: set[int]) -> bool:
    return module in given or "embed" in side.reader.modules[module].class_name.casefold()


def _weights(side: Side) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return the shapes of parameters in the canonical layout, by module and canonical name."""
    found: dict[int, dict[str, tuple[int, ...]]] = {}
    for each in side.parameters:
        if not each.is_buffer:
            name = side.canonical(each.module, each.slot)
            found.setdefault(each.module, {})[name] = side.names.shape_of((each.module, each.slot))
    return found


def _has_zeros_beside(larger: Side, row: int, smaller: Side, other: int) -> bool:
    """Tell whether all that one record has more than another is zeros, as their statistics tell."""
    mine, theirs = larger.columns, smaller.columns
    extra = math.prod(larger.shapes[row]) - math.prod(smaller.shapes[other])
    counted = all(mine[name][row] == theirs[name][other] == 0 for name in ("nan", "posinf", "neginf"))
    keeps_ends = all(mine[end][row] != 0 or theirs[end][other] == 0 for end in ("min", "max"))
    return counted and mine["zeros"][row] - theirs["zeros"][other] == extra and keeps_ends
