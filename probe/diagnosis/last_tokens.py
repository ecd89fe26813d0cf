"""A head that one side computes for the last token alone: the other side's tensors are compared at that token."""

from __future__ import annotations

from dataclasses import replace

from probe.notes import Note, note
from probe.operations.prefix import at_last
from probe.records import Role
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor


def at_last_tokens(step: Step) -> list[Note]:
    """Cut what one side has for all tokens, and the other for the last alone; return what is to be said of it."""
    names: dict[str, list[str]] = {"A": [], "B": []}
    for node in step.nodes:
        given = (each.both for each in [node, *node.callers()][-1].inputs)  # to the model, alike on both sides
        alike = (a for a, b in given if a is not None and b is not None and a.kind == "integer" and a.shape == b.shape)
        lengths = {each.shape[1] for each in alike if len(each.shape) == 2}
        for role, events in ((Role.INPUT, node.inputs), (Role.OUTPUT, node.outputs)):
            _pair(events, lengths)
            for at, event in enumerate(events):
                short = _shorter(event, lengths)
                if short is None:
                    continue
                side, whole, slot = ("A", event.b, event.slot_b) if short is event.a else ("B", event.a, event.slot_a)
                assert whole is not None
                last = step.tensors(node, "BA"[side == "B"], role)[slot] = at_last(whole, len(whole.shape) - 2, 1)
                events[at] = replace(event, b=last) if side == "A" else replace(event, a=last)
                names[side].append(f"{role.label} {event.slot_a} of {step.path(node.a.module) or 'the model'}")
    return [note("last-token-alone", side=side, names=tuple(each)) for side, each in names.items() if each]


def _pair(events: list[Event], lengths: set[int]) -> None:
    """Make one event of two that each side has alone, for they are of other sizes."""
    for mine, theirs in [(x, y) for x in events for y in events if x.b is None and y.a is None]:
        pair = replace(mine, slot_b=theirs.slot_b, b=theirs.b)
        if mine in events and theirs in events and _shorter(pair, lengths) is not None:
            events[:] = [*(each for each in events if each not in (mine, theirs)), pair]


def _shorter(event: Event, lengths: set[int]) -> Tensor | None:
    """Return the tensor that is of one token, where the other side's is of as many as the model was given."""
    a, b = event.both
    if (
        a is None
        or b is None
        or not all(x.has_values and x.kind == "float" and not x.axes and not x.parts for x in (a, b))
    ):
        return None
    if len(a.shape) != len(b.shape) or len(a.shape) < 3 or (*a.shape[:-2], a.shape[-1]) != (*b.shape[:-2], b.shape[-1]):
        return None
    one, many = sorted((a, b), key=lambda each: each.shape[-2])
    return one if one.shape[-2] == 1 and many.shape[-2] in lengths - {1} else None
