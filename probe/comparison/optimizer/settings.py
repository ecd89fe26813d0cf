"""Hyper-parameters of the optimizers that differ between the two sides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, StepHalf

_NUMERIC = ("lr", "weight_decay", "momentum", "dampening", "betas", "eps", "alpha", "nesterov", "amsgrad", "maximize",
            "rho", "initial_accumulator_value", "lr_decay", "lambd", "decoupled_weight_decay", "adam_w_mode",
            "bias_correction", "centered", "momentum_decay", "etas", "step_sizes", "t0")  # fmt: skip
"""what acts on numbers: how an optimizer is run (foreach, fused, capturable) does not"""
_HOW_IT_RUNS = {"foreach", "fused", "capturable", "differentiable", "initial_lr", "name", "not_recorded"}
"""what does not act on numbers, or what a schedule keeps for itself"""
_CLASSES = {"sgd", "adam", "adamw", "adamax", "nadam", "radam", "adagrad", "adadelta", "rmsprop", "rprop",
            "asgd", "lbfgs", "adafactor", "muon", "lamb", "lion"}  # fmt: skip
"""optimizers that are known by name: two different ones are not the same under another name, as FusedAdam is AdamW, and
PaddlePaddle's and MindSpore's Momentum is PyTorch's SGD"""
_DECAYING = {"adamw", "sgd"}
"""optimizers that take λ·lr of a parameter away from it"""
_DECAYS = ("betas", "alpha", "rho")
"""what optimizers weigh an old average with; the new value has the rest"""
_SAME = 1e-15
_MOST_NAMED = 4

ParameterKey = tuple[int, str]
"""(pair of modules, canonical slot)"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one parameter is trained with on one side."""

    class_name: str
    group: int
    hyper: dict[str, object]
    label: str = ""
    """what it is called among several parameters that stand for one"""
    optimizer: int = 0


Difference = tuple[str | Note, ...]
"""the settings of a parameter that differ, behind its group"""


def different_settings(pairs: StepPairs) -> dict[ParameterKey, Difference]:
    """Return what differs, by parameter."""
    mine, theirs = (settings_of(half) for half in pairs.halves)
    differences = _Differences()
    found = {}
    for key in mine.keys() & theirs.keys():
        parts = [(a.label or b.label, differences.of(a, b)) for a in mine[key] for b in theirs[key]]
        if not any(differing for _, differing in parts):
            continue
        notes = list(dict.fromkeys(each for _, differing in parts for each in differing))
        if any(differing != parts[0][1] for _, differing in parts):
            notes = [note("setting-of-parts", setting=each, parts=_of_parts(each, parts)) for each in notes]
        found[key] = (str(mine[key][0].group), *notes)
    return found


def unknown_settings(pairs: StepPairs) -> tuple[tuple[str, str, str], ...]:
    """Return what differs between optimizers of one class, of settings of which it is not known what they do: name, A's, B's."""
    given = [side.reader.groups_of(step) for side, step in ((pairs.a, pairs.step), (pairs.b, pairs.step_b))]
    if [group.hyper for group in given[0]] == [group.hyper for group in given[1]]:
        return ()
    mine, theirs = (settings_of(half) for half in pairs.halves)
    groups = {(id(a.hyper), id(b.hyper)): (a.hyper, b.hyper)
              for key in of_equal_optimizers(pairs) for a in mine[key] for b in theirs[key]}  # fmt: skip
    found = {
        (name, str(a[name]), str(b[name])): None
        for a, b in groups.values()
        for name in sorted(a.keys() & b.keys() - {*_NUMERIC, *_HOW_IT_RUNS})
        if not _alike(a[name], b[name]) and not (_is_object(a[name]) or _is_object(b[name]))
    }
    return tuple(found)


def groups_of(pairs: StepPairs, side: str) -> dict[ParameterKey, tuple[int, int]]:
    """Return the numbers of the optimizer and of its group that each parameter is in on a side, A or B."""
    return {key: (found[0].optimizer, found[0].group) for key, found in settings_of(pairs.half(side)).items()}


def of_equal_optimizers(pairs: StepPairs) -> set[ParameterKey]:
    """Return the parameters that both sides train with the same class of the same framework: a setting means the same there."""
    if pairs.a.reader.info.framework != pairs.b.reader.info.framework:
        return set()
    mine, theirs = (settings_of(half) for half in pairs.halves)
    return {
        key for key in mine.keys() & theirs.keys() if len({each.class_name for each in (*mine[key], *theirs[key])}) == 1
    }


