"""Who answers: the code between the last tensors that agree and the first that does not.

If exactly one call in that gap exists on one side only, it is named. What else is known of the gap is evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from probe.records import Phase, Role
from probe.verdict.judge.judging import Judging
from probe.verdict.side import Call
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.graph import home_of, outermost
from probe.verdict.tensors import Tensor


def of_value(judging: Judging, event: Event) -> tuple[tuple[str, ...], str]:
    """Return the paths that answer for a tensor of the forward pass, and the row."""
    step, node = judging.step, event.node
    assert node is not None
    scope = judging.graph.segment(event)
    if scope is None and not judging.graph.is_handed_on(event):
        return (node.a.path,), "model-input"
    around = node.parent if event.role is Role.OUTPUT else None
    if around is not None and any(_is_in_other_form(judging, each) for each in node.inputs):
        return (around.a.path,), "maker-of-inputs"
    end = (node.a.begin, node.b.begin) if event.role is Role.INPUT else (node.a.end, node.b.end)
    start = (scope.a.begin, scope.b.begin) if scope is not None else (-1, -1)
    for inner in scope.inner if scope is not None else [each for each in step.nodes if each.parent is None]:
        is_before = inner is not node and inner.a.end < end[0]
        if is_before and inner.outputs and all(map(judging.verdicts.agrees, inner.outputs)) and inner.a.end > start[0]:
            start = inner.a.end, inner.b.end
    gap = [call for call in step.unpaired(scope, start, end) if _may_answer(judging, call)]
    names = {_name(judging, call) for call in gap}
    if len(names) == 1:
        return (names.pop(),), "unpaired-call"
    if scope is None or node.a.is_operation:
        return (node.a.path,), "caller" if event.role is Role.INPUT else "module"
    return (scope.a.path,), "module" if event.role is Role.OUTPUT else "caller"


def _is_in_other_form(judging: Judging, event: Event) -> bool:
    """Return True if the caller's own code makes an input that could not be compared."""
    node = event.node
    assert node is not None
    if not event.is_paired or judging.step.error(event) is not None or not judging.step.is_other_code(node.a.module):
        return False
    return judging.graph.producer(event) is None and not judging.graph.is_made_in_b(event, node.b.begin)


def _may_answer(judging: Judging, call: Call) -> bool:
    """Return True if a call without a partner may answer: the other side does not do the same in code of its own."""
    step = judging.step
    is_a = call in step.calls_of_a
    half, other, nodes = (step.a, step.b, step.of_a) if is_a else (step.b, step.a, step.of_b)
    if call.module in (step.matching.ignored_a if is_a else step.matching.ignored_b):
        return False
    pair = step.pair_of.get(call.module)
    partner = (pair.b if pair is not None else None) if is_a else step.a_of.get(call.module)
    if partner is None:
        is_on = "dropout" in call.class_name.casefold() and taken_away(call.of(Role.INPUT), call.of(Role.OUTPUT)) > 0
        return is_on or bool(half.reader.modules[call.module].n_params)
    weights = half.weights_of(call.module)
    if weights or step.is_across_frameworks or step.is_other_code(call.module if is_a else partner):
        used = other.params.get((Phase.GRADIENT, Role.PARAM_GRAD), {})
        return bool(weights) and bool(used) and not any(place[0] == partner for place in used)
    scope = call.caller
    if scope is None or scope not in nodes:
        return True
    around = nodes[scope].b if is_a else nodes[scope].a
    is_in_portions = _given(half.calls, call.module, scope) == _given(other.calls, partner, around)
    return not is_in_portions and not step.is_other_code(nodes[scope].a.module)


def _given(calls: Iterable[Call], module: int, scope: Call) -> int:
    """Return how many elements all calls of a module inside one were given: experts run one by one or packed."""
    own = [each for each in calls if each.module == module and each.caller is scope]
    return sum(tensor.size for each in own for tensor in each.of(Role.INPUT).values())


def taken_away(given: Mapping[str, Tensor], returned: Mapping[str, Tensor]) -> float:
    """Return the share of zeros that a call returns and was not given."""
    first, last = next(iter(given.values()), None), next(iter(returned.values()), None)
    return (last.zeros - first.zeros) / max(last.size, 1) if first is not None and last is not None else 0.0


def _name(judging: Judging, call: Call) -> str:
    """Return the path of a call without a partner, in A if A has the module."""
    step = judging.step
    home = None if call in step.calls_of_a else step.a_of.get(call.module)
    return call.path if home is None else step.path(home)


def of_gradient(judging: Judging, event: Event) -> tuple[str, str]:
    """Return the path that answers for a gradient, and the row: who used the tensor and is not cleared."""
    node, graph = event.node, judging.graph
    assert node is not None
    if event.role is Role.GRAD_INPUT:
        return node.a.path, "own-backward"
    made = [each.node for each in graph.makers(event) if each.node is not None]
    around = [each for each in made if each in node.callers() and _passes_on(judging, each, event)]
    if around:  # it returned what this module made, and the gradient of what it returned agrees
        return max(around, key=lambda each: each.depth).a.path, "code-behind"
    users = graph.consumers(event)
    if not users:
        scope = min(made, key=lambda each: each.depth, default=node).parent
        return (scope.a.path, "code-behind") if scope is not None else ("", "loss-behind")
    scope, level = home_of(users), outermost(users)
    while True:
        suspects = [each for each in level if not _is_cleared(judging, each, event)]
        if not suspects or (len(level) != 1 and len(suspects) != 1):
            return (scope.a.path if scope is not None else ""), "code-behind"
        one = suspects[0]
        inner = [each for each in users if one in each.callers()]
        if not one.inner or not inner:
            return one.a.path, "code-behind"
        scope, level = one, outermost(inner)


def _passes_on(judging: Judging, node: Node, event: Event) -> bool:
    tensor = judging.graph.value(event)
    slots = {slot for slot, each in node.a.of(Role.OUTPUT).items() if judging.graph.is_same_tensor(each, tensor)}
    return any(
        each.event.role is Role.GRAD_OUTPUT and each.event.slot_a in slots and judging.verdicts.agrees(each.event)
        for each in judging.verdicts.of_node(node)
    )


def _is_cleared(judging: Judging, node: Node, event: Event) -> bool:
    """Return True if what a call passes back to a tensor is known and agrees."""
    tensor = judging.graph.value(event)
    for each in judging.verdicts.of_node(node):
        if each.event.role is Role.GRAD_INPUT and each.limit and judging.verdicts.agrees(each.event):
            given = node.a.of(Role.INPUT).get(each.event.slot_a)
            if judging.graph.is_same_tensor(given, tensor):
                return True
    return False


def of_cut(judging: Judging) -> tuple[str, str] | None:
    """Return who keeps gradients back on one side alone, and the row: the first tensor that requires one there only.

    ``frozen`` is a module whose own parameters alone could have made its output require a gradient.
    """
    for event in judging.graph.forward():
        if event.a is None or event.b is None or event.a.learns == event.b.learns:
            continue
        segment = judging.graph.segment(event)
        if segment is None:
            continue
        known = [each for each in judging.graph.sources(event) if each.a is not None and each.b is not None]
        is_frozen = event.role is Role.OUTPUT and not any(each.a.learns for each in known if each.a is not None)
        return segment.a.path, "frozen" if is_frozen else "code-behind"
    return None
