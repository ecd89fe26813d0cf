"""A comparison of curves as a notebook shows it: the verdict, what was found, a row for each curve."""

from __future__ import annotations

from probe.answer.result import Verdict
from probe.curve_comparison.result import CurveComparison, SeriesResult
from probe.report.layout import LONGEST_LIST
from probe.report.notebook import markup as html
from probe.report.notebook.markup import MOST_ROWS, Html, Number

_COLUMNS = ["curve", "judgement", *map(Number, ("steps", "first out", "mean |B − A|", "relative"))]


def of_curves(answer: CurveComparison) -> str:
    """Return a comparison of curves."""
    found = [html.text(each.text, LONGEST_LIST) for each in answer.findings]
    hints = list(dict.fromkeys(each.hint for each in answer.findings if each.hint))
    rows = [_row(each) for each in answer.series[:MOST_ROWS]]
    why = answer.doubts if answer.verdict is Verdict.UNDECIDED else ()
    return html.framed(
        html.verdict(answer.verdict, answer.path_a, answer.path_b),
        html.listed(why),
        html.listed(found),
        *(html.paragraph(Html(f"<b>→ {html.text(hint, LONGEST_LIST)}</b>")) for hint in hints),
        html.paragraph(html.text(answer.advice, LONGEST_LIST)) if answer.advice else "",
        html.table(_COLUMNS, rows, len(answer.series)) if rows else "",
        html.facts([("noise", answer.noise)]),
        html.listed([f"note: {each}" for each in answer.warnings if each not in why]),
    )


def _row(each: SeriesResult) -> list[object]:
    out = "–" if each.first_out is None else f"{each.first_out:,}"
    apart = map(html.error, (each.mean_absolute, each.mean_relative))
    return [html.name(each.name), each.judgement, f"{len(each.pair):,}", out, *apart]
