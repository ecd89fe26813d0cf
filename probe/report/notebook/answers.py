"""A comparison, and one divergence, as a notebook shows them: the verdict, the way to the place, what was found there."""

from __future__ import annotations

import math
from collections import Counter

from probe.comparison.result import Divergence, NodeRef, SlotResult, Verdict
from probe.comparison.run import Comparison
from probe.records import Phase
from probe.report.acceptance import for_page
from probe.report.notebook.markup import (
    Column,
    Html,
    count,
    dim,
    error,
    facts,
    framed,
    join,
    kind,
    marked,
    name,
    number,
    paragraph,
    table,
    text,
)
from probe.report.notebook.words import listed, verdict
from probe.report.text import LONGEST_LIST, headline, stands
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
    parts = [verdict(said, comparison.path_a, comparison.path_b, comparison.left_out)]
    if said is Verdict.DIVERGED and first is not None:
        parts += _found(first, "First divergence", stands(comparison) if comparison.flip is not None else "")
        parts += _others(comparison.divergences[1:])
    elif said is Verdict.UNDECIDED:
        parts.append(listed(comparison.doubts))
    else:
        parts.append(paragraph("Nothing that was compared differs by more than rounding explains."))
        parts += [] if comparison.unseen is None else [paragraph(text(comparison.unseen.text, LONGEST_LIST))]
    parts += _accepted(comparison)
    told = comparison.reasons if said is Verdict.UNDECIDED else ()
    notes = texts(each for each in comparison.notes if each not in told)
    return framed(
        *parts, _own_errors(comparison), _by_phase(comparison.slots), _rests_on(comparison), listed([f"note: {each}" for each in notes]),
    )  # fmt: skip


def _accepted(comparison: Comparison) -> list[Html]:
    """Return the acceptance table that was asked for."""
    if comparison.acceptance is None:
        return []
    shown = for_page(comparison.acceptance)
    rows = [[*cells[:-1], name(cells[-1], "")] for cells in shown.rows]
    return [
        paragraph(Html(f"<b>{text(shown.title)}</b>"), dim(shown.source)), table([Column(each) for each in shown.head], rows),
        listed(shown.notes),
    ]  # fmt: skip


def of_divergence(divergence: Divergence) -> str:
    """Return one divergence: where it is, what shows it, what to look at."""
    return framed(*_found(divergence))


def _found(divergence: Divergence, title: str = "Divergence", holds: str = "") -> list[Html]:
    confidence = " · ".join(filter(None, (holds, f"confidence {divergence.confidence:.2f}")))
    return [
        paragraph(Html(f"<b>{title}</b>"), dim(headline(divergence))),
        _places(divergence),
        *(paragraph(text(line, LONGEST_LIST)) for line in divergence.evidence),
        *([paragraph(Html(f"<b>→ {text(divergence.hint, LONGEST_LIST)}</b>"))] if divergence.hint else []),
        facts(numbers(divergence)),
        paragraph(dim(confidence)),
    ]


def _places(divergence: Divergence) -> Html:
    """Return the way from the root to the place, on each side."""
    rows = []
    for side, refs in (("A", divergence.a), ("B", divergence.b)):
        label = Html(f'<span class="side">{side}</span>')
        rows += [] if refs else [paragraph(label, Html("<i>has no counterpart</i>"))]
        for ref in refs[:_MOST]:
            slot = [dim(f"{divergence.role.label}"), name(ref.slot)] if ref.slot else []
            call = [dim(f"call {ref.call}")] if ref.call else []
            rows.append(paragraph(label, chain(ref), kind(ref.class_name), *slot, *call))
        rows += [paragraph(label, dim(f"and {len(refs) - _MOST} more"))] if len(refs) > _MOST else []
    return join(rows, "")


