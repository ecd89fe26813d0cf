"""What answers of all kinds begin and end with: the verdict, and notes."""

from __future__ import annotations

from collections.abc import Sequence

from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.result import Verdict
from probe.report.left_out import qualification
from probe.report.names import file_names
from probe.report.notebook.markup import Html, dim, marked, paragraph, text
from probe.report.text import LONGEST_LIST

_COLOURS = {Verdict.ALIGNED: "good", Verdict.DIVERGED: "bad", Verdict.UNDECIDED: "warn"}
_MOST = 5


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
    items = [f"<li>{text(note, LONGEST_LIST)}</li>" for note in notes[:_MOST]]
    items += [f"<li>{dim(f'and {len(notes) - _MOST:,} more')}</li>"] if len(notes) > _MOST else []
    return Html(f"<ul>{''.join(items)}</ul>") if items else Html("")
