"""A head that one side computes for the last token alone: the other side's tensors are compared at that token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from probe.notes import Note, note
from probe.numbers.axis_sums import squeezed
from probe.records import JOINED_HASH, Role
from probe.store.reading.reader import Reader
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor


def at_last_tokens(step: Step) -> list[Note]:
    """Cut what one side has for all tokens, and the other for the last alone; return what is to be said of it."""
    names: dict[str, list[str]] = {"A": [], "B": []}
    inputs = [each.a for node in step.nodes if node.parent is None for each in node.inputs if each.a is not None]
    lengths = {each.shape[1] for each in inputs if each.kind == "integer" and len(each.shape) == 2}
    for node in step.nodes:
        for role, events in ((Role.INPUT, node.inputs), (Role.OUTPUT, node.outputs)):
            for at, event in enumerate(events):
                side = _shorter(event, lengths)
                whole = event.b if side == "A" else event.a
                if not side or whole is None:
                    continue
                other, slot = ("B", event.slot_b) if side == "A" else ("A", event.slot_a)
                last = _last(whole)
                step.tensors(node, other, role)[slot] = last
                events[at] = replace(event, b=last) if other == "B" else replace(event, a=last)
                names[side].append(f"{role.label} {event.slot_a} of {step.path(node.a.module) or 'the model'}")
    return [note("last-token-alone", side=side, names=tuple(each)) for side, each in names.items() if each]


def _shorter(event: Event, lengths: set[int]) -> str:
    """Return the side that has the last of several tokens alone, as far as shapes tell; empty where there is none."""
    a, b = event.both
    if a is None or b is None or not (a.kind == b.kind == "float" and a.has_values and b.has_values):
        return ""
    if len(a.shape) != len(b.shape) or len(a.shape) < 3 or a.axes or b.axes or a.parts or b.parts:
        return ""
    differing = [axis for axis, (x, y) in enumerate(zip(a.shape, b.shape, strict=True)) if x != y]
    sizes = {a.shape[-2], b.shape[-2]}
    is_one = differing == [len(a.shape) - 2] and 1 in sizes and bool(sizes & lengths)
    return ("A" if a.shape[-2] == 1 else "B") if is_one else ""


def _last(tensor: Tensor) -> Tensor:
    """Return what a tensor is at its last token."""
    shape = (*tensor.shape[:-2], 1, tensor.shape[-1])
    rows = _LastRows(tensor, shape)
    values = rows.values(tensor.stored).astype(np.float64)
    finite = values[np.isfinite(values)]
    ends = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
    bad = int(np.isnan(values).sum()), int(np.isposinf(values).sum()), int(np.isneginf(values).sum())
    return replace(
        tensor, shape=shape, norm=float(np.linalg.norm(finite)), mean=float(finite.mean()) if finite.size else math.nan,
        low=ends[0], high=ends[1], bad=bad, zeros=int((values == 0).sum()), sketch=None, reader=cast("Reader", rows),
        hash=(tensor.stored, 0, JOINED_HASH),
    )  # fmt: skip


@dataclass(frozen=True)
class _LastRows:
    """Reads a tensor at its last token, in the place of a recording."""

    tensor: Tensor
    shape: tuple[int, ...]

    def values(self, stored: int) -> np.ndarray:
        assert self.tensor.reader is not None
        whole = self.tensor.reader.values(stored).reshape(self.tensor.shape)
        return np.ascontiguousarray(whole[..., -1:, :])

    def block(self, stored: int, box: Sequence[slice]) -> np.ndarray:
        return self.values(stored).reshape(squeezed(self.shape))[tuple(box)]

    def parts(self, stored: int, chunk: int, into: Any = None) -> Iterator[np.ndarray]:
        values = self.values(stored).reshape(-1)
        return (values[at : at + chunk] for at in range(0, len(values), chunk))
