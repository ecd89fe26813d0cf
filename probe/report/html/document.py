"""What the page shows, as plain data: one JSON document.

Tables lie by columns, so that many rows stay small. Modules are named by their index in their own tree, rows of the tree
by their index in ``tree``, tensors by theirs in ``tensors``; texts that are said often by theirs in ``words``.
docs/guide/report.md describes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from probe._version import __version__
from probe.answer.comparison import Comparison
from probe.answer.metrics import TOLERANCE, Metrics, Status
from probe.answer.result import Divergence, SlotResult, Verdict
from probe.answer.why import explained
from probe.contents.experts import loads
from probe.errors import MappingError
from probe.matching import Known, Matching, Pair, Reason
from probe.matching.draft import draft, is_written_from_a
from probe.notes import Note
from probe.ranks.opening import open_reader
from probe.report.acceptance import for_page
from probe.report.again import Again, values_in
from probe.report.html import rows
from probe.report.html.axes import Axes
from probe.report.html.columns import (
    Words,
    both_as_columns,
    by_columns,
    number,
    numbers,
    side_of,
    speakable,
    statistics,
    statistics_of,
)  # fmt: skip
from probe.report.html.curves import curves
from probe.report.html.sources import sources
from probe.report.html.tensors import LARGEST, drawn
from probe.report.layout import file_names
from probe.report.left_out import qualification, rest
from probe.report.measured import headline, stands
from probe.report.why import why_limit
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.steps.events import Event

SCHEMA = 1
MOST_DRAWN = 20
"""findings of which the values are drawn"""
_METRICS = ("rel_l2", "cosine", "coherence", "norm_ratio", "max_abs", "max_rel", "mean_abs")
DETAILS = (*_METRICS, "sources", "statistics_a", "statistics_b")
"""columns of tensors that are looked at one at a time"""
_FEW_DIGITS = 2
"""of numbers of which the size alone is shown: they take less than half the room"""
_MOST_LOOSE = 4000
"""modules without a partner of which the records are listed"""
_MOST_RECORDS = 40
"""of one of them"""


def document(comparison: Comparison, serving: Mapping[str, str] | None = None) -> dict[str, object]:
    """Return everything that the page shows of a comparison.

    Parameters
    ----------
    comparison
        what to show
    serving
        of a page from a server: ``file``, the name of the mapping that pairs are saved in, and ``said``, what came of the last ones

    Raises
    ------
    StoreError, FormatError
        a recording is no longer where it was
    """
    with open_reader(comparison.path_a) as a, open_reader(comparison.path_b) as b:
        return _Document(comparison, a, b, serving).made()


class _Document:
    """The document under way."""

    def __init__(self, comparison: Comparison, a: Reader, b: Reader, serving: Mapping[str, str] | None) -> None:
        self.comparison, self.serving = comparison, serving
        self.a, self.b = a, b
        self.tree_a, self.tree_b = Tree(a.modules, operations=True), Tree(b.modules, operations=True)
        self.matching = with_operations(comparison, self.tree_a, self.tree_b)
        self.words = Words()
        self.names = dict(zip("ab", file_names(comparison.path_a, comparison.path_b), strict=True))
        self.axes = Axes.of(comparison.slots, a.info.model_config)
        self.pair_of_a = {pair.a: index for index, pair in enumerate(self.matching.pairs)}
        again = Again.of(comparison, a, b)
        self.steps = {step: again.step(step) for step, _ in comparison.steps}
        first = next(iter(self.steps.values()), None)
        self.first_step = {} if first is None else {"a": first.a, "b": first.b}
        begins_a, begins_b = (rows.begun(self.first_step[side].calls) if first is not None else {} for side in "ab")
        self.events = [again.event(slot) for slot in comparison.slots]
        self.rows = rows.merged(
            self.matching, self.tree_a, self.tree_b,
            _left(comparison.only_a, comparison.unneeded_a), _left(comparison.only_b, comparison.unneeded_b),
            (begins_a, begins_b),
        )  # fmt: skip

    def made(self) -> dict[str, object]:
        """Return the document."""
        pairs = self.matching.pairs
        found_in = [self._row_of(found) for found in self.comparison.divergences]
        table, flip, steps = self.comparison.acceptance, self.comparison.flip, self.comparison.steps
        to_b = steps[0][1] - steps[0][0] if steps else 0
        return {
            "schema": SCHEMA,
            "probe": __version__,
            "answer": speakable(self.comparison.as_json()),
            "stands": stands(self.comparison) if self.comparison.verdict is Verdict.DIVERGED else "",
            "acceptance": None if table is None else asdict(for_page(table)),
            "closest_is_fixed": bool(flip and flip.closest and flip.closest.is_fixed),
            "but_for": qualification(self.comparison.verdict, self.comparison.left_out).strip(),
            "not_compared": rest(self.comparison.left_out) if self.comparison.verdict is Verdict.ALIGNED else "",
            "doubts": self._doubts(),
            "sides": {name: side_of(reader, self.names[name], self.words) for name, reader in (("a", self.a), ("b", self.b))},
            "pairs": {
                "a": [pair.a for pair in pairs], "b": [pair.b for pair in pairs],
                "reason": [pair.reason.value for pair in pairs], "confidence": numbers(pair.confidence for pair in pairs),
            },
            "tree": {name: [getattr(row, name) for row in self.rows] for name in ("a", "b", "pair", "state", "depth")},
            "calls": self._calls(),
            "tensors": self._tensors(),
            "findings": [self._finding(found, row, at < MOST_DRAWN)
                         for at, (found, row) in enumerate(zip(self.comparison.divergences, found_in, strict=True))],
            "sources": sources(self.rows, found_in, (self.a, self.b), self.words),
            "loose": {"a": self._loose("a"), "b": self._loose("b")},
            "flow": both_as_columns(self.steps, self.comparison.slots, self.comparison.first_divergence, self.words),
            "mapping": beside(self.comparison, self.a, self.b),
            "serving": self.serving,
            "curves": curves(self.comparison.path_a, self.comparison.path_b, self.comparison.slots, to_b),
            "experts": {name: speakable([load.as_json(-at * to_b) for load in loads(reader, [pair[at] for pair in steps])])
                        for at, (name, reader) in enumerate((("a", self.a), ("b", self.b)))},
            "rules": self._rules(),
            "words": self.words.all,
        }  # fmt: skip

    def _rules(self) -> dict[str, dict[str, str]]:
        """Return by column what the codes say that stand at tensors and findings."""
        slots = self.comparison.slots
        blame = {each.blame for each in (*slots, *self.comparison.divergences)} - {""}
        return {
            "exemption": {code: explained(code) for code in sorted({slot.exemption for slot in slots} - {""})},
            "blame": {code: explained(code) for code in sorted(blame)},
        }

    def _doubts(self) -> list[dict[str, object]]:
        """Return why it could not be told, each reason with the module that it names: its path and row, -1 where it names none."""
        found: dict[str, tuple[str, int]] = {}
        for reason in self.comparison.reasons:
            places = ((path, self._row_at(path)) for path in _paths_in(reason))
            found.setdefault(str(reason), next((each for each in places if each[1] >= 0), ("", rows.ABSENT)))
        return [{"text": text, "path": path, "row": row} for text, (path, row) in found.items()]

    def _row_at(self, path: str) -> int:
        """Return the row of a module of A, or of B where A has none of that path; -1 if there is none."""
        for name, tree in (("a", self.tree_a), ("b", self.tree_b)):
            module = tree.by_path.get(path)
            if module is not None:
                return next(at for at, row in enumerate(self.rows) if getattr(row, name) == module)
        return rows.ABSENT

    # The runs and what ran

    def _calls(self) -> dict[str, list[object]]:
        """Return the paired calls of all steps, in the order in which they began in A."""
        names = ("step", "micro", "pair", "call", "call_b", "training_a", "training_b", "gradients", "autocast")
        found = [
            (number, node.a.micro, self.pair_of_a[node.a.module], node.a.number, node.b.number, int(node.a.is_training),
             int(node.b.is_training), int(node.a.has_gradients and node.b.has_gradients), self.words.number(node.a.autocast))
            for number, step in self.steps.items()
            for node in step.nodes
        ]  # fmt: skip
        return by_columns(names, found)

    # Tensors

    def _tensors(self) -> dict[str, object]:
        """Return all pairs of tensors, in causal order: places, verdicts, metrics, statistics of both sides."""
        slots, word = self.comparison.slots, self.words.number
        names = ("step", "micro", "call", "pair", "phase", "role", "verdict", "status", "estimated", "is_bound",
                 "slot_a", "slot_b", "dtype_a", "dtype_b", "shape_a", "shape_b", "why_not", "max_abs_at", "measure",
                 "is_fixed", "exemption", "blame", "why_limit")  # fmt: skip
        places = [
            (slot.step, slot.micro, slot.call, self._pair(slot), word(slot.phase.label), word(slot.role.label),
             word(slot.verdict), word(slot.metrics.status.value), int(slot.metrics.estimated), int(slot.metrics.is_lower_bound),
             word(slot.slot_a), word(slot.slot_b), word(slot.dtype_a), word(slot.dtype_b), word(str(list(slot.shape_a))),
             word(str(list(slot.shape_b))), word(slot.metrics.reason),
             word("" if slot.metrics.max_abs_at is None else str(list(slot.metrics.max_abs_at))), word(slot.measure),
             int(slot.is_fixed), word(slot.exemption), word(slot.blame),
             word(why_limit(slot)))
            for slot in slots
        ]  # fmt: skip
        metrics = {name: numbers(getattr(slot.metrics, name) for slot in slots) for name in _METRICS}
        return {
            **by_columns(names, places),
            "nonfinite": [
                at
                for at, (slot, event) in enumerate(zip(slots, self.events, strict=True))
                if _has_nonfinite(slot, event)
            ],
            "error": numbers(slot.error for slot in slots),
            "limit": numbers(slot.limit for slot in slots),
            "sources": [number(slot.sources, _FEW_DIGITS) for slot in slots],
            **({} if self.comparison.replayed is None else {"in_run": numbers(slot.in_run for slot in slots)}),
            **metrics,
            "statistics_a": statistics([statistics_of(event.a if event else None) for event in self.events]),
            "statistics_b": statistics([statistics_of(event.b if event else None) for event in self.events]),
        }

    def _pair(self, slot: SlotResult) -> int:
        return self.pair_of_a[self.tree_a.by_path[slot.path_a]]

    # Findings

    def _finding(self, found: Divergence, row: int, is_drawn: bool) -> dict[str, object]:
        tensor = self._tensor_of(found)
        drawn, why_not = self._drawn(tensor) if is_drawn and tensor >= 0 else (None, "")
        return {
            **speakable(found.as_json()),
            "headline": headline(found),
            "error": number(found.error),
            "measure": found.measure,
            "is_fixed": any(said.code == TOLERANCE for said in found.facts),
            "row": row,
            "tensor": tensor,
            "drawn": drawn,
            "not_drawn": why_not,
        }

    def _tensor_of(self, found: Divergence) -> int:
        """Return the pair of tensors that a finding is about, -1 if there is none."""
        if found.metrics is None:
            return rows.ABSENT
        wanted = (found.step, found.phase, found.role, *_sizes(found.metrics))
        slots = enumerate(self.comparison.slots)
        fits = [at for at, slot in slots if (slot.step, slot.phase, slot.role, *_sizes(slot.metrics)) == wanted]
        wrong = [at for at in fits if self.comparison.slots[at].verdict == "introduced"]
        return next(iter((*wrong, *fits)), rows.ABSENT)

    def _row_of(self, found: Divergence) -> int:
        """Return the row of the tree that a finding is in; the root's where it has no module."""
        paths = {ref.path for ref in found.a}, {ref.path for ref in found.b}
        for index, row in enumerate(self.rows):
            in_a = row.a != rows.ABSENT and self.tree_a.path(row.a) in paths[0]
            if in_a or (not paths[0] and row.b != rows.ABSENT and self.tree_b.path(row.b) in paths[1]):
                return index
        return 0

    def _drawn(self, at: int) -> tuple[dict[str, object] | None, str]:
        """Return the picture of two tensors, or why there is none."""
        slot, event = self.comparison.slots[at], self.events[at]
        count, tensors = math.prod(slot.shape_a), (event.a, event.b) if event is not None else ()
        if event is None or not all(each is not None and each.has_values for each in tensors):
            return (
                None,
                'no values were recorded of it: record both runs with task="tensor" to see where the error lies',
            )
        if count > LARGEST:
            return None, f"its {count:,} elements are too many to draw (up to {LARGEST:,})"
        values = values_in(self.steps[slot.step], event) if count else None
        if values is None:
            return None, "the two have no common shape"
        names = self.axes.names(slot, event.a.axes if event.a is not None else ())
        return {**drawn(*values), "names": names or [""]}, ""

    # What has no partner

    def _loose(self, name: str) -> dict[str, object]:
        """Return what was recorded of modules without a partner, so that it can be seen what would be compared."""
        left = rows.State.UNMATCHED, rows.State.UNNEEDED
        wanted = [getattr(row, name) for state in left for row in self.rows if row.state is state]
        chosen = set([index for index in wanted if index != rows.ABSENT][:_MOST_LOOSE])
        found: dict[int, list[list[object]]] = {}
        half = self.first_step.get(name)
        for row in () if half is None else half.reader.of_step("records", half.step):
            records = found.setdefault(int(row["module"]), []) if row["module"] in chosen else None
            if records is not None and len(records) < _MOST_RECORDS and row["micro"] == 0:
                records.append(self._record(half.reader, row))
        return {str(module): records for module, records in found.items()}

    def _record(self, reader: Reader, row: Any) -> list[object]:
        """Return phase, role, slot, call, dtype, shape, norm and hash of a record."""
        word, digest = self.words.number, int(row["hash_lo"]) & 0xFFFFFFFFFFFF
        shape, text = str(list(reader.shapes[row["shape"]])), f"{digest:012x}" if row["hash_kind"] else ""
        return [int(row["phase"]), int(row["role"]), word(reader.slots[row["slot"]]), int(row["call"]),
                word(row["dtype"].decode()), word(shape), number(float(row["norm"])), text]  # fmt: skip


