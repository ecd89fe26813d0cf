"""The answer: findings as places of both sides, and everything that they rest on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from probe.answer.comparison import Comparison
from probe.answer.left_out import LeftOut
from probe.answer.margin import limit_of_detection, margin_of
from probe.answer.result import Divergence, Verdict
from probe.answer.runs import module_pairs
from probe.matching import Matching
from probe.notes import Note
from probe.store.reading.reader import Reader
from probe.verdict.coverage.doubts import Doubts
from probe.verdict.noise.rung import Noise

if TYPE_CHECKING:
    from probe.answer.acceptance import Acceptance
    from probe.answer.settings import DifferingSetting


def answer_of(
    readers: tuple[Reader, Reader],
    matching: Matching,
    doubts: Doubts,
    findings: tuple[Divergence, ...],
    steps: Sequence[tuple[int, int]],
    left_out: Iterable[LeftOut],
    settings: tuple[DifferingSetting, ...],
    noise: Noise,
    accepted: Callable[[Verdict, Sequence[Divergence], Sequence[Note]], Acceptance] | None = None,
) -> Comparison:
    """Assemble the answer."""
    a, b = readers
    tally, trees = doubts.tally, doubts.tally.trees
    doubts.notes += noise.notes()
    doubts.doubt(*noise.reasons(tally.rows))
    reasons = tuple(dict.fromkeys(doubts.reasons))
    verdict = Verdict.DIVERGED if findings else Verdict.UNDECIDED if reasons else Verdict.ALIGNED
    verdict = Verdict.UNDECIDED if a.info.run_id == b.info.run_id else verdict
    changes, told = tuple(dict.fromkeys(tally.changes)), {fact for finding in findings for fact in finding.facts}
    notes = (*(change.note for change in changes if change.note not in told), *doubts.notes)
    compared = tuple(dict.fromkeys(notes)), noise.name, tuple(tally.rows), matching, str(a.path), str(b.path)
    return Comparison(
        *(verdict, findings, tally.coverage()),
        *compared,
        *tally.alone(findings),
        inputs=tally.inputs(),
        reasons=reasons,
        flip=margin_of(verdict, findings, tally.rows),
        unseen=limit_of_detection(verdict, noise.uses_built_in, tally.rows),
        left_out=tuple(left_out),
        steps=tuple(steps),
        changes=changes,
        ignored_a=tuple(trees[0].path(module) for module in sorted(matching.ignored_a)),
        ignored_b=tuple(trees[1].path(module) for module in sorted(matching.ignored_b)),
        pairs=module_pairs(matching, *trees),
        runs=doubts.runs,
        settings=settings,
        acceptance=accepted(verdict, findings, reasons) if accepted is not None else None,
    )
