"""What operations add to a finding: arguments and functions that differ, and what one side alone calls in front of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import PurePath

from probe.answer.result import Divergence
from probe.notes import Note, note
from probe.operations.names import canonical, differing, given_alone
from probe.records import ModuleInfo, Phase, Role
from probe.verdict.judge.verdicts import Finding
from probe.verdict.side import Call, Side
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_MOST = 8
"""operations of one side alone that are named"""


def of_operations(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without those of operations that lie behind another one: what follows a fault enlarges it."""
    return [each for each in findings if not (each.is_behind and _operation(each.event) is not None)]


def with_operations_told(step: Step, found: Divergence) -> Divergence:
    """Return a finding with the operations that tell more: the one that shows it, and those of one side alone before it."""
    if found.phase is Phase.BACKWARD:
        return replace(found, facts=(*found.facts, *_inside(step, found)))
    node = found.event.node if found.event is not None else None
    if node is None or found.phase is not Phase.FORWARD:
        return found
    advice = _advice(step, node, found) or found.advice
    inner = found.event.role is Role.OUTPUT and not node.a.is_operation
    facts = []
    more, arguments = given_alone(*_infos(step, node)) if found.event.role is Role.OUTPUT else ("", {})
    if more:
        facts.append(note("arguments-alone", side=more, arguments=tuple((k, str(v)) for k, v in arguments.items())))
    sides = ("A", step.a, node.a, found.event.a), ("B", step.b, node.b, found.event.b)
    for side, half, call, tensor in sides:
        alone = tuple(_shown(half, each) for each in _alone(step, half, call, tensor, inner))
        if alone:
            facts.append(note("operations-alone", side=side, operations=alone))
    is_named = advice is not found.advice
    return replace(found, facts=(*found.facts, *facts), advice=advice, hints=() if is_named else found.hints)


def _advice(step: Step, node: Node, found: Divergence) -> Note | None:
    """Return what to look at where functions or arguments of an operation differ."""
    if not node.a.is_operation:
        return None
    mine, theirs = _infos(step, node)
    other = differing(mine, theirs)
    if other and found.event.role is Role.OUTPUT:
        return note("another-argument", arguments=tuple((name, str(a), str(b)) for name, (a, b) in other.items()))
    if canonical(mine.class_name) != canonical(theirs.class_name):
        return note("another-function", a=mine.class_name, b=theirs.class_name)
    return None


def _infos(step: Step, node: Node) -> tuple[ModuleInfo, ModuleInfo]:
    return step.a.reader.modules[node.a.module], step.b.reader.modules[node.b.module]


def _operation(event: Event | None) -> Node | None:
    return event.node if event is not None and event.node is not None and event.node.a.is_operation else None


def _alone(step: Step, half: Side, call: Call, tensor: Tensor | None, inner: bool) -> Iterator[Call]:
    """Yield what one side alone calls in front of a call, or last inside it: behind all that both call there, or the tensor's maker."""
    nodes, around = step.of_a if half is step.a else step.of_b, call if inner else call.caller
    until = call.end if inner else call.begin
    before = (each.end for each in half.calls if each in nodes and each.caller is around and each.end < until)
    start = max(before, default=around.begin if around is not None else -1)
    near = [each for each in half.alone if each.begin < until]
    found = [each for each in near if (each.caller is around and each.begin >= start) or _has_made(each, tensor)]
    yield from found[-_MOST:]


def _inside(step: Step, found: Divergence) -> Iterator[Note]:
    """Yield what one side alone calls inside the calls that a finding is charged to."""
    for side, half, refs in (("A", step.a, found.a), ("B", step.b, found.b)):
        places = {(ref.path, ref.micro, ref.call) for ref in refs}
        callers = ((each, each.caller) for each in half.alone if each.caller is not None)
        alone = [each for each, by in callers if (by.path, by.micro, by.number) in places]
        if alone:
            yield note("operations-inside", side=side, operations=tuple(_shown(half, each) for each in alone[:_MOST]))


def _has_made(call: Call, tensor: Tensor | None) -> bool:
    made = call.of(Role.OUTPUT).values()
    return tensor is not None and tensor.hash is not None and any(each.hash == tensor.hash for each in made)


def _shown(half: Side, call: Call) -> str:
    info = half.reader.modules[call.module]
    return f"{info.path.rpartition('/')[2]} ({PurePath(info.file).name}:{info.line})"
