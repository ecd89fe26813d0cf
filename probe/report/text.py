"""A comparison in words for the terminal: the answer first, then the evidence, then what it rests on."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from probe.comparison.divergence import Comparison
from probe.comparison.fixed import FIXED_MEASURES, TOLERANCE_IS
from probe.comparison.guards import grouped
from probe.comparison.result import Divergence, Inputs, NodeRef, Verdict
from probe.comparison.side import Metrics

_STYLE = {Verdict.ALIGNED: "bold green", Verdict.DIVERGED: "bold red", Verdict.UNDECIDED: "bold yellow"}
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
"""what a terminal obeys, or what changes the order of what it shows"""
_LONGEST = 200
_WIDTH = 120
LONGEST_LIST = 2000
"""characters of what names several things: known differences, origins of inputs"""
_MOST_LISTED = 8
_MOST_PLACES = 6
"""of one side that are listed, where it has several for one"""
_SUMMED = "of the gradients that it was computed from"


def render(comparison: Comparison, top: int = 5) -> Text:
    """Return the report, with the styles that a terminal shows.

    Parameters
    ----------
    comparison
        what to report
    top
        how many divergences after the first are listed
    """
    out = Text()
    out.append(comparison.verdict.value.upper(), style=_STYLE[comparison.verdict])
    if comparison.verdict is Verdict.ALIGNED and comparison.left_out:
        out.append(f" but for what was not compared: {', '.join(comparison.left_out)}", style="bold yellow")
    out.append(f"  A {_file(comparison.path_a)}  B {_file(comparison.path_b)}\n\n")
    first = comparison.first_divergence
    if first is not None and comparison.verdict is Verdict.DIVERGED:
        _first(out, comparison, first)
        _others(out, comparison.divergences[1:], top)
    elif comparison.verdict is Verdict.ALIGNED:
        _aligned(out, comparison)
    else:
        out.append("Could not tell. Why:\n")
        for doubt in comparison.doubts:
            out.append(f"  {plain(doubt, LONGEST_LIST)}\n", style="yellow")
        out.append("\n")
    _footer(out, comparison)
    for warning in comparison.warnings:
        if comparison.verdict is not Verdict.UNDECIDED or warning not in comparison.doubts:
            out.append(f"note: {plain(warning, LONGEST_LIST)}\n", style="yellow")
    out.rstrip()
    return out


def plain(text: str, longest: int = _LONGEST) -> str:
    """Return a name or message fit for a terminal: no control characters, not endlessly long."""
    safe = harmless(text)
    return safe if len(safe) <= longest else f"{safe[: longest - 1]}…"


def harmless(text: str) -> str:
    """Return a text with its control characters written out, as ``\\x1b`` and ``\\u202e``."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else _escape(found[0]), text)


def harmless_json(document: str) -> str:
    """Return JSON, over several lines, that says the same without control characters."""
    return _CONTROL.sub(lambda found: found[0] if found[0] == "\n" else _escape(found[0]), document)


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"


def headline(divergence: Divergence) -> str:
    """Return step, micro-batch, phase and kind in one line."""
    ref = (divergence.a or divergence.b)[0]
    micro = f" · micro {ref.micro}" if ref.micro > 0 else f" · evaluation {-ref.micro - 1}" if ref.micro < 0 else ""
    return f"step {ref.step}{micro} · {divergence.phase.label} · {divergence.kind.value}"


def _first(out: Text, comparison: Comparison, first: Divergence) -> None:
    out.append("First divergence  ", style="bold")
    out.append(f"{headline(first)}\n")
    _places(out, first)
    for line in first.evidence:
        lines = textwrap.wrap(plain(line, LONGEST_LIST), _WIDTH, break_on_hyphens=False, break_long_words=False)
        out.append("  {}\n".format("\n    ".join(lines)))
    numbers = _numbers(first)
    if numbers:
        out.append(f"  {numbers}\n")
    if first.hint:
        lines = textwrap.wrap(plain(first.hint, LONGEST_LIST), _WIDTH, break_on_hyphens=False)
        out.append("  → {}\n".format("\n    ".join(lines)), style="bold")
    inherited = sum(slot.verdict == "inherited" for slot in comparison.slots)
    out.append(f"  confidence {first.confidence:.2f}; {inherited} later tensors inherit the error\n")
    out.append(f"  {stands(comparison)}\n\n" if comparison.flip is not None else "\n")


