"""The answer of a comparison: the verdict, the places, everything that was compared."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.comparison.coverage.detection_limit import Unseen
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.coverage.verdict_margin import Flip
from probe.comparison.lookup import why_not
from probe.comparison.module_pairs import ModulePair
from probe.comparison.notes import Note, as_json, in_words
from probe.comparison.own_errors import Replayed
from probe.comparison.result import SCHEMA, Coverage, Divergence, Inputs, Judged, SlotResult, SlotResults, Verdict
from probe.comparison.run_summary import RunSummary
from probe.comparison.steps.paired_values import values_of
from probe.comparison.why import Why
from probe.errors import NotRecordedError
from probe.matching import Matching
from probe.matching.changes import Change
from probe.records import ByPath, PassName, ViewName

if TYPE_CHECKING:
    from probe.comparison.acceptance.result import Acceptance
    from probe.comparison.settings import DifferingSetting

_COLUMNS = 80
"""of the text that printing an answer shows"""


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

        return render(self, width=_COLUMNS).plain

    def __repr__(self) -> str:
        from probe.report.left_out import qualification

        first = self.first_divergence
        where = (
            ""
            if first is None
            else f", first at {first.path or 'the whole model'}: step {first.step}, {first.phase.label}"
        )
        return f"<Comparison: {self.verdict.value}{qualification(self.verdict, self.left_out)}{where}>"

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
            raise NotRecordedError(why_not(path, (self.ignored_a, self.ignored_b), alone, compared))
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
        own = self[path]
        shown = [
            (each.phase, each.limit) for each in self.divergences if path in {ref.path for ref in (*each.a, *each.b)}
        ]
        at_others = [
            slot for slot in self.slots if slot.blame and (slot.phase, slot.limit) in shown and slot not in own
        ]
        return Why(path, [*own, *at_others])

    def _values(self, slot: SlotResult) -> tuple[Any, Any]:
        return values_of(slot, self.path_a, self.path_b, self.steps, self.matching)

    def plot(
        self, kind: ViewName = "error", *, step: int | None = None, at: str | None = None, phase: PassName | None = None,
        ax: Any = None,
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
        from probe.report.plots import kinds

        return kinds.draw(self, kind, step, at, phase, ax)

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
        first = self.first_divergence
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "runs": {name: run.as_json() for name, run in zip("ab", self.runs, strict=False)},
            "first_divergence": None if first is None else first.as_json(),
            "divergences": [divergence.as_json() for divergence in self.divergences],
            "coverage": self.coverage.as_json(),
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "unneeded_a": list(self.unneeded_a),
            "unneeded_b": list(self.unneeded_b),
            "ignored_a": list(self.ignored_a),
            "ignored_b": list(self.ignored_b),
            "left_out": [each.as_json() for each in self.left_out],
            "inputs": self.inputs.as_json(),
            "pairs": [pair.as_json() for pair in self.pairs],
            "mapping_mistakes": list(self.mapping_mistakes),
            "changes": [change.as_json() for change in self.changes],
            "doubts": list(self.doubts),
            "warnings": list(self.warnings),
            "notes": [as_json(each) for each in self.notes],
            "reasons": [as_json(each) for each in self.reasons],
            "noise": self.noise,
            "flip": None if self.flip is None else self.flip.as_json(),
            "unseen": None if self.unseen is None else self.unseen.as_json(),
            "acceptance": None if self.acceptance is None else self.acceptance.as_json(),
            "settings": [each.as_json() for each in self.settings],
            **({} if self.replayed is None else {"replayed": self.replayed.as_json()}),
        }