def beside(comparison: Comparison, a: Reader, b: Reader) -> dict[str, str]:
    """Say what lines of a mapping have to stand beside (``base``), and from which side they are written (``from``).

    Where all pairs were found without a mapping, it is drafted, so that each is said; ``why_not`` says why it cannot be. Beside a mapping the lines
    stand by themselves: what it leaves open is found again.
    """
    matching = comparison.matching
    reasons = {pair.reason for pair in matching.pairs}
    is_guessed = bool(reasons & {Reason.SAME_STRUCTURE, Reason.SAME_VALUES})
    if not is_guessed or Reason.MAPPED in reasons:
        return {"base": "", "from": matching.direction.value[0], "why_not": ""}
    known = [Known(Tree(reader.modules), reader.parameters, reader.info.model_config) for reader in (a, b)]
    names = file_names(comparison.path_a, comparison.path_b)
    source = "a" if is_written_from_a(matching) else "b"
    try:
        return {"base": draft(matching, *known, names), "from": source, "why_not": ""}
    except MappingError as error:  # names that a mapping cannot say
        return {"base": "", "from": source, "why_not": str(error)}


_PATHS = ("path", "paths", "caller", "first", "place")
"""names of facts that are modules, or tensors of them: ``output 0 of layers.1``"""


def _paths_in(said: Note) -> Iterator[str]:
    """Yield the paths of modules that a note names, those of notes inside of it too."""
    for name, value in said.facts.items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Note):
                yield from _paths_in(each)
            elif name in _PATHS and each and isinstance(each, str):
                yield each.rpartition(" of ")[2]


