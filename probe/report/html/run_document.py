"""What the page of one recording shows: the tree of its model, the numbers of its tensors in each step, its graph, its curves.

It is as that of a comparison (`probe.report.html.document`), without a side B, verdicts and errors; every module is the
only one of its pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from probe._version import __version__
from probe.contents.experts import loads
from probe.records import Phase, Role
from probe.report.graph.flow import first_micro, flow_of, recorded_step
from probe.report.html import rows
from probe.report.html.columns import STATISTICS, Words, as_columns, by_columns, side_of, speakable, statistics
from probe.report.html.curves import curves_of_one
from probe.report.html.document import SCHEMA
from probe.report.inspect import facts
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.side import Side

MOST_TENSORS = 200_000
"""of all steps that are shown; of a longer run, the first step, the last one, and some between"""
Record = dict[str, Any]
"""one row of the table of records"""
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
    steps = [Side(reader, each, {}) for each in _shown(reader, step)]
    modules = list(range(len(reader.modules)))
    records = [row for each in steps for row in _in_order(reader, each.step)]
    return {
        "schema": SCHEMA,
        "probe": __version__,
        "run": {"steps": len(reader.steps), "observations": reader.observations, "facts": facts(reader)},
        "sides": {"a": side_of(reader, reader.path.name, words)},
        "pairs": {"a": modules, "reason": [], "confidence": []},
        "tree": _tree(reader, steps[0]),
        "calls": _calls(steps, words),
        "tensors": _tensors(reader, records, words),
        "findings": [],
        "flow": _flow(steps[0], records, words),
        "curves": curves_of_one(reader.path),
        "experts": {"a": speakable([load.as_json() for load in loads(reader, [each.step for each in steps])])},
        "rules": {},
        "words": words.all,
    }  # fmt: skip


def _shown(reader: Reader, step: int | None) -> list[int]:
    """Return the numbers of the steps that are shown."""
    reader.require_steps()
    first, known = recorded_step(reader, step), reader.steps["step"].tolist()
    if step is not None:
        return [first]
    room = max(1, MOST_TENSORS * len(known) // max(1, reader.observations))
    some = known if len(known) <= room else np.unique(np.linspace(0, len(known) - 1, room, dtype=int))
    return known if some is known else [known[at] for at in some]


def _in_order(reader: Reader, step: int) -> list[Record]:
    """Return the records of a step from cause to effect, each with its number in the step."""
    rows = reader.of_step("records", step)
    names = rows.dtype.names or ()
    columns = zip(*(rows[name].tolist() for name in names), strict=True)
    found: list[Record] = [{**dict(zip(names, row, strict=True)), "at": at} for at, row in enumerate(columns)]

    def moment(row: Record) -> tuple[int, ...]:
        phase, micro = row["phase"], row["micro"]
        part = 0 if phase == Phase.INIT else 1 if phase in _BY_PASS else 2
        of_pass = (micro < 0, abs(micro)) if part == 1 else (0, 0)
        return (part, *of_pass, phase, row["order"])

    return sorted(found, key=moment)


def _tree(reader: Reader, step: Side) -> dict[str, object]:
    """Return the modules as rows, in the order in which a step first called them."""
    found = rows.of_one(Tree(reader.modules, operations=True), rows.begun(step.calls))
    return {name: [getattr(row, name) for row in found] for name in ("a", "pair", "state", "depth")}


def _calls(steps: Sequence[Side], words: Words) -> dict[str, list[object]]:
    """Return the calls of all steps, in the order in which they began."""
    names = ("step", "micro", "pair", "call", "training_a", "gradients", "autocast")
    return by_columns(names, (
        (step.step, call.micro, call.module, call.number, int(call.is_training), int(call.has_gradients), words.number(call.autocast))
        for step in steps for call in step.calls
    ))  # fmt: skip


def _tensors(reader: Reader, records: Sequence[Record], words: Words) -> dict[str, object]:
    """Return records by columns: places and statistics."""
    names = ("step", "micro", "call", "pair", "phase", "role", "slot_a", "dtype_a", "shape_a")
    found = []
    for row in records:
        texts = [Phase(row["phase"]).label, Role(row["role"]).label, reader.slots[row["slot"]], row["dtype"].decode()]
        texts.append(str(list(reader.shapes[row["shape"]])))
        found.append((*(row[name] for name in ("step", "micro", "call", "module")), *map(words.number, texts)))
    return {
        **by_columns(names, found),
        "nonfinite": [at for at, row in enumerate(records) if _has_nonfinite(row)],
        "statistics_a": statistics([tuple(row[name] for name in STATISTICS) for row in records]),
    }


def _has_nonfinite(row: Record) -> bool:
    """Return True if a record has elements that are no numbers; what masks that are given hold, −Inf, is meant."""
    return bool(row["nan"] or row["posinf"] or (row["neginf"] and row["role"] != Role.INPUT))


def _flow(step: Side, records: Sequence[Record], words: Words) -> dict[str, object] | None:
    """Return the data flow of the first micro-batch; None if nothing ran."""
    flow = flow_of(step, first_micro(call.micro for call in step.calls))
    if not flow.nodes:
        return None
    tensors = {
        row["at"]: at
        for at, row in enumerate(records)
        if row["step"] == step.step and row["role"] in (Role.INPUT, Role.OUTPUT)
    }
    return {"step": step.step, "micro": flow.micro, "a": as_columns(flow, tensors, words)}
