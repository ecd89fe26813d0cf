"""What the headline says nothing of: `ALIGNED but for …`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.answer import left_out
from probe.answer.left_out import LeftOut
from probe.answer.shift import Shift
from probe.verdict.coverage.doubts import Doubts


def left_out_of(
    doubts: Doubts, steps: Sequence[tuple[int, int]], shift: Shift, min_coverage: float
) -> Iterator[LeftOut]:
    """Yield what was not recorded, not compared or not judged."""
    left, readers = (tally := doubts.tally).left, tally.readers
    yield from left_out.unrecorded_phases(readers, left.phases)
    yield from left_out.unrecorded_modules(readers)
    yield from left_out.uncompared_steps(readers, shift)
    yield from left_out.uncompared_loss(readers, steps, left.phases, tally.rows)
    weights, ignored = left.weights_without_counterpart(readers, tally.loose), left.ignored_weights(readers)
    yield from left_out.uncompared_calls(tally.coverage(), weights, ignored, min_coverage)
    yield from left_out.other_modes(left.modes.values())
    yield from left_out.overflowed(doubts.overflowed)
    yield from left_out.unjudged(tally.rows, doubts.alone.buffers)
