"""What one side holds, or chooses by, in fewer bits: noise by its size, and a fault by what it is used for."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator

from probe.diagnosis.causes.sizes import ROUNDED, is_rounded
from probe.notes import Note, note, sides
from probe.numbers.documents import begins_of
from probe.records import Phase, Role
from probe.verdict.judge.verdicts import Finding, Verdicts
from probe.verdict.noise.rung import StepNoise
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_COARSER = 4
"""times the roundoff of the other side"""
_FORMATS = ("bfloat16", "float16")
_FEW = 4
"""elements from which on it is no chance that all of one side alone are rounded"""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance")


def look_for_narrower(step: Step, verdicts: Verdicts, *, is_first: bool) -> list[Note]:
    """Find tables of angles that are off since their frequencies have fewer bits; return what else has fewer on one side."""
    said: dict[tuple[str, bool, str], list[str]] = defaultdict(list)
    for event in step.parameters.events(Phase.INIT, Role.BUFFER) if is_first else ():
        found, place = _coarser(event), event.place
        if found is None or place is None or place[1] in _STATISTICS:
            continue
        path = step.path(place[0])
        if not _is_table_off(step, place[0], verdicts):
            said["buffers-in-fewer-bits", *found].append(f"{path}.{event.slot_a}".lstrip("."))
        elif all(each.paths != (path,) for each in verdicts.findings):
            known = step.a.step, 0, Phase.INIT, (path,), event, step.error(event)
            verdicts.findings.append(Finding(*known, 0.0, "buffer"))
    for node in (node for node in step.nodes if any(map(_is_integer, node.outputs))):
        for found in {_coarser(each) for each in node.outputs} - {None}:
            said["router-in-fewer-bits", *found].append(node.a.path)  # type: ignore[misc]
    names = {key: tuple(dict.fromkeys(each)) for key, each in said.items()}
    told = (note(code, names=names[code, is_a, name], format=name, **sides(is_a)) for code, is_a, name in names)
    return [*told, *_alike(step)]


def _coarser(event: Event) -> tuple[bool, str] | None:
    """Return whether A has the fewer bits, and which format; None where both have as many, or are equal."""
    a, b = event.both
    if a is None or b is None or not a.kind == b.kind == "float" or a.hash == b.hash or a.size != b.size:
        return None
    if max(a.u, b.u) >= _COARSER * min(a.u, b.u):
        return a.u > b.u, (a if a.u > b.u else b).dtype
    is_wide = a.has_values and b.has_values and a.size >= _FEW and a.u < min(ROUNDED.values())
    for name in _FORMATS if is_wide else ():
        grids = is_rounded(a.values(), name), is_rounded(b.values(), name)
        if grids[0] != grids[1]:
            return grids[0], name
    return None


def _is_table_off(step: Step, module: int, verdicts: Verdicts) -> bool:
    """Return True if what a module without weights makes of integers and buffers is off by more than rounding it leaves."""
    nodes = [node for node in step.nodes if node.a.module == module and not step.a.reader.modules[module].n_params]
    made = [out for node in nodes if not node.inputs or any(map(_is_integer, node.inputs)) for out in node.outputs]
    fixed = any(each.check is not None and each.check.is_fixed for each in map(verdicts.by_event.get, made) if each)
    errors = [(error, out.u) for out in made if (error := step.error(out)) is not None]
    return not fixed and any(not error.is_bound and error.size > 2 * u for error, u in errors)


def _is_integer(event: Event) -> bool:
    return event.a is not None and event.a.kind == "integer"


def _alike(step: Step) -> Iterator[Note]:
    """Yield which inputs, that each side has another one of, mean the same documents."""
    inputs = [each for node in step.nodes if node.parent is None for each in node.inputs]
    loose = [each for each in inputs if not each.is_paired or each.is_of_other_size]
    mine, theirs = (
        {slot: begins_of(slot, each.shape, each.values) for slot, each in found if each is not None and each.has_values}
        for found in ([(each.slot_a, each.a) for each in loose], [(each.slot_b, each.b) for each in loose])
    )
    for x, y in itertools.product(mine, theirs):
        if mine[x] is not None and mine[x] == theirs[y]:
            yield note("inputs-mean-the-same", a=x, b=y, begins=mine[x])


def batch_variant(step: Step, noise: StepNoise) -> Iterator[Note]:
    """Yield what of A's modules returns other numbers, given the same, where a further run of A splits the batch otherwise."""
    runs, floor = getattr(noise, "runs", ()), getattr(noise, "floor", None)
    passes = [{call.micro for call in side.calls} for side in (step.a, *(run.paired.a for run in runs))]
    found: dict[str, float] = {}
    for node in reversed(step.nodes) if floor is not None and any(each != passes[0] for each in passes) else ():
        events = [[each for each in events if each.u] for events in (node.inputs, node.outputs)]
        given, made = ([known.error if (known := floor(each)) else None for each in several] for several in events)
        is_around = any(each.a.path in found for each in node.inner)
        if is_around or (given and all(each == 0 for each in given) and any(made)):
            found[node.a.path] = 0.0 if is_around else max(filter(None, made))
    names = tuple(path for path, error in reversed(found.items()) if error)
    if names:
        yield note("batch-variant", names=names, error=max(found.values()))
