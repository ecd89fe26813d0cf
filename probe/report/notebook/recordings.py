"""A recording, and what is in it, as a notebook shows them. No values are read, and no table of records."""

from __future__ import annotations

from itertools import islice

from probe.recording import ModuleRecords, Observed, Recording
from probe.report.notebook.markup import (
    MOST_ROWS,
    Column,
    Html,
    count,
    dim,
    facts,
    framed,
    join,
    kind,
    marked,
    name,
    number,
    paragraph,
    table,
)
from probe.structure.tree import Tree

_MOST_MODULES = 10
_MOST_NOTES = 3
_KIB = 1024


def of_recording(recording: Recording) -> str:
    """Return who recorded what: the facts of the run, the outermost modules, notes."""
    info, modules = recording.info, recording.modules
    tree = Tree(modules)
    weights = sum(modules[index].n_params for index in tree.models)
    config = info.config
    held = dim(f"{count(len(modules), 'module')}, {weights:,} parameters")
    inside = join([name(" and ".join(tree.model_names), "?"), held])
    outer = [module for module in modules if module.parent == 0]
    rows = [(name(each.path), kind(each.class_name), f"{each.n_params:,}") for each in outer[:_MOST_MODULES]]
    notes = recording.notes
    return framed(
        paragraph(Html(f"<b>{name(recording.path.name)}</b>"), dim(_size(recording)), kind="head"),
        facts([
            ("model", inside if modules else ""),
            ("framework", f"{info.framework} {info.framework_version}"),
            ("recorded", f"{info.created}, task {config.get('task', '?')}"),
            ("rank", f"{info.rank} of {info.world_size}" if info.world_size > 1 else ""),
            ("steps", _steps(recording)),
            ("state", "" if info.closed else marked("still being written, or its process was ended", "warn")),
        ]),
        table([Column("module"), Column("class"), Column("parameters", True)], rows) if rows else "",
        paragraph(dim(f"and {len(outer) - _MOST_MODULES:,} more")) if len(outer) > _MOST_MODULES else "",
        *(paragraph(marked(f"note: {note}", "warn")) for note in notes[:_MOST_NOTES]),
        paragraph(dim(f"and {count(len(notes) - _MOST_NOTES, 'more note')}")) if len(notes) > _MOST_NOTES else "",
    )  # fmt: skip


def of_records(records: ModuleRecords) -> str:
    """Return what was recorded of a module, a row for each of the first tensors."""
    if not records:
        return framed(paragraph(dim("Nothing of this kind was recorded.")))
    several = len({each.path for each in records}) > 1
    columns = [Column("step", True), Column("micro", True), *([Column("module")] if several else []), Column("phase"),
               Column("tensor"), Column("dtype"), Column("shape"), Column("mean", True), Column("rms", True),
               Column("norm", True), Column("values")]  # fmt: skip
    rows = [
        [each.step, each.micro, *([name(each.path)] if several else []), each.phase.label, _tensor(each), each.dtype,
         str(list(each.shape)), number(each.mean), number(each.rms), number(each.norm),
         "stored" if each.has_values else ""]
        for each in islice(records, MOST_ROWS)
    ]  # fmt: skip
    head = [] if several else [paragraph(name(records[0].path))]
    return framed(*head, table(columns, rows, len(records)))


def of_record(each: Observed) -> str:
    """Return one tensor with its statistics."""
    bad = [count(value, what) for value, what in ((each.nan, "NaN"), (each.posinf, "+Inf"), (each.neginf, "−Inf")) if value]  # fmt: skip
    micro = f" · micro {each.micro}" if each.micro else ""
    return framed(
        paragraph(Html(f"<b>{each.role.label}</b>"), name(each.slot, ""), dim(f"step {each.step}{micro} · {each.phase.label}")),
        paragraph(name(each.path)),
        facts([
            ("tensor", f"{each.dtype} {list(each.shape)}"),
            ("min, max", f"{number(each.min)}, {number(each.max)}"),
            ("mean, rms", f"{number(each.mean)}, {number(each.rms)}"),
            ("norm", number(each.norm)),
            ("zeros", f"{each.zeros:,}" if each.zeros else ""),
            ("not finite", marked(", ".join(bad), "bad") if bad else ""),
            ("values", "stored" if each.has_values else 'not recorded (task="tensor" does)'),
        ]),
    )  # fmt: skip


def _tensor(each: Observed) -> Html:
    call = [dim(f"call {each.call}")] if each.call else []
    bad = each.nan + each.posinf + each.neginf
    return join([each.role.label, name(each.slot, ""), *call, *([marked(f"{bad:,} NaN or Inf", "bad")] if bad else [])])


def _steps(recording: Recording) -> str:
    steps, records = recording.steps, recording.observations
    if not steps:
        return "none is complete"
    which = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps):,}, {steps[0]} to {steps[-1]}"
    return f"{which}; {count(records, 'tensor')} seen"


def _size(recording: Recording) -> str:
    size = float(recording.path.stat().st_size)
    for unit in ("B", "KiB", "MiB"):
        if size < _KIB:
            return f"{size:.3g} {unit}"
        size /= _KIB
    return f"{size:,.1f} GiB"
