"""Modules that run once more, because a framework differentiates functions and keeps no graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from probe.adapters.replaying import Replaying, Run
from probe.records import Role
from probe.replaying.passing.segments import Segment
from probe.replaying.passing.tensors import Tensors


def run_again(
    tensors: Tensors, stack: list[Segment], segment: Segment, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any],
    new: Sequence[Any],
) -> list[Any]:  # fmt: skip
    """Run the code of a segment with other sources; the calls inside return what they did. Return the targets."""
    learning = [each for each in segment.sources if each.learns]
    segment.renewed = {id(source): tensor for source, tensor in zip(learning, new, strict=True)}
    own = {each.slot: segment.renewed[id(each)] for each in learning if each.role is Role.INPUT}
    given = {each.slot: own.get(each.first, each.tensor) for each in segment.given}
    segment.again, segment.handed = 0, {}
    stack.append(segment)
    try:
        output = run(*tensors.put(args, given), **tensors.put(kwargs, given))
    finally:
        stack.pop()
        segment.again = -1
    for slot, tensor in tensors.named(output):
        segment.handed[id(segment.call), slot] = tensor
    return [segment.handed[id(each.call), each.slot] for each in segment.targets if each.is_known]


def made_again(tensors: Tensors, around: Segment, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return once more what a call inside of a segment returned."""
    inside = around.inside[around.again]
    around.again += 1
    handed = dict(tensors.named(args) + tensors.named(kwargs))
    around.handed |= {(id(inside.call), slot): tensor for slot, tensor in handed.items()}
    by = {slot: handed[mine] for slot, mine in inside.through.items()}
    for source in inside.sources:
        value = around.renewed.get(id(source), source.given)
        by |= dict.fromkeys((source.slot, *source.also), value)
    return tensors.put(inside.output, by)


@contextlib.contextmanager
def buffers_kept(replaying: Replaying, module: Any) -> Iterator[None]:
    """Leave the buffers of a module as they are, where differentiating runs it once more."""
    adapter = replaying.adapter
    found = [each.tensor for each in adapter.parameters(module) if each.is_buffer] if replaying.runs_again else []
    with adapter.quiet():
        before = [adapter.values(each) for each in found]
    yield
    for buffer, values in zip(found, before, strict=True):
        adapter.assign(buffer, values)
