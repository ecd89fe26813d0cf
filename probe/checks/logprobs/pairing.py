"""Which sequence of A is which of B, and their tokens side by side up to the first id that differs: `side_by_side`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.checks.logprobs.reading import Tokens
from probe.checks.outcome import Line, fault, fine, unchecked

TILES = (512, 256, 128, 64, 32, 16)
"""sizes of blocks that kernels and caches have, the largest first"""
_NEAR = 3
"""tokens that ids or masks of two sides are apart by at most where one of them is shifted"""
_HEAD = 8
"""ids by which a response is found in a whole sequence"""


@dataclass(frozen=True)
class Pairs:
    """The tokens that count on both sides, of all sequences one after the other."""

    row: np.ndarray
    """number of the sequence"""
    token: np.ndarray
    """number among the tokens of its sequence that count"""
    position: np.ndarray
    """in the sequence, prompt and all"""
    id: np.ndarray
    a: np.ndarray
    b: np.ndarray
    document: np.ndarray
    """how many documents of the row, or turns that do not count, came before"""
    since: np.ndarray
    """tokens behind the beginning of its document, or turn"""
    is_shared: np.ndarray
    """whether its sequence begins as an earlier one does, for a block of a cache or more"""

    @property
    def d(self) -> np.ndarray:
        """B − A."""
        return self.b - self.a

    @property
    def is_last(self) -> np.ndarray:
        """Which are the last ones of their sequences."""
        return np.diff(self.row, append=-1) != 0

    def only(self, which: np.ndarray) -> Pairs:
        """Return some of the tokens."""
        return replace(self, **{name: getattr(self, name)[which] for name in self.__dataclass_fields__})


def tile_of(position: int) -> int:
    """Return the largest of `TILES` that a position is a multiple of, else 0."""
    return next((tile for tile in TILES if position and position % tile == 0), 0)


def side_by_side(a: Sequence[Tokens], b: Sequence[Tokens]) -> tuple[Pairs, list[Line]]:
    """Return the tokens of both sides, and what is to be said of ids, masks and ends.

    Sequences pair in their order, or, where that pairs fewer, by equal ids.
    """
    pairs = [_placed(x, y) for x, y in _in_order(a, b)]
    columns: list[list[np.ndarray]] = [[] for _ in Pairs.__dataclass_fields__]
    found = []
    heads: set[bytes] = set()
    for row, (x, y) in enumerate(pairs):
        low, high = max(_start(x), _start(y)), min(_start(x) + len(x.ids), _start(y) + len(y.ids))
        ours, theirs = _cut(x, low, high), _cut(y, low, high)
        differ = np.flatnonzero(ours.ids != theirs.ids)
        same = int(differ[0]) if len(differ) else len(ours.ids)
        found.append(_Held(row, low, ours, theirs, same, _end(x), _end(y), y if _end(y) > _end(x) else x))
        counts = (ours.counts & theirs.counts)[:same]
        at = np.arange(low, low + same)
        begins = np.isin(at, [*x.borders, *y.borders]) | (counts & ~np.roll(counts, 1) & (at > low))
        since = at - np.maximum.accumulate(np.where(begins, at, low)) if same else at
        document = np.cumsum(begins) - (np.cumsum(begins)[counts][0] if counts.any() else 0)
        shared = np.full(same, (head := x.head or y.head) in heads)
        heads |= {head} - {b""}
        values = (np.full(same, row), np.cumsum(counts) - 1, at, ours.ids[:same], ours.logprobs[:same], theirs.logprobs[:same], document, since, shared)  # fmt: skip
        for column, value in zip(columns, values, strict=True):
            column.append(value[counts])
    lines = [fault("number of sequences", "logprobs-sequences-missing", a=len(a), b=len(b))] if len(a) != len(b) else []
    joined = Pairs(*(np.concatenate(column) if column else np.zeros(0) for column in columns))
    return joined, [*lines, *_ids(found, joined.a.size), *_masks(found), *_ends(found)]


def _start(tokens: Tokens) -> int:
    return tokens.start or 0


def _cut(tokens: Tokens, low: int, high: int) -> Tokens:
    part = slice(low - _start(tokens), max(high, low) - _start(tokens))
    return replace(tokens, ids=tokens.ids[part], logprobs=tokens.logprobs[part], counts=tokens.counts[part])


def _in_order(a: Sequence[Tokens], b: Sequence[Tokens]) -> list[tuple[Tokens, Tokens]]:
    """Return the pairs of sequences."""
    straight = list(zip(a, b, strict=False))
    by_ids = {each.ids.tobytes(): each for each in b}
    sought = [(each, by_ids[each.ids.tobytes()]) for each in a if each.ids.tobytes() in by_ids]
    equal = sum(np.array_equal(x.ids, y.ids) for x, y in straight)
    return sought if len(sought) == len(a) and len(by_ids) == len(b) and len(sought) > equal else straight


def _placed(x: Tokens, y: Tokens) -> tuple[Tokens, Tokens]:
    """Return two sequences with their positions; a response of an unknown prompt is sought in the other side's tokens."""
    if x.start is None and y.start is not None:
        return tuple(reversed(_placed(y, x)))  # type: ignore[return-value]
    if x.start is None or y.start is not None:
        return x, y
    head = y.ids[:_HEAD]
    places = (at for at in range(len(x.ids) - len(head) + 1) if np.array_equal(x.ids[at : at + len(head)], head))
    first = int(x.counts.argmax()) if x.counts.any() else 0
    return x, replace(y, start=x.start + next(places, first))


