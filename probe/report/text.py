"""A comparison in words for the terminal: the answer first, then the evidence, then what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from probe.answer.comparison import Comparison, deciding
from probe.answer.guards import grouped
from probe.answer.metrics import FIXED_MEASURES, TOLERANCE
from probe.answer.result import Divergence, Inputs, Kind, NodeRef, Verdict
from probe.answer.runs import Replayed, RunSummary
from probe.notes import Note
from probe.report.layout import (
    LONGEST_LIST,
    PLAIN_WIDTH,
    Page,
    file_names,
    packed,
    padded,
    place_of_code,
    plain,
    shortened,
    wrapped,
)
from probe.report.left_out import qualification, rest
from probe.report.measured import OF_SOURCES, about, alike, amount, figures, headline, judged, stands, times
from probe.report.words import texts
from probe.report.words.forms import counted

if TYPE_CHECKING:
    from probe.answer.settings import DifferingSetting

_STYLE = {Verdict.ALIGNED: "bold green", Verdict.DIVERGED: "bold red", Verdict.UNDECIDED: "bold yellow"}
_NARROWEST = 40
"""columns; what is narrower wraps by itself"""
_MOST_LISTED = 8
_MOST_NOTES = 3
_FROM_NUMBERS = (Kind.INTRODUCED, Kind.UPDATE)
"""kinds of findings whose hint is read from the numbers of a place"""
_MOST_PLACES = 6
"""of one side that are listed, where it has several for one"""


def render(comparison: Comparison, top: int = 5, width: int | None = None, *, verbose: bool = False) -> Text:
    """Return the report, with the styles that a terminal shows.

    Parameters
    ----------
    comparison
        what to report
    top
        how many divergences after the first are listed
    width
        columns of the terminal. None, for what goes to none: sentences take 80 columns, and names stay whole
    verbose
        show all notes, not only the first three
    """
    return _Report(comparison, top, width, verbose).made()


class _Report(Page):
    """The report under way."""

    def __init__(self, comparison: Comparison, top: int, width: int | None, verbose: bool) -> None:
        super().__init__(None if width is None else max(width, _NARROWEST))
        self.comparison, self.top, self.verbose = comparison, top, verbose
        mistakes = () if comparison.verdict is Verdict.ALIGNED else comparison.mistaken
        self.mistakes = mistakes if len(mistakes) > 1 else ()
        """what is listed under the verdict, and nowhere else"""

    def made(self) -> Text:
        """Return the report."""
        comparison, first = self.comparison, self.comparison.first_divergence
        self._head()
        self._acceptance()
        self._mapping_mistakes()
        if first is not None and comparison.verdict is Verdict.DIVERGED:
            self._first(first)
            self._others(comparison.divergences[1:])
        elif comparison.verdict is Verdict.ALIGNED:
            self._aligned()
        else:
            self._undecided()
        self._settings()
        self._footer()
        self._notes()
        self._deciding()
        self.out.rstrip()
        return self.out

    def _mapping_mistakes(self) -> None:
        """List several lines of the mapping that do nothing: what follows may come of them. One is told as evidence or a note."""
        if self.mistakes:
            self.say(f"{len(self.mistakes)} lines of the mapping do nothing: correct them first", style="bold yellow")
            for mistake in map(str, self.mistakes if self.verbose else self.mistakes[:_MOST_LISTED]):
                self._tell(plain(mistake.removeprefix("the mapping's "), LONGEST_LIST))
            if not self.verbose and len(self.mistakes) > _MOST_LISTED:
                self._tell(f"{len(self.mistakes) - _MOST_LISTED} more: -v shows all")
            self.out.append("\n")

    def _acceptance(self) -> None:
        """Add the acceptance table that was asked for."""
        if self.comparison.acceptance is not None:
            from probe.report import acceptance

            self.out.append_text(acceptance.render(self.comparison.acceptance, self.columns))
            self.out.append("\n")

    def _undecided(self) -> None:
        """Say why it could not be told, and what to do: the first reason as the answer, the others below."""
        first, *others = self.comparison.doubts
        self.say(plain(first, LONGEST_LIST), style="bold")
        for doubt in others:
            self.say(plain(doubt, LONGEST_LIST), "  also: ", "    ", "yellow")
        self.out.append("\n")

    def _notes(self) -> None:
        """Add the first notes, and how many there are more."""
        said = self.comparison.reasons if self.comparison.verdict is Verdict.UNDECIDED else ()
        listed = _listed(self.comparison.settings)
        notes = texts(each for each in self.comparison.notes if each not in (*said, *self.mistakes, *listed))
        shown = notes if self.verbose else notes[:_MOST_NOTES]
        for note in shown:
            self.say(plain(note, LONGEST_LIST), "note: ", "      ", "yellow")
        if len(shown) < len(notes):
            self.say(f"{counted(len(notes) - len(shown), 'more note')}: -v shows all", style="yellow")

    def _tell(self, text: str, lead: str = "  ", style: str = "") -> None:
        """Add a sentence of what was found; a name in it stays whole where there is no terminal."""
        self.say(text, lead, "    ", style)

    def _head(self) -> None:
        verdict, left_out = self.comparison.verdict, self.comparison.left_out
        answer = verdict.value.upper() + qualification(verdict, left_out)
        answer = wrapped(answer, self.width, indent="  ")
        names = [plain(name) for name in file_names(self.comparison.path_a, self.comparison.path_b)]
        rest = len(verdict.value) + 8
        if self.columns is not None and rest + sum(map(cell_len, names)) > self.columns:
            names = [shortened(name, (self.columns - rest) // 2) for name in names]
        files = f"A {names[0]}  B {names[1]}"
        is_room = self.columns is None or cell_len(answer.rpartition("\n")[2]) + 2 + cell_len(files) <= self.columns
        self.out.append(answer, style="bold yellow" if left_out else "")
        self.out.stylize(_STYLE[verdict], 0, len(verdict.value))
        self.out.append(f"  {files}\n" if is_room else f"\n  {files}\n")
        self._runs()
        self.out.append("\n")

    def _runs(self) -> None:
        """Say what A and B are recordings of: once, where that is the same."""
        rows = [_facts(run) for run in self.comparison.runs]
        names = ["A", "B"] if len(set(rows)) > 1 else ["A and B"]
        widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
        for name, row in zip(names, rows, strict=False):
            cells = [padded(cell, width) for cell, width in zip(row, widths, strict=True)]
            self.out.append(f"{packed([name, *cells], self.width, '  ', '    ')}".rstrip() + "\n", style="dim")
        losses = _losses(self.comparison)
        if losses:
            self.out.append(f"{packed(losses, self.width, '  loss ', '    ')}\n", style="dim")

    def _first(self, first: Divergence) -> None:
        begins, title = len(self.out), "First divergence"
        self.say(headline(first), f"{title}  ", "    ")
        self.out.stylize("bold", begins, begins + len(title))
        self._places(first)
        for said in first.facts:
            if said not in self.mistakes and str(said) != first.hint:
                self._tell(plain(str(said), LONGEST_LIST))
        numbers = _numbers(first)
        if numbers:
            self.out.append(f"{packed(numbers, self.width, '  ', '    ')}\n")
        inherited = sum(slot.verdict == "inherited" for slot in self.comparison.slots)
        holds = [stands(self.comparison)] if self.comparison.flip is not None else []
        affected = [f"{counted(inherited, 'downstream tensor')} affected"] if inherited else []
        self.say(" · ".join([*holds, *affected, f"confidence {first.confidence:.2f}"]), "  ", "    ")
        if first.hint:
            self._tell(plain(first.hint, LONGEST_LIST), "  → ", "bold")
            if _would_values_tell(first):
                self._tell(_with_values(first), "    ")
        self.out.append("\n")
        from probe.report.branch import drawn

        branch = drawn(self.comparison, self.columns or PLAIN_WIDTH)
        if branch is not None:
            self.out.append_text(branch)
            self.out.append("\n")

    def _places(self, divergence: Divergence) -> None:
        sides = [("A", divergence.a), ("B", divergence.b)]
        rows = {ref: self._place(divergence, ref) for _, refs in sides for ref in refs[:_MOST_PLACES]}
        width = max((cell_len(path) for path, _ in rows.values()), default=0)
        told = {""}
        for side, refs in sides:
            if not refs:
                self.out.append(f"  {side} ")
                self.out.append("has no counterpart\n", style="italic")
            for ref in refs[:_MOST_PLACES]:
                (path, details), code = rows[ref], plain(_code(ref))
                path = padded(path, min(width, 80) if self.columns is None else width)
                self.out.append(f"  {side} ")
                self.out.append(path, style="cyan")
                self.out.append(f"  {details}")
                if code not in told:
                    is_room = 8 + sum(map(cell_len, (path, details, code))) <= (self.columns or PLAIN_WIDTH)
                    self.out.append("  " if is_room else "\n    ")
                    self.out.append(code, style="dim")
                    told.add(code)
                self.out.append("\n")
            if len(refs) > _MOST_PLACES:
                self.out.append(f"  {side} and {len(refs) - _MOST_PLACES} more\n")

    def _place(self, divergence: Divergence, ref: NodeRef) -> tuple[str, str]:
        """Return the path, and what stands behind it."""
        room = self.columns
        names = [_path(ref), plain(ref.class_name), f"{divergence.role.label} {plain(ref.slot)}" if ref.slot else "",
                 f"call {ref.call}" if ref.call else ""]  # fmt: skip
        if room is not None and sum(map(cell_len, names)) + 10 > room:
            names[1:3] = [shortened(name, room // 4) for name in names[1:3]]
            names[0] = shortened(names[0], room - 10 - sum(map(cell_len, names[1:])))
        return names[0], "  ".join(filter(None, names[1:]))

    def _others(self, others: tuple[Divergence, ...]) -> None:
        if not others:
            return
        self.out.append(
            f"Also wrong by itself, in the order of cause ({min(self.top, len(others))} of {len(others)})\n"
        )
        for divergence in others[: self.top]:
            ref = (divergence.a or divergence.b)[0]
            metrics, size = divergence.metrics, ""
            if metrics is not None and metrics.is_known:
                size = f"  {amount(metrics)} differ" if metrics.of_integers else f"  rel {amount(metrics)}"
            slot = f"  {divergence.role.label} {plain(ref.slot)}" if ref.slot else ""
            path, end = _path(ref), f"{size}  confidence {divergence.confidence:.2f}"
            if self.columns is not None and cell_len(f"{path}{slot}{end}") + 12 > self.columns:
                slot = shortened(slot, self.columns // 4)
                path = shortened(path, self.columns - 12 - cell_len(slot + end))
            self.out.append(f"  {divergence.phase.label:<8}  ")
            self.out.append(path, style="cyan")
            self.out.append(f"{slot}{end}\n")
        self.out.append("\n")

    def _aligned(self) -> None:
        comparison = self.comparison
        known = [slot for slot in comparison.slots if slot.metrics.is_known]
        same = [slot for slot in known if slot.verdict == "equal"]
        equal = sum(not slot.metrics.other_zeros for slot in same)
        others = len(same) - equal
        zeros = f", {others} {'is' if others == 1 else 'are'} equal but for the sign of zeros" if others else ""
        steps = counted(len({slot.step for slot in known}), "step")
        self.say(f"No divergence in {len(known)} pairs of tensors over {steps}; {equal} are bit-equal{zeros}.")
        if known and equal == len(known):
            self.say(
                "That is what one program gives twice: if B was to be another framework, device or version, see probe info."
            )
        if rest(comparison.left_out):
            self.say(f"Not compared: {rest(comparison.left_out)}.")
        if comparison.unseen is not None:
            self.say(f"{comparison.unseen.text}.")
        flip = comparison.flip
        if flip is not None and flip.closest is not None:
            closest = flip.closest
            is_wanted = "fixed " in comparison.noise or closest.measure in FIXED_MEASURES
            limit = f"limit {closest.limit:.1e}" if is_wanted else f"up to {closest.limit:.1e} is noise"
            of_what = "" if alike(closest.error, closest.metrics.rel_l2) else f" {closest.measure or OF_SOURCES}"
            self.say(
                f"Closest to its limit: {closest.phase.label} {closest.role.label} {plain(closest.slot_a)} of "
                f"{plain(closest.path_a) or 'the model'}: rel {closest.error:.1e}{of_what}, {limit}; if "
                f"all limits were divided by {times(1 / flip.factor)}, it would be a divergence"
            )
        for blind in comparison.cannot_show if self.verbose else comparison.cannot_show[:_MOST_NOTES]:
            self.say(plain(str(blind), LONGEST_LIST), "cannot show: ", "      ")
        self.out.append("\n")

    def _settings(self) -> None:
        """List the settings that the recordings hold otherwise."""
        if self.comparison.settings:
            from probe.report.settings import section

            first = self.comparison.first_divergence
            is_open = first is not None and not first.settings and not _is_certain(first)
            self.out.append_text(section(self.comparison.settings, self.columns, verbose=self.verbose, unknown=is_open))
            self.out.append("\n")

    def _footer(self) -> None:
        comparison, coverage = self.comparison, self.comparison.coverage
        calls = f"{coverage.paired} of {coverage.total} module calls of {coverage.smaller}"
        self.say(
            f"Compared {calls if coverage.total else 'no module calls'} ({coverage.only_a} only in A, {coverage.only_b} only in B), {coverage.compared} pairs of "
            f"tensors · {coverage.not_comparable} not comparable · noise: {comparison.noise}"
        )
        if comparison.replayed is not None:
            self._replayed(comparison.replayed)
        else:
            self.say(f"Inputs: {_inputs(comparison.inputs)}")
        for side, paths in (("A", comparison.only_a), ("B", comparison.only_b)):
            if paths:
                outermost = _outermost(paths)
                named = grouped([plain(path) or "the model" for path in outermost], _MOST_LISTED)
                inside = len(paths) - len(outermost)
                more = f" (and {counted(inside, 'module')} inside)" if inside else ""
                self.say(f"Only in {side}: {named}{more}")
        self._left_out()
        unneeded = [
            f"{grouped(map(plain, paths), _MOST_LISTED)} in {side}"
            for side, paths in (("A", comparison.unneeded_a), ("B", comparison.unneeded_b)) if paths
        ]  # fmt: skip
        if unneeded:
            self.say(f"Need no partner: {'; '.join(unneeded)}")

    def _replayed(self, replayed: Replayed) -> None:
        """Say how much was replayed, and what was not."""
        whose = "A's weights" if replayed.weights == "a" else "its own weights"
        self.say(f"Replayed: {counted(replayed.modules, 'module')} of B, each alone, given what A's was and {whose}")
        shown = replayed.left if self.verbose else replayed.left[:_MOST_NOTES]
        for left in shown:
            self.say(plain(str(left), LONGEST_LIST), "not replayed: ", "      ", "yellow")
        if len(shown) < len(replayed.left):
            self.say(f"{len(replayed.left) - len(shown)} more were not replayed: -v shows all", style="yellow")

    def _deciding(self) -> None:
        """Say how to decide what rounding in 16 bits leaves open."""
        said = deciding(self.comparison)
        if said is not None:
            self.say(plain(str(said), LONGEST_LIST), style="bold")

    def _left_out(self) -> None:
        """Name the modules that the mapping ignores."""
        texts = {
            side: grouped([plain(path) for path in _outermost(paths)], _MOST_LISTED)
            for side, paths in (("A", self.comparison.ignored_a), ("B", self.comparison.ignored_b)) if paths
        }  # fmt: skip
        if len(set(texts.values())) == 1 and len(texts) == 2:
            self.say(f"Left out by the mapping: {texts['A']} on both sides")
        elif texts:
            self.say(f"Left out by the mapping: {'; '.join(f'{text} in {side}' for side, text in texts.items())}")


def _facts(run: RunSummary) -> tuple[str, ...]:
    """Return the cells of a run's line."""
    return (
        plain(" and ".join(run.models)),
        counted(run.modules, "module"),
        f"{_large(run.parameters)} parameters",
        counted(run.steps, "step"),
        plain(f"{run.framework} {run.version.partition('+')[0]}"),
    )


