"""What a verdict says nothing of, in the few words that stand beside it."""

from __future__ import annotations

from collections.abc import Sequence

from probe.answer.left_out import LeftOut, What, Why
from probe.answer.result import Verdict
from probe.report.layout import plain
from probe.report.words.forms import counted

_MOST = 3
"""of what was left out, that the headline names"""
_NOUNS = {What.WEIGHTS: "weight", What.BUFFERS: "buffer", What.TENSORS: "tensor", What.STEPS: "step", What.MODULES: "module",
          What.CALLS: "module call"}  # fmt: skip


def qualification(verdict: Verdict, left_out: Sequence[LeftOut]) -> str:
    """Return what stands behind a verdict wherever it is shown: `but_for` behind ``ALIGNED``, nothing behind others."""
    return but_for(left_out) if verdict is Verdict.ALIGNED else ""


def but_for(left_out: Sequence[LeftOut]) -> str:
    """Return what stands behind ``ALIGNED``; nothing where all was compared."""
    texts = _texts(left_out)
    more = f" and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return f" but for {', '.join(texts[:_MOST])}{more}" if texts else ""


def rest(left_out: Sequence[LeftOut]) -> str:
    """Return all of it where the headline names a part only."""
    texts = _texts(left_out)
    return ", ".join(texts) if len(texts) > _MOST else ""


def _texts(left_out: Sequence[LeftOut]) -> list[str]:
    """Return what was not compared for one reason, with that in brackets: ``backward, gradient, the loss (not recorded)``."""
    by_reason: dict[str, list[str]] = {}
    for each in left_out:
        by_reason.setdefault(_why(each), []).append(_named(each))
    return [f"{', '.join(names)} ({why})" for why, names in by_reason.items()]


def _named(left: LeftOut) -> str:
    if left.what is What.PHASES:
        return ", ".join(left.names)
    if left.what is What.LOSS:
        return "the loss"
    if left.what is What.MODES:
        return f"the mode of {counted(left.count, 'module')}"
    if left.what is What.GRADIENTS:
        return f"gradients of step {left.names[0]}"
    if not left.count:
        return f"other {_NOUNS[left.what]}s"
    if left.count == 1 and left.names and left.what is not What.MODULES:
        return f"{_NOUNS[left.what]} {plain(left.names[0])}"
    if left.total:
        return f"{left.count} of {counted(left.total, _NOUNS[left.what])}"
    return counted(left.count, _NOUNS[left.what])


def _why(left: LeftOut) -> str:
    if left.what is What.MODES:
        return "training in A, evaluation in B" if left.side == "A" else "evaluation in A, training in B"
    if left.why is Why.NOT_RECORDED and left.side:
        return f"not recorded in {left.side}"
    if left.why is Why.UNPAIRED:
        return f"only in {left.side}" if left.side else "of another form"
    if left.why is Why.IGNORED:
        return "ignored by the mapping"
    if left.why is Why.DIFFERS:
        return "differs" if left.count == 1 else "differ"
    return left.why.value
