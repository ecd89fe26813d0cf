"""The recorded settings of the optimizers, held against each other parameter by parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from probe.records import OptimizerGroup, Phase, Role
from probe.verdict.judge.verdicts import State, Verdicts
from probe.verdict.side import Place, Side
from probe.verdict.steps.step import Step

_NUMERIC = frozenset(
    "lr weight_decay momentum dampening betas eps alpha nesterov amsgrad maximize rho initial_accumulator_value "
    "lr_decay lambd decoupled_weight_decay adam_w_mode bias_correction centered momentum_decay etas step_sizes "
    "t0".split()
)
"""what acts on numbers: how an optimizer is run (foreach, fused, capturable) does not"""
_HOW_IT_RUNS = frozenset("foreach fused capturable differentiable initial_lr name params not_recorded".split())
_CLASSES = frozenset(
    "sgd adam adamw adamax nadam radam adagrad adadelta rmsprop rprop asgd lbfgs adafactor muon lamb lion".split()
)
"""optimizers that are known by name: two of them are not one under another name, as FusedAdam is AdamW"""
_BY_ELEMENT = frozenset("sgd momentum adam adamw adamax nadam radam adagrad adadelta rmsprop".split())
"""optimizers whose update of an element is a smooth function of its gradient, states and value: so is its rounding"""
CLASS = "class"
"""stands for the name of a setting: the optimizers have other classes"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What a parameter is trained with otherwise."""

    group: int
    """of A's optimizer"""
    differing: tuple[tuple[str, object, object], ...]
    """names with what A and B set them to"""
    is_certain: bool
    """both optimizers have one class of one framework: a name means the same in both"""


def differing_settings(step: Step) -> dict[Place, Setting]:
    """Return, by parameter of A, the settings that differ."""
    mine, theirs = _groups(step.a), _groups(step.b)
    found: dict[Place, Setting] = {}
    pairs = [(place, group, theirs[there]) for place, group, there in _partners(step)]
    for (side, place), (parts, whole) in step.parameters.joined.items():
        for part in parts:
            a, b = (part, whole) if side == "A" else (whole, part)
            if a in mine and b in theirs:
                pairs.append((place if side == "A" else whole, mine[a], theirs[b]))
    for place, group, other in pairs:
        names = group.class_name.casefold(), other.class_name.casefold()
        differing = [(name, x, y) for name, x, y in _pairs(group, other) if name in _NUMERIC]
        if names[0] != names[1] and _CLASSES.issuperset(names):
            differing.insert(0, (CLASS, group.class_name, other.class_name))
        if differing:
            is_certain = names[0] == names[1] and not step.is_across_frameworks
            found[place] = Setting(group.group, tuple(differing), is_certain)
    return found


def _partners(step: Step) -> Iterator[tuple[Place, OptimizerGroup, Place]]:
    """Yield the parameters that both optimizers were given, with A's group and where B has them."""
    theirs = _groups(step.b)
    for place, group in _groups(step.a).items():
        there = step.parameters.partner(place, theirs)
        if there is not None:
            yield place, group, there


def _of_one_class(step: Step) -> dict[Place, tuple[OptimizerGroup, OptimizerGroup]]:
    """Return the groups of parameters that optimizers of one class of one framework train."""
    theirs = _groups(step.b)
    found = {place: (group, theirs[there]) for place, group, there in _partners(step)}
    is_one = not step.is_across_frameworks
    return {place: (a, b) for place, (a, b) in found.items() if is_one and a.class_name == b.class_name}


def trained_alike(step: Step) -> set[Place]:
    """Return the parameters of A whose optimizers do the same, element by element."""
    differing, known = differing_settings(step), _of_one_class(step)
    names = {place: group.class_name.rpartition(".")[2].casefold() for place, (group, _) in known.items()}
    return {place for place, name in names.items() if name in _BY_ELEMENT and place not in differing}


def unknown_settings(step: Step) -> tuple[tuple[str, str, str], ...]:
    """Return what differs between optimizers of one class, of settings of which it is not known what they do."""
    pairs = {(id(a), id(b)): (a, b) for a, b in _of_one_class(step).values()}
    found = {
        (name, str(x), str(y)): None
        for group, other in pairs.values()
        for name, x, y in sorted(_pairs(group, other), key=lambda each: each[0])
        if name not in _NUMERIC | _HOW_IT_RUNS and not str(x).startswith("<") and not str(y).startswith("<")
    }
    return tuple(found)


def idle(step: Step, verdicts: Verdicts, settings: Mapping[Place, Setting]) -> set[Place]:
    """Return the parameters on which settings did not act: nothing moved, or as far under another learning rate."""
    found = set()
    for event in step.parameters.events(Phase.UPDATE, Role.DELTA):
        if event.place in settings and event.a is not None and verdicts.state(event) in (State.EQUAL, None):
            is_rate = any(name == "lr" for name, _, _ in settings[event.place].differing)
            if step.is_equal(event) and (is_rate or not event.a.norm):
                found.add(event.place)
    return found


def _groups(side: Side) -> dict[Place, OptimizerGroup]:
    return {side.places[i]: group for group in side.groups for i in group.parameters}


def _pairs(a: OptimizerGroup, b: OptimizerGroup) -> list[tuple[str, object, object]]:
    names = [name for name in a.hyper if name in b.hyper and not _is_same(a.hyper[name], b.hyper[name])]
    return [(name, a.hyper[name], b.hyper[name]) for name in names]


def _is_same(x: object, y: object) -> bool:
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and all(map(_is_same, x, y))
    if isinstance(x, int | float) and isinstance(y, int | float):
        return math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-15)
    return x == y