def _sizes(metrics: Metrics) -> tuple[float, float, float]:
    """Return what tells one pair of tensors from another."""
    return metrics.rel_l2, metrics.norm_a, metrics.norm_b


def _has_nonfinite(slot: SlotResult, event: Event | None) -> bool:
    """Return True if a tensor of a pair has elements that are no numbers."""
    tensors = (event.a, event.b) if event is not None else ()
    return slot.metrics.status is Status.NONFINITE or any(each is not None and sum(each.bad) for each in tensors)


def with_operations(comparison: Comparison, a: Tree, b: Tree) -> Matching:
    """Return the matching with the operations that were compared."""
    paths = dict.fromkeys((slot.path_a, slot.path_b) for slot in comparison.slots)
    known = [(a.by_path.get(here, -1), b.by_path.get(there, -1)) for here, there in paths]
    found = [Pair(i, j, Reason.SAME_VALUES) for i, j in known if i >= 0 <= j and a.modules[i].is_operation]
    return replace(comparison.matching, pairs=(*comparison.matching.pairs, *found))


def _left(unmatched: tuple[str, ...], unneeded: tuple[str, ...]) -> dict[str, rows.State]:
    return dict.fromkeys(unmatched, rows.State.UNMATCHED) | dict.fromkeys(unneeded, rows.State.UNNEEDED)