def _places(out: Text, divergence: Divergence) -> None:
    sides = [("A", divergence.a), ("B", divergence.b)]
    width = max((len(_path(ref)) for _, refs in sides for ref in refs), default=0)
    for side, refs in sides:
        if not refs:
            out.append(f"  {side} ")
            out.append("has no counterpart\n", style="italic")
        for ref in refs[:_MOST_PLACES]:
            slot = f"  {divergence.role.label} {plain(ref.slot)}" if ref.slot else ""
            call = f"  call {ref.call}" if ref.call else ""
            out.append(f"  {side} ")
            out.append(f"{_path(ref):<{min(width, 80)}}", style="cyan")
            out.append(f"  {plain(ref.class_name)}{slot}{call}\n")
        if len(refs) > _MOST_PLACES:
            out.append(f"  {side} and {len(refs) - _MOST_PLACES} more\n")


def _path(ref: NodeRef) -> str:
    return plain(ref.path) or "(the whole model)"


def _numbers(divergence: Divergence) -> str:
    metrics, limit = divergence.metrics, divergence.limit
    if metrics is None or not metrics.is_known:
        return ""
    about = "≥" if metrics.is_lower_bound else "≈" if metrics.estimated else ""
    error = metrics.rel_l2 if math.isnan(divergence.error) else divergence.error
    if metrics.of_integers:
        return f"{about}{100 * metrics.rel_l2:.3g}% of the elements, which are integers, differ"
    parts = [f"rel {about}{metrics.rel_l2:.1e}"]
    if not _alike(error, metrics.rel_l2):
        parts[0] += f", {about}{error:.1e} {divergence.measure or _SUMMED}"
    if error > limit:
        is_wanted = any(text.startswith(TOLERANCE_IS) for text in divergence.evidence)
        parts[0] += f" (limit {limit:.1e})" if is_wanted else f" (up to {limit:.1e} is noise)"
    if math.isfinite(metrics.cosine):
        digits = 2 if metrics.estimated else 6
        parts.append(f"cos {about}{metrics.cosine:.{digits}f}")
    if math.isfinite(metrics.norm_ratio):
        parts.append(f"norm B/A {metrics.norm_ratio:.6g}")
    if math.isfinite(metrics.max_abs):
        at = f" at {list(metrics.max_abs_at)}" if metrics.max_abs_at else ""
        parts.append(f"max |Δ| {metrics.max_abs:.3g}{at}")
    if metrics.reason:
        parts.append(metrics.reason)
    return "  ".join(parts)


def _size(metrics: Metrics) -> str:
    return f"{100 * metrics.rel_l2:.3g}% differ" if metrics.of_integers else f"rel {metrics.rel_l2:.1e}"


def _times(factor: float) -> str:
    return f"{float(f'{factor:.3g}'):,g}"


def _alike(x: float, y: float) -> bool:
    return x == y or math.isclose(x, y, rel_tol=0.01)


def _others(out: Text, others: tuple[Divergence, ...], top: int) -> None:
    if not others:
        return
    out.append(f"Also wrong by itself, in the order of cause ({min(top, len(others))} of {len(others)})\n")
    for divergence in others[:top]:
        ref = (divergence.a or divergence.b)[0]
        is_known = divergence.metrics is not None and divergence.metrics.is_known
        size = f"  {_size(divergence.metrics)}" if is_known else ""
        slot = f"  {divergence.role.label} {plain(ref.slot)}" if ref.slot else ""
        out.append(f"  {divergence.phase.label:<8}  ")
        out.append(_path(ref), style="cyan")
        out.append(f"{slot}{size}  confidence {divergence.confidence:.2f}\n")
    out.append("\n")


