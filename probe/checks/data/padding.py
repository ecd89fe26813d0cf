"""On which side a batch is padded, and whether its mask hides what is padding and nothing else."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence

import numpy as np

from probe.checks.data.batches import IDS, MASK, Batch, Batches, as_mask
from probe.checks.outcome import Line, State, fault, fine, unchecked
from probe.notes import note

_TOPIC_SIDE, _TOPIC_MASK = "padding side", "mask against pad id"
_VALUES = note("data-needs-values")


class Side(enum.StrEnum):
    """Where the padding of a batch stands."""

    NONE = "no padding"
    LEFT = "on the left"
    RIGHT = "on the right"
    BOTH = "on the left of some samples and on the right of others"
    INSIDE = "inside a sample"


def side_of(kept: np.ndarray) -> Side:
    """Return where the positions that are not kept stand, of an array [samples, positions]."""
    if kept.all():
        return Side.NONE
    first, last = kept.argmax(axis=1), kept.shape[1] - 1 - kept[:, ::-1].argmax(axis=1)
    some = kept.any(axis=1)
    inner = sum(int((~row[i : j + 1]).sum()) for row, i, j in zip(kept, first, last, strict=True))
    is_left, is_right = bool((first[some] > 0).any()), bool((last[some] < kept.shape[1] - 1).any())
    if inner - int((~kept[~some]).sum()) > 0:
        return Side.INSIDE
    return Side.BOTH if is_left and is_right else Side.LEFT if is_left else Side.RIGHT if is_right else Side.NONE


def padding_lines(
    found: Batches, pad: Sequence[int], others: Sequence[int], side: str
) -> tuple[Side | None, list[Line]]:
    """Return where the batches are padded, None where that is not known, and what is to be said of padding and mask.

    ``pad`` are pad ids, as the configuration has them, ``others`` special ids that may be pad ids too, as the end of
    a sequence often is; ``side`` is ``A`` or ``B``, or ``""``.
    """
    seen_sides = [_side_of_batch(batch, pad) for batch in found.batches]
    unknown = seen_sides.count(None)
    sides = [each for each in dict.fromkeys(seen_sides) if each is not None and each is not Side.NONE]
    has_sign = bool(pad) or any(batch.get(MASK) is not None for batch in found.batches)
    lines = [_side_line(sides, unknown, len(found.batches), has_sign, side), *_mask_lines(found, pad, others, side)]
    known = None if unknown else sides[0] if len(sides) == 1 else Side.NONE if not sides else Side.BOTH
    return known, lines


def _side_line(sides: list[Side], unknown: int, total: int, has_sign: bool, side: str) -> Line:
    if not total or unknown == total:
        said = (_VALUES if has_sign else note("no-mask-and-no-pad-id")) if total else note("no-ids-recorded")
        return Line(_TOPIC_SIDE, State.UNKNOWN, said, side)
    if len(sides) > 1 or sides in ([Side.BOTH], [Side.INSIDE]):
        return fault(_TOPIC_SIDE, "padding-on-both-sides", side, sides=tuple(each.value for each in sides))
    return fine(_TOPIC_SIDE, "padding-side", side, side=sides[0].value if sides else Side.NONE.value)


def _side_of_batch(batch: Batch, pad: Sequence[int]) -> Side | None:
    """Return where a batch is padded, by its mask, else by its pad ids; None where that is not known."""
    mask, ids = batch.get(MASK), batch.get(IDS)
    if mask is not None:
        if mask.has_values and len(mask.tensor.shape) == 2:
            return side_of(as_mask(mask.values()))
        zeros_of_all = 0 if mask.tensor.low >= 0 else mask.tensor.size  # of an additive mask
        return Side.NONE if mask.tensor.zeros == zeros_of_all else None
    if ids is None or not pad:
        return None
    if not any(ids.tensor.low <= each <= ids.tensor.high for each in pad):
        return Side.NONE
    if not ids.has_values or len(ids.tensor.shape) != 2:
        return None
    return side_of(_run_at_the_ends(np.isin(ids.values(), pad)))


def _run_at_the_ends(padded: np.ndarray) -> np.ndarray:
    """Return which positions are kept: pad ids inside a sample are no padding, as a pad id may be another token's too."""
    left = np.cumprod(padded, axis=1).astype(bool)
    right = np.cumprod(padded[:, ::-1], axis=1).astype(bool)[:, ::-1]
    return ~(left | right)


def _mask_lines(found: Batches, pad: Sequence[int], others: Sequence[int], side: str) -> Iterator[Line]:
    """Yield whether the mask hides pad ids and nothing else."""
    pairs = [(batch, batch.get(IDS), batch.get(MASK)) for batch in found.batches]
    with_mask = [(batch, ids, mask) for batch, ids, mask in pairs if ids is not None and mask is not None]
    if not with_mask:
        if any(_pads_without_mask(batch, pad, others) for batch in found.batches):
            yield fault(_TOPIC_MASK, "padding-without-mask", side, pad=tuple(pad))
        return
    if not pad:
        yield unchecked(_TOPIC_MASK, "no-pad-id", side)
        return
    checked = 0
    for batch, ids, mask in with_mask:
        if not (ids.has_values and mask.has_values):
            continue
        checked += 1
        kept, padded = as_mask(mask.values()), np.isin(ids.values(), pad)
        wrong = _first_wrong(kept, padded, is_shared=bool(set(pad) & set(others)))
        if wrong is not None:
            at, is_kept = wrong
            yield fault(_TOPIC_MASK, "mask-against-pad-id", side, step=batch.step, sample=at[0], position=at[1], token=int(ids.values()[at]), is_kept=is_kept, pad=tuple(pad))  # fmt: skip
            return
    if checked:
        yield fine(_TOPIC_MASK, "mask-hides-padding", side, pad=tuple(pad))
    else:
        yield Line(_TOPIC_MASK, State.UNKNOWN, _VALUES, side)


def _first_wrong(kept: np.ndarray, padded: np.ndarray, *, is_shared: bool) -> tuple[tuple[int, int], bool] | None:
    """Return the first position that is hidden and no padding, or padding and not hidden, and which it is.

    A pad id that is another token's too may stand in a sample, at its end in the first place.
    """
    hidden = np.argwhere(~kept & ~padded)
    shown = np.argwhere(kept & padded & ~(_run_at_the_ends(padded) | is_shared))
    for found, is_kept in ((hidden, False), (shown, True)):
        if len(found):
            return (int(found[0][0]), int(found[0][1])), is_kept
    return None


def _pads_without_mask(batch: Batch, pad: Sequence[int], others: Sequence[int]) -> bool:
    """Return True if a batch without a mask has samples that end or begin with several pad ids."""
    ids = batch.get(IDS)
    if ids is None or not pad or not ids.has_values or len(ids.tensor.shape) != 2 or set(pad) & set(others):
        return False
    return bool((~_run_at_the_ends(np.isin(ids.values(), pad))).sum(axis=1).max(initial=0) > 1)