def chain(ref: NodeRef) -> Html:
    """Return the names from the root to a module, the last one in the colour of what is wrong."""
    if not ref.path:
        return name("")
    *around, last = ref.path.split(".")
    shown = [*around[: _DEEPEST // 2], "…", *around[-_DEEPEST // 2 :]] if len(around) > _DEEPEST else around
    names = [*(dim(each) for each in shown), Html(f'<b class="bad">{text(last)}</b>')]
    return Html(f'<code class="chain"><bdi>{join(names, " › ")}</bdi></code>')


def numbers(found: Divergence | SlotResult) -> list[tuple[str, object]]:
    """Return what is known of the error of a pair of tensors: what it is, and how much."""
    metrics, limit = found.metrics, found.limit
    if metrics is None or not metrics.is_known:
        return [("not compared", metrics.reason)] if metrics is not None else []
    about = "≥" if metrics.is_lower_bound else "≈" if metrics.estimated else ""
    noise = f" ({error(limit)} is explained)" if math.isfinite(limit) else ""
    what = "elements that differ" if metrics.of_integers else "relative error"
    size = f"{100 * metrics.rel_l2:.3g}%" if metrics.of_integers else error(metrics.rel_l2)
    rows: list[tuple[str, object]] = []
    if math.isnan(found.error) or math.isclose(found.error, metrics.rel_l2, rel_tol=0.01):
        rows.append((what, f"{about}{size}{noise}"))
    else:
        judged = found.measure or "of the gradients that it was computed from"
        rows += [(what, f"{about}{size}"), ("judged by", f"{about}{error(found.error)} {judged}{noise}")]
    if math.isfinite(metrics.cosine):
        rows.append(("cosine", f"{about}{metrics.cosine:.{2 if metrics.estimated else 6}f}"))
    if math.isfinite(metrics.norm_ratio):
        rows.append(("norm B/A", number(metrics.norm_ratio)))
    if math.isfinite(metrics.max_abs):
        at = f" at {list(metrics.max_abs_at)}" if metrics.max_abs_at else ""
        rows.append(("max |Δ|", f"{metrics.max_abs:.3g}{at}"))
    return [*rows, ("", metrics.reason)]


def _others(others: tuple[Divergence, ...]) -> list[Html]:
    if not others:
        return []
    rows = [
        (each.phase.label, name(each.path), join([each.role.label, name((each.a or each.b)[0].slot, "")]),
         error(each.metrics.rel_l2) if each.metrics is not None else "–", f"{each.confidence:.2f}")
        for each in others[:_MOST]
    ]  # fmt: skip
    columns = [Column("phase"), Column("module"), Column("tensor"), Column("rel", True), Column("confidence", True)]
    return [paragraph("Also wrong by itself, in the order of cause"), table(columns, rows, len(others))]


def _own_errors(comparison: Comparison) -> Html:
    """Return, of a replay, the own errors of what modules return beside those in a run of B: the places, and what is off most there."""
    if comparison.replayed is None:
        return Html("")
    named = {each.path for each in comparison.divergences}
    known = [slot for slot in comparison.slots if not math.isnan(slot.in_run)]
    chosen = [slot for slot in known if slot.path_a in named]
    chosen += sorted((slot for slot in known if slot.path_a not in named), key=lambda slot: -slot.in_run)[:_MOST]
    rows = [
        (marked(name(slot.path_a), "bad") if slot.path_a in named else name(slot.path_a), name(slot.slot_a, ""),
         error(slot.metrics.rel_l2), error(slot.in_run))
        for slot in chosen
    ]  # fmt: skip
    columns = [Column("module"), Column("output"), Column("own error", True), Column("in a run of B", True)]
    left = [paragraph(text(str(each), LONGEST_LIST)) for each in comparison.replayed.left[:_MOST]]
    return join([table(columns, rows), *left], "") if rows else join(left, "")


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
        cells = [marked(f"{each:,}", KINDS.get(said, "")) if each else dim("0") for each, said in zip(found, _SAID, strict=True)]  # fmt: skip
        rest = counts[phase, ""]
        rows.append([phase.label, *cells, f"{rest:,}" if rest else dim("0"), error(worst.get(phase, math.nan))])
    heads = [*_SAID, "not judged", "largest rel"]
    return table([Column("phase"), *(Column(each, True) for each in heads)], rows) if rows else Html("")


def _rests_on(comparison: Comparison) -> Html:
    coverage = comparison.coverage
    only = [f"{count(number, 'call')} only in {side}" for side, number in (("A", coverage.only_a), ("B", coverage.only_b)) if number]  # fmt: skip
    calls = f"{coverage.paired:,} of {count(coverage.total, 'module call')} of {coverage.smaller}"
    compared = [calls, *only, f"{coverage.compared:,} pairs of tensors", f"{coverage.not_comparable:,} not comparable"]
    return paragraph(dim(f"Compared {' · '.join(compared)} · noise: {comparison.noise}"))
