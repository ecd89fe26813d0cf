"""A comparison, and one divergence, as a notebook shows them: the verdict, the way to the place, what was found there."""

from __future__ import annotations

import math
from collections import Counter

from probe.answer.comparison import Comparison
from probe.answer.result import Divergence, NodeRef, SlotResult, Verdict
from probe.records import Phase
from probe.report.acceptance import for_page
from probe.report.layout import LONGEST_LIST
from probe.report.measured import OF_SOURCES, about, alike, amount, figures, headline, stands
from probe.report.notebook import markup as html
from probe.report.notebook.markup import Html, Number
from probe.report.words import texts

KINDS = {"introduced": "bad", "inherited": "warn"}
"""colours of what is said of a pair of tensors"""
_MOST = 5
"""further divergences, places of one side"""
_DEEPEST = 12
"""names of a path that are shown"""
_SAID = ("equal", "noise", "inherited", "introduced")


def of_comparison(comparison: Comparison) -> str:
    """Return a comparison: the verdict, the first divergence or why it could not be told, and counts by phase."""
    said, first = comparison.verdict, comparison.first_divergence
    parts = [html.verdict(said, comparison.path_a, comparison.path_b, comparison.left_out)]
    if said is Verdict.DIVERGED and first is not None:
        parts += _found(first, "First divergence", stands(comparison) if comparison.flip is not None else "")
        parts += _others(comparison.divergences[1:])
    elif said is Verdict.UNDECIDED:
        parts.append(html.listed(comparison.doubts))
    else:
        parts.append(html.paragraph("Nothing that was compared differs by more than rounding explains."))
        parts += [] if comparison.unseen is None else [html.paragraph(html.text(comparison.unseen.text, LONGEST_LIST))]
    parts += _accepted(comparison)
    told = comparison.reasons if said is Verdict.UNDECIDED else ()
    notes = texts(each for each in comparison.notes if each not in told)
    return html.framed(
        *parts, _own_errors(comparison), _by_phase(comparison.slots), _rests_on(comparison), html.listed([f"note: {each}" for each in notes]),
    )  # fmt: skip


def _accepted(comparison: Comparison) -> list[Html]:
    """Return the acceptance table that was asked for."""
    if comparison.acceptance is None:
        return []
    shown = for_page(comparison.acceptance)
    rows = [[*cells[:-1], html.name(cells[-1], "")] for cells in shown.rows]
    return [
        html.paragraph(Html(f"<b>{html.text(shown.title)}</b>"), html.dim(shown.source)), html.table(shown.head, rows),
        html.listed(shown.notes),
    ]  # fmt: skip


def of_divergence(divergence: Divergence) -> str:
    """Return one divergence: where it is, what shows it, what to look at."""
    return html.framed(*_found(divergence))


def _found(divergence: Divergence, title: str = "Divergence", holds: str = "") -> list[Html]:
    confidence = " · ".join(filter(None, (holds, f"confidence {divergence.confidence:.2f}")))
    return [
        html.paragraph(Html(f"<b>{title}</b>"), html.dim(headline(divergence))),
        _places(divergence),
        *(html.paragraph(html.text(line, LONGEST_LIST)) for line in divergence.evidence),
        *([html.paragraph(Html(f"<b>→ {html.text(divergence.hint, LONGEST_LIST)}</b>"))] if divergence.hint else []),
        html.facts(numbers(divergence)),
        html.paragraph(html.dim(confidence)),
    ]


def _places(divergence: Divergence) -> Html:
    """Return the way from the root to the place, on each side."""
    rows = []
    for side, refs in (("A", divergence.a), ("B", divergence.b)):
        label = Html(f'<span class="side">{side}</span>')
        rows += [] if refs else [html.paragraph(label, Html("<i>has no counterpart</i>"))]
        for ref in refs[:_MOST]:
            slot = [html.dim(f"{divergence.role.label}"), html.name(ref.slot)] if ref.slot else []
            call = [html.dim(f"call {ref.call}")] if ref.call else []
            rows.append(html.paragraph(label, chain(ref), html.kind(ref.class_name), *slot, *call))
        rows += [html.paragraph(label, html.dim(f"and {len(refs) - _MOST} more"))] if len(refs) > _MOST else []
    return html.join(rows, "")


