"""Sentences that take more than a template of `english.ini`: numbers that are worked out first, lists of several kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from probe.answer.guards import grouped
from probe.notes import Note
from probe.report.words.forms import MOST_NAMED, PARTS, counted, filled, joined, listed, percent, sure

if TYPE_CHECKING:
    from probe.diagnosis.table_of_known_differences import KnownDifference

_TITLES = {"torch": "PyTorch", "paddle": "PaddlePaddle", "mindspore": "MindSpore"}


# The recordings


def _steps_not_compared(only_a: Sequence[int], only_b: Sequence[int], not_closed: Sequence[str]) -> str:
    open_ = " (the other was not closed: its process was ended, or is still running)"
    texts = [
        filled("{steps:first 5} only in {side}", {"steps": steps, "side": side})
        + (open_ if other in not_closed else "")
        for side, other, steps in (("A", "B", only_a), ("B", "A", only_b))
        if steps
    ]
    return f"steps not compared: {', '.join(texts)}"


def _different_models(
    models: Sequence[Sequence[str]], modules: Sequence[int], paired: int, total: int, side: str, wanted: float
) -> str:
    texts = [f"{' and '.join(names)}, {count} modules" for names, count in zip(models, modules, strict=True)]
    return (
        f"These look like different models: {'; '.join(texts)}. Only {paired} of {total} module calls of {side} have a "
        f"counterpart (--min-coverage {wanted:.0%}). If they are the same model, say with -lm which modules correspond; "
        "probe map suggest drafts the file"
    )


def _on_ranks(side: str, ranks: Sequence[int], of: int) -> str:
    only = f", not on the other {of - len(ranks)} that hold parts of it" if of > len(ranks) else ""
    return filled("{side}: on {ranks:ranks}", {"side": side, "ranks": ranks}) + only


# Pairs


def _guessed_parameters(side: str, guesses: Sequence[tuple[str, str, str, bool, int, float]]) -> str:
    texts = [
        f"{slot} of {class_name} with {name}{', turned' if is_turned else ''} (×{count}, {sure(confidence)})"
        for slot, class_name, name, is_turned, count, confidence in guesses
    ]
    return f"parameters of {side} matched without a mapping: {listed(texts, ';')}"


def _leads_to_nothing(
    rule: str, path: str | None, count: int, near: str, target: str, elsewhere: str, outside: str
) -> str:
    of = "" if path is None else f" for {path or 'the root'}"
    more = f" and {count - 1} more" if of and count > 1 else ""
    outside = outside or "the root"
    return (
        f"the mapping's {rule} leads to nothing on the other side{f' ({target})' if target else ''}{of}{more}"
        f"{f'; did you mean {near}?' if near else ''}"
        f"{f'; {elsewhere} is there, outside of {outside}' if elsewhere else ''}"
    )


def _order_of_blocks(order: Sequence[int]) -> str:
    shown = ", ".join(map(str, order[:12])) + (", …" if len(order) > 12 else "")
    return f"{len(order)} blocks, B's {shown}" if order else "they lie alike"


def _layers_swapped(a: Sequence[str], b: Sequence[str], classes: Sequence[str]) -> str:
    what = " and ".join(dict.fromkeys(classes))
    if list(a) == list(b)[::-1]:
        return f"{a[0]} and {a[1]} ({what}) are swapped: what A has at the one, B has at the other"
    return f"A's {a[0]} and {a[1]} ({what}) are swapped: they are B's {b[0]} and {b[1]}"


# Findings


def _settings(differing: Sequence[tuple[Sequence[Note], Sequence[str]]]) -> str:
    by_settings: dict[tuple[str, ...], list[str]] = {}
    for group, settings in sorted((group, tuple(map(str, found))) for found, groups in differing for group in groups):
        by_settings.setdefault(settings, []).append(group)
    return "; ".join(
        f"{', '.join(settings)} (group{'s' if len(groups) > 1 else ''} {', '.join(groups)})"
        for settings, groups in by_settings.items()
    )


def _losses_differ(a: float, b: float) -> str:
    times = f" (B is {b / a:.6g} times A)" if a and math.isfinite(b / a) else ""
    return f"the loss differs: {a:.9g} against {b:.9g}{times}"


def _parts_differ(wrong: Sequence[tuple[str, float]], right: Sequence[str]) -> str:
    texts = [f"{label} (rel {error:.1e})" for label, error in wrong]
    agree = f"; {joined(right)} agree{'s' if len(right) == 1 else ''}" if right else ""
    return f"of its parts {joined(texts)} differ{'s' if len(wrong) == 1 else ''}{agree}"


def _known_differences(first: Note | None, names: Sequence[str], a: str, b: str) -> str:
    from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES  # where one is named

    rows = {row.name: row for row in KNOWN_DIFFERENCES}
    texts = [_known_difference(rows[name], (a, b)) for name in names]
    return f"{f'{first}; ' if first else ''}known difference{'s' if len(texts) > 1 else ''}: {'. '.join(texts)}"


def _known_difference(row: KnownDifference, frameworks: tuple[str, str]) -> str:
    sides = [(row.habits[name], _TITLES[name]) for name in frameworks]
    does = " and ".join(f"{habit.does} in {title}" for habit, title in sides)
    ways = " or ".join(f"{habit.instead} in {title}" for habit, title in sides if habit.instead)
    advice = "; ".join(part for part in (f"set {ways}" if ways else "", row.advice) if part)
    return f"{row.about} {does} ({advice})"


def _mend_lines(lines: Sequence[str], said: Note) -> str:
    text = str(said)
    rest = text.partition(": ")[2] if text.startswith("the mapping's line ") else text
    return filled("mend {lines:lines} first: {rest}", {"lines": lines, "rest": rest})


# The checks of one run


def _born(
    origin: str, step: int, phase: str, path: str, kind: str, counts: Sequence[int], tensors: int, steps: int
) -> str:
    names = [name for name, count in zip(("NaN", "+Inf", "−Inf"), counts, strict=True) if count]
    where = filled(PARTS["not-finite"][origin], {"path": path, "kind": kind})
    others = f"; {counted(tensors, 'tensor')} in {counted(steps, 'step')}" if tensors > 1 else ""
    return f"{' and '.join(names) or 'a loss that is not finite'} {where}; step {step}, {phase}{others}"


def _little_underflow(share: float) -> str:
    if share >= 1e-4:
        return f"at most {percent(share, 2)} of a module's gradients are 0 by underflow"
    return "no gradients are lost"


def _narrow(dtype: str, limit: float, largest: float, is_backward: bool) -> str:
    if is_backward:
        return f"{dtype} ends at {limit:.5g}: is the loss scale too large? A scaler lowers it by itself and skips such steps"
    reached = f"; what it was made from reaches {largest:.3g}" if largest else ""
    products = ", and products of two such numbers are beyond it" if largest**2 > limit else ""
    todo = "compute this in float32 or bfloat16, or scale it before (scores by 1/√d)"
    return f"{dtype} ends at {limit:.5g}{reached}{products}: {todo}"


def _labels_shifted(shift: str, habit: str | None, is_wrong: bool) -> str:
    told = f"they are {shift}"
    if shift == "the ids at the position before":
        return f"{told}: shifted the wrong way"
    if habit is None or shift == "other than the ids":
        return told
    if not is_wrong:
        return f"{told}; this model {'shifts them itself' if habit == 'the model' else 'does not shift them'}"
    if habit == "the model":
        return f"{told}, and this model shifts them once more: give it the ids themselves as labels"
    return f"{told}, and this model does not shift them: it learns to repeat its input"


def _spread(std: float) -> str:
    return f"random, std {std:.3g}"


def _initialised(
    names: Sequence[str], failed: Sequence[str], mean_a: float, mean_b: float, std_a: float, std_b: float, p: float,
    like_a: str, like_b: str,
) -> str:  # fmt: skip
    start = grouped(names, MOST_NAMED)
    if "constant" in failed:
        sides = ((like_a, std_a, "A"), (like_b, std_b, "B"))
        return f"{start}: {', '.join(f'{like or _spread(std)} in {side}' for like, std, side in sides)}"
    told = []
    if "std" in failed:
        told.append(f"std {std_a:.3g} in A, {std_b:.3g} in B ({std_b / std_a:.3g} times)")
    if "mean" in failed:
        told.append(f"mean {mean_a:.2g} in A, {mean_b:.2g} in B")
    what = "same mean and std, another" if "distribution" in failed else "other largest magnitudes: another"
    likes = [f"{side} is like {like}" for side, like in (("A", like_a), ("B", like_b)) if like and like_a != like_b]
    chance = "p < 1e-16" if p < 1e-16 else f"p {p:.0e}"
    end = f"; {', '.join(likes)}" if likes else ""
    return f"{start}: {', '.join(told or [f'{what} distribution'])}, {chance}{end}"


def _sticks_out(names: Sequence[str], norm: float, std: float, kind: str, usual: float) -> str:
    spread = f", its standard deviation {std:.3f} times" if std == std and abs(std / norm - 1) > 0.02 else ""
    return f"{grouped(names, MOST_NAMED)}: norm {norm:.3f} times A's{spread}; {kind} usually have {usual:.3f} times"


TOLD: Mapping[str, Callable[..., str]] = {
    "steps-not-compared": _steps_not_compared,
    "different-models": _different_models,
    "on-ranks": _on_ranks,
    "parameters-paired-by-guess": _guessed_parameters,
    "line-leads-to-nothing": _leads_to_nothing,
    "order-of-blocks": _order_of_blocks,
    "layers-swapped": _layers_swapped,
    "settings": _settings,
    "losses-differ": _losses_differ,
    "parts-differ": _parts_differ,
    "known-differences": _known_differences,
    "mend-lines-first": _mend_lines,
    "nonfinite-born": _born,
    "little-underflow": _little_underflow,
    "narrow-dtype-overflows": _narrow,
    "labels-shifted": _labels_shifted,
    "initialised-otherwise": _initialised,
    "weight-sticks-out": _sticks_out,
}
"""by code: a function that is given the facts by name"""
