"""What the numbers say of optimizers, and what was done to gradients between backward and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from probe.comparison.notes import Note
from probe.report.words.hints import listed

_RANKS = ", as a reduction over ranks does"


def _clips_each_group(groups: int, norm: float, had_less: Sequence[int]) -> str:
    numbers = ", ".join(map(str, had_less))
    less = f" (group{'s' * (len(had_less) > 1)} {numbers} had less)" if had_less else ""
    return f"clips the gradients of each of its {groups} groups by itself, to a norm of {norm:g}{less}"


def _adds_to_each(over_ranks: bool) -> str:
    return f"adds to each of its gradients what backward did not leave there{_RANKS if over_ranks else ''}"


def _adds_to_some(names: Sequence[str], over_ranks: bool, factor: float, others: int) -> str:
    rest = "leaves" if factor == 1 else f"multiplies by {factor:g}"
    ranks = _RANKS if over_ranks else ""
    return f"adds to {listed(names)} what backward did not leave there{ranks}, and {rest} the other {others}"


def _decay_in_gradient(side: str, times: float, other: str, is_beside: bool) -> str:
    rest = f"{other} takes the decay beside it, as AdamW does" if is_beside else f"{other} does not"
    return f"{side} adds {times:g} times the weight to the gradient (L2, as Adam does), {rest}"


def _more_of_weight(times: float, is_more: bool) -> str:
    return f"B takes {times:g} times the weight {'more' if is_more else 'less'} away with an update (weight_decay)"


def _setting_by_numbers(name: str, a: float, b: float, recorded: float | None) -> str:
    though = "" if recorded is None else f", though both sides recorded {recorded:g}"
    return f"{name} {a:g} against {b:g}{though}"


def _of_some(said: Note, count: int, total: int) -> str:
    return f"{said} ({count} of {total} parameters)"


WORDS: dict[str, str | Callable[..., str]] = {
    # what was done to gradients; the sides stand before it
    "clips-each-group": _clips_each_group,
    "clips-each-by-itself": "clips each gradient by itself to a norm of {norm:g}",
    "clips-all-together": "clips all its gradients together to a norm of {norm:g} (from {before:g})",
    "cuts-elements-off": "cuts each element of its gradients off at {bound:g}",
    "uses-gradients-as-left": "uses its gradients as backward left them (norm {norm:g})",
    "uses-zeros": "uses zeros",
    "uses-times-its-gradients": "uses {factor:g} times its gradients",
    "divides-gradients": "divides its gradients by {by}",
    "adds-to-each-gradient": _adds_to_each,
    "adds-to-some-gradients": _adds_to_some,
    # settings
    "of-some-parameters": _of_some,
    "setting-by-numbers": _setting_by_numbers,
    "lr-is-a-multiple": "B's lr is {factor:g} times A's",
    "lr-applied-twice": "B applies lr {rate:g} twice",
    "maximize-on-one-side": "one side goes up where the other goes down (maximize, or the sign of the gradient)",
    "second-moment-on-one-side": "{side} divides by a second moment, as Adam does, {other} does not",
    "empty-state-on-one-side": "{side}'s optimizer began with an empty state, {other}'s goes on from the step before",
    "amsgrad-on-one-side": "{side} divides by the largest second moment so far (amsgrad)",
    "eps-is-larger": "eps of {side} is larger, about {eps:.0e}: the smaller a gradient, the shorter is its update",
    "eps-inside-root-on-one-side": "{side} adds eps ({eps:g}) inside the root, {other} behind it",
    "eps-shows-on-one-side": "eps {eps:g} in {side}, in {other} it is too small to show",
    "decay-in-gradient-on-one-side": _decay_in_gradient,
    "more-of-weight-taken": _more_of_weight,
    "bias-not-corrected": "{side} does not correct the bias of Adam's moments, {other} does",
    "nesterov-on-one-side": "{side} looks ahead with its momentum (nesterov), {other} does not",
}