def _large(number: int) -> str:
    """Return a number of parameters as people say it: 494 M."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return str(number)


def _would_values_tell(finding: Divergence) -> bool:
    """Return True if values would say more of a place."""
    return finding.estimated and finding.kind in _FROM_NUMBERS and not _is_certain(finding)


def _is_certain(finding: Divergence) -> bool:
    """Return True if the hint is what was recorded, or what the recorded numbers verify."""
    return finding.is_read or any(hint["verified"] for hint in finding.hints)


def _with_values(finding: Divergence) -> str:
    """Return the option that records the values of a place on both sides, and what for."""
    begin = "To verify it" if finding.hints else "To learn more"
    sides = [refs[0] for refs in (finding.a, finding.b) if refs]
    options = [_values_of(ref) for ref in sides] if len(sides) == 2 else ['task="tensor"']
    others = f" in A, {options[1]} in B" if len(set(options)) > 1 else ""
    return f"{begin}, record its values: probe.start(..., {options[0]}){others}."


def _values_of(ref: NodeRef) -> str:
    """Return the option for one side: where the code of a module is named, what it hands to the modules inside tells."""
    name = plain(ref.path)
    inside = "" if ref.slot else f', "{name}.*"'
    return f'tensors=["{name}"{inside}]' if name else 'task="tensor"'


def _path(ref: NodeRef) -> str:
    return plain(ref.path) or "(the whole model)"


def _code(ref: NodeRef) -> str:
    """Return where the code of a module is, and where it is called."""
    caller = ref.called_from.replace("\\", "/").rpartition("/")[2]
    return ", ".join(filter(None, (place_of_code(ref.file, ref.line), f"called at {caller}" if caller else "")))


def _losses(comparison: Comparison) -> list[str]:
    """Return the losses of A and B in the first step that was compared, and in the last."""
    of_a, of_b = (run.losses for run in comparison.runs)
    both = [(step, of_a.get(step), of_b.get(step_b)) for step, step_b in comparison.steps]
    both = [each for each in both if each[1:] != (None, None)]
    ends = both[:: max(len(both) - 1, 1)]
    return [f"{_beside(a, b)}{f' (step {step})' if len(ends) > 1 else ''}" for step, a, b in ends]


def _beside(a: float | None, b: float | None) -> str:
    """Return two numbers in seven digits, or in as many as tell them apart."""
    written = [["–" if each is None else f"{each:#.{digits}g}" for each in (a, b)] for digits in (7, 9, 17)]
    return " | ".join(next((each for each in written if each[0] != each[1]), written[0]))


def _numbers(divergence: Divergence) -> list[str]:
    metrics = divergence.metrics
    if metrics is None or not metrics.is_known:
        return []
    sign, error = about(metrics), judged(divergence)
    if metrics.of_integers:
        return [f"{sign}{amount(metrics)} of the elements, which are integers, differ"]
    first = f"rel {sign}{amount(metrics)}"
    if not alike(error, metrics.rel_l2):
        first += f", {sign}{error:.1e} {divergence.measure or OF_SOURCES}"
    if error > divergence.limit:
        is_wanted = any(said.code == TOLERANCE for said in divergence.facts)
        first += f" (limit {divergence.limit:.1e})" if is_wanted else f" (up to {divergence.limit:.1e} is noise)"
    others = [f"{name.removesuffix('ine')} {text}" for name, text in figures(metrics)]
    return [first, *others, *filter(None, [metrics.reason])]


def _outermost(paths: Iterable[str]) -> list[str]:
    """Leave out paths that lie inside others."""
    known = set(paths)
    return [
        path for path in paths
        if not (path and "" in known) and not any(path[:at] in known for at, sign in enumerate(path) if sign == ".")
    ]  # fmt: skip


def _inputs(inputs: Inputs) -> str:
    """Say how what both runs were given compares."""
    found = {
        "equal on both sides": inputs.equal, "equal but for rounding": inputs.close, "different": inputs.different,
        "not comparable": inputs.not_comparable, "only in A": inputs.only_a, "only in B": inputs.only_b,
    }  # fmt: skip
    parts = []
    for what, names in found.items():
        shown = [f"argument {plain(name)}" if name[:1].isdigit() else plain(name) for name in names]
        more = f" and {len(shown) - _MOST_LISTED} more" if len(shown) > _MOST_LISTED else ""
        parts += [f"{', '.join(shown[:_MOST_LISTED])}{more} {what}"] if shown else []
    return "; ".join(parts) or "none were compared"


def _listed(settings: Sequence[DifferingSetting]) -> list[Note]:
    """Return the notes that say no more than the list of settings does."""
    if not settings:
        return []
    from probe.answer.settings import unseen_settings

    return unseen_settings(settings)
