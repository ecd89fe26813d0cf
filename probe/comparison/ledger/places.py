"""What a walk says of a place or a tensor: paths, classes, parameters, roundoff."""

from __future__ import annotations

import math

from probe.comparison.ledger.known import Walk
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.once import once
from probe.comparison.result import NodeRef
from probe.comparison.steps.step_half import Event, Loose, Node
from probe.comparison.steps.unpaired_calls import is_noop, lies
from probe.numbers.layouts import counterpart, unpacked
from probe.numbers.statistics import smallest_rounding


def parameters_of(walk: Walk, node: Node) -> Level | None:
    """Return the errors of the parameters that a call uses, as it finds them; None where it has none that were compared."""
    if node not in walk.weights.own_parameters:
        level = walk.weights.written.level(node, parameter_owners(walk))
        before = walk.state.parameters.get(node.pair)
        if level is not None and before is not None:  # of its weights, some may be as they were
            level.merge(before)
        walk.weights.own_parameters[node] = level or before
    return walk.weights.own_parameters[node]


def unpaired(walk: Walk, pair: int) -> tuple[str, str]:
    """Return the parameters of a pair that were not compared though both sides have some: those of A, and of B."""
    a, b = walk.state.unpaired.get(pair, ({}, {}))
    return (", ".join(a), ", ".join(b)) if a and b else ("", "")


def refs_of(
    walk: Walk, pair: int, node: Node | None, slot_a: str, slot_b: str
) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
    """Return a place in A and in B: several where one side has several modules, or parameters, for one."""
    modules = walk.pairs.matching.pairs[pair]
    micro, call, call_b = (node.micro, node.call, node.call_b) if node is not None else (0, 0, 0)
    found = []
    for side, module, slot in ((walk.pairs.a, modules.a, slot_a), (walk.pairs.b, modules.b, slot_b)):
        infos = [(side.reader.modules[at], name) for at, name in side.places_of(module, slot)]
        found.append(tuple(NodeRef.of(side.step, micro, info, call, name) for info, name in infos))
    return found[0], found[1]


def root_refs(walk: Walk) -> tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]]:
    """Return the whole model in A and in B."""
    a, b = walk.pairs.a.reader.modules[0], walk.pairs.b.reader.modules[0]
    return (NodeRef.of(walk.pairs.step, 0, a, 0, ""),), (NodeRef.of(walk.pairs.step_b, 0, b, 0, ""),)


def order(walk: Walk, event: Event) -> int:
    """Return an event's place in the order of cause."""
    return walk.pairs.a.columns["order"][event.row_a] if event.row_a >= 0 else 0


def roundoff(walk: Walk, event: Event) -> float:
    """Return the unit roundoff of the less precise of both dtypes; 0 for integers."""
    a = walk.roundoffs[0][event.row_a] if event.row_a >= 0 else 0.0
    b = walk.roundoffs[1][event.row_b] if event.row_b >= 0 else 0.0
    return a if a > b else b


def peaks_of(walk: Walk, event: Event) -> float:
    """Return how many elements as large as the largest would have the norm of A's tensor."""
    row, columns = event.row_a, walk.pairs.a.columns
    largest = max(-columns["min"][row], columns["max"][row])
    return tolerance.peaks_of(math.prod(walk.pairs.a.shapes[row]), columns["rms"][row], largest)


def underflow_limit(walk: Walk, event: Event) -> float:
    """Return the error that is noise where numbers are so small that their dtype has few of them: float16's gradients."""
    share = 0.0
    for side, row in ((walk.pairs.a, event.row_a), (walk.pairs.b, event.row_b)):
        rms = side.columns["rms"][row] if row >= 0 else 0.0
        if rms > 0:
            share = max(share, smallest_rounding(side.dtypes[row]) / rms)
    return tolerance.UNDERFLOW * share


def requires_grad_of(walk: Walk, event: Event) -> tuple[bool, bool]:
    """Return requires_grad of both sides."""
    a, b = (walk.pairs.a.columns["requires_grad"], walk.pairs.b.columns["requires_grad"])
    return bool(a[event.row_a]), bool(b[event.row_b])


def class_a(walk: Walk, module: int) -> str:
    """Return the class of a module of A."""
    return walk.pairs.a.reader.modules[module].class_name


def _class_b(walk: Walk, module: int) -> str:
    return walk.pairs.b.reader.modules[module].class_name


def classes_of(walk: Walk, pair: int) -> tuple[str, str]:
    """Return the classes of a pair of modules."""
    modules = walk.pairs.matching.pairs[pair]
    return class_a(walk, modules.a), _class_b(walk, modules.b)


@once
def parameter_owners(walk: Walk) -> dict[tuple[int, str], list[int]]:
    """For the parameters of A, by pair and slot: the pairs of all modules that hold them, as tied ones have several."""
    found = {}
    by_path = {module.path: i for i, module in enumerate(walk.pairs.a.reader.modules)}
    for parameter in walk.pairs.a.parameters:
        holders = [by_path.get(name.rpartition(".")[0], -1) for name in parameter.names]
        pairs = [walk.pairs.pair_of_a[holder] for holder in holders if holder in walk.pairs.pair_of_a]
        first = walk.pairs.pair_of_a.get(parameter.module)
        if first is not None:
            found[first, parameter.slot] = pairs
    return found


def are_alike(walk: Walk, pair: int) -> bool:
    """Tell whether both modules are of one class, or of classes by which two frameworks call the same."""
    a, b = classes_of(walk, pair)
    here, there = (side.reader.info.framework for side in (walk.pairs.a, walk.pairs.b))
    if a == b or here == there:
        return a == b
    return a.casefold() == b.casefold() or counterpart(here, (a,), there) == b


def is_elsewhere(walk: Walk, event: Event) -> bool:
    """Tell whether what one side alone has is packed into one parameter, or part of one, on the other."""
    half = walk.pairs.half("A" if event.row_a >= 0 else "B")
    reader = half.side.reader
    names = (reader.modules[half.modules[event.pair]].class_name,)
    return bool(unpacked(reader.info.framework, names, half.slot(event).partition(".")[0]))


def path_a(walk: Walk, pair: int) -> str:
    """Return the path of a pair's module in A."""
    return walk.pairs.a.reader.modules[walk.pairs.matching.pairs[pair].a].path or "the root"


def path_b(walk: Walk, pair: int) -> str:
    """Return the path of a pair's module in B."""
    return walk.pairs.b.reader.modules[walk.pairs.matching.pairs[pair].b].path or "the root"


def unpaired_between(walk: Walk, caller: Node, before: int, name: str = "A") -> list[Loose]:
    """Return one side's calls without a partner that began and ended inside a call since the last good event there."""
    half, since = walk.pairs.half(name), last_agreeing(walk, caller, name)
    return [each for each in half.loose(caller) if lies(each, since, before, half.stepped) and not is_noop(half, each)]


def last_agreeing(walk: Walk, caller: Node, name: str) -> int:
    """Return when the last good event of one side was inside a call."""
    if name == "A":
        return walk.forward.last_good.get(caller, caller.begin)
    return walk.forward.last_good_b.get(caller, caller.begin_b)


def when(walk: Walk) -> Note:
    """Say between which steps weights came to differ."""
    step = walk.pairs.step
    return note("before-step", step=step) if step else note("before-first-step")