@dataclass(frozen=True)
class _Held:
    """What both sides have of a sequence, and the positions behind the last tokens that count."""

    row: int
    low: int
    """position of the first token of both"""
    a: Tokens
    b: Tokens
    same: int
    """tokens up to the first id that differs"""
    end_a: int
    end_b: int
    longer: Tokens


def _ids(pairs: Sequence[_Held], count: int) -> Iterator[Line]:
    """Yield whether the ids are the same."""
    wrong = [each for each in pairs if each.same < len(each.a.ids)]
    if wrong:
        first, left = wrong[0], sum(len(each.a.ids) - each.same for each in wrong)
        place = {"row": first.row, "token": first.same, "position": first.low + first.same}
        ids = {side: int(each.ids[first.same]) for side, each in (("a", first.a), ("b", first.b))}
        shift = _common(_shift(each.a.ids, each.b.ids) for each in wrong)
        yield fault("ids", "logprobs-ids-differ", rows=len(wrong), total=len(pairs), **place, **ids, left=left, shift=shift)  # fmt: skip
    elif count:
        yield fine("ids", "logprobs-ids-equal", count=sum(each.same for each in pairs), rows=len(pairs))
    else:
        yield unchecked("ids", "logprobs-no-tokens")


def _masks(pairs: Sequence[_Held]) -> Iterator[Line]:
    """Yield where two masks differ."""
    with_masks = [(each, each.a.counts[: each.same], each.b.counts[: each.same]) for each in pairs if each.a.has_mask and each.b.has_mask]  # fmt: skip
    wrong = [(each, x, y) for each, x, y in with_masks if not np.array_equal(x, y)]
    if wrong:
        first, x, y = wrong[0]
        position = first.low + int((x != y).argmax())
        shift = _common(_shift(x, y) for _, x, y in wrong)
        yield fault("masks", "logprobs-masks-differ", rows=len(wrong), total=len(pairs), row=first.row, position=position, shift=shift)  # fmt: skip


def _ends(pairs: Sequence[_Held]) -> Iterator[Line]:
    """Yield on which side sequences end earlier."""
    for side, sign in (("B", 1), ("A", -1)):
        short = [each for each in pairs if each.same == len(each.a.ids) and sign * (each.end_a - each.end_b) > 0 < min(each.end_a, each.end_b)]  # fmt: skip
        if short:
            by = [abs(each.end_a - each.end_b) for each in short]
            ends = [min(each.end_a, each.end_b) for each in short]
            last = _common(int(each.longer.ids[-1]) for each in short) if max(by) == 1 else 0
            tile = min(map(tile_of, ends)) if len(short) > 1 else 0
            yield fault("ends", "logprobs-ends-earlier", side=side, rows=len(short), total=len(pairs), row=short[0].row, position=ends[0], least=min(by), most=max(by), id=last or -1, tile=tile)  # fmt: skip


def _end(tokens: Tokens) -> int:
    return _start(tokens) + int(np.flatnonzero(tokens.counts)[-1]) + 1 if tokens.counts.any() else 0


def _common(values: Iterable[int]) -> int:
    """Return what all are, 0 where they are not the same."""
    found = set(values)
    return found.pop() if len(found) == 1 else 0


def _shift(a: np.ndarray, b: np.ndarray) -> int:
    """Return by how many places B's values stand behind A's; 0 where no shift makes them equal."""
    for by in (sign * by for by in range(1, _NEAR + 1) for sign in (1, -1)):
        mine, theirs = (a[:-by], b[by:]) if by > 0 else (a[-by:], b[:by])
        if len(mine) > _NEAR and np.array_equal(mine, theirs):
            return by
    return 0
