"""Acceptance tables in words: what a comparison gave, and the list of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from probe.answer.acceptance import Acceptance, Decision, ItemResult, Outcome, Where
from probe.answer.presets import Preset
from probe.mapping.judging import Tolerance
from probe.report.layout import LONGEST_LIST, PLAIN_WIDTH, padded, plain, shortened, wrapped
from probe.report.measured import micro_batch
from probe.report.words.forms import METRICS

_HEADLINES = {
    Decision.ACCEPTED: ("ACCEPTED", "bold green"),
    Decision.NOT_ACCEPTED: ("NOT ACCEPTED", "bold red"),
    Decision.UNDECIDED: ("NOT DECIDED", "bold yellow"),
}
_STYLES = {Outcome.PASS: "green", Outcome.FAIL: "bold red"}
_HEAD = ("item", "bound", "measured", "result")
_LEAD = "    "


def render(acceptance: Acceptance, width: int | None = None) -> Text:
    """Return the table: a line for each row, the tensor that is furthest off below it, and what is to be said of it.

    Parameters
    ----------
    acceptance
        what to show
    width
        columns of the terminal. None, for what goes to none: sentences take 80 columns, and names stay whole
    """
    out = Text()
    word, style = _HEADLINES[acceptance.decision]
    out.append(
        f"{wrapped(f'{word} by {acceptance.preset.name} ({acceptance.preset.source})', width or PLAIN_WIDTH, '', '  ')}\n"
    )
    out.stylize(style, 0, len(word))
    rows = [_HEAD, *map(_cells, acceptance.items)]
    sizes = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    out.append(f"{_line(_HEAD, sizes).rstrip()}\n", style="dim")
    for cells, item in zip(rows[1:], acceptance.items, strict=True):
        out.append(_line(cells[:3], sizes))
        out.append(f"  {cells[3]}\n", style=_STYLES.get(item.outcome, "yellow"))
        for line in _places(item, width):
            out.append(f"{line}\n", style="dim")
    for note in acceptance.notes:
        lead = (
            f"{wrapped(plain(str(note), LONGEST_LIST), width or PLAIN_WIDTH, '  note: ', _LEAD, whole=width is None)}\n"
        )
        out.append(lead, style="yellow")
    return out


def _line(cells: Iterable[str], sizes: list[int]) -> str:
    return "  " + "  ".join(padded(cell, size) for cell, size in zip(cells, sizes, strict=False))


def _cells(item: ItemResult) -> tuple[str, ...]:
    figure = "–" if not item.measure.is_known else f"{item.measure.relation.value}{_figure(item)}"
    return item.item.scope.value, bound(item.item.tolerance), figure, item.outcome.value


def _figure(item: ItemResult) -> str:
    value = item.measure.figure
    if item.item.tolerance.metric == "allclose":
        return f"{value:.2g} × it"
    return "0" if not value else f"{value:.2e}"


def bound(tolerance: Tolerance) -> str:
    """Return a tolerance in a few characters: ``max |Δ| ≤ 1e-04``."""
    name = METRICS[tolerance.metric]
    parts = [f"{tolerance.atol:.0e}"] if tolerance.atol else []
    if tolerance.rtol:
        parts.append(f"{tolerance.rtol:.0e}·|a|" if tolerance.metric == "allclose" else f"{tolerance.rtol:.0e}")
    return f"{name} ≤ {' + '.join(parts)}"


def _places(item: ItemResult, width: int | None) -> Iterator[str]:
    """Yield the line that names the tensor which is furthest off."""
    where = item.where
    if where is None or not item.measure.figure:
        return
    path, end = _place(where)
    room = None if width is None else max(width - len(_LEAD) - cell_len(end), 8)
    yield f"{_LEAD}{path if room is None else shortened(path, room)}{end}"


def _place(where: Where) -> tuple[str, str]:
    """Return a tensor's path, and what stands behind it."""
    call = f" · call {where.call}" if where.call else ""
    at = f" at {list(where.index)}" if where.index else ""
    end = f" {where.role.label} {plain(where.slot_a or where.slot_b)}{at}  (step {where.step}{micro_batch(where.micro)}{call})"
    return plain(where.path_a or where.path_b) or "(the whole model)", end


@dataclass(frozen=True, slots=True)
class Shown:
    """An acceptance table as texts, for pages."""

    decision: str
    title: str
    source: str
    head: list[str]
    rows: list[list[str]]
    """cells; the last one names the tensor that is furthest off"""
    notes: list[str]


def for_page(acceptance: Acceptance) -> Shown:
    """Return the table for the HTML page and notebooks."""
    return Shown(
        acceptance.decision.value, f"{_HEADLINES[acceptance.decision][0].capitalize()} by {acceptance.preset.name}",
        f"{acceptance.preset.source}: {acceptance.preset.text}", [*_HEAD, "where"],
        [[*_cells(item), "".join(_place(item.where)) if item.where and item.measure.figure else ""] for item in acceptance.items],
        [str(note) for note in acceptance.notes],
    )  # fmt: skip


def presets_text(presets: Iterable[Preset], width: int = PLAIN_WIDTH) -> Text:
    """Return all acceptance tables, with what they ask for and where that is written."""
    out = Text()
    for preset in presets:
        out.append(f"{preset.name}\n", style="bold")
        sizes = [max(len(item.scope.value) for item in preset.items)]
        for item in preset.items:
            out.append(f"  {padded(item.scope.value, sizes[0])}  {bound(item.tolerance)}\n")
        out.append(f"{wrapped(f'{preset.source}: {preset.text}', width, '  ', '  ')}\n", style="dim")
    return out
