"""What a comparison of curves says (`probe.curve_comparison`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe.answer.guards import grouped
from probe.notes import Note
from probe.report.words.forms import MOST_NAMED


def percent(value: float, limit: float = math.nan) -> str:
    """Return a relative difference as ``x.x %``, with as many digits as tell it from its limit."""
    return _told_apart(value, limit, 1, 100.0, " %")


def decimal(value: float, limit: float = math.nan) -> str:
    """Return an absolute difference as ``0.xx``, with as many digits as tell it from its limit."""
    return _told_apart(value, limit, 2, 1.0, "")


def _told_apart(value: float, limit: float, digits: int, factor: float, unit: str) -> str:
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "infinite"
    for more in range(digits, 12):
        text = f"{value * factor:.{more}f}"
        rounded_away = value != 0 and float(text) == 0 and more < digits + 3
        if not rounded_away and (math.isclose(value, limit, rel_tol=1e-9) or text != f"{limit * factor:.{more}f}"):
            break
    return (text if value == 0 or float(text) else f"<{10.0**-more:.{more}f}") + unit


# Findings


def _out(name: str, a: float, b: float, limit: float, has_drifted: bool) -> str:
    relative = f", {percent(abs(b - a) / abs(a))}" if a else ""
    text = f"{name} leaves the noise band: {a:.6g} in A, {b:.6g} in B (Δ {b - a:+.2g}{relative}; up to {limit:.2g} is noise)"
    return text + ("; it drifted there, no step did it alone" if has_drifted else "")


def _biased(
    name: str, since: int | None, offset: float, share: float, steps: int, p_value: float, quarters: Sequence[float]
) -> str:
    stretch = "" if since is None else f" from step {since} on"
    text = (
        f"{name} is biased{stretch}: B − A is {offset:+.2g} on average and has one sign in "
        f"{share:.0%} of {steps} steps (sign test p = {p_value:.1g})"
    )
    if not quarters:
        return text
    return f"{text}; it drifts apart: {quarters[0]:+.2g} in the first quarter, {quarters[-1]:+.2g} in the last"


def _norm(a: float, b: float, limit: float) -> str:
    is_known = math.isfinite(b) and math.isfinite(a) and (a or b)
    ratio = percent(abs(b - a) / max(abs(a), abs(b))) if is_known else "not finite"
    return f"norm {a:.4g} in A, {b:.4g} in B ({ratio}; up to {percent(limit)} is noise)"


def _all_norms(name: str, count: int, total: int, factor: float, **norms: float) -> str:
    common = f"; all of them are {factor:.4g} times those of A" if factor else ""
    return f"the gradient norms of {count} of {total} parameters leave the noise band, most {name}: {_norm(**norms)}{common}"


def _single_norms(names: Sequence[str], is_alone: bool, **norms: float) -> str:
    alone = " alone" if is_alone else ""
    return f"the gradient norm of {grouped(names, MOST_NAMED)}{alone} leaves the noise band: {_norm(**norms)}"


def _metric(a: float, b: float, step: int, limit: Any, steps: int, before: int) -> str:
    apart = percent(abs(b - a) / abs(a), limit.limit) if limit.is_relative and a else f"{abs(b - a):.4g}"
    more = f"; further apart in {before} of {steps - 1} steps before" if before else ""
    return f"{a:.6g} in A, {b:.6g} in B at its last step, {step} (Δ {apart}; up to {limit} is accepted){more}"


# The migration standard


def criterion_shown(value: float, limit: float, is_relative: bool, **_: Any) -> str:
    """Return a value as the standard wants it written."""
    return percent(value, limit) if is_relative else decimal(value, limit)


def criterion_wanted(limit: float, baseline: float, is_relative: bool, inclusive: bool, **_: Any) -> str:
    """Return what the standard asks for, and what the baseline itself shows."""
    own = percent(baseline) if is_relative else decimal(baseline)
    between = "" if math.isnan(baseline) else f", or {own} as between runs of A"
    return f"{'≤' if inclusive else '<'} {percent(limit) if is_relative else f'{limit:g}'}{between}"


def _failed(quantity: str, **facts: Any) -> str:
    kind = "relative" if facts["is_relative"] else "absolute"
    return f"{quantity}, {kind} {criterion_shown(**facts)}, expected {criterion_wanted(**facts)}"


def _both_failed(absolute: Note, relative: Note) -> str:
    facts: tuple[Mapping[str, Any], ...] = (absolute.facts, relative.facts)
    shown, wanted = ([say(**each) for each in facts] for say in (criterion_shown, criterion_wanted))
    return f"{facts[0]['quantity']} {' and '.join(shown)}, expected {' or '.join(wanted)}"


def _observed(steps: int, default: int) -> str:
    usual = "" if steps >= default else f" (by default {default}, or 12 hours)"
    return f"{steps} step{'' if steps == 1 else 's'}{usual}"


WORDS: dict[str, Callable[..., str]] = {
    "curve-out": _out,
    "curve-biased": _biased,
    "norms-out": _all_norms,
    "norm-out": _single_norms,
    "metric-values": _metric,
    "standard-criterion": _failed,
    "standard-criteria": _both_failed,
    "standard-steps": _observed,
}