def _aligned(out: Text, comparison: Comparison) -> None:
    known = [slot for slot in comparison.slots if slot.metrics.is_known]
    equal = sum(slot.verdict == "equal" for slot in known)
    steps = len({slot.step for slot in known})
    out.append(f"No divergence in {len(known)} pairs of tensors over {_count(steps, 'step')}; {equal} are bit-equal.\n")
    if known and equal == len(known):
        out.append(
            "That is what one program gives twice: if B was to be another framework, device or version, see probe info.\n"
        )
    flip = comparison.flip
    if flip is not None and flip.closest is not None:
        closest = flip.closest
        is_wanted = "fixed " in comparison.noise or closest.measure in FIXED_MEASURES
        limit = f"limit {closest.limit:.1e}" if is_wanted else f"up to {closest.limit:.1e} is noise"
        of_what = "" if _alike(closest.error, closest.metrics.rel_l2) else f" {closest.measure or _SUMMED}"
        out.append(
            f"Closest to its limit: {closest.phase.label} {closest.role.label} {plain(closest.slot_a)} of "
            f"{plain(closest.path_a) or 'the model'}: rel {closest.error:.1e}{of_what}, {limit}; if "
            f"all limits were divided by {_times(1 / flip.factor)}, it would be a divergence\n"
        )
    out.append("\n")


def stands(comparison: Comparison) -> str:
    """Say how much wider all limits could be."""
    flip = comparison.flip
    assert flip is not None
    if math.isinf(flip.first):
        return "this finding holds with any limits"
    wide = f"holds with limits up to {_times(flip.first)} times as wide"
    if flip.factor <= flip.first:
        return f"this finding, and so the verdict, {wide}"
    more = "holds with any limits" if math.isinf(flip.factor) else f"up to {_times(flip.factor)} times"
    return f"this finding {wide}, the verdict {more}"


def _footer(out: Text, comparison: Comparison) -> None:
    coverage = comparison.coverage
    calls = (
        f"{coverage.paired} of {coverage.total} module calls of {coverage.smaller}"
        if coverage.total
        else "no module calls"
    )
    out.append(
        f"Compared {calls} ({coverage.only_a} only in A, {coverage.only_b} only in B), {coverage.compared} pairs of "
        f"tensors · {coverage.not_comparable} not comparable · noise: {comparison.noise}\n"
    )
    out.append(f"Inputs: {_inputs(comparison.inputs)}\n")
    for side, paths in (("A", comparison.only_a), ("B", comparison.only_b)):
        if paths:
            outermost = _outermost(paths)
            named = grouped([plain(path) or "the model" for path in outermost], _MOST_LISTED)
            inside = len(paths) - len(outermost)
            more = f" (and {_count(inside, 'module')} inside)" if inside else ""
            out.append(f"Only in {side}: {named}{more}\n")
    unneeded = [
        f"{grouped(map(plain, paths), _MOST_LISTED)} in {side}"
        for side, paths in (("A", comparison.unneeded_a), ("B", comparison.unneeded_b)) if paths
    ]  # fmt: skip
    if unneeded:
        out.append(f"Need no partner: {'; '.join(unneeded)}\n")


def _outermost(paths: Iterable[str]) -> list[str]:
    """Leave out paths that lie inside others."""
    known = set(paths)
    return [
        path for path in paths
        if not (path and "" in known) and not any(path[:at] in known for at, sign in enumerate(path) if sign == ".")
    ]  # fmt: skip


def _inputs(inputs: Inputs) -> str:
    """Say how what both runs were given compares."""
    found = {
        "equal on both sides": inputs.equal, "equal but for rounding": inputs.close, "different": inputs.different,
        "not comparable": inputs.not_comparable, "only in A": inputs.only_a, "only in B": inputs.only_b,
    }  # fmt: skip
    parts = []
    for what, names in found.items():
        shown = [f"argument {plain(name)}" if name[:1].isdigit() else plain(name) for name in names]
        more = f" and {len(shown) - _MOST_LISTED} more" if len(shown) > _MOST_LISTED else ""
        parts += [f"{', '.join(shown[:_MOST_LISTED])}{more} {what}"] if shown else []
    return "; ".join(parts) or "none were compared"


def _file(path: str) -> str:
    return plain(Path(path).name)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
