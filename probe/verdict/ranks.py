"""Tensors of which ranks hold copies that are not equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from probe.answer.result import Divergence, Kind, NodeRef
from probe.matching import Matching
from probe.notes import Note, note
from probe.ranks.opening import is_of_ranks
from probe.ranks.replicas import Difference
from probe.records import Phase
from probe.store.reading.reader import Reader
from probe.verdict.judge.verdicts import Finding
from probe.verdict.side import PARAMETER_ROLES, Side
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

PART = 0.1
"""share of the largest difference: a copy that is nearer is the right one, a part that is further off is wrong too"""
_TOLD, _BETWEEN_TWO = 0.97, 0.9

Ranks = tuple[int, ...]


def let_see(a: Reader, b: Reader, matching: Matching) -> None:
    """Let the ranks of a side see how tensors lie on the other one, and what the mapping says of it."""
    if is_of_ranks(a) or is_of_ranks(b):
        from probe.ranks.other_side import see_each_other

        see_each_other(a, b, ((pair.a, pair.b) for pair in matching.pairs), dict(matching.dims))


def unused_dims(a: Reader, b: Reader, dims: Mapping[str, str]) -> list[Note]:
    """Return what the mapping says of how ranks divide tensors, and no recording of ranks has."""
    sides = [(each, each.layout) for each in (a, b) if is_of_ranks(each)]
    if not sides:
        return []
    from probe.ranks.dims.telling import unused_dims as unused

    return unused(sides, dims)


def lost_parts(step: Step) -> Iterator[Note]:
    """Yield which tensors of a step could not be put together from what ranks hold, by the reason."""
    for name, half in sides_of_ranks(step):
        by_reason: dict[str, dict[str, None]] = {}
        for module, role, slot, why in gathered(half).lost:
            path = half.reader.modules[module].path or "the model"
            by_reason.setdefault(why, {})[f"{role.label} {slot} of {path}"] = None
        for why, tensors in by_reason.items():
            yield note("dims-unknown", side=name, tensors=tuple(tensors)[:3], count=len(tensors), why=why)


# Copies that differ


def with_copies(step: Step, found: Iterable[tuple[Finding, Divergence]]) -> list[Divergence]:
    """Return findings in the order of cause, with those on ranks that hold other copies of one tensor."""
    named = list(found)
    findings: list[tuple[Finding | None, Divergence]] = [*named]
    for name, half in sides_of_ranks(step):
        for copies, when in _copies(step, name, half):
            places = {(ref.path, copies.phase) for ref in copies.a + copies.b}
            rest = [it for it in findings if not places & {(ref.path, it[1].phase) for ref in it[1].a + it[1].b}]
            later = (k for k, each in enumerate(rest) if _is_later(name, half, *each, copies, when))
            at = next(later, len(rest))
            findings = [*rest[:at], (None, copies), *rest[at:]]
    return [each for _, each in findings]


def _is_later(name: str, half: Side, finding: Finding | None, other: Divergence, copies: Divergence, when: int) -> bool:
    """Return True if a finding comes behind copies that differ."""
    if other.kind is Kind.INPUTS:
        return copies.phase is not Phase.INIT
    if other.phase is not copies.phase:
        return other.phase > copies.phase
    event = finding.event if finding is not None else None
    tensor = None if event is None else event.a if name == "A" else event.b
    row = -1 if tensor is None else next(leaves_of(tensor)).row
    return row < 0 or int(gathered(half).records["seq"][row]) >= when


def _copies(step: Step, name: str, half: Side) -> Iterator[tuple[Divergence, int]]:
    """Yield findings on copies, and when: each weight that the step begins with; of what follows, the first."""
    differences = sorted(gathered(half).differences, key=lambda each: (each.phase, each.order))
    initial = [each for each in differences if each.phase is Phase.INIT]
    by_tensor: dict[int, list[Difference]] = {}
    for each in initial or differences:
        by_tensor.setdefault(each.tensor, []).append(each)
    for parts in list(by_tensor.values())[: len(by_tensor) if initial else 1]:
        yield _copies_finding(step, name, half, parts), parts[0].order


def _copies_finding(step: Step, name: str, half: Side, parts: Sequence[Difference]) -> Divergence:
    """Return the finding on one tensor, of which copies of each part may differ."""
    first, other = parts[0], step.b if name == "A" else step.a
    odd = [_odd_ranks(step, name, part) for part in parts]
    ranks, others = (in_order(rank for each in odd for rank in each[k]) for k in (0, 1))
    module = _partner(step, name, first.module)
    refs = [
        (NodeRef.of(side.step, first.micro, side.reader.modules[index or 0], first.call, first.slot),)
        for side, index in ((half, first.module), (other, module))
    ]
    told = note("copies-differ", side=name, ranks=ranks, others=others, groups=first.groups, error=first.error)
    advice = note("copies-of-weights", phase=first.phase.label) if first.is_of_weight else note("copies-of-tensors")
    a, b = refs if name == "A" else refs[::-1]
    confidence = _TOLD if others else _BETWEEN_TWO
    return Divergence(first.phase, first.role, Kind.REPLICAS, confidence, a, b, None, 0.0, (told,), advice, first.error)


def _odd_ranks(step: Step, name: str, difference: Difference) -> tuple[Ranks, Ranks]:
    """Return the wrong ranks and the right ones: by the other side, or by the majority; the second empty if open."""
    given = _of_other_side(step, name, difference)
    if given is not None:
        far = [float(np.linalg.norm(copy.sketch - given)) for copy in difference.copies]
        near = [copy.rank for copy, each in zip(difference.copies, far, strict=True) if each <= PART * max(far)]
        if near and len(near) < len(far):
            return tuple(copy.rank for copy in difference.copies if copy.rank not in near), tuple(near)
    if difference.is_told:
        return difference.ranks, difference.others
    return in_order((*difference.ranks, *difference.others)), ()


def _of_other_side(step: Step, name: str, difference: Difference) -> np.ndarray | None:
    """Return the sketch of the other side's tensor; None if it has none of that form."""
    module = _partner(step, name, difference.module)
    if module is None or any(not np.isfinite(copy.sketch).all() for copy in difference.copies):
        return None
    half, other = (step.a, step.b) if name == "A" else (step.b, step.a)
    if difference.role in PARAMETER_ROLES:
        slot = half.canonical(difference.module, difference.slot)
        tensor = other.params.get((difference.phase, difference.role), {}).get((module, slot))
    else:
        wanted = module, difference.micro, difference.call
        calls = (call for call in other.calls if (call.module, call.micro, call.number) == wanted)
        tensor = next((call.of(difference.role).get(difference.slot) for call in calls), None)
    return tensor.sketch if tensor is not None and tensor.shape == difference.shape else None


def _partner(step: Step, name: str, module: int) -> int | None:
    if name == "B":
        return step.a_of.get(module)
    return step.pair_of[module].b if module in step.pair_of else None


def leaves_of(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the recorded tensors that a joined one is made of."""
    for part in (part for row in tensor.parts for part in row):
        yield from leaves_of(part)
    if not tensor.parts:
        yield tensor


def sides_of_ranks(step: Step) -> Iterator[tuple[str, Side]]:
    """Yield the sides that ranks recorded, and their names."""
    yield from ((name, half) for name, half in (("A", step.a), ("B", step.b)) if is_of_ranks(half.reader))


def gathered(half: Side) -> Any:
    """Return a step of the ranks of a side, put together."""
    assert is_of_ranks(half.reader)
    return half.reader.step(half.step)


def in_order(ranks: Iterable[int]) -> Ranks:
    """Return each rank once, the lowest first."""
    return tuple(sorted(set(ranks)))
