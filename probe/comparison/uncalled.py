"""Modules that both models have and one side alone calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe.comparison.changes import neighbours
from probe.comparison.events import Call, Loose, Node, StepPairs
from probe.records import Role
from probe.tree import Tree


def called_alone(pairs: StepPairs, name: str, micro: int, since: int, before: int) -> list[Call]:
    """Return the calls that one side began and ended in a while, of modules that the other has and does not call.

    Those without weights are left out, and those of which the other side uses the weights without a call: both may be code there.

    Parameters
    ----------
    pairs
        the step
    name
        the side that calls them, A or B
    micro, since, before
        the micro-batch, and positions among that side's events
    """
    calls = pairs.calls_a if name == "A" else pairs.calls_b
    index = pairs.pair_of_a if name == "A" else pairs.pair_of_b
    ran = {node.pair for node in pairs.nodes.values()}
    found = {
        call.row: call
        for call in calls
        if call.micro == micro
        and since <= call.begin
        and call.end < before
        and index.get(call.module, -1) not in {-1, *ran}
    }
    outermost = [call for call in found.values() if call.caller not in found]
    return [call for call in outermost if _has_weights(pairs, name, call) and not _is_used(pairs, name, call)]


def callers(pairs: StepPairs, name: str, calls: Iterable[Call]) -> list[Node]:
    """Return the calls in which such calls were made, each once; none if one of them did not run on both sides."""
    rows = {call.row: call for call in (pairs.calls_a if name == "A" else pairs.calls_b)}
    nodes = {
        (node.micro, pairs.matching.pairs[node.pair].a, node.call)
        if name == "A"
        else (node.micro, pairs.matching.pairs[node.pair].b, node.call_b): node
        for node in pairs.nodes.values()
    }
    found = [
        nodes.get((caller.micro, caller.module, caller.number)) if caller is not None else None
        for caller in (rows.get(call.caller) for call in calls)
    ]
    return list(dict.fromkeys(node for node in found if node is not None)) if None not in found else []


def about(pairs: StepPairs, name: str, call: Call) -> tuple[str, str]:
    """Say of such a call what it is, and what to look at."""
    side, calls = (pairs.a, pairs.calls_a) if name == "A" else (pairs.b, pairs.calls_b)
    path, other = side.reader.modules[call.module].path, "B" if name == "A" else "A"
    there = (pairs.b if name == "A" else pairs.a).reader.modules[partner(pairs, name, call.module)].path
    where = neighbours(side, calls, call)
    hint = f"look at the code that calls {path}: {other} does not call {there}"
    for caller in callers(pairs, name, [call]):
        modules = pairs.matching.pairs[caller.pair]
        own = (pairs.b.reader.modules[modules.b] if name == "A" else pairs.a.reader.modules[modules.a]).path
        child = "its child " if not own or there.startswith(f"{own}.") else ""
        it = "it" if path == there else path
        return f"{own or 'the model'} does not call {child}{there} on {other}: {name} calls {it} {where}", hint
    return f"{path} is called on {name} only, {where}: {other} has {there} and does not call it", hint


def partner(pairs: StepPairs, name: str, module: int) -> int:
    """Return the module of the other side."""
    return (
        pairs.matching.pairs[pairs.pair_of_a[module]].b
        if name == "A"
        else pairs.matching.pairs[pairs.pair_of_b[module]].a
    )


def pairs_inside(pairs: StepPairs, name: str, module: int) -> set[int]:
    """Return the pairs of a module and of all inside it."""
    index = pairs.pair_of_a if name == "A" else pairs.pair_of_b
    return {index[each] for each in _subtree(pairs, name, module) if each in index}


def listed(paths: Sequence[str]) -> str:
    """Return the first paths, and how many there are beside them."""
    return ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")


def to_look_at(pairs: StepPairs, calls: Sequence[Loose]) -> list[str]:
    """Return what to look at where A's calls without a partner may be to blame."""
    ignored = pairs.matching.ignored_a
    left_out = [pairs.a.reader.modules[call.module].path for call in calls if call.module in ignored]
    compared, alone = _names_by_use(pairs, (call for call in calls if call.module not in ignored))
    found = [f"look at {listed(alone)}, which B has nothing to compare with, its weights included"] if alone else []
    if compared:
        found.append(f"look at what B has in the place of {listed(compared)}, of which the weights alone are compared")
    if left_out:
        found.append(f"look at {listed(left_out)}, left out by the mapping (ignore): nothing in there was compared")
    return found


def _names_by_use(pairs: StepPairs, calls: Iterable[Loose]) -> tuple[list[str], list[str]]:
    """Return the paths of A's calls without a partner: those of which the weights are compared, and the others."""
    apart = pairs.matching.compared_apart("A")
    found: tuple[list[str], list[str]] = ([], [])
    for call in calls:
        info = pairs.a.reader.modules[call.module]
        own = [(p.module, p.slot) for p in pairs.a.reader.parameters if p.module == call.module]
        found[not own or not apart.issuperset(own)].append(info.path)
    return found


def _subtree(pairs: StepPairs, name: str, module: int) -> Iterable[int]:
    return Tree((pairs.a if name == "A" else pairs.b).reader.modules).subtree(module)


def _has_weights(pairs: StepPairs, name: str, call: Call) -> bool:
    modules = (pairs.a if name == "A" else pairs.b).reader.modules
    return any(modules[each].n_params for each in _subtree(pairs, name, call.module))


def _is_used(pairs: StepPairs, name: str, call: Call) -> bool:
    """Tell whether the other side has a gradient for a weight of such a module."""
    other, rows = ("B", pairs.rows_b) if name == "A" else ("A", pairs.rows_a)
    learns = rows.by_module(Role.PARAM_GRAD)
    return any(each in learns for each in _subtree(pairs, other, partner(pairs, name, call.module)))
