"""`Why` in words: a table of what was compared of a module, and the rows of the tables behind its verdicts."""

from __future__ import annotations

import math
import re

from rich.text import Text

from probe.answer.result import SlotResult
from probe.answer.why import Why, explained
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase
from probe.report.layout import PLAIN_WIDTH, plain, wrapped
from probe.report.measured import headline
from probe.verdict.noise.model import BACKWARD, FORWARD

_HEAD = ("tensor", "error", "sources", "limit", "verdict")
_STYLES = {
    r"^  tensor +error +sources.*$": "bold", r"(?<=  )introduced\b.*$": "bold red", r"(?<=  )inherited\b.*$": "yellow",
    r"(?<=  )(equal|noise|healed)\b.*$": "green", r"^    \S.*$|^      \S.*$": "dim", r"^[AB]  .*$": "cyan",
}  # fmt: skip
"""how lines of the table, and verdicts at their ends, look in a terminal"""
_ERROR = "error: relative, ‖A−B‖ / max(‖A‖, ‖B‖), or the share of integers that differ; sources: the largest error of what it was computed from; limit: what the sources and rounding explain, u is one rounding of the least precise dtype on the way"
_IS_OFF = "its norm or its mean is off by more than rounding leaves there, whatever the size of the error"
_NAMES = ("bfloat16", "float16", "float32", "float64")
_MOST = 256
"""roundings; more are those of a dtype with more digits"""


def render(why: Why, width: int = PLAIN_WIDTH) -> str:
    """Return the table and what its codes mean."""
    places: dict[tuple[str, ...], list[SlotResult]] = {}
    for slot in why.slots:
        places.setdefault(_place(slot), []).append(slot)
    lines: list[str] = []
    for place, slots in places.items():
        lines += [*([""] if lines else []), *_heading(place), *_table(slots, width)]
    for found in why.divergences:
        argument = "; ".join((found.blame, *found.evidence))
        lines += ["", wrapped(argument, width, f"charged to it, {headline(found)}: ", "  ")]
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
    judged = "healed" if slot.is_healed else slot.verdict
    verdict = f"{judged}: {said}" if said else judged
    term = slot.limited_by or _term(slot)
    limit = f"{_number(slot.limit)} = {term}" if term else _number(slot.limit)
    return kind, _number(slot.error), _number(slot.sources), limit, verdict


def _asked(slot: SlotResult) -> str:
    """Return why a tensor is no noise, as far as its row does not say it, and who answers for it."""
    is_off = slot.verdict == "introduced" and slot.error <= slot.limit
    return "; ".join(filter(None, [_IS_OFF if is_off else "", f"answers: {slot.blame}" if slot.blame else ""]))


def _term(slot: SlotResult) -> str:
    """Return the term of the noise rule that gives a limit: ``8 × sources``, or roundings, ``16 u``; empty where neither does."""
    gain = FORWARD.gain if slot.phase is Phase.FORWARD else BACKWARD.gain
    if slot.sources > 0 and math.isclose(slot.limit, gain * slot.sources, rel_tol=1e-6):
        return f"{gain:.3g} × sources"
    roundings = [slot.limit / u for u in map(unit_roundoff, (slot.dtype_a, slot.dtype_b, *_NAMES)) if u]
    few = [k for k in roundings if k <= _MOST and math.isclose(2 * k, round(2 * k) or -1, rel_tol=1e-6)]
    return f"{few[0]:.3g} u" if few else ""


def why_limit(slot: SlotResult) -> str:
    """Return why the limit of a tensor is what it is, in words; empty where nothing tells."""
    if slot.limited_by:
        return explained(slot.limited_by)
    return _term(slot).replace(" u", " roundings").replace("sources", "the error of its sources")


def _number(value: float) -> str:
    return "–" if math.isnan(value) else "0" if not value else f"{value:.1e}"
