"""A recording, and what is in it, as a notebook shows them. No values are read, and no table of records."""

from __future__ import annotations

from itertools import islice

from probe.recording import ModuleRecords, Observed, Recording
from probe.report.notebook import markup as html
from probe.report.notebook.markup import MOST_ROWS, Html, Number
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
    held = html.dim(f"{html.count(len(modules), 'module')}, {weights:,} parameters")
    inside = html.join([html.name(" and ".join(tree.model_names), "?"), held])
    outer = [module for module in modules if module.parent == 0]
    rows = [(html.name(each.path), html.kind(each.class_name), f"{each.n_params:,}") for each in outer[:_MOST_MODULES]]
    notes = recording.notes
    return html.framed(
        html.paragraph(Html(f"<b>{html.name(recording.path.name)}</b>"), html.dim(_size(recording)), kind="head"),
        html.facts([
            ("model", inside if modules else ""),
            ("framework", f"{info.framework} {info.framework_version}"),
            ("recorded", f"{info.created}, task {config.get('task', '?')}"),
            ("rank", f"{info.rank} of {info.world_size}" if info.world_size > 1 else ""),
            ("steps", _steps(recording)),
            ("state", "" if info.closed else html.marked("still being written, or its process was ended", "warn")),
        ]),
        html.table(["module", "class", Number("parameters")], rows) if rows else "",
        html.paragraph(html.dim(f"and {len(outer) - _MOST_MODULES:,} more")) if len(outer) > _MOST_MODULES else "",
        *(html.paragraph(html.marked(f"note: {note}", "warn")) for note in notes[:_MOST_NOTES]),
        html.paragraph(html.dim(f"and {html.count(len(notes) - _MOST_NOTES, 'more note')}")) if len(notes) > _MOST_NOTES else "",
    )  # fmt: skip


def of_records(records: ModuleRecords) -> str:
    """Return what was recorded of a module, a row for each of the first tensors."""
    if not records:
        return html.framed(html.paragraph(html.dim("Nothing of this kind was recorded.")))
    several = len({each.path for each in records}) > 1
    columns = [Number("step"), Number("micro"), *(["module"] if several else []), "phase", "tensor", "dtype", "shape"]
    columns += [*map(Number, ("mean", "rms", "norm")), "values"]
    rows = [
        [each.step, each.micro, *([html.name(each.path)] if several else []), each.phase.label, _tensor(each), each.dtype,
         str(list(each.shape)), html.number(each.mean), html.number(each.rms), html.number(each.norm),
         "stored" if each.has_values else ""]
        for each in islice(records, MOST_ROWS)
    ]  # fmt: skip
    head = [] if several else [html.paragraph(html.name(records[0].path))]
    return html.framed(*head, html.table(columns, rows, len(records)))


def of_record(each: Observed) -> str:
    """Return one tensor with its statistics."""
    bad = [html.count(value, what) for value, what in ((each.nan, "NaN"), (each.posinf, "+Inf"), (each.neginf, "−Inf")) if value]  # fmt: skip
    micro = f" · micro {each.micro}" if each.micro else ""
    return html.framed(
        html.paragraph(Html(f"<b>{each.role.label}</b>"), html.name(each.slot, ""), html.dim(f"step {each.step}{micro} · {each.phase.label}")),
        html.paragraph(html.name(each.path)),
        html.facts([
            ("tensor", f"{each.dtype} {list(each.shape)}"),
            ("min, max", f"{html.number(each.min)}, {html.number(each.max)}"),
            ("mean, rms", f"{html.number(each.mean)}, {html.number(each.rms)}"),
            ("norm", html.number(each.norm)),
            ("zeros", f"{each.zeros:,}" if each.zeros else ""),
            ("not finite", html.marked(", ".join(bad), "bad") if bad else ""),
            ("values", "stored" if each.has_values else 'not recorded (task="tensor" does)'),
        ]),
    )  # fmt: skip


def _tensor(each: Observed) -> Html:
    call = [html.dim(f"call {each.call}")] if each.call else []
    bad = each.nan + each.posinf + each.neginf
    return html.join(
        [
            each.role.label,
            html.name(each.slot, ""),
            *call,
            *([html.marked(f"{bad:,} NaN or Inf", "bad")] if bad else []),
        ]
    )


def _steps(recording: Recording) -> str:
    steps, records = recording.steps, recording.observations
    if not steps:
        return "none is complete"
    which = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps):,}, {steps[0]} to {steps[-1]}"
    return f"{which}; {html.count(records, 'tensor')} seen"


def _size(recording: Recording) -> str:
    size = float(recording.path.stat().st_size)
    for unit in ("B", "KiB", "MiB"):
        if size < _KIB:
            return f"{size:.3g} {unit}"
        size /= _KIB
    return f"{size:,.1f} GiB"