def decays(pairs: StepPairs) -> dict[ParameterKey, tuple[float, float]]:
    """Return which share of itself each parameter loses to weight decay in a step, in A and in B, where that is all it does.

    Decay that goes through the gradient, as in Adam, is divided by it: there it is no such share.
    """
    mine, theirs = (settings_of(half) for half in pairs.halves)
    found = {}
    for key in mine.keys() & theirs.keys():
        both = mine[key][0], theirs[key][0]
        numbers = [[_numbers(each.hyper.get(name)) for name in ("lr", "weight_decay")] for each in both]
        if all(each.class_name.casefold() in _DECAYING for each in both) and all(all(pair) for pair in numbers):
            (rate, decay), (other_rate, other_decay) = numbers
            found[key] = rate[0] * decay[0], other_rate[0] * other_decay[0]
    return found


def _of_parts(setting: Note, parts: Iterable[tuple[str, list[Note]]]) -> tuple[str, ...]:
    """Return the parameters, of those that stand for one, which differ so."""
    return tuple(dict.fromkeys(label for label, differing in parts if setting in differing))


def decay_rounding(pairs: StepPairs) -> float:
    """Return the relative error of 1 − β where a framework keeps β in float32: 6e-5 at most for Adam's 0.999."""
    groups = [*pairs.a.reader.groups_of(pairs.step), *pairs.b.reader.groups_of(pairs.step_b)]
    kept = [value for group in groups for name in _DECAYS for value in _numbers(group.hyper.get(name))]
    return max((2.0**-24 / (1 - value) for value in kept if 0 < value < 1), default=0.0)


def settings_note(differences: Iterable[Difference]) -> Note:
    """Say what differs, and in which groups."""
    by_settings: dict[tuple[str | Note, ...], list[str | Note]] = {}
    for group, *notes in dict.fromkeys(differences):
        by_settings.setdefault(tuple(notes), []).append(group)
    return note("settings", differing=tuple((notes, tuple(groups)) for notes, groups in by_settings.items()))


def of_group(
    pairs: StepPairs, settings: Iterable[Difference], differing: Difference | None, events: Sequence[Event]
) -> list[Note]:
    """Say of how many parameters that are set otherwise alike the updates differ, and which are the first.

    Parameters
    ----------
    pairs
        the step
    settings
        what differs, of all parameters
    differing
        what differs for these
    events
        their updates
    """
    if differing is None or len(events) < 2:
        return []
    modules, total = pairs.a.reader.modules, sum(each == differing for each in settings)
    names = tuple(f"{modules[pairs.matching.pairs[e.pair].a].path}.{e.slot_a}".lstrip(".") for e in events)
    return [note("updates-of-group-differ", names=names, total=total, group=differing[0])]


class _Differences:
    """What differs between two settings, in words: found once for all parameters of the same two groups, which share their hyper-parameters."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], list[Note]] = {}

    def of(self, a: Setting, b: Setting) -> list[Note]:
        """Return what differs."""
        groups = id(a.hyper), id(b.hyper)
        if groups not in self._known:
            self._known[groups] = _differences(a, b)
        return self._known[groups]


def _differences(a: Setting, b: Setting) -> list[Note]:
    found = []
    names = a.class_name.casefold(), b.class_name.casefold()
    if names[0] != names[1] and _CLASSES.issuperset(names):
        found.append(note("other-optimizers", a=a.class_name, b=b.class_name))
    found += [
        note("other-setting", name=name, a=_fact(a.hyper[name]), b=_fact(b.hyper[name]))
        for name in _NUMERIC
        if name in a.hyper and name in b.hyper and not _alike(a.hyper[name], b.hyper[name])
    ]
    return found


def _fact(value: object) -> object:
    """Return a setting as a fact: lists as tuples, which are equal where they are."""
    return tuple(map(_fact, value)) if isinstance(value, (list, tuple)) else value


def settings_of(half: StepHalf) -> dict[ParameterKey, list[Setting]]:
    """Return what each parameter is trained with; several things where several parameters stand for one."""
    side, index = half.side, half.pair_of
    stands = {part: home for home, parts in side.parts.items() if home[1] for part in parts}
    found: dict[ParameterKey, list[Setting]] = {}
    for group in side.reader.groups_of(side.step):
        of_all = Setting(group.class_name, group.group, group.hyper, optimizer=group.optimizer)
        for number in group.parameters:
            parameter = side.parameters[number]
            own = parameter.module, parameter.slot
            module, slot = stands.get(own, own)
            if module not in index:
                continue
            key = index[module], side.names.of(module, slot)
            if own in stands:
                label = parameter.names[0].rpartition(".")[0].rpartition(".")[2]
                found[key] = [*found.get(key, ()), replace(of_all, label=label)]
            else:
                found[key] = [of_all]
    return found


def _numbers(value: object) -> list[float]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [float(each) for each in values if isinstance(each, (int, float))]


def _is_object(value: object) -> bool:
    """Tell whether a setting is no number, text or list, and was written down as Python prints it: with an address."""
    return isinstance(value, str) and value.startswith("<")


def _alike(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=_SAME)
    return a == b
