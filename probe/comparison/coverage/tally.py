"""What was compared: calls, weights and pairs of tensors, and what was left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cached_property

from probe.comparison.coverage.guards import uncompared_weights
from probe.comparison.ledger.known import Judged
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.skipped_steps import changes_weights
from probe.comparison.result import Coverage, SlotResult
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Event
from probe.records import OptimizerGroup, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree


class Tally:
    """Counts, over all steps, what both recordings have in common and what one alone has."""

    def __init__(self, a: Reader, b: Reader, tree_a: Tree, tree_b: Tree) -> None:
        self.a, self.b, self.tree_a, self.tree_b = a, b, tree_a, tree_b
        self.unneeded: tuple[frozenset[int], frozenset[int]] = frozenset(), frozenset()
        """modules of A, and of B, that have no counterpart and need none"""
        self.ran_unneeded: tuple[dict[int, None], dict[int, None]] = {}, {}
        """those of them that were called"""
        self.slots: list[SlotResult] = []
        self.paired = 0
        """calls"""
        self.nan: Note | None = None
        """the first tensor that is NaN on both sides, or loss that is no number there"""
        self.overflowed: dict[int, Note] = {}
        """steps of which the gradients were not finite on both sides, and neither side updated a weight: what was NaN first"""
        self.weights_a: set[tuple[str, str]] = set()
        self.weights_b: set[tuple[str, str]] = set()
        """(path, slot) of the weights that were recorded, but for those in modules that the mapping ignores"""
        self._ignored: tuple[set[tuple[str, str]], set[tuple[str, str]]] = set(), set()
        """of these, by side"""
        self.loose_a: dict[str, int] = {}
        self.loose_b: dict[str, int] = {}
        """by path: calls without a counterpart"""
        self.roots: set[str] = set()
        """paths, in A, of what no other module calls"""
        self.groups: list[OptimizerGroup] = []
        """of the optimizers of both sides"""
        self.phases: tuple[set[int], set[int]] = set(), set()
        """by side, those of which anything was recorded"""
        self.only_a: dict[str, None] = {}
        self.only_b: dict[str, None] = {}
        """paths of modules that were called and have no counterpart that was"""

    @property
    def known(self) -> list[SlotResult]:
        """Pairs of tensors of which the error is known."""
        return [slot for slot in self.slots if slot.metrics.is_known]

    @property
    def coverage(self) -> Coverage:
        """How much was compared."""
        known = len(self.known)
        only = sum(self.loose_a.values()), sum(self.loose_b.values())
        return Coverage(self.paired, *only, len(self.slots) - known, known)

    def add(self, pairs: StepPairs, events: Iterable[Judged]) -> list[Note]:
        """Take in a step and what was judged in it; return what is to be said."""
        said = self._count_calls(pairs)
        self.groups += [*self.a.groups_of(pairs.step), *self.b.groups_of(pairs.step_b)]
        self.roots |= {
            self.tree_a.path(pairs.matching.pairs[n.pair].a) for n in pairs.nodes.values() if n.parent is None
        }
        self._note_weights(pairs)
        for half, phases in zip(pairs.halves, self.phases, strict=True):
            phases.update(half.side.columns["phase"])
        ordered = sorted(events, key=lambda judged: (judged.event.micro, judged.event.phase))
        events = [judged.event for judged in ordered]
        nan = self._first_nan(pairs, events)
        if nan is not None and _overflowed(pairs, events):
            self.overflowed[pairs.step] = nan
        else:
            self.nan = self.nan or nan
        self.slots += [self._slot(pairs, judged) for judged in ordered]
        return said

    @cached_property
    def weights_left(self) -> dict[str, list[str]]:
        """By side, the weights that stand in one model only, or in another form there: fused ones, for example.

        None where one side alone has some, in modules that it alone has.
        """
        weights = [slot for slot in self.known if slot.role is Role.PARAM]
        left = {
            "A": uncompared_weights(self.a, self.weights_a, {place for slot in weights for place in slot.places_a}),
            "B": uncompared_weights(self.b, self.weights_b, {place for slot in weights for place in slot.places_b}),
        }
        in_pairs = (left["A"] and not self.loose_a) or (left["B"] and not self.loose_b)
        return left if weights and (all(left.values()) or in_pairs) else {}

    @property
    def weights_ignored(self) -> int:
        """How many weights, of both sides, were not compared since they lie in modules that the mapping ignores."""
        weights = [slot for slot in self.known if slot.role is Role.PARAM]
        compared = (
            {place for slot in weights for place in slot.places_a},
            {place for slot in weights for place in slot.places_b},
        )
        return sum(
            len(uncompared_weights(side, ignored, places))
            for side, ignored, places in zip((self.a, self.b), self._ignored, compared, strict=True)
        )

    def uncompared_weights(self) -> Iterator[Note]:
        """Say which these are."""
        if any(self.weights_left.values()):
            yield note("weights-without-counterpart", a=tuple(self.weights_left["A"]), b=tuple(self.weights_left["B"]))

    def _count_calls(self, pairs: StepPairs) -> list[Note]:
        """Count the calls that are paired, and those that are not, in the passes that both sides made; return what is to be said.

        Wrappers only pass on.
        """
        said: list[Note] = []
        ran = [{call.micro for call in half.calls} for half in pairs.halves]
        forwards = [sum(micro < 0 for micro in each) for each in ran]
        if forwards[0] != forwards[1]:
            said.append(note("other-number-of-forwards", a=forwards[0], b=forwards[1]))
        if not pairs.same_micros:
            return said
        both = ran[0] & ran[1]
        for half, tree, loose, only, unneeded, ran_unneeded in zip(
            pairs.halves, (self.tree_a, self.tree_b), (self.loose_a, self.loose_b), (self.only_a, self.only_b),
            self.unneeded, self.ran_unneeded, strict=True,
        ):  # fmt: skip
            shared = {half.key(node) for node in pairs.nodes.values()}
            paired = {half.modules[node.pair] for node in pairs.nodes.values()}
            left_out = half.ignored | half.stepped.keys()
            for call in half.calls:
                is_shared = call.key in shared or call.module in left_out
                if is_shared or call.micro not in both or tree.wrapped(call.module) is not None:
                    continue
                if call.module in unneeded:
                    ran_unneeded[call.module] = None
                else:
                    path = tree.path(call.module)
                    loose[path] = loose.get(path, 0) + 1
                    if call.module not in paired:
                        only[path] = None
        self.paired += sum(self.tree_a.wrapped(module) is None for _, module, _ in pairs.nodes)
        return said

    def _note_weights(self, pairs: StepPairs) -> None:
        """Keep which weights were recorded on either side."""
        weights = (self.weights_a, self.weights_b)
        for half, tree, recorded, ignored in zip(
            pairs.halves, (self.tree_a, self.tree_b), weights, self._ignored, strict=True
        ):
            for (_, module, _), slots in half.rows.by_role[Role.PARAM].items():
                into = ignored if module in half.ignored else recorded
                into.update((tree.path(module), slot.partition(":")[2]) for slot in slots)

    def _slot(self, pairs: StepPairs, judged: Judged) -> SlotResult:
        event = judged.event
        pair = pairs.matching.pairs[event.pair]
        a, b = self.a.modules[pair.a], self.b.modules[pair.b]
        assert event.metrics is not None
        parts = _parts(pairs.a, pair.a, event.slot_a), _parts(pairs.b, pair.b, event.slot_b)
        return SlotResult(
            event.step, event.micro, event.phase, event.role, event.call, a.path, a.class_name, event.slot_a, b.path,
            b.class_name, event.slot_b, pairs.a.dtypes[event.row_a], pairs.b.dtypes[event.row_b],
            pairs.a.shapes[event.row_a], pairs.b.shapes[event.row_b], pair.reason.value, event.metrics, event.row_a,
            event.row_b, judged.limit, judged.error, *parts, judged.verdict,
            "" if judged.check is None else judged.check.measure, judged.check is not None and judged.check.is_fixed,
            judged.sources, judged.exemption, judged.tried, judged.blame,
        )  # fmt: skip

    def _first_nan(self, pairs: StepPairs, events: Iterable[Event]) -> Note | None:
        for event in events:
            if pairs.a.columns["nan"][event.row_a] and pairs.b.columns["nan"][event.row_b]:
                path = self.a.modules[pairs.matching.pairs[event.pair].a].path
                return note(
                    "nan-on-both-sides", step=event.step, phase=event.phase.label, role=event.role.label, slot=event.slot_a, path=path,
                )  # fmt: skip
        losses = [
            self.a.scalars_of(pairs.step).get("loss", 0.0),
            self.b.scalars_of(pairs.step_b).get("loss", 0.0),
        ]
        if any(map(math.isfinite, losses)):
            return None
        x, y = ("NaN" if math.isnan(loss) else f"{loss:g}" for loss in losses)
        return note("loss-not-finite", step=pairs.step, a=x, b=y)


def _parts(side: Side, module: int, slot: str) -> tuple[tuple[str, str], ...]:
    """Return (path, slot) of what one tensor was put together of."""
    if not side.parts:
        return ()
    places = side.places_of(module, slot)
    return () if places == ((module, slot),) else tuple((side.reader.modules[at].path, name) for at, name in places)


def _overflowed(pairs: StepPairs, events: Iterable[Event]) -> bool:
    """Tell whether gradients alone have NaN on both sides, and both sides left the weights as they were, as loss scaling does."""
    before = [event for event in events if event.phase < Phase.BACKWARD and not event.is_one_sided]
    columns = [half.side.columns for half in pairs.halves]
    losses = [half.side.reader.scalars_of(half.side.step).get("loss", 0.0) for half in pairs.halves]
    return (
        not any(columns[0]["nan"][event.row_a] or columns[1]["nan"][event.row_b] for event in before)
        and all(map(math.isfinite, losses))
        and not any(changes_weights(half.side) for half in pairs.halves)
    )
