"""A comparison of curves as a notebook shows it: the verdict, what was found, a row for each curve."""

from __future__ import annotations

from probe.comparison.result import Verdict
from probe.curve_comparison.result import CurveComparison, SeriesResult
from probe.report.notebook.markup import MOST_ROWS, Column, Html, error, facts, framed, name, paragraph, table, text
from probe.report.notebook.words import listed, verdict
from probe.report.text import LONGEST_LIST

_COLUMNS = [Column("curve"), Column("judgement"), Column("steps", True), Column("first out", True),
            Column("mean |B − A|", True), Column("relative", True)]  # fmt: skip


def of_curves(answer: CurveComparison) -> str:
    """Return a comparison of curves."""
    found = [text(each.text, LONGEST_LIST) for each in answer.findings]
    hints = list(dict.fromkeys(each.hint for each in answer.findings if each.hint))
    rows = [_row(each) for each in answer.series[:MOST_ROWS]]
    why = answer.doubts if answer.verdict is Verdict.UNDECIDED else ()
    return framed(
        verdict(answer.verdict, answer.path_a, answer.path_b),
        listed(why),
        listed(found),
        *(paragraph(Html(f"<b>→ {text(hint, LONGEST_LIST)}</b>")) for hint in hints),
        paragraph(text(answer.advice, LONGEST_LIST)) if answer.advice else "",
        table(_COLUMNS, rows, len(answer.series)) if rows else "",
        facts([("noise", answer.noise)]),
        listed([f"note: {each}" for each in answer.warnings if each not in why]),
    )


def _row(each: SeriesResult) -> list[object]:
    out = "–" if each.first_out is None else f"{each.first_out:,}"
    return [
        name(each.name),
        each.judgement,
        f"{len(each.pair):,}",
        out,
        error(each.mean_absolute),
        error(each.mean_relative),
    ]
