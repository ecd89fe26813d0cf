"""Pieces of HTML: names as text, numbers, tables, in a frame that takes its colours from the notebook's theme."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from probe.answer.left_out import LeftOut
from probe.answer.result import Verdict
from probe.report.layout import LONGEST_LIST, file_names, plain
from probe.report.left_out import qualification

LONGEST = 160
"""characters of a name that are shown"""
MOST_ROWS = 20
"""of a table"""
_MOST_NOTES = 5
_COLOURS = {Verdict.ALIGNED: "good", Verdict.DIVERGED: "bad", Verdict.UNDECIDED: "warn"}
# Said three times, since themes are specific about tables and code in outputs.
_STYLE = """<style>
.probe { --probe-bad: var(--jp-error-color1, var(--vscode-charts-red, #d1383d));
  --probe-good: var(--jp-success-color1, var(--vscode-charts-green, #2a8f4f));
  --probe-warn: var(--jp-warn-color1, var(--vscode-charts-orange, #c77700));
  --probe-line: rgba(128, 128, 128, 0.35); line-height: 1.45; max-width: 1000px; }
.probe.probe.probe bdi, .probe.probe.probe p, .probe.probe.probe li { overflow-wrap: anywhere; }
.probe.probe.probe p { margin: 0.25em 0; }
.probe.probe.probe .head { font-size: 1.15em; margin-bottom: 0.4em; }
.probe.probe.probe .side { display: inline-block; min-width: 1.4em; font-weight: 700; opacity: 0.75; }
.probe.probe.probe .dim { opacity: 0.7; }
.probe.probe.probe code { font-size: 0.95em; background: none; color: inherit; padding: 0; white-space: normal; }
.probe.probe.probe .bad { color: var(--probe-bad); }
.probe.probe.probe .good { color: var(--probe-good); }
.probe.probe.probe .warn { color: var(--probe-warn); }
.probe.probe.probe table { border-collapse: collapse; border: 0; color: inherit; font-size: inherit; margin: 0.5em 0; width: auto; font-variant-numeric: tabular-nums; }
.probe.probe.probe tr, .probe.probe.probe tr:nth-child(even), .probe.probe.probe tr:hover { background: none; }
.probe.probe.probe th, .probe.probe.probe td { text-align: left; padding: 1px 16px 1px 0; border: 0; vertical-align: top; max-width: 34em; }
.probe.probe.probe thead th { border-bottom: 1px solid var(--probe-line); font-weight: 600; }
.probe.probe.probe tbody th { font-weight: 400; opacity: 0.7; white-space: nowrap; }
.probe.probe.probe .number { text-align: right; white-space: nowrap; }
.probe.probe.probe ul, .probe.probe.probe ol { margin: 0.25em 0; padding-left: 1.6em; }
</style>"""


class Html(str):
    """Text that is markup already, with every name in it escaped."""

    __slots__ = ()


class Number(str):
    """The title of a column of numbers."""

    __slots__ = ()


def text(value: object, longest: int = LONGEST) -> Html:
    """Return any text as text: no markup, no control characters, not endlessly long."""
    return value if isinstance(value, Html) else Html(html.escape(plain(str(value), longest)))


def name(value: str, absent: str = "(the whole model)") -> Html:
    """Return the name of a module or tensor, whose letters change the order of nothing around them."""
    return Html(f"<code><bdi>{text(value)}</bdi></code>") if value else Html(f"<i>{text(absent)}</i>")


def kind(value: str) -> Html:
    """Return the name of a class, which stands back behind that of its module."""
    return dim(Html(f"<bdi>{text(value)}</bdi>"))


def dim(value: object) -> Html:
    """Return text that stands back."""
    return Html(f'<span class="dim">{text(value)}</span>')


def marked(value: object, kind: str) -> Html:
    """Return text in the colour of ``bad``, ``good`` or ``warn``; plain where the kind is empty."""
    return Html(f'<span class="{kind}">{text(value)}</span>') if kind else text(value)


def join(parts: Iterable[object], sign: str = " ") -> Html:
    """Return parts behind each other."""
    return Html(sign.join(text(part) for part in parts))


def paragraph(*parts: object, kind: str = "") -> Html:
    """Return a paragraph."""
    return Html(f'<p class="{kind}">{join(parts)}</p>' if kind else f"<p>{join(parts)}</p>")


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], total: int | None = None) -> Html:
    """Return a table; where it has more rows than are shown (`MOST_ROWS`), how many were left out.

    Parameters
    ----------
    columns
        their titles, `Number` of those of numbers
    rows
        cells, text or `Html`; only the first are asked for
    total
        how many rows there are, where ``rows`` has not all of them
    """
    rows = list(rows)
    heads = "".join(f"<th{_class(column)}>{text(column)}</th>" for column in columns)
    body = "".join(
        "<tr>{}</tr>".format(
            "".join(f"<td{_class(column)}>{text(cell)}</td>" for column, cell in zip(columns, row, strict=True))
        )
        for row in rows[:MOST_ROWS]
    )
    left = (len(rows) if total is None else total) - min(len(rows), MOST_ROWS)
    more = paragraph(dim(f"and {left:,} more")) if left > 0 else ""
    return Html(f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}")


def facts(rows: Iterable[tuple[str, object]]) -> Html:
    """Return a table of facts: what it is on the left, the fact on the right; those that are empty are left out."""
    body = "".join(f"<tr><th>{text(what)}</th><td>{text(fact)}</td></tr>" for what, fact in rows if fact != "")
    return Html(f"<table><tbody>{body}</tbody></table>")


def framed(*parts: object) -> str:
    """Return parts as one output of a cell; no dollar sign in it begins a formula."""
    return f'<div class="probe tex2jax_ignore mathjax_ignore">{_STYLE}{join(parts)}</div>'


def error(value: float) -> str:
    """Return an error or limit, short; a dash where there is none."""
    return "–" if math.isnan(value) else "0" if value == 0 else "∞" if math.isinf(value) else f"{value:.1e}"


def number(value: float) -> str:
    """Return a number in at most six digits; a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:.6g}"


def count(value: int, noun: str) -> str:
    """Return how many there are of something."""
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def _class(column: str) -> str:
    return ' class="number"' if isinstance(column, Number) else ""


# What answers of all kinds begin and end with


def verdict(said: Verdict, path_a: str, path_b: str, left_out: Sequence[LeftOut] = ()) -> Html:
    """Return the verdict, what it says nothing of, and which files it is about."""
    name_a, name_b = file_names(path_a, path_b)
    left = qualification(said, left_out).strip()
    return paragraph(
        Html(f'<b class="verdict {_COLOURS[said]}">{said.value.upper()}</b>'),
        marked(left, "warn") if left else "",
        dim(f" A {name_a} · B {name_b}"),
        kind="head",
    )


def listed(notes: Sequence[str]) -> Html:
    """Return the first notes as a list."""
    items = [f"<li>{text(note, LONGEST_LIST)}</li>" for note in notes[:_MOST_NOTES]]
    items += [f"<li>{dim(f'and {len(notes) - _MOST_NOTES:,} more')}</li>"] if len(notes) > _MOST_NOTES else []
    return Html(f"<ul>{''.join(items)}</ul>") if items else Html("")
