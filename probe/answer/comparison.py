"""The answer of a comparison: the verdict, the places, everything that was compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.answer.left_out import LeftOut
from probe.answer.margin import Flip, Unseen
from probe.answer.metrics import SIXTEEN_BIT
from probe.answer.result import SCHEMA, Coverage, Divergence, Inputs, Judged, SlotResult, SlotResults, Verdict
from probe.answer.runs import ModulePair, Replayed, RunSummary
from probe.answer.why import Why
from probe.errors import NotRecordedError
from probe.mapping.nearest import nearest
from probe.matching import Matching
from probe.matching.changes import Change
from probe.notes import Note, in_words, named, note
from probe.numbers.statistics import unit_roundoff
from probe.records import ByPath, PassName, ViewName

Progress = Callable[[int, int], None]
"""of steps that are compared, and of all"""
Paths = tuple[Collection[str], Collection[str]]
"""of A, and of B"""

if TYPE_CHECKING:
    from probe.answer.acceptance import Acceptance
    from probe.answer.settings import DifferingSetting

_IN_JSON = (
    *("first_divergence", "divergences", "coverage", "only_a", "only_b", "unneeded_a", "unneeded_b", "ignored_a"),
    *("ignored_b", "left_out", "inputs", "pairs", "mapping_mistakes", "changes", "doubts", "warnings", "notes"),
    *("reasons", "noise", "flip", "unseen", "cannot_show", "acceptance", "settings"),
)
"""attributes of an answer that stand in it under their own names"""


@dataclass(frozen=True)
class Comparison(Judged, ByPath[SlotResults]):
    """The answer, and everything that it rests on: a mapping from the paths of A's modules to what was compared of each.

    It is true if the verdict is aligned.
    """

    verdict: Verdict
    divergences: tuple[Divergence, ...]
    """places that are wrong by themselves, in the order of cause"""
    coverage: Coverage
    notes: tuple[Note, ...]
    """what is to be said of the comparison, whatever the verdict is, and all `reasons`"""
    noise: str
    slots: tuple[SlotResult, ...] = field(repr=False)
    """every pair of tensors that was looked at, in causal order"""
    matching: Matching = field(repr=False)
    path_a: str = ""
    path_b: str = ""
    only_a: tuple[str, ...] = field(default=(), repr=False)
    """modules of A that were called and have no counterpart"""
    only_b: tuple[str, ...] = field(default=(), repr=False)
    unneeded_a: tuple[str, ...] = field(default=(), repr=False)
    """modules of A that were called, have no counterpart and need none: Identity, containers, functions of the other side"""
    unneeded_b: tuple[str, ...] = field(default=(), repr=False)
    inputs: Inputs = Inputs()
    """how what both runs were given compares"""
    reasons: tuple[Note, ...] = ()
    """those of the notes for which the verdict cannot be aligned"""
    flip: Flip | None = None
    """the smallest change of tolerance that changes the verdict"""
    unseen: Unseen | None = None
    """how large an error the verdict aligned does not rule out; None where that is as small as rounding in 32 bits"""
    cannot_show: tuple[Note, ...] = ()
    """of the verdict aligned: what A's data cannot show, the weightiest first"""
    left_out: tuple[LeftOut, ...] = ()
    """what was not recorded, not compared or not judged: the verdict says nothing of it"""
    steps: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """those of A that were compared, each with the step of B that it is"""
    changes: tuple[Change, ...] = ()
    """what one model has, or does, otherwise than the other: layers inserted, removed, swapped, wrapped; calls"""
    ignored_a: tuple[str, ...] = field(default=(), repr=False)
    """modules of A that the mapping leaves out (``ignore``)"""
    ignored_b: tuple[str, ...] = field(default=(), repr=False)
    pairs: tuple[ModulePair, ...] = field(default=(), repr=False)
    """modules that were taken for the same"""
    runs: tuple[RunSummary, ...] = ()
    """what A and B are recordings of"""
    replayed: Replayed | None = None
    """of `probe.replay`: what was replayed, and what was not"""
    acceptance: Acceptance | None = None
    """the answer of the acceptance table that was asked for, which the verdict does not depend on; None where none was"""
    settings: tuple[DifferingSetting, ...] = field(default=(), repr=False)
    """what their configurations, optimizers and environments hold otherwise, likely causes first"""

    @property
    def warnings(self) -> tuple[str, ...]:
        """The notes in words."""
        return in_words(self.notes)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reasons in words."""
        return in_words(self.reasons)

    @property
    def mapping_mistakes(self) -> tuple[str, ...]:
        """Lines of the mapping that do nothing, each as a sentence; they are among the warnings too."""
        return in_words(self.mistaken)

    @property
    def mistaken(self) -> tuple[Note, ...]:
        """The notes on lines of the mapping that do nothing."""
        return tuple(each for each in self.notes if each in self.matching.mistaken)

    @property
    def first_divergence(self) -> Divergence | None:
        """The first place that is really wrong, or None."""
        return self.divergences[0] if self.divergences else None

    def __str__(self) -> str:
        """Return the report as plain text."""
        from probe.report.text import render

        return render(self, width=80).plain

    def __repr__(self) -> str:
        from probe.report.left_out import qualification

        first, said = self.first_divergence, f"{self.verdict.value}{qualification(self.verdict, self.left_out)}"
        said += f", first at {first.path or 'the whole model'}: step {first.step}, {first.phase.label}" if first else ""
        return f"<Comparison: {said}>"

    def __getitem__(self, path: str) -> SlotResults:
        """Return what was compared of a module, by A's or B's path or a glob; ``.output[0]`` is its first output.

        Raises
        ------
        NotRecordedError
            nothing of that name was compared
        """
        if not isinstance(path, str):
            raise self._not_a_path(path)
        found = self._found(path)
        if not found:
            alone = (*self.only_a, *self.unneeded_a), (*self.only_b, *self.unneeded_b)
            compared = (each for slot in self.slots for each in sorted(slot.paths))
            raise NotRecordedError(_why_not(path, (self.ignored_a, self.ignored_b), alone, compared))
        return SlotResults(replace(slot, reads=self._values) for slot in found)

    def _found(self, path: str) -> list[SlotResult]:
        """Return what was compared of a module, or of those that a glob names, in causal order."""
        exact = self._by_path.get(path)
        if exact is None:
            globbed = (places for each, places in self._by_path.items() if fnmatchcase(each, path))
            exact = sorted({at for places in globbed for at in places})
        return [self.slots[at] for at in exact]

    @functools.cached_property
    def _by_path(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for at, slot in enumerate(self.slots):
            for path in slot.paths:
                found.setdefault(path, []).append(at)
        return found

    def _paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(slot.path_a for slot in self.slots))

    def why(self, path: str) -> Why:
        """Return how a module was judged, tensor by tensor, by A's or B's path or a glob; print it.

        Behind them stand tensors of other modules that show that it is wrong.

        Raises
        ------
        NotRecordedError
            nothing of that name was compared
        """
        charged = tuple(each for each in self.divergences if path in {ref.path for ref in (*each.a, *each.b)})
        own, shown = self[path], [(each.step, each.phase, each.blame) for each in charged]
        at_others = [slot for slot in self.slots if (slot.step, slot.phase, slot.blame) in shown and slot not in own]
        return Why(path, [*own, *at_others], charged)

    def _values(self, slot: SlotResult) -> tuple[Any, Any]:
        from probe.report.again import values_of

        return values_of(self, slot)

    def plot(
        self, kind: ViewName = "error", *, step: int | None = None, at: str | None = None, phase: PassName | None = None,
        ax: Any = None
    ) -> Any:  # fmt: skip
        """Draw what was compared in a step (needs matplotlib).

        Parameters
        ----------
        kind
            ``"error"``: the relative error of every pair of tensors, in the order of cause; ``"graph"``: the data flow of both models,
            and the error on its way from where it is made to what it reaches
        step
            of A; the one that diverges when None; of an aligned answer the last one, for the graph the first one
        at
            path of the module of A, or of B, that the graph is drawn around; the first divergence when None
        phase
            of the graph, ``"forward"`` or ``"backward"``; that of the first divergence when None, forward where it is in neither
        ax
            where to draw

        Returns
        -------
        matplotlib Axes
            where it is drawn

        Raises
        ------
        ImportError
            matplotlib is not installed
        ConfigError
            there is no such kind or phase, the step was not compared, or no such module ran
        NotRecordedError
            there is nothing to draw
        """
        from probe.report.plots import draw

        return draw(self, kind, step, at, phase, ax)

    def save(self, path: str | Path) -> Path:
        """Write the answer to a file: .html, .json, .csv, .parquet (needs pandas and pyarrow) or .txt. Return its path.

        Raises
        ------
        ConfigError
            the name has another ending
        StoreError
            the file cannot be written
        """
        from probe.report.formats.saving import save

        return save(self, path)

    def open(self) -> Path:
        """Write the HTML page to a new temporary folder and open it in the browser. Return its path."""
        from probe.report.formats.saving import show

        return show(self)

    def _repr_html_(self) -> str:
        from probe.report.notebook.answers import of_comparison

        return of_comparison(self)

    def table(self) -> Any:
        """Return a pandas.DataFrame with a row per compared slot (needs pandas)."""
        from probe.report.table import frame

        return frame(self)

    def as_json(self) -> dict[str, object]:
        """Return the answer by the names that ``--format json`` uses."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "runs": {name: run.as_json() for name, run in zip("ab", self.runs, strict=False)},
            **named(self, *_IN_JSON, *(() if self.replayed is None else ("replayed",))),
        }


