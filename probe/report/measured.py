"""How large an error is, in the words that a text, a notebook and a picture share."""

from __future__ import annotations

import math

from probe.answer.comparison import Comparison
from probe.answer.metrics import Metrics
from probe.answer.result import Divergence, SlotResult

OF_SOURCES = "of the gradients that it was computed from"
"""what an error that stands for no tensor by itself is held against"""
_ANY = 1e9
"""times a limit from which on the number says no more than that: of integers, whose limit is nearly 0"""


def about(metrics: Metrics) -> str:
    """Return the sign in front of a number that is a bound or an estimate."""
    return "≥" if metrics.is_lower_bound else "≈" if metrics.estimated else ""


def amount(metrics: Metrics) -> str:
    """Return the relative error; of integers, how many differ."""
    return f"{100 * metrics.rel_l2:.3g}%" if metrics.of_integers else f"{metrics.rel_l2:.1e}"


def judged(found: Divergence | SlotResult) -> float:
    """Return the error that was held against the limit: the relative one, where no other was."""
    assert found.metrics is not None
    return found.metrics.rel_l2 if math.isnan(found.error) else found.error


def alike(x: float, y: float) -> bool:
    """Return True if two errors are the same in the digits that are shown."""
    return x == y or math.isclose(x, y, rel_tol=0.01)


def figures(metrics: Metrics) -> list[tuple[str, str]]:
    """Return what is known beside the relative error, each with what it is."""
    found = []
    if math.isfinite(metrics.cosine):
        found.append(("cosine", f"{about(metrics)}{metrics.cosine:.{2 if metrics.estimated else 6}f}"))
    if math.isfinite(metrics.norm_ratio):
        found.append(("norm B/A", f"{metrics.norm_ratio:.6g}"))
    if math.isfinite(metrics.max_abs):
        at = f" at {list(metrics.max_abs_at)}" if metrics.max_abs_at else ""
        found.append(("max |Δ|", f"{metrics.max_abs:.3g}{at}"))
    return found


def micro_batch(micro: int) -> str:
    """Name a micro-batch, or a pass without gradients, behind its step; nothing of the first one."""
    return f" · micro {micro}" if micro > 0 else f" · evaluation {-micro - 1}" if micro < 0 else ""


def times(factor: float) -> str:
    """Return a factor in three digits that count."""
    return f"{float(f'{factor:.3g}'):,.10g}"


def headline(divergence: Divergence) -> str:
    """Return step, micro-batch, phase and kind in one line."""
    ref = (divergence.a or divergence.b)[0]
    kind = "" if divergence.kind.value == divergence.phase.label else f" · {divergence.kind.value}"
    return f"step {ref.step}{micro_batch(ref.micro)} · {divergence.phase.label}{kind}"


def stands(comparison: Comparison) -> str:
    """Say how far the first divergence is above its limit, and the verdict where that is further."""
    flip = comparison.flip
    assert flip is not None
    if flip.first > _ANY:
        return "above any limit"
    if flip.factor <= flip.first:
        return f"{times(flip.first)}× above the limit"
    more = "above any" if math.isinf(flip.factor) else f"{times(flip.factor)}×"
    return f"{times(flip.first)}× above the limit (the verdict: {more})"
