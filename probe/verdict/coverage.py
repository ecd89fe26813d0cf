"""What the verdict says nothing of: recorded on one side only, without a partner, or not judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.comparison.coverage import left_out
from probe.comparison.coverage.guards import uncompared_weights
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.result import Coverage, SlotResult
from probe.comparison.steps.common_steps import Shift
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.side import Side
from probe.verdict.steps.step import Step

Names = set[tuple[str, str]]
"""(path of the module, slot) of weights"""


class Seen:
    """What was recorded and what of it was compared, over the steps."""

    def __init__(self) -> None:
        self.phases: tuple[set[int], set[int]] = set(), set()
        self.weights: tuple[Names, Names] = set(), set()
        self.compared: tuple[Names, Names] = set(), set()
        self.ignored: tuple[Names, Names] = set(), set()

    def add(self, step: Step) -> None:
        """Take in a step."""
        ignored = step.matching.ignored_a, step.matching.ignored_b
        for half, phases, weights, left in zip((step.a, step.b), self.phases, self.weights, self.ignored, strict=True):
            phases.update(half.phases)
            for phase in (Phase.INIT, Phase.UPDATE):
                for place in half.params.get((phase, Role.PARAM), {}):
                    is_ignored = place[0] in ignored[half is step.b]
                    (left if is_ignored else weights).add(_name(half, place))
        self._add_compared(step)

    def _add_compared(self, step: Step) -> None:
        a, b = self.compared
        for bundle in step.parameters.fused:
            parts, wholes = (a, b) if bundle.side == "A" else (b, a)
            half, other = (step.a, step.b) if bundle.side == "A" else (step.b, step.a)
            parts |= {(half.reader.modules[module].path, slot) for row in bundle.parts for module, slot in row}
            wholes.add((other.reader.modules[bundle.whole[0]].path, bundle.whole[1]))
        for phase in (Phase.INIT, Phase.UPDATE):
            for event in step.parameters.events(phase, Role.PARAM):
                if event.is_paired and event.place is not None and event.place[0] in step.pair_of:
                    a.add(_name(step.a, event.place))
                    b.add(_name(step.b, (step.pair_of[event.place[0]].b, event.slot_b)))

    def weights_left(self, readers: Sequence[Reader]) -> dict[str, list[str]]:
        """Return, by side, the weights that were recorded and not compared."""
        sides = zip("AB", readers, self.weights, self.compared, strict=True)
        return {name: uncompared_weights(reader, seen, compared) for name, reader, seen, compared in sides}


def left_out_of(
    seen: Seen,
    readers: Sequence[Reader],
    steps: Sequence[tuple[int, int]],
    shift: Shift,
    coverage: Coverage,
    rows: Sequence[SlotResult],
    min_coverage: float,
) -> Iterator[LeftOut]:
    """Yield what was not recorded, not compared or not judged."""
    yield from left_out.unrecorded_phases(readers, seen.phases)
    yield from left_out.unrecorded_modules(readers)
    yield from left_out.uncompared_steps(readers, shift)
    yield from left_out.uncompared_loss(readers, steps, seen.phases, rows)
    ignored = sum(map(len, seen.ignored))
    yield from left_out.uncompared_calls(coverage, seen.weights_left(readers), ignored, min_coverage)
    yield from left_out.unjudged(rows, {})


def _name(half: Side, place: tuple[int, str]) -> tuple[str, str]:
    """Return the path and the recorded slot of a parameter."""
    module, name = place
    return half.reader.modules[module].path, half.recorded_slot(module, name)
