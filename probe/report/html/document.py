"""What the page shows, as plain data: one JSON document.

Tables lie by columns, so that many rows stay small. Modules are named by their index in their own tree, rows of the tree
by their index in ``tree``, tensors by theirs in ``tensors``; texts that are said often by theirs in ``words``.
docs/guide/report.md describes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict

from probe._version import __version__
from probe.comparison.distance.metrics import Side, values_of_pair
from probe.comparison.exemptions.table import EXEMPTIONS, REFITS
from probe.comparison.noise.interface import TOLERANCE
from probe.comparison.notes import Note
from probe.comparison.result import Divergence, SlotResult, Verdict
from probe.comparison.run import Comparison
from probe.comparison.steps.paired_step import paired_step
from probe.comparison.steps.side import Status
from probe.comparison.why import explained
from probe.ranks.opening import open_reader
from probe.report.acceptance import for_page
from probe.report.axes import Axes
from probe.report.html import rows
from probe.report.html.beside import beside
from probe.report.html.columns import by_columns, side_of, statistics
from probe.report.html.curves import curves
from probe.report.html.flow import both_as_columns
from probe.report.html.numbers import Words, number, numbers, speakable
from probe.report.html.tensors import LARGEST, drawn
from probe.report.left_out import qualification, rest
from probe.report.names import file_names
from probe.report.text import headline, stands
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

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
        self.comparison, self.matching, self.serving = comparison, comparison.matching, serving
        self.a, self.b = a, b
        self.tree_a, self.tree_b = Tree(a.modules), Tree(b.modules)
        self.words = Words()
        self.names = dict(zip("ab", file_names(comparison.path_a, comparison.path_b), strict=True))
        self.axes = Axes.of(comparison.slots, a.info.model_config)
        self.pair_of_a = {pair.a: index for index, pair in enumerate(self.matching.pairs)}
        self.steps = {step: paired_step(a, b, step, step_b, self.matching) for step, step_b in comparison.steps}
        self.rows = rows.merged(
            self.matching, self.tree_a, self.tree_b, _left(comparison.only_a, comparison.unneeded_a),
            _left(comparison.only_b, comparison.unneeded_b), self._begins(),
        )  # fmt: skip

    def _begins(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return by module when it was first called on each side, in the first step."""
        found: tuple[dict[int, int], dict[int, int]] = ({}, {})
        for pairs in list(self.steps.values())[:1]:
            for begins, calls in zip(found, (pairs.calls_a, pairs.calls_b), strict=True):
                for call in calls:
                    begins[call.module] = min(begins.get(call.module, call.begin), call.begin)
        return found

    def made(self) -> dict[str, object]:
        """Return the document."""
        pairs = self.matching.pairs
        return {
            "schema": SCHEMA,
            "probe": __version__,
            "answer": speakable(self.comparison.as_json()),
            "stands": stands(self.comparison) if self.comparison.verdict is Verdict.DIVERGED else "",
            "acceptance": self._acceptance(),
            "closest_is_fixed": self._closest_is_fixed(),
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
            "findings": [self._finding(found, at < MOST_DRAWN)
                         for at, found in enumerate(self.comparison.divergences)],
            "loose": {"a": self._loose("a"), "b": self._loose("b")},
            "flow": both_as_columns(self.steps, self.comparison.slots, self.comparison.first_divergence, self.words),
            "mapping": beside(self.comparison, self.a, self.b),
            "serving": self.serving,
            "curves": curves(self.comparison.path_a, self.comparison.path_b, self.comparison.slots, self._to_b()),
            "rules": self._rules(),
            "words": self.words.all,
        }  # fmt: skip

    def _acceptance(self) -> object:
        """Return the acceptance table that was asked for."""
        table = self.comparison.acceptance
        return None if table is None else asdict(for_page(table))

    def _rules(self) -> dict[str, dict[str, str]]:
        """Return by column what the codes say that stand at tensors and findings."""
        slots = self.comparison.slots
        blame = {each.blame for each in (*slots, *self.comparison.divergences)} - {""}
        return {
            "exemption": {code: EXEMPTIONS[code] for code in sorted({slot.exemption for slot in slots} - {""})},
            "blame": {code: explained(code) for code in sorted(blame)},
            "tried": {code: REFITS[code] for code in sorted({code for slot in slots for code in slot.tried})},
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
            (step, node.micro, node.pair, node.call, node.call_b, int(node.training[0]), int(node.training[1]),
             int(node.grad_enabled), self.words.number(node.autocast))
            for step, pairs in self.steps.items()
            for node in pairs.nodes.values()
        ]  # fmt: skip
        return by_columns(names, found)

    # Tensors

    def _tensors(self) -> dict[str, object]:
        """Return all pairs of tensors, in causal order: places, verdicts, metrics, statistics of both sides."""
        slots, word = self.comparison.slots, self.words.number
        names = ("step", "micro", "call", "pair", "phase", "role", "verdict", "status", "estimated", "is_bound",
                 "slot_a", "slot_b", "dtype_a", "dtype_b", "shape_a", "shape_b", "why_not", "max_abs_at", "measure",
                 "is_fixed", "exemption", "blame", "tried")  # fmt: skip
        places = [
            (slot.step, slot.micro, slot.call, self._pair(slot), word(slot.phase.label), word(slot.role.label),
             word(slot.verdict), word(slot.metrics.status.value), int(slot.metrics.estimated), int(slot.metrics.is_lower_bound),
             word(slot.slot_a), word(slot.slot_b), word(slot.dtype_a), word(slot.dtype_b), word(str(list(slot.shape_a))),
             word(str(list(slot.shape_b))), word(slot.metrics.reason),
             word("" if slot.metrics.max_abs_at is None else str(list(slot.metrics.max_abs_at))), word(slot.measure),
             int(slot.is_fixed), word(slot.exemption), word(slot.blame),
             word(" ".join(code for code in slot.tried if code != slot.exemption)))
            for slot in slots
        ]  # fmt: skip
        metrics = {name: numbers(getattr(slot.metrics, name) for slot in slots) for name in _METRICS}
        return {
            **by_columns(names, places),
            "nonfinite": [at for at, slot in enumerate(slots) if self._has_nonfinite(slot)],
            "error": numbers(slot.error for slot in slots),
            "limit": numbers(slot.limit for slot in slots),
            "sources": [number(slot.sources, _FEW_DIGITS) for slot in slots],
            **({} if self.comparison.replayed is None else {"in_run": numbers(slot.in_run for slot in slots)}),
            **metrics,
            "statistics_a": statistics([(self.steps[slot.step].a, slot.row_a) for slot in slots]),
            "statistics_b": statistics([(self.steps[slot.step].b, slot.row_b) for slot in slots]),
        }

    def _has_nonfinite(self, slot: SlotResult) -> bool:
        """Tell whether a tensor of a pair has elements that are no numbers."""
        sides = (self.steps[slot.step].a, slot.row_a), (self.steps[slot.step].b, slot.row_b)
        counts = (side.columns[name][row] for side, row in sides for name in ("nan", "posinf", "neginf"))
        return slot.metrics.status is Status.NONFINITE or any(counts)

    def _pair(self, slot: SlotResult) -> int:
        return self.pair_of_a[self.tree_a.by_path[slot.path_a]]

    # Findings

    def _finding(self, found: Divergence, is_drawn: bool) -> dict[str, object]:
        tensor = self._tensor_of(found)
        drawn, why_not = self._drawn(self.comparison.slots[tensor]) if is_drawn and tensor >= 0 else (None, "")
        return {
            **speakable(found.as_json()),
            "headline": headline(found),
            "error": number(found.error),
            "measure": found.measure,
            "is_fixed": any(said.code == TOLERANCE for said in found.facts),
            "row": self._row_of(found),
            "tensor": tensor,
            "drawn": drawn,
            "not_drawn": why_not,
        }

    def _tensor_of(self, found: Divergence) -> int:
        """Return the pair of tensors that a finding is about, -1 if there is none."""
        for index, slot in enumerate(self.comparison.slots):
            if slot.metrics is found.metrics and (slot.phase, slot.role) == (found.phase, found.role):
                return index
        return rows.ABSENT

    def _row_of(self, found: Divergence) -> int:
        """Return the row of the tree that a finding is in; the root's where it has no module."""
        paths = {ref.path for ref in found.a}, {ref.path for ref in found.b}
        for index, row in enumerate(self.rows):
            in_a = row.a != rows.ABSENT and self.tree_a.path(row.a) in paths[0]
            if in_a or (not paths[0] and row.b != rows.ABSENT and self.tree_b.path(row.b) in paths[1]):
                return index
        return 0

    def _drawn(self, slot: SlotResult) -> tuple[dict[str, object] | None, str]:
        """Return the picture of two tensors, or why there is none."""
        pairs, count = self.steps[slot.step], math.prod(slot.shape_a)
        if not (pairs.a.has_values(slot.row_a) and pairs.b.has_values(slot.row_b)):
            return (
                None,
                'no values were recorded of it: record both runs with task="tensor" to see where the error lies',
            )
        if count > LARGEST:
            return None, f"its {count:,} elements are too many to draw (up to {LARGEST:,})"
        free = pairs.has_free_axes(slot.role, self._pair(slot), slot.row_a)
        values = values_of_pair(pairs.a, slot.row_a, pairs.b, slot.row_b, free_axes=free) if count else None
        if values is None:
            return None, "the two have no common shape"
        names = self.axes.names(slot, pairs.a.axes(slot.row_a))
        return {**drawn(*values), "names": names or [""]}, ""

    # What has no partner

    def _loose(self, name: str) -> dict[str, object]:
        """Return what was recorded of modules without a partner, so that it can be seen what would be compared."""
        at = 0 if name == "a" else 1
        left = rows.State.UNMATCHED, rows.State.UNNEEDED
        wanted = [row.a if name == "a" else row.b for state in left for row in self.rows if row.state is state]
        chosen = set([index for index in wanted if index != rows.ABSENT][:_MOST_LOOSE])
        found: dict[int, list[list[object]]] = {}
        for pairs in list(self.steps.values())[:1]:
            side = (pairs.a, pairs.b)[at]
            columns = side.columns
            for row, module in enumerate(columns["module"]):
                records = found.setdefault(module, []) if module in chosen else None
                if records is not None and len(records) < _MOST_RECORDS and columns["micro"][row] == 0:
                    records.append(self._record(side, row))
        return {str(module): records for module, records in found.items()}

    def _record(self, side: Side, row: int) -> list[object]:
        """Return phase, role, slot, call, dtype, shape, norm and hash of a record."""
        columns, word = side.columns, self.words.number
        digest = side.digest(row)
        text = "" if digest is None else f"{digest[0] & 0xFFFFFFFFFFFF:012x}"
        return [int(columns["phase"][row]), int(columns["role"][row]), word(side.slots[row]), columns["call"][row],
                word(side.dtypes[row]), word(str(list(side.shapes[row]))), number(columns["norm"][row]), text]  # fmt: skip

    def _closest_is_fixed(self) -> bool:
        flip = self.comparison.flip
        return flip is not None and flip.closest is not None and flip.closest.is_fixed

    def _to_b(self) -> int:
        """Return what is added to a step of A to get that of B."""
        return next((step_b - step for step, step_b in self.comparison.steps), 0)


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


def _left(unmatched: tuple[str, ...], unneeded: tuple[str, ...]) -> dict[str, rows.State]:
    return dict.fromkeys(unmatched, rows.State.UNMATCHED) | dict.fromkeys(unneeded, rows.State.UNNEEDED)
