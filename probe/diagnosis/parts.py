"""Which parts of a tensor differ: of several modules that are one on the other side, or of ranks. Values tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from probe.answer.result import Divergence, NodeRef
from probe.notes import Note, note
from probe.numbers.fused import Fusion, fuse
from probe.records import Role
from probe.verdict.judge.verdicts import Finding
from probe.verdict.ranks import PART, Ranks, gathered, in_order, leaves_of, sides_of_ranks
from probe.verdict.side import Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_CLEARLY = 0.01
"""a part whose error is below this share of the largest one's does not count as different"""
_LARGEST = 1 << 24
"""elements up to which parts are held against the other side one by one"""


def with_parts(step: Step, event: Event | None, finding: Divergence) -> Divergence:
    """Return a finding on a tensor that lies in parts on one side with which of them differ, or have none there."""
    if event is None or event.a is None or event.b is None:
        return finding
    places = step.places(event)
    side = next((at for at in (0, 1) if places[at]), None)
    refs = (finding.a, finding.b)[side or 0]
    if side is None or not refs or not refs[0].slot:  # of other code than its own
        return finding
    half = (step.a, step.b)[side]
    of_path = {module.path: module for module in half.reader.modules}
    each = [NodeRef.of(half.step, refs[0].micro, of_path[path], refs[0].call, slot) for path, slot in places[side]]
    finding = replace(finding, a=tuple(each)) if side == 0 else replace(finding, b=tuple(each))
    if len(each) == 1:  # one that belongs to another module there
        return finding
    made = (event.a, event.b)[side]
    parts = [part for row in made.parts for part in row]
    names = _ends([path for path, _ in places[side]])
    facts: list[Note] = []
    lacking = tuple(name for name, part in zip(names, parts, strict=False) if part.reader is None)
    if lacking:
        what = event.slot_a.partition(".")[0] if event.role is Role.PARAM else event.role.label
        facts.append(note("parts-without", names=lacking, what=what, side="AB"[side]))
    are_known = made.parts and len(parts) == len(names) and event.a.form == event.b.form
    if not (are_known and event.a.has_values and event.b.has_values):
        facts += [] if lacking else [note("which-part-values-would-tell", names=tuple(names))]
        return replace(finding, facts=(*finding.facts, *facts))
    numbers = iter(range(len(parts)))
    labels = fuse([[np.full(part.laid, next(numbers)) for part in row] for row in made.parts], made.fusion or Fusion())
    errors = _errors(labels, event.a, event.b, len(parts)).tolist()
    bound = max(finding.limit if math.isfinite(finding.limit) else 0.0, _CLEARLY * max(errors))
    wrong = tuple((name, error) for name, error in zip(names, errors, strict=True) if error > bound)
    if wrong:
        right = tuple(name for name, error in zip(names, errors, strict=True) if error <= bound)
        facts.append(note("parts-differ", wrong=wrong, right=right))
    return replace(finding, facts=(*finding.facts, *facts))


def _errors(labels: np.ndarray, a: Tensor, b: Tensor, count: int) -> np.ndarray:
    """Return the relative error of each part, by the number of the part that each element lies in."""
    x, y = (each.values().astype(np.float64).ravel() for each in (a, b))
    numbers = labels.ravel().repeat(x.size // labels.size)  # complex numbers are pairs
    apart, *both = (np.bincount(numbers, np.square(each), count) for each in (x - y, x, y))
    return np.sqrt(apart / np.maximum(np.maximum(*both), 1e-300))


def _ends(paths: Sequence[str]) -> list[str]:
    """Return paths without what all of them begin with."""
    split = [path.split(".") for path in paths]
    shortest = min(map(len, split), default=1)
    common = next((k for k in range(shortest - 1) if len({names[k] for names in split}) > 1), shortest - 1)
    return [".".join(names[common:]) for names in split]


# Parts of ranks


def ranks_of(step: Step, finding: Finding) -> list[Note]:
    """Return the ranks that hold what a finding is about: those that are wrong, where values tell them."""
    said, event = [], finding.event
    for name, half in sides_of_ranks(step):
        tensor = None if event is None else event.both["AB".index(name)]
        if tensor is None or event is None:
            holders = half.reader.ranks_with(set(_paths(step, finding, name)))
            wrong: Ranks = ()
        else:
            rows = {part.row for part in leaves_of(tensor) if part.row >= 0}
            holders = sorted({rank for row in rows for rank in gathered(half).ranks_of(row)})
            wrong = _wrong_ranks(half, finding, event, tensor) if len(holders) > 1 else ()
        if holders:
            said.append(note("on-ranks", side=name, ranks=wrong or tuple(holders), of=len(holders)))
    return said


def _paths(step: Step, finding: Finding, side: str) -> Iterator[str]:
    """Yield the paths of a finding on a side: those of the partners, in B."""
    by_path = {module.path: index for index, module in enumerate(step.a.reader.modules)}
    for path in finding.paths:
        module = by_path.get(path, -1)
        is_paired = side == "B" and module in step.pair_of
        yield step.b.reader.modules[step.pair_of[module].b].path if is_paired else path


def _wrong_ranks(half: Side, finding: Finding, event: Event, tensor: Tensor) -> Ranks:
    """Return the ranks whose parts differ from the other side's; nothing if values do not tell them, or all differ."""
    a, b = event.a, event.b
    if a is None or b is None or a.form != b.form or a.size > _LARGEST or not (a.has_values and b.has_values):
        return ()
    labelled = _labels(half, tensor)
    if labelled is None or len(labelled[1]) < 2 or a.kind == "complex":
        return ()
    errors = _errors(labelled[0], a, b, len(labelled[1]))
    is_plain = not math.isnan(finding.limit) and (finding.check is None or not finding.check.measure)
    is_wrong = errors > max(PART * float(errors.max()), finding.limit if is_plain else 0.0)
    if is_wrong.all():
        return ()
    return in_order(rank for each, own in zip(is_wrong, labelled[1], strict=True) if each for rank in own)


def _labels(half: Side, tensor: Tensor) -> tuple[np.ndarray, list[Ranks]] | None:
    """Return the number of the part that each element is of, in canonical order, and the ranks that hold each part."""
    if not tensor.parts:
        if tensor.row < 0:
            return None
        labels, ranks = gathered(half).labels(tensor.row, tensor.shape)
        laid = labels.transpose(tensor.axes) if len(tensor.axes) == labels.ndim else labels
        return laid.reshape(tensor.form), ranks
    arrays, held = [], list[Ranks]()
    for row in tensor.parts:
        arrays.append([])
        for part in row:
            found = _labels(half, part)
            if found is None:
                return None
            arrays[-1].append(found[0].reshape(part.laid) + len(held))
            held += found[1]
    return fuse(arrays, tensor.fusion or Fusion()).reshape(tensor.form), held
