"""What one side holds, or chooses by, in fewer bits: noise by its size, and a fault by what it is used for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from probe.notes import Note, note, sides
from probe.numbers.documents import begins_of
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.verdict.judge.verdicts import Finding, Verdicts
from probe.verdict.noise.rung import StepNoise
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_COARSER = 4
"""times the roundoff of the other side"""
_FEW = 4
"""elements from which on it is no chance that all of one side alone are rounded"""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


def look_for_narrower(step: Step, verdicts: Verdicts, *, is_first: bool) -> list[Note]:
    """Find tables of angles that are off since their frequencies have fewer bits; return what else has fewer on one side."""
    said: dict[tuple[str, bool, str], list[str]] = defaultdict(list)
    for event in step.parameters.events(Phase.INIT, Role.BUFFER) if is_first else ():
        is_coarse = _coarser(event)
        if is_coarse is None or event.place is None or event.place[1] in _STATISTICS:
            continue
        table = _table_of(step, event, verdicts)
        if table is None:
            said["buffers-in-fewer-bits", *is_coarse].append(f"{step.path(event.place[0])}.{event.slot_a}".lstrip("."))
        elif all(each.paths != (step.path(event.place[0]),) for each in verdicts.findings):
            known = step.a.step, 0, Phase.INIT, (step.path(event.place[0]),), event, step.error(event)
            verdicts.findings.append(Finding(*known, 0.0, "buffer"))
    for node in step.nodes:
        for event in (
            node.outputs if any(each.a is not None and each.a.kind == "integer" for each in node.outputs) else ()
        ):
            found = _coarser(event)
            if found is not None:
                names = said["router-in-fewer-bits", *found]
                names += [node.a.path] if node.a.path not in names else []
    notes = [
        note(code, names=tuple(names), format=format, **sides(is_a)) for (code, is_a, format), names in said.items()
    ]
    return notes + [*_alike(step)]


def _coarser(event: Event) -> tuple[bool, str] | None:
    """Return whether A has the fewer bits, and which format; None where both have as many, or are equal."""
    a, b = event.both
    if a is None or b is None or not a.kind == b.kind == "float" or a.hash == b.hash or a.size != b.size:
        return None
    if max(a.u, b.u) >= _COARSER * min(a.u, b.u):
        return a.u > b.u, (a if a.u > b.u else b).dtype
    grids = [_grid(each) for each in (a, b)] if a.has_values and b.has_values and a.size >= _FEW else ["", ""]
    return None if bool(grids[0]) == bool(grids[1]) else (bool(grids[0]), grids[0] or grids[1])


def _grid(tensor: Tensor) -> str:
    """Return the 16-bit format that all numbers of a wider tensor have."""
    values = tensor.values().astype(np.float32)
    if unit_roundoff(tensor.dtype) > 2.0**-12:
        return ""
    if not (np.ascontiguousarray(values).view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    return "float16" if np.array_equal(values.astype(np.float16).astype(np.float32), values) else ""


def _table_of(step: Step, event: Event, verdicts: Verdicts) -> Event | None:
    """Return what a module without weights makes of integers and a buffer, if it is off by more than rounding it leaves."""
    assert event.place is not None
    module = event.place[0]
    nodes = [node for node in step.nodes if node.a.module == module and not step.a.reader.modules[module].n_params]
    for out in (out for node in nodes if not node.inputs or any(map(_is_integer, node.inputs)) for out in node.outputs):
        error, judged = step.error(out), verdicts.by_event.get(out)
        is_fixed = judged is not None and judged.check is not None and judged.check.is_fixed
        if error is not None and not error.is_bound and error.size > 2 * out.u and not is_fixed:
            return out
    return None


def _is_integer(event: Event) -> bool:
    return event.a is not None and event.a.kind == "integer"


def _alike(step: Step) -> Iterator[Note]:
    """Yield which inputs, that each side has another one of, mean the same documents, or the same positions in sections."""
    for root in (node for node in step.nodes if node.parent is None):
        for mine, theirs in _loose(root):
            begins = [begins_of(name, each.shape, lambda each=each: _values(each)) for name, each in (mine, theirs)]  # type: ignore[misc]
            if begins[0] is not None and begins[0] == begins[1]:
                yield note("inputs-mean-the-same", a=mine[0], b=theirs[0], begins=begins[0])


def _loose(root: Node) -> Iterator[tuple[tuple[str, Tensor], tuple[str, Tensor]]]:
    mine = [
        (each.slot_a, each.a)
        for each in root.inputs
        if each.a is not None and (each.b is None or each.is_of_other_size)
    ]
    theirs = [
        (each.slot_b, each.b)
        for each in root.inputs
        if each.b is not None and (each.a is None or each.is_of_other_size)
    ]
    yield from ((x, y) for x in mine for y in theirs)


def _values(tensor: Tensor) -> np.ndarray | None:
    return tensor.values() if tensor.has_values else None


def batch_variant(step: Step, noise: StepNoise) -> Iterator[Note]:
    """Yield what of A's modules returns other numbers, given the same, where a further run of A splits the batch otherwise."""
    counts = {len({call.micro for call in run.paired.a.calls}) for run in getattr(noise, "runs", ())}
    if not counts - {len({call.micro for call in step.a.calls})}:
        return
    found: dict[str, float] = {}
    for node in step.nodes:
        given, made = (
            [
                (floor := noise.floor(each)) and floor.error
                for each in events
                if each.a is not None and each.a.kind == "float"
            ]
            for events in (node.inputs, node.outputs)
        )
        if given and not any(each is None or each > 0 for each in given) and any(made):
            found[node.a.path] = max(each for each in made if each)
    inner = tuple(
        path for path in found if not any(each.startswith(f"{path}.".lstrip(".")) for each in found if each != path)
    )
    if inner:
        yield note("batch-variant", names=inner, error=max(found[path] for path in inner))
