"""What the page of one recording shows: the tree of its model, the numbers of its tensors in each step, its graph, its curves.

It is as that of a comparison (`probe.report.html.document`), without a side B, verdicts and errors; every module is the
only one of its pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe._version import __version__
from probe.comparison.steps.side import Side, recorded_steps
from probe.comparison.steps.step_half import calls_of
from probe.errors import NotRecordedError
from probe.records import Phase, Role
from probe.report.graph.flow import flow_of
from probe.report.html import rows
from probe.report.html.columns import by_columns, side_of, statistics
from probe.report.html.curves import curves_of_one
from probe.report.html.document import SCHEMA
from probe.report.html.flow import as_columns
from probe.report.html.numbers import Words
from probe.report.inspect import facts
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

MOST_TENSORS = 200_000
"""of all steps that are shown; of a longer run, the first step, the last one, and some between"""
_BY_PASS = Phase.FORWARD, Phase.LOSS, Phase.BACKWARD
"""phases of which each micro-batch has its own"""


def run_document(reader: Reader, step: int | None = None) -> dict[str, object]:
    """Return everything that the page shows of a recording.

    Parameters
    ----------
    reader
        the recording
    step
        the only one that is shown; all of them, or as many as there is room for, when None

    Raises
    ------
    NotRecordedError
        it has no complete step, or not that one
    """
    words = Words()
    steps = [Side(reader, each) for each in _shown(reader, step)]
    modules = list(range(len(reader.modules)))
    places = [(each, row) for each in steps for row in _in_order(each)]
    return {
        "schema": SCHEMA,
        "probe": __version__,
        "run": {"steps": len(recorded_steps(reader)), "observations": reader.observations, "facts": facts(reader)},
        "sides": {"a": side_of(reader, reader.path.name, words)},
        "pairs": {"a": modules, "reason": [], "confidence": []},
        "tree": _tree(reader, steps[0]),
        "calls": _calls(steps, words),
        "tensors": _tensors(places, words),
        "findings": [],
        "flow": _flow(places, words),
        "curves": curves_of_one(reader.path),
        "rules": {},
        "words": words.all,
    }  # fmt: skip


def _shown(reader: Reader, step: int | None) -> list[int]:
    """Return the numbers of the steps that are shown."""
    reader.require_steps()
    known = [int(each) for each in reader.steps["step"]]
    if not known:
        raise NotRecordedError(f"{reader.path.name} has no complete step")
    if step is not None:
        if step not in known:
            raise NotRecordedError(
                f"{reader.path.name} has no step {step}; there are {', '.join(map(str, known[:20]))}"
            )
        return [step]
    room = max(1, MOST_TENSORS * len(known) // max(1, reader.observations))
    return (
        known
        if len(known) <= room
        else [known[at] for at in np.unique(np.linspace(0, len(known) - 1, room, dtype=int))]
    )


def _in_order(step: Side) -> list[int]:
    """Return the records of a step from cause to effect."""
    columns = step.columns

    def moment(row: int) -> tuple[int, ...]:
        phase, micro = columns["phase"][row], columns["micro"][row]
        part = 0 if phase == Phase.INIT else 1 if phase in _BY_PASS else 2
        of_pass = (micro < 0, abs(micro)) if part == 1 else (0, 0)
        return (part, *of_pass, phase, columns["order"][row])

    return sorted(range(len(step.slots)), key=moment)


def _tree(reader: Reader, step: Side) -> dict[str, object]:
    """Return the modules as rows, in the order in which a step first called them."""
    begins: dict[int, int] = {}
    for call in calls_of(step):
        begins[call.module] = min(begins.get(call.module, call.begin), call.begin)
    found = rows.of_one(Tree(reader.modules), begins)
    return {name: [getattr(row, name) for row in found] for name in ("a", "pair", "state", "depth")}


def _calls(steps: Sequence[Side], words: Words) -> dict[str, list[object]]:
    """Return the calls of all steps, in the order in which they began."""
    names = ("step", "micro", "pair", "call", "training_a", "gradients", "autocast")
    return by_columns(names, (
        (step.step, call.micro, call.module, call.number, int(call.training), int(call.grad_enabled), words.number(call.autocast))
        for step in steps for call in calls_of(step)
    ))  # fmt: skip


def _tensors(places: Sequence[tuple[Side, int]], words: Words) -> dict[str, object]:
    """Return records by columns: places and statistics."""
    names = ("step", "micro", "call", "pair", "phase", "role", "slot_a", "dtype_a", "shape_a")
    found = []
    for step, row in places:
        micro, call, module, phase, role = (
            step.columns[name][row] for name in ("micro", "call", "module", "phase", "role")
        )
        texts = Phase(phase).label, Role(role).label, step.slots[row], step.dtypes[row], str(list(step.shapes[row]))
        found.append((step.step, micro, call, module, *map(words.number, texts)))
    return {
        **by_columns(names, found),
        "nonfinite": [at for at, (step, row) in enumerate(places) if _has_nonfinite(step, row)],
        "statistics_a": statistics(places),
    }


def _has_nonfinite(step: Side, row: int) -> bool:
    """Tell whether a record has elements that are no numbers; what masks that are given hold, −Inf, is meant."""
    nan, up, down = (step.columns[name][row] for name in ("nan", "posinf", "neginf"))
    return bool(nan or up or (down and step.columns["role"][row] != Role.INPUT))


def _flow(places: Sequence[tuple[Side, int]], words: Words) -> dict[str, object] | None:
    """Return the data flow of the first micro-batch; None if nothing ran."""
    if not places:
        return None
    step = places[0][0]
    micros = sorted({int(each) for each in step.calls["micro"]}, key=lambda each: (each < 0, each))
    flow = flow_of(step, micros[0]) if micros else None
    if flow is None or not flow.nodes:
        return None
    tensors = {
        row: at
        for at, (side, row) in enumerate(places)
        if side is step and step.columns["role"][row] in (Role.INPUT, Role.OUTPUT)
    }
    return {"step": step.step, "micro": flow.micro, "a": as_columns(flow, tensors, words)}
