"""Settings that differ, for the terminal: beside the verdict, of two recordings, of two configurations."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from probe.answer.settings import DifferingSetting
from probe.notes import named
from probe.report.layout import PLAIN_WIDTH, WIDTH, Page, padded, plain, wrapped
from probe.report.words.forms import counted
from probe.settings.comparing import Difference, Held
from probe.settings.resolving import is_setting
from probe.settings.setting import Category, Effect
from probe.settings.side import Origin, Settings, Value, title_of
from probe.settings.table import BY_NAME, CHECKLIST, FROM_RECORDINGS

_MOST_SHOWN = 4
_ORIGINS = {Origin.DEFAULT: "default", Origin.IMPLIED: "of this model", Origin.DERIVED: "computed"}
_EFFECTS = {
    Effect.NUMBERS: "", Effect.PRECISION: "precision", Effect.RANDOM: "random", Effect.ROUNDING: "rounding only",
    Effect.NONE: "",
    Effect.UNKNOWN: "effect unknown",
}  # fmt: skip
Row = tuple[str, str, str, str]
"""what it is called, A's value, B's, a remark"""


def section(settings: Sequence[DifferingSetting], width: int | None, *, verbose: bool, unknown: bool) -> Text:
    """Return the section of a comparison's report: the settings that differ, those of findings first; nothing where none does.

    Parameters
    ----------
    settings
        all that differ
    width
        columns; None for what goes to no terminal
    verbose
        list all
    unknown
        list those of unknown effect too: nothing says what the finding comes from
    """
    page = Page(width)
    told = [each for each in settings if verbose or each.findings or _may_matter(each.difference.effect, unknown)]
    shown = told if verbose else told[:_MOST_SHOWN]
    if not settings:
        return page.out
    title, more = "Settings that differ", len(settings) - len(shown)
    if not shown:
        them = "it" if more == 1 else "them"
        page.say(f"{title}: {more}, in rounding at most or without an effect that is known; -v shows {them}")
        page.out.stylize("bold", 0, len(title))
        return page.out
    page.out.append(f"{title}\n", style="bold")
    page.out.append(table([(*_cells(each.difference), _remark(each)) for each in shown], width))
    if more:
        page.out.append(f"  {more} more: -v shows all\n", style="dim")
    return page.out


def _may_matter(effect: Effect, unknown: bool) -> bool:
    return effect.counts or (unknown and effect is Effect.UNKNOWN)


def _remark(setting: DifferingSetting) -> str:
    if setting.findings:
        return "→ the first divergence" if setting.findings[0] == 0 else "→ a later divergence"
    kind = _EFFECTS[setting.difference.effect]
    return "no finding shows it" if setting.is_unseen else kind


def table(rows: Sequence[Row], width: int | None, indent: str = "  ") -> str:
    """Return rows in columns where they fit into the width, else as sentences."""
    room = PLAIN_WIDTH if width is None else min(width, WIDTH)
    columns = [max(cell_len(row[at]) for row in rows) for at in range(3)]
    lines = []
    is_room = len(indent) + sum(columns) + 4 + max(cell_len(row[3]) + 2 for row in rows) <= room
    for name, a, b, remark in rows:
        if is_room:
            cells = [padded(cell, size) for cell, size in zip((name, a, b), columns, strict=True)]
            lines.append(f"{indent}{'  '.join(cells)}  {remark}".rstrip())
        else:
            text = f"{name}: {a} in A, {b} in B" + (f" ({remark})" if remark else "")
            lines.append(wrapped(text, room, indent, f"{indent}  ", whole=width is None))
    return "\n".join(lines) + "\n"


def _cells(difference: Difference) -> tuple[str, str, str]:
    """Return what a setting is called on both sides, and its values."""
    return plain(difference.title), _value(difference.a), _value(difference.b)


def _value(value: Value) -> str:
    origin = _ORIGINS.get(value.origin)
    return plain(value.shown or "''") + (f" ({origin})" if origin else "")


# ---- two configurations --------------------------------------------------------------------------


def held(sides: Held, width: int | None, *, verbose: bool) -> Text:
    """Return how two configurations compare: the answer, both sides, a verdict for each category of the checklist."""
    page, count = Page(width), len(sides.counting)
    answer = (
        f"DIFFERENT: {counted(count, 'setting')} that change{'s' if count == 1 else ''} numbers"
        if count
        else f"SAME in {counted(len(sides.equal), 'setting')} that both have"
    )
    page.out.append(f"{answer}\n", style="bold red" if count else "bold green")
    for name, side in (("A", sides.a), ("B", sides.b)):
        page.say(f"{name}  {_about(side)}", "  ", "     ", "dim")
        for text in _unread(side):
            page.say(text, "     ", "     ", "yellow")
    page.out.append("\n")
    for category in Category:
        _category(page, category, sides, verbose)
    _recommended(page, sides, verbose)
    if verbose:
        _one_sided(page, sides)
        _untold(page)
    return page.out


def _about(side: Settings) -> str:
    source = side.source
    given = sum(value.origin is Origin.GIVEN for value in side.values.values())
    return f"{plain(os.path.basename(source.path))}  {source.form} with the names of {source.dialect}, {counted(given, 'setting')} given"


def _unread(side: Settings) -> Iterator[str]:
    """Yield what a script leaves to the shell."""
    names = sorted(title_of(side.source, name) for name in side.source.unknown if is_setting(name, side.source.dialect))
    if names:
        yield f"not known before the script runs, not compared: {', '.join(map(plain, names))}"
    if not side.source.is_complete:
        yield "some options come from variables that the script does not set: no default is assumed"


def _category(page: Page, category: Category, sides: Held, verbose: bool) -> None:
    """Add a category's verdict, and what differs in it."""
    differing = [each for each in sides.differences if each.category is category]
    equal = [name for name in sides.equal if BY_NAME[name].category is category]
    loose = [name for name in (*sides.only_a, *sides.only_b) if BY_NAME[name].category is category]
    if not differing and not equal and not loose:
        return
    counting = [each for each in differing if each.effect.counts]
    sign, style = (
        ("✗", "red") if counting else ("~", "yellow") if differing else ("✓", "green") if equal else ("–", "dim")
    )
    lead = f"{sign} {padded(category.value, 18)} "
    begins = len(page.out)
    page.say(_verdict(counting, differing, equal, loose), lead, "    ")
    page.out.stylize(style, begins, begins + len(lead))
    shown = differing if verbose else counting
    if shown:
        page.out.append(table([(*_cells(each), _EFFECTS[each.effect]) for each in shown], page.columns, "    "))
    if verbose and equal:
        page.say(", ".join(equal), "    equal: ", "      ", "dim")


