"""Weights that were recorded and not compared, phases that were recorded, modes."""

from __future__ import annotations

from collections.abc import Sequence

from probe.answer.guards import uncompared_weights
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.coverage.sides import other_modes
from probe.verdict.side import Side
from probe.verdict.steps.step import Step

Names = set[tuple[str, str]]
"""(path of the module, slot) of weights"""


class Left:
    """What was recorded and what of it was not compared, over the steps."""

    def __init__(self) -> None:
        self.phases: tuple[set[int], set[int]] = set(), set()
        self.weights: tuple[Names, Names] = set(), set()
        self.compared: tuple[Names, Names] = set(), set()
        self.ignored: tuple[Names, Names] = set(), set()
        self.modes: dict[int, tuple[bool, bool]] = {}
        """by module of A that ran in another mode: whether in training mode, in A and in B"""

    def add(self, step: Step) -> None:
        """Take in a step."""
        ignored = step.matching.ignored_a, step.matching.ignored_b
        for half, phases, weights, left in zip((step.a, step.b), self.phases, self.weights, self.ignored, strict=True):
            phases.update(half.phases)
            for phase in (Phase.INIT, Phase.UPDATE):
                for place in half.params.get((phase, Role.PARAM), {}):
                    is_ignored = place[0] in ignored[half is step.b]
                    (left if is_ignored else weights).add(_name(half, place))
        self.modes |= other_modes(step)
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

    def weights_without_counterpart(self, readers: Sequence[Reader], loose: Sequence[int]) -> dict[str, list[str]]:
        """Return, by side, the weights that were recorded and not compared.

        ``loose``, by side, are calls without a counterpart: weights in modules that one side alone has are theirs.
        """
        sides = zip("AB", readers, self.weights, self.compared, strict=True)
        left = {name: uncompared_weights(reader, seen, compared) for name, reader, seen, compared in sides}
        in_pairs = (left["A"] and not loose[0]) or (left["B"] and not loose[1])
        return left if self.compared[0] and (all(left.values()) or in_pairs) else {"A": [], "B": []}

    def ignored_weights(self, readers: Sequence[Reader]) -> int:
        """Return how many weights lie in modules that the mapping leaves out."""
        sides = zip(readers, self.ignored, self.compared, strict=True)
        return sum(len(uncompared_weights(reader, ignored, compared)) for reader, ignored, compared in sides)


def _name(half: Side, place: tuple[int, str]) -> tuple[str, str]:
    """Return the path and the recorded slot of a parameter."""
    module, name = place
    return half.reader.modules[module].path, half.recorded_slot(module, name)