def _why_not(path: str, ignored: Paths, alone: Paths, compared: Iterable[str]) -> str:
    """Say why nothing of a path was compared: the mapping ignores it, it ran ``alone``, or it is none of either side."""
    left_out = [name for name, paths in zip("AB", ignored, strict=True) if path in paths]
    if left_out:
        return f"{path!r} is left out by the mapping (ignore) in {' and '.join(left_out)}: nothing of it was compared"
    lonely = [other for other, paths in zip("BA", alone, strict=True) if path in paths]
    if lonely:
        where = f"in {lonely[0]}" if len(lonely) == 1 else "on either side"
        return f"{path!r} has no counterpart {where}; a layer mapping can give it one (see .only_a and .only_b)"
    near = nearest(path, [*dict.fromkeys(compared), *(each for paths in (*ignored, *alone) for each in paths)])
    asked = f"; did you mean {near[0]!r}?" if near else ""
    return f"{path!r} is in neither recording, or nothing of it was recorded{asked}"


def deciding(comparison: Comparison) -> Note | None:
    """Return what would decide a comparison that 16 bits leave open: A's routing, or a replay, which inherits no errors."""
    dtypes = {dtype for slot in comparison.slots for dtype in (slot.dtype_a, slot.dtype_b)}
    is_open = comparison.verdict is Verdict.UNDECIDED and any(unit_roundoff(dtype) > SIXTEEN_BIT for dtype in dtypes)
    known = {"is_routing": any(each.facts.get("is_replayed") is False for each in comparison.reasons)}
    return note("replay-decides", file=comparison.path_a, **known) if is_open and not comparison.replayed else None
