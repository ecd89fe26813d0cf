"""What all checks show: the answer, what was found, what could not be looked at, what is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.text import Text

from probe.checks.outcome import CheckResult, Line, State, Status
from probe.comparison.notes import Note
from probe.report.layout import PLAIN_WIDTH, padded, shortened, wrapped
from probe.report.names import LONGEST_LIST, plain

_STYLES = {Status.FOUND: "bold red", Status.CLEAN: "bold green", Status.UNCHECKED: "bold yellow"}
_SIGNS = {State.FOUND: ("✗", "red"), State.UNKNOWN: ("?", "yellow"), State.OK: ("✓", "green")}
_NARROWEST = 40
"""columns; what is narrower wraps by itself"""


def headed(result: CheckResult, width: int | None) -> Text:
    """Return the answer with its lines: what was found first."""
    room = room_of(width)
    out = Text()
    names = "  ".join(plain(file) for file in result.files)
    out.append(wrapped(f"{result.status.value.upper()}  {names}", room, "", "  ", whole=width is None))
    out.stylize(_STYLES[result.status], 0, len(result.status.value))
    out.append("\n")
    lines = _together(result.lines)
    for state in State:
        for line in lines:
            if line.state is state:
                out.append_text(_line(line, room, width is None))
    return out


def _together(lines: Iterable[Line]) -> list[Line]:
    """Return lines of which what is the same of A and B is said once."""
    found: dict[tuple[str, State, Note], list[str]] = {}
    for line in lines:
        found.setdefault((line.topic, line.state, line.said), []).append(line.side)
    return [
        Line(topic, state, said, " and ".join(filter(None, sides))) for (topic, state, said), sides in found.items()
    ]


def room_of(width: int | None) -> int:
    """Return the columns of a sentence."""
    return PLAIN_WIDTH if width is None else max(width, _NARROWEST)


def _line(line: Line, room: int, whole: bool) -> Text:
    sign, style = _SIGNS[line.state]
    side = f"{line.side}: " if line.side else ""
    text = Text(
        wrapped(f"{line.topic}: {side}{plain(str(line.said), LONGEST_LIST)}", room, f"  {sign} ", "    ", whole=whole)
    )
    text.stylize(style, 2, 3)
    text.append("\n")
    return text


def table(head: Sequence[str], rows: Iterable[Sequence[str]], width: int | None) -> Text:
    """Return a table of which the first column is a name, shortened in the middle where there is no room for it.

    Numbers stand to the right, texts to the left.
    """
    kept = [tuple(row) for row in rows]
    sizes = [max(map(cell_len, column)) for column in zip(head, *kept, strict=True)]
    rest = sum(sizes[1:]) + 2 * (len(sizes) - 1)
    sizes[0] = min(sizes[0], max(room_of(width) - 2 - rest, 12))
    texts = [any(cell[:1].isalpha() for cell in column) for column in zip(*(row[1:] for row in kept), strict=True)]
    out = Text()
    for number, row in enumerate([tuple(head), *kept]):
        first = padded(shortened(row[0], sizes[0]), sizes[0])
        cells = [padded(cell, size) if is_text else " " * (size - cell_len(cell)) + cell
                 for cell, size, is_text in zip(row[1:], sizes[1:], texts, strict=True)]  # fmt: skip
        out.append(f"  {'  '.join([first, *cells])}".rstrip() + "\n", style="" if number else "dim")
    return out


def number(value: float) -> str:
    """Return a number in nine characters at most."""
    return "0" if not value else f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def percent(share: float) -> str:
    """Return a share with two digits that count."""
    return "0 %" if not share else f"{float(f'{100 * share:.2g}'):g} %" if share >= 1e-4 else "< 0.01 %"
