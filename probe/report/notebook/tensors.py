"""Pairs of tensors that were compared, as a notebook shows them."""

from __future__ import annotations

from itertools import islice

from probe.answer.result import SlotResult, SlotResults
from probe.report.measured import about
from probe.report.notebook import markup as html
from probe.report.notebook.answers import KINDS, numbers
from probe.report.notebook.markup import MOST_ROWS, Html, Number

_ALWAYS = ["phase", "tensor", "shape", Number("rel"), Number("explained")]


def of_pairs(pairs: SlotResults) -> str:
    """Return what was compared of one module, or of several, a row for each of the first pairs of tensors."""
    if not pairs:
        return html.framed(html.paragraph(html.dim("Nothing of this kind was compared.")))
    modules = {(pair.path_a, pair.path_b) for pair in pairs}
    several_steps, several_calls = (
        len({pair.step for pair in pairs}) > 1,
        any(pair.call or pair.micro for pair in pairs),
    )
    more = [
        (several_steps, Number("step"), lambda pair: pair.step),
        (len(modules) > 1, "module", lambda pair: _module(pair)),
        (several_calls, Number("micro"), lambda pair: pair.micro),
        (several_calls, Number("call"), lambda pair: pair.call),
    ]
    chosen = [(column, get) for is_wanted, column, get in more if is_wanted]
    rows = [[*(get(pair) for _, get in chosen), *_row(pair)] for pair in islice(pairs, MOST_ROWS)]
    columns = [*(column for column, _ in chosen), *_ALWAYS, "verdict"]
    head = _place(pairs[0]) if len(modules) == 1 else [html.paragraph(html.count(len(modules), "module"))]
    return html.framed(*head, html.table(columns, rows, len(pairs)))


def of_pair(pair: SlotResult) -> str:
    """Return one pair of tensors with its numbers."""
    shapes = f"{pair.dtype_a} {list(pair.shape_a)}"
    other = f"{pair.dtype_b} {list(pair.shape_b)}"
    return html.framed(
        html.paragraph(Html(f"<b>{pair.role.label}</b>"), _tensor(pair, ""), html.dim(f"step {pair.step} · {pair.phase.label}")),
        *_place(pair),
        html.facts([
            ("verdict", html.marked(pair.verdict, KINDS.get(pair.verdict, ""))),
            *numbers(pair),
            ("tensors", shapes if shapes == other else f"{shapes} in A, {other} in B"),
            ("paired by", pair.reason),
        ]),
    )  # fmt: skip


def _place(pair: SlotResult) -> list[Html]:
    sides = (("A", pair.path_a, pair.class_a), ("B", pair.path_b, pair.class_b))
    return [
        html.paragraph(Html(f'<span class="side">{side}</span>'), html.name(path), html.kind(of))
        for side, path, of in sides
    ]


def _module(pair: SlotResult) -> Html:
    return (
        html.name(pair.path_a)
        if pair.path_a == pair.path_b
        else html.join([html.name(pair.path_a), html.name(pair.path_b)], " ⟷ ")
    )


def _tensor(pair: SlotResult, role: str) -> Html:
    slots = dict.fromkeys((pair.slot_a, pair.slot_b))
    return html.join(
        [role, html.join([html.name(slot, "") for slot in slots], " ⟷ ")]
        if role
        else [html.name(slot, "") for slot in slots]
    )


def _row(pair: SlotResult) -> list[object]:
    metrics = pair.metrics
    sign = about(metrics) if metrics.is_lower_bound or metrics.rel_l2 else ""
    return [
        pair.phase.label, _tensor(pair, pair.role.label), str(list(pair.shape_a)), f"{sign}{html.error(metrics.rel_l2)}",
        html.error(pair.limit), html.marked(pair.verdict or metrics.status.value, KINDS.get(pair.verdict, "")),
    ]  # fmt: skip