def _verdict(
    counting: Sequence[Difference], differing: Sequence[Difference], equal: Sequence[str], loose: Sequence[str]
) -> str:
    parts = [f"{len(counting)} differ" if len(counting) != 1 else "1 differs"] if counting else []
    others = [each for each in differing if not each.effect.counts]
    rounding = sum(each.effect is not Effect.UNKNOWN for each in others)
    unknown = len(others) - rounding
    parts += [f"{rounding} may round otherwise"] if rounding else []
    parts += [f"{unknown} of unknown effect"] if unknown else []
    parts += [f"{len(equal)} equal"] if equal else []
    parts += [f"{len(loose)} on one side only"] if loose else []
    return ", ".join(parts)


def _recommended(page: Page, sides: Held, verbose: bool) -> None:
    """Add which settings are not what the checklist recommends for aligning two runs."""
    rows = []
    for name in (*sides.equal, *(each.setting for each in sides.differences), *sides.only_a, *sides.only_b):
        row = BY_NAME.get(name)
        if row is None or row.recommended is None:
            continue
        values = [side.values.get(name) for side in (sides.a, sides.b)]
        if any(value is not None and not _is_recommended(value.value, row.recommended) for value in values):
            rows.append(
                (name, *(_value(value) if value else "–" for value in values), f"recommended {row.recommended}")
            )
    if rows:
        more = "" if verbose else "; -v shows them"
        page.out.append("\n")
        text = f"Not as the checklists recommend while you align: {counted(len(rows), 'setting')}{more}"
        page.say(text, style="dim")
        page.out.append(table(rows, page.columns) if verbose else "", style="dim")


def _is_recommended(value: object, recommended: object) -> bool:
    return str(value).lower() == str(recommended).lower() or value == recommended


def _one_sided(page: Page, sides: Held) -> None:
    for name, only in (("A", sides.only_a), ("B", sides.only_b)):
        if only:
            page.say(", ".join(only), f"Only in {name}, not compared: ")


def _untold(page: Page) -> None:
    """Add the rows of the checklist that no configuration tells."""
    page.out.append("\nNo configuration tells:\n", style="bold")
    for rows in CHECKLIST.values():
        for key in rows:
            if key in FROM_RECORDINGS:
                page.say(FROM_RECORDINGS[key], f"  {key}: ", "    ", "bold")


def as_json(sides: Held) -> dict[str, object]:
    """Return how two configurations compare, for programs."""
    both = {name: _side_json(side) for name, side in (("a", sides.a), ("b", sides.b))}
    return {"same": not sides.counting, "sides": both, **named(sides, "differences", "equal", "only_a", "only_b")}


def _side_json(side: Settings) -> dict[str, object]:
    source = side.source
    names = {"names": source.dialect.value, "unknown": sorted(source.unknown)}
    return {**named(source, "path", "form"), **names, "is_complete": source.is_complete}
