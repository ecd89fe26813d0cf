"""How rows lie in weights that are a pair, where nothing says it: read from the sums of the rows that a run begins with.

In how many groups q, k and v lie in one weight, how many heads there are, where no recorded configuration has the number that a mapping
names; q, k and v in one weight on both sides, head by head here and one after the other there; and which of several parts comes first in
one weight, where their names were all that told. What holds in most layers is how that model reads its weights; the odd one is a fault.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.matching.automatic.outline import Outline, Weight
from probe.matching.automatic.weights.fused import divisors, fitting_groups, kind_of_bundle, most_of, sums_of_rows
from probe.matching.automatic.weights.lying import CAST, fits, has_guessed_parts, is_open, plain_pairs
from probe.matching.lists import grouped
from probe.matching.result import Bundle, Matching, Place, WeightBundle, other_side
from probe.notes import Note, note
from probe.numbers import fused
from probe.numbers.fused import Fusion

_ROUNDING = 1e-6
"""error of sums of equal rows, which are kept as float32"""
_FEWEST, _MOST = 4, 1 << 16
"""rows of a weight whose order is looked for"""
_MOST_BLOCKS = 1 << 12
_PARTS = (3, 2, 4)
"""equal parts that lie in one: q, k and v; gate and up; the gates of a recurrent layer"""
_OTHER_ROWS = {"embedding", "norm", "recurrent"}
"""kinds of layers of which the rows of a weight are not the columns of what they return"""

Order = tuple[int, ...]
Each = Bundle | WeightBundle
How = tuple[tuple[str, object], ...]
"""fields of a bundle, and what they are"""


@dataclass(frozen=True)
class Packing:
    """A matching with what was found."""

    matching: Matching
    found: tuple[Bundle, ...] = ()
    """modules of which no mapping says that their rows lie in another order"""
    guessed: tuple[tuple[Bundle, Bundle], ...] = ()
    """those of `found` whose parts lie in another order than was guessed, each with what was guessed"""
    notes: tuple[Note, ...] = ()
    lost: tuple[Note, ...] = ()
    """what is left open"""

    def without(self, bundles: Sequence[Bundle]) -> Packing:
        """Return it with the rows of some modules taken to lie alike, or as was guessed first."""
        back = {found: guess for found, guess in self.guessed if found in bundles}
        matching = _with_parts(self.matching, back)
        left = tuple(each for each in matching.bundles if each in back.values() or each not in bundles)
        found = tuple(each for each in self.found if each not in bundles)
        return replace(self, matching=replace(matching, bundles=left), found=found)


def packed_as_read(matching: Matching, a: Outline, b: Outline) -> Packing:
    """Return a matching with the numbers that nothing says, and with the orders of rows that hold in most layers of a kind."""
    packing = with_numbers(matching, a, b)
    rows = tuple(_other_orders(packing.matching, a, b))
    parts = {guess: found for guess, found in _other_parts(packing.matching, a, b) if guess != found}
    matching = _with_parts(packing.matching, parts)
    matching = replace(matching, bundles=(*matching.bundles, *rows))
    guessed = tuple((found, guess) for guess, found in parts.items())
    return replace(packing, matching=matching, found=(*rows, *parts.values()), guessed=guessed)


def with_numbers(matching: Matching, a: Outline, b: Outline) -> Packing:
    """Return a matching with the numbers that nothing says; modules of which the weights do not say them have no counterpart."""
    every: tuple[Each, ...] = (*matching.bundles, *matching.weight_bundles)
    opened = [each for each in every if is_open(each)]
    read: dict[Hashable, Counter[How]] = defaultdict(Counter)
    for bundle in opened:
        how = _read(a, b, bundle)
        read[kind_of_bundle(a, b, bundle)].update([how] if how else [])
    most = {kind: most_of(votes, votes.total()) or () for kind, votes in read.items()}
    told = {bundle: most[kind_of_bundle(a, b, bundle)] for bundle in opened}
    found = {(each.missing, how): None for each, how in told.items() if how}
    lost: dict[str, list[str]] = defaultdict(list)
    for each in (each for each, how in told.items() if not how):
        lost[each.missing].append((b if each.side == "A" else a).tree.path(each.ends[0]))
    gone = {each for each, how in told.items() if not how}
    settled = [
        [replace(each, **dict(told.get(each, ()))) for each in bundles if each not in gone]  # type: ignore[arg-type]
        for bundles in (matching.bundles, matching.weight_bundles)
    ]
    matching = replace(matching, bundles=tuple(settled[0]), weight_bundles=tuple(settled[1]))  # type: ignore[arg-type]
    return Packing(
        _left_alone(matching, [each for each in gone if isinstance(each, Bundle)]),
        notes=tuple(_said(*each) for each in found),
        lost=tuple(note("number-not-known", number=each, paths=tuple(paths)) for each, paths in lost.items()),
    )


# Numbers that nothing says


def _said(missing: str, how: How) -> Note:
    """Say which number was found."""
    name, value = how[-1]
    return note("number-read-from-weights", number=missing, value=_described(value) if name == "order" else value)


def _left_alone(matching: Matching, bundles: Sequence[Bundle]) -> Matching:
    """Return a matching in which the modules of some bundles have no counterpart."""
    gone: dict[str, set[int]] = {"A": set(), "B": set()}
    for each in bundles:
        gone[each.side].update(each.parts)
        gone[other_side(each.side)].add(each.whole)
    return replace(
        matching,
        pairs=tuple(pair for pair in matching.pairs if pair.a not in gone["A"] and pair.b not in gone["B"]),
        only_a=tuple(sorted({*matching.only_a, *gone["A"]})),
        only_b=tuple(sorted({*matching.only_b, *gone["B"]})),
    )


def _read(a: Outline, b: Outline, bundle: Each) -> How:
    """Return what the sums of rows say of a number; nothing where there are none, or they do not fit."""
    mine, theirs = (a, b) if bundle.side == "A" else (b, a)
    if isinstance(bundle, Bundle):
        pieces, whole = [mine.matrix(part) for part in bundle.parts], theirs.matrix(bundle.whole)
    else:
        pieces, whole = [_weight(mine, place) for place in bundle.parts[0]], _weight(theirs, bundle.whole)
    known = [each for each in pieces if each is not None]
    if whole is None or len(known) < len(pieces):
        return ()
    if len(known) > 1:
        possible = divisors(math.gcd(*(piece.shape[0] for piece in known)))
        groups = fitting_groups(mine, theirs, known, whole, possible)
        return (("groups", groups),) if groups else ()
    sums = sums_of_rows(mine, known[0]), sums_of_rows(theirs, whole)
    if sums[0] is None or sums[1] is None or len(sums[0]) != len(sums[1]):
        return ()
    if bundle.rotary:
        heads = _heads(*sums)
        return (("rotary", heads),) if heads else ()
    order = order_between(sums[1], sums[0])
    return () if order is None else (("groups", 1), ("order", order))


def _heads(part: np.ndarray, whole: np.ndarray) -> int:
    """Return in how many heads neighbours of the part are the two halves of the whole; 0 where they are not."""
    for heads in divisors(len(part) // 2) if len(part) % 2 == 0 else ():
        if fits(fused.fuse([[part]], Fusion(0, rotary=heads)), whole, CAST) and heads < len(part) // 2:
            return heads
    return 0


def _weight(side: Outline, place: Place) -> Weight | None:
    return next((weight for weight in side.weights[place[0]] if place[1] in (weight.slot, weight.recorded)), None)


# The same rows in another order


def _other_orders(matching: Matching, a: Outline, b: Outline) -> Iterator[Bundle]:
    """Yield the modules of B whose rows lie in another order than those of A: that of most of their kind."""
    kinds: dict[Hashable, dict[Bundle, Order | None]] = defaultdict(dict)
    for i, j in plain_pairs(matching):
        mine, theirs = _only_matrix(a, i), _only_matrix(b, j)
        if mine is not None and theirs is not None:
            bundle = Bundle("B", i, (j,))
            kinds[kind_of_bundle(a, b, bundle), mine.shape == theirs.shape][bundle] = _order(a, mine, b, theirs)
    for members in kinds.values():
        order = most_of(Counter(order for order in members.values() if order is not None), len(members))
        if order:
            yield from (replace(bundle, order=order) for bundle in members)


def _other_parts(matching: Matching, a: Outline, b: Outline) -> Iterator[tuple[Bundle, Bundle]]:
    """Yield the modules of which it was guessed how they lie in one, and each as most of its kind do."""
    kinds: dict[Hashable, dict[Bundle, Bundle | None]] = defaultdict(dict)
    for bundle in filter(has_guessed_parts, matching.bundles):
        kinds[kind_of_bundle(a, b, bundle)][bundle] = _as_it_lies(a, b, bundle)
    for members in kinds.values():
        votes = Counter(
            (tuple(map(guess.parts.index, found.parts)), found.groups)
            for guess, found in members.items()
            if found is not None
        )
        most = most_of(votes, len(members))
        if most is not None:
            places, groups = most
            for guess in members:
                parts = tuple(guess.parts[place] for place in places)
                yield guess, replace(guess, parts=parts, groups=groups, is_known=True)


def _as_it_lies(a: Outline, b: Outline, bundle: Bundle) -> Bundle | None:
    """Return some modules in the order in which they lie in one, by the sums of its rows; None where these tell of none."""
    mine, theirs = (a, b) if bundle.side == "A" else (b, a)
    whole = theirs.matrix(bundle.whole)
    for parts in itertools.permutations(bundle.parts):
        pieces = [piece for part in parts if (piece := mine.matrix(part)) is not None]
        if whole is None or len(pieces) < len(parts):
            return None
        possible = dict.fromkeys((bundle.groups, *divisors(math.gcd(*(piece.shape[0] for piece in pieces)))))
        groups = fitting_groups(mine, theirs, pieces, whole, list(possible))
        if groups:
            return replace(bundle, parts=parts, groups=groups)
    return None


def _with_parts(matching: Matching, others: Mapping[Bundle, Bundle]) -> Matching:
    """Return a matching with other bundles in the place of some; the first part of each is its partner."""
    if not others:
        return matching
    firsts = {(old.side, old.whole): new.parts[0] for old, new in others.items()}
    pairs = [
        replace(pair, a=firsts.get(("A", pair.b), pair.a), b=firsts.get(("B", pair.a), pair.b))
        for pair in matching.pairs
    ]
    bundles = tuple(others.get(bundle, bundle) for bundle in matching.bundles)
    return replace(matching, pairs=tuple(sorted(pairs, key=lambda pair: pair.a)), bundles=bundles)


def _only_matrix(side: Outline, index: int) -> Weight | None:
    """Return the matrix of a layer whose rows are the columns of what it returns, None of all others."""
    found = side.matrices(index)
    is_layer = len(found) == 1 and not side.tree.children[index] and side.kind(index) not in _OTHER_ROWS
    return found[0] if is_layer and len(found[0].shape) == 2 else None


def _order(a: Outline, mine: Weight, b: Outline, theirs: Weight) -> Order | None:
    """Return which rows of B those of A are; None where nothing tells, or they are others."""
    x, y = mine.numbers, theirs.numbers
    if mine.shape != theirs.shape or x is None or y is None or not x.is_telling:
        return None
    if x.digest is not None and x.digest == y.digest:
        return ()
    if not all(math.isclose(*each, rel_tol=CAST) for each in ((x.min, y.min), (x.max, y.max), (x.norm, y.norm))):
        return None
    sums = sums_of_rows(a, mine), sums_of_rows(b, theirs)
    return None if sums[0] is None or sums[1] is None else order_between(*sums)


def order_between(a: np.ndarray, b: np.ndarray) -> Order | None:
    """Return the blocks of B in the order in which A has them, by one number for each row; None where they are other rows.

    Any order is found of rows that are equal; of rows that were cast, q, k and v (or other equal parts) in other groups.
    """
    if len(a) != len(b) or not _FEWEST <= len(a) <= _MOST:
        return None
    if fits(b, a, CAST):
        return ()
    rows = np.empty(len(a), np.int64)
    rows[np.argsort(a, kind="stable")] = np.argsort(b, kind="stable")
    if fits(b[rows], a, _ROUNDING):
        order = fused.in_blocks(rows)
        return order if 0 < len(order) <= _MOST_BLOCKS else None
    return next((order for order in _usual(len(a)) if fits(fused.reordered(b, order), a, CAST)), None)


def _usual(rows: int) -> Iterator[Order]:
    """Yield the orders in which code bases have equal parts: one after the other on one side, in groups on the other."""
    for parts in _PARTS:
        for groups in divisors(rows // parts)[1:] if rows % parts == 0 else ():
            if parts * groups <= _MOST_BLOCKS:
                yield fused.order_of([1] * parts, groups, 1)
                yield fused.order_of([1] * parts, 1, groups)


# What to say


def notes_of_orders(packing: Packing, a: Outline, b: Outline) -> Iterator[Note]:
    """Yield which modules were found to have their rows in another order, and what a mapping would say."""
    several_first = sorted(packing.found, key=lambda each: len(each.parts) == 1)
    for bundles in grouped(several_first, lambda each: (kind_of_bundle(a, b, each), each.order)).values():
        first, count = bundles[0], len(bundles)
        if len(first.parts) == 1:
            ends = {"a": a.tree.path(first.whole), "b": b.tree.path(first.parts[0])}
            yield note("rows-in-another-order", count=count, order=_described(first.order), **ends)
            continue
        first = min(bundles, key=lambda each: each.whole)
        mine, theirs = (a, b) if first.side == "A" else (b, a)
        path, parts = theirs.tree.path(first.whole), tuple(mine.tree.name(part) for part in first.parts)
        side = other_side(first.side)
        yield note("parts-in-another-order", side=side, path=path, count=count, parts=parts, groups=first.groups)


def _described(order: object) -> Note:
    """Say in which order B has the blocks of A."""
    assert isinstance(order, tuple)
    for parts in _PARTS:
        groups = len(order) // parts
        if len(order) % parts == 0 and groups > 1:
            for letters, counts in (("AB", (groups, 1)), ("BA", (1, groups))):
                if order == fused.order_of([1] * parts, *counts[::-1]):
                    return note("parts-in-groups", parts=parts, groups=groups, grouped=letters[0], other=letters[1])
    return note("order-of-blocks", order=order)
