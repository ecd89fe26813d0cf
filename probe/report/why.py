"""`Why` in words: a table of what was compared of a module, and the rows of the tables behind its verdicts."""

from __future__ import annotations

import math
import re

from rich.text import Text

from probe.comparison.result import SlotResult
from probe.comparison.why import Why, explained
from probe.report.layout import PLAIN_WIDTH, wrapped
from probe.report.names import plain

_HEAD = ("tensor", "error", "sources", "limit", "verdict")
_STYLES = {
    r"^  tensor +error +sources.*$": "bold", r"(?<=  )introduced\b.*$": "bold red", r"(?<=  )inherited\b.*$": "yellow",
    r"(?<=  )(equal|noise)\b.*$": "green", r"^ +tried: .*$|^ +answers: .*$|^      \S.*$": "dim", r"^[AB]  .*$": "cyan",
}  # fmt: skip
"""how lines of the table, and verdicts at their ends, look in a terminal"""
_ERROR = "error: relative, ‖A−B‖ / max(‖A‖, ‖B‖), or the share of integers that differ; sources: the largest error of what it was computed from; limit: what the sources and rounding explain"


def render(why: Why, width: int = PLAIN_WIDTH) -> str:
    """Return the table and what its codes mean."""
    places: dict[tuple[str, ...], list[SlotResult]] = {}
    for slot in why.slots:
        places.setdefault(_place(slot), []).append(slot)
    lines: list[str] = []
    for place, slots in places.items():
        lines += [*([""] if lines else []), *_heading(place), *_table(slots, width)]
    lines += ["", wrapped(_ERROR, width, indent="  ")]
    lines += [wrapped(explained(code), width, f"{code}: ", "  ") for code in why.codes]
    return "\n".join(lines) + "\n"


def styled(text: str) -> Text:
    """Return what `render` returned in the colours of a report."""
    found = Text(text)
    for pattern, style in _STYLES.items():
        found.highlight_regex(re.compile(pattern, re.MULTILINE), style)
    return found


def _place(slot: SlotResult) -> tuple[str, ...]:
    where = [
        f"{path or 'the root'} ({kind})" for path, kind in ((slot.path_a, slot.class_a), (slot.path_b, slot.class_b))
    ]
    return where[0], where[1], f"step {slot.step}, paired: {slot.reason}"


def _heading(place: tuple[str, ...]) -> list[str]:
    a, b, when = place
    return [f"A  {plain(a)}", f"B  {plain(b)}", when]


def _table(slots: list[SlotResult], width: int) -> list[str]:
    rows = [_HEAD, *(_row(slot) for slot in slots)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    lines = [
        "  " + "  ".join([*(cell.ljust(size) for cell, size in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    ]
    for place, slot in reversed([*enumerate(slots, 1)]):
        asked = _asked(slot)
        if asked:
            lines.insert(place + 1, wrapped(asked, width, "    ", "      "))
    return lines


def _row(slot: SlotResult) -> tuple[str, ...]:
    names = slot.slot_a if slot.slot_a == slot.slot_b else f"{slot.slot_a} / {slot.slot_b}"
    said = slot.exemption or ("" if slot.metrics.is_known else slot.metrics.reason)
    number = "".join(f", {name} {at}" for name, at in (("micro", slot.micro), ("call", slot.call)) if at)
    kind = f"{slot.phase.label} {slot.role.label} {plain(names)}{number}"
    verdict = f"{slot.verdict}: {said}" if said else slot.verdict
    return kind, _number(slot.error), _number(slot.sources), _number(slot.limit), verdict


def _asked(slot: SlotResult) -> str:
    """Return which rows of the tables were asked of a tensor, and which one answers for it."""
    tried = [code for code in slot.tried if code != slot.exemption]
    said = [f"tried: {', '.join(tried)}" if tried else "", f"answers: {slot.blame}" if slot.blame else ""]
    return "; ".join(filter(None, said))


def _number(value: float) -> str:
    return "–" if math.isnan(value) else "0" if not value else f"{value:.1e}"
