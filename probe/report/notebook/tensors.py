"""Pairs of tensors that were compared, as a notebook shows them."""

from __future__ import annotations

from itertools import islice

from probe.comparison.result import SlotResult, SlotResults
from probe.report.notebook.answers import KINDS, numbers
from probe.report.notebook.markup import (
    MOST_ROWS,
    Column,
    Html,
    count,
    dim,
    error,
    facts,
    framed,
    join,
    marked,
    name,
    paragraph,
    table,
)

_ALWAYS = [Column("phase"), Column("tensor"), Column("shape"), Column("rel", True), Column("explained", True)]


def of_pairs(pairs: SlotResults) -> str:
    """Return what was compared of one module, or of several, a row for each of the first pairs of tensors."""
    if not pairs:
        return framed(paragraph(dim("Nothing of this kind was compared.")))
    modules = {(pair.path_a, pair.path_b) for pair in pairs}
    several_steps, several_calls = (
        len({pair.step for pair in pairs}) > 1,
        any(pair.call or pair.micro for pair in pairs),
    )
    more = [
        (several_steps, Column("step", True), lambda pair: pair.step),
        (len(modules) > 1, Column("module"), lambda pair: _module(pair)),
        (several_calls, Column("micro", True), lambda pair: pair.micro),
        (several_calls, Column("call", True), lambda pair: pair.call),
    ]
    chosen = [(column, get) for is_wanted, column, get in more if is_wanted]
    rows = [[*(get(pair) for _, get in chosen), *_row(pair)] for pair in islice(pairs, MOST_ROWS)]
    columns = [*(column for column, _ in chosen), *_ALWAYS, Column("verdict")]
    head = _place(pairs[0]) if len(modules) == 1 else [paragraph(count(len(modules), "module"))]
    return framed(*head, table(columns, rows, len(pairs)))


def of_pair(pair: SlotResult) -> str:
    """Return one pair of tensors with its numbers."""
    shapes = f"{pair.dtype_a} {list(pair.shape_a)}"
    other = f"{pair.dtype_b} {list(pair.shape_b)}"
    return framed(
        paragraph(Html(f"<b>{pair.role.label}</b>"), _tensor(pair, ""), dim(f"step {pair.step} · {pair.phase.label}")),
        *_place(pair),
        facts([
            ("verdict", marked(pair.verdict, KINDS.get(pair.verdict, ""))),
            *numbers(pair),
            ("tensors", shapes if shapes == other else f"{shapes} in A, {other} in B"),
            ("paired by", pair.reason),
        ]),
    )  # fmt: skip


def _place(pair: SlotResult) -> list[Html]:
    sides = (("A", pair.path_a, pair.class_a), ("B", pair.path_b, pair.class_b))
    return [paragraph(Html(f'<span class="side">{side}</span>'), name(path), dim(kind)) for side, path, kind in sides]


def _module(pair: SlotResult) -> Html:
    return name(pair.path_a) if pair.path_a == pair.path_b else join([name(pair.path_a), name(pair.path_b)], " ⟷ ")


def _tensor(pair: SlotResult, role: str) -> Html:
    slots = dict.fromkeys((pair.slot_a, pair.slot_b))
    return join([role, join([name(slot, "") for slot in slots], " ⟷ ")] if role else [name(slot, "") for slot in slots])


def _row(pair: SlotResult) -> list[object]:
    metrics = pair.metrics
    about = "≥" if metrics.is_lower_bound else "≈" if metrics.estimated and metrics.rel_l2 else ""
    return [
        pair.phase.label, _tensor(pair, pair.role.label), str(list(pair.shape_a)), f"{about}{error(metrics.rel_l2)}",
        error(pair.limit), marked(pair.verdict or metrics.status.value, KINDS.get(pair.verdict, "")),
    ]  # fmt: skip