def chain(ref: NodeRef) -> Html:
    """Return the names from the root to a module, the last one in the colour of what is wrong."""
    if not ref.path:
        return html.name("")
    *around, last = ref.path.split(".")
    shown = [*around[: _DEEPEST // 2], "…", *around[-_DEEPEST // 2 :]] if len(around) > _DEEPEST else around
    names = [*(html.dim(each) for each in shown), Html(f'<b class="bad">{html.text(last)}</b>')]
    return Html(f'<code class="chain"><bdi>{html.join(names, " › ")}</bdi></code>')


def numbers(found: Divergence | SlotResult) -> list[tuple[str, object]]:
    """Return what is known of the error of a pair of tensors: what it is, and how much."""
    metrics, limit = found.metrics, found.limit
    if metrics is None or not metrics.is_known:
        return [("not compared", metrics.reason)] if metrics is not None else []
    sign, noise = about(metrics), f" ({html.error(limit)} is explained)" if math.isfinite(limit) else ""
    what = "elements that differ" if metrics.of_integers else "relative error"
    size = f"{sign}{amount(metrics) if metrics.of_integers else html.error(metrics.rel_l2)}"
    if math.isnan(found.error) or alike(found.error, metrics.rel_l2):
        rows = [(what, f"{size}{noise}")]
    else:
        rows = [(what, size), ("judged by", f"{sign}{html.error(found.error)} {found.measure or OF_SOURCES}{noise}")]
    return [*rows, *figures(metrics), ("", metrics.reason)]


def _others(others: tuple[Divergence, ...]) -> list[Html]:
    if not others:
        return []
    rows = [
        (each.phase.label, html.name(each.path), html.join([each.role.label, html.name((each.a or each.b)[0].slot, "")]),
         html.error(each.metrics.rel_l2) if each.metrics is not None else "–", f"{each.confidence:.2f}")
        for each in others[:_MOST]
    ]  # fmt: skip
    columns = ["phase", "module", "tensor", Number("rel"), Number("confidence")]
    return [html.paragraph("Also wrong by itself, in the order of cause"), html.table(columns, rows, len(others))]


def _own_errors(comparison: Comparison) -> Html:
    """Return, of a replay, the own errors of what modules return beside those in a run of B: the places, and what is off most there."""
    if comparison.replayed is None:
        return Html("")
    named = {each.path for each in comparison.divergences}
    known = [slot for slot in comparison.slots if not math.isnan(slot.in_run)]
    chosen = [slot for slot in known if slot.path_a in named]
    chosen += sorted((slot for slot in known if slot.path_a not in named), key=lambda slot: -slot.in_run)[:_MOST]
    rows = [
        (html.marked(html.name(slot.path_a), "bad") if slot.path_a in named else html.name(slot.path_a), html.name(slot.slot_a, ""),
         html.error(slot.metrics.rel_l2), html.error(slot.in_run))
        for slot in chosen
    ]  # fmt: skip
    columns = ["module", "output", Number("own error"), Number("in a run of B")]
    left = [html.paragraph(html.text(str(each), LONGEST_LIST)) for each in comparison.replayed.left[:_MOST]]
    return html.join([html.table(columns, rows), *left], "") if rows else html.join(left, "")


def _by_phase(slots: tuple[SlotResult, ...]) -> Html:
    """Return how many pairs of tensors of each phase were equal, noise, inherited, introduced."""
    counts = Counter((slot.phase, slot.verdict if slot.verdict in _SAID else "") for slot in slots)
    worst: dict[Phase, float] = {}
    for slot in slots:
        if slot.metrics.is_known and not slot.metrics.of_integers:
            worst[slot.phase] = max(worst.get(slot.phase, 0.0), slot.metrics.rel_l2)
    rows = []
    for phase in sorted({phase for phase, _ in counts}):
        found = [counts[phase, said] for said in _SAID]
        cells = [html.marked(f"{each:,}", KINDS.get(said, "")) if each else html.dim("0") for each, said in zip(found, _SAID, strict=True)]  # fmt: skip
        rest = counts[phase, ""]
        rows.append(
            [phase.label, *cells, f"{rest:,}" if rest else html.dim("0"), html.error(worst.get(phase, math.nan))]
        )
    heads = [*_SAID, "not judged", "largest rel"]
    return html.table(["phase", *(Number(each) for each in heads)], rows) if rows else Html("")


def _rests_on(comparison: Comparison) -> Html:
    coverage = comparison.coverage
    only = [f"{html.count(number, 'call')} only in {side}" for side, number in (("A", coverage.only_a), ("B", coverage.only_b)) if number]  # fmt: skip
    calls = f"{coverage.paired:,} of {html.count(coverage.total, 'module call')} of {coverage.smaller}"
    compared = [calls, *only, f"{coverage.compared:,} pairs of tensors", f"{coverage.not_comparable:,} not comparable"]
    return html.paragraph(html.dim(f"Compared {' · '.join(compared)} · noise: {comparison.noise}"))
