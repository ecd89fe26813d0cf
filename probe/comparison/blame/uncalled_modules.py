"""Modules that both models have and one side alone calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.comparison.coverage.changes import neighbours
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Call, Loose, Node, StepHalf
from probe.records import Role
from probe.structure.tree import Tree


def called_alone(pairs: StepPairs, half: StepHalf, micro: int, since: int, before: int) -> list[Call]:
    """Return the calls that one side began and ended in a while, of modules that the other has and does not call.

    Those without weights are left out, and those of which the other side uses the weights without a call: both may be code there.

    Parameters
    ----------
    pairs
        the step
    half
        the side that calls them
    micro, since, before
        the micro-batch, and positions among that side's events
    """
    ran = {node.pair for node in pairs.nodes.values()}
    found = {
        call.row: call
        for call in half.calls
        if call.micro == micro
        and since <= call.begin
        and call.end < before
        and half.pair_of.get(call.module, -1) not in {-1, *ran}
    }
    outermost = [call for call in found.values() if call.caller not in found]
    return [call for call in outermost if _has_weights(half, call) and not _is_used(pairs, half, call)]


def callers(pairs: StepPairs, half: StepHalf, calls: Iterable[Call]) -> list[Node]:
    """Return the calls in which such calls were made, each once; none if one of them did not run on both sides."""
    rows = {call.row: call for call in half.calls}
    nodes = {half.key(node): node for node in pairs.nodes.values()}
    found = [
        nodes.get(caller.key) if caller is not None else None for caller in (rows.get(call.caller) for call in calls)
    ]
    return list(dict.fromkeys(node for node in found if node is not None)) if None not in found else []


def about(pairs: StepPairs, half: StepHalf, call: Call) -> tuple[Note, Note]:
    """Say of such a call what it is, and what to look at."""
    other = pairs.half(half.other)
    path, there = half.path(call.module), other.path(partner(pairs, half, call.module))
    where = neighbours(half, call)
    advice = note("code-that-calls-module", path=path, other=half.other, there=there)
    for caller in callers(pairs, half, [call]):
        own = other.path(other.modules[caller.pair])
        is_child = not own or there.startswith(f"{own}.")
        said = note("caller-does-not-call", caller=own, there=there, other=half.other, side=half.name, path=path,
                    where=where, is_child=is_child)  # fmt: skip
        return said, advice
    said = note("called-on-one-side", path=path, side=half.name, where=where, other=half.other, there=there)
    return said, advice


def partner(pairs: StepPairs, half: StepHalf, module: int) -> int:
    """Return the module of the other side."""
    return pairs.half(half.other).modules[half.pair_of[module]]


def compared_with(pairs: StepPairs, half: StepHalf, module: int) -> int | None:
    """Return the module of the other side with whose weights all those in a module without a partner are compared; None if not all are.

    A mapping says so by lines of ``params``: the other side's own code uses the weights. It is the first where they are several's.
    """
    inside = set(_subtree(half, module))
    places = [(each.module, each.slot) for each in half.side.parameters if each.module in inside]
    if module in half.pair_of or not places or not pairs.matching.compared_apart(half.name).issuperset(places):
        return None
    first = places[0]
    for bundle in pairs.matching.weight_bundles:
        parts = [part for row in bundle.parts for part in row]
        if bundle.side == half.name and first in parts:
            return bundle.whole[0]
        if bundle.side != half.name and first == bundle.whole:
            return parts[0][0]
    return None


def pairs_inside(half: StepHalf, module: int) -> set[int]:
    """Return the pairs of a module and of all inside it."""
    return {half.pair_of[each] for each in _subtree(half, module) if each in half.pair_of}


def to_look_at(pairs: StepPairs, calls: Sequence[Loose]) -> list[Note]:
    """Return what to look at where A's calls without a partner may be to blame."""
    ignored = pairs.matching.ignored_a
    left_out = [pairs.a.reader.modules[call.module].path for call in calls if call.module in ignored]
    compared, alone = _names_by_use(pairs, (call for call in calls if call.module not in ignored))
    modules = pairs.a.reader.modules
    has_weights = any(_has_weights(pairs.halves[0], call) for call in calls if modules[call.module].path in alone)
    found = [note("modules-without-counterpart", paths=tuple(alone), has_weights=has_weights)] if alone else []
    if compared:
        found.append(note("modules-compared-by-weights", paths=tuple(compared)))
    if left_out:
        found.append(note("modules-left-out-by-mapping", paths=tuple(left_out)))
    return found


def _names_by_use(pairs: StepPairs, calls: Iterable[Loose]) -> tuple[list[str], list[str]]:
    """Return the paths of A's calls without a partner: those of which the weights are compared, and the others."""
    apart = pairs.matching.compared_apart("A")
    found: tuple[list[str], list[str]] = ([], [])
    for call in calls:
        info = pairs.a.reader.modules[call.module]
        own = [(p.module, p.slot) for p in pairs.a.parameters if p.module == call.module]
        is_compared = call.module in pairs.pair_of_a or (own and apart.issuperset(own))
        found[not is_compared].append(info.path)
    return found


def _subtree(half: StepHalf, module: int) -> Iterable[int]:
    return Tree(half.side.reader.modules).subtree(module)


def _has_weights(half: StepHalf, call: Call) -> bool:
    modules = half.side.reader.modules
    return any(modules[each].n_params for each in _subtree(half, call.module))


def _is_used(pairs: StepPairs, half: StepHalf, call: Call) -> bool:
    """Tell whether the other side has a gradient for a weight of such a module; zeros are what a buffer was made with."""
    other = pairs.half(half.other)
    learns, norm = other.rows.by_module(Role.PARAM_GRAD), other.side.columns["norm"]
    inside = _subtree(other, partner(pairs, half, call.module))
    return any(norm[row] for each in inside for row in learns.get(each, ()))
