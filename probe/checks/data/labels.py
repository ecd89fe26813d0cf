"""Labels against the ids that they are made of: shifted once, by the batch or by the model."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probe.checks.data.batches import IDS, LABELS, MASK, Batch, Batches, Field, as_mask
from probe.checks.outcome import Line, State, fault, fine, unchecked
from probe.notes import note
from probe.records import ModuleInfo

_TOPIC = "labels"
_ENOUGH = 0.98
"""share of the labels that count which are ids at the same or the next position"""
_IGNORED_BELOW = 0
"""labels below it do not count: −100, or −1"""


class Shift(enum.StrEnum):
    """Which ids labels are."""

    NONE = "the ids at the same positions"
    NEXT = "the ids at the next position"
    PREVIOUS = "the ids at the position before"
    OTHER = "other than the ids"


class Habit(enum.StrEnum):
    """Who shifts the labels of a model."""

    MODEL = "the model"
    BATCH = "the batch"


@dataclass(frozen=True, slots=True)
class Convention:
    """Models of one code base, by the source and the class of their root, and who shifts their labels."""

    file: str
    class_end: str
    habit: Habit


CONVENTIONS = (
    Convention("/transformers/models/", "ForCausalLM", Habit.MODEL),
    Convention("/transformers/models/", "LMHeadModel", Habit.MODEL),
    Convention("/megatron/", "GPTModel", Habit.BATCH),
)
"""who computes the loss inside of the model shifts there, or expects labels that are shifted already"""


def habit_of(root: ModuleInfo) -> Habit | None:
    """Return who shifts the labels that a model is given; None where that is not known."""
    path = root.file.replace("\\", "/")
    return next(
        (each.habit for each in CONVENTIONS if each.file in path and root.class_name.endswith(each.class_end)), None
    )


def shift_of(ids: np.ndarray, labels: np.ndarray) -> Shift:
    """Return which ids labels are, of two arrays [samples, positions]."""
    counts = labels >= _IGNORED_BELOW
    shares = {
        Shift.NONE: _share(labels == ids, counts),
        Shift.NEXT: _share(labels[:, :-1] == ids[:, 1:], counts[:, :-1]),
        Shift.PREVIOUS: _share(labels[:, 1:] == ids[:, :-1], counts[:, 1:]),
    }
    best = max(shares, key=shares.__getitem__)
    return best if shares[best] >= _ENOUGH else Shift.OTHER


def _share(same: np.ndarray, counts: np.ndarray) -> float:
    return float(same[counts].mean()) if counts.any() else 0.0


def label_lines(found: Batches, habit: Habit | None, side: str) -> Iterator[Line]:
    """Yield whether labels are shifted once, and leave padding out."""
    with_labels = [batch for batch in found.batches if batch.get(LABELS) is not None and batch.get(IDS) is not None]
    if not with_labels:
        yield unchecked(_TOPIC, "no-labels-recorded", side)
        return
    shift = next((each for each in map(_shift_of_batch, with_labels) if each is not None), None)
    labels = with_labels[0].fields[LABELS]
    if labels.tensor.shape != with_labels[0].fields[IDS].tensor.shape:
        yield fine(_TOPIC, "labels-of-another-shape", side, shape=labels.tensor.shape)
        return
    yield _shift_line(shift, None if labels.is_logged else habit, side)
    yield from _trained_padding(with_labels, shift, side)


def _shift_of_batch(batch: Batch) -> Shift | None:
    ids, labels = batch.fields[IDS], batch.fields[LABELS]
    if ids.tensor.shape != labels.tensor.shape or len(ids.tensor.shape) != 2:
        return None
    if ids.digest is not None and ids.digest == labels.digest and ids.tensor.dtype == labels.tensor.dtype:
        return Shift.NONE
    if not (ids.has_values and labels.has_values) or ids.tensor.shape[1] < 2:
        return None
    return shift_of(ids.values(), labels.values())


def _shift_line(shift: Shift | None, habit: Habit | None, side: str) -> Line:
    if shift is None:
        return unchecked(_TOPIC, "data-needs-values", side)
    wanted = {Habit.MODEL: Shift.NONE, Habit.BATCH: Shift.NEXT}.get(habit, shift) if habit else shift
    is_wrong = shift is Shift.PREVIOUS or (shift is not Shift.OTHER and shift is not wanted)
    said = note("labels-shifted", shift=shift.value, habit=None if habit is None else habit.value, is_wrong=is_wrong)
    return Line(_TOPIC, State.FOUND if is_wrong else State.OK, said, side)


def _trained_padding(batches: list[Batch], shift: Shift | None, side: str) -> Iterator[Line]:
    """Yield what labels count though the mask hides the position that they are of."""
    if shift not in (Shift.NONE, Shift.NEXT):
        return
    for batch in batches:
        mask, labels = batch.get(MASK), batch.fields[LABELS]
        if not _has_both(mask, labels):
            continue
        assert mask is not None
        hidden, counts = ~as_mask(mask.values()), labels.values() >= _IGNORED_BELOW
        trained = counts & hidden if shift is Shift.NONE else counts[:, :-1] & hidden[:, 1:]
        if trained.any():
            sample, position = (int(at) for at in np.argwhere(trained)[0])
            yield fault(_TOPIC, "padding-is-trained-on", side, step=batch.step, sample=sample, position=position, count=int(trained.sum()))  # fmt: skip
            return


def _has_both(mask: Field | None, labels: Field) -> bool:
    return mask is not None and mask.has_values and labels.has_values and mask.tensor.shape == labels.tensor.shape
