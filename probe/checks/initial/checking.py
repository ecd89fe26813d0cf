"""`check_init`: each parameter against its counterpart where both were drawn at random."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.checks.initial.distributions import (
    Drawn,
    combined,
    drawn_from,
    kolmogorov_smirnov,
    p_of_means,
    p_of_peaks,
    p_of_stds,
)  # fmt: skip
from probe.checks.initial.known import like
from probe.checks.outcome import CheckResult, Line, State, fine, unchecked
from probe.defaults import MIN_CONFIDENCE
from probe.errors import ConfigError
from probe.mapping import load_mapping
from probe.matching import Direction, Matching
from probe.matching.lists import family
from probe.matching.one_to_many import completed
from probe.matching.paired import paired_modules
from probe.notes import Note, named, note, plain
from probe.ranks.opening import open_reader
from probe.records import DirectionName, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.side import Place, Side
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

ALPHA = 1e-3
"""how often two runs of one initialisation may be told apart by chance, over all parameters and tests together"""
FEWEST = 64
"""elements of a tensor from which on it is tested"""
_TOPIC = "distributions"
_OF_SUMS = 1e-9
"""relative difference that sums of the same numbers in another order may have"""


class Kind(enum.StrEnum):
    """What came of a pair of parameters."""

    EQUAL = "equal"
    """bit for bit: loaded, or drawn with one seed"""
    ALIKE = "alike"
    DIFFERS = "differs"
    FEW = "too few elements"


class Trait(enum.StrEnum):
    """What was tested."""

    MEAN = "mean"
    STD = "std"
    PEAK = "largest"
    """the largest magnitude in standard deviations, where no values were recorded"""
    KS = "distribution"
    """Kolmogorov–Smirnov, where values were recorded"""
    CONSTANT = "constant"
    """one side, or both, hold one number throughout"""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter and its counterpart."""

    name_a: str
    name_b: str
    shape: tuple[int, ...]
    """of A, in the canonical layout"""
    kind: Kind
    a: Drawn
    b: Drawn
    p: Mapping[Trait, float]
    """by test; of one that fails the smaller one of its own and that of all layers together"""
    failed: tuple[Trait, ...]
    """tests with a p below the corrected level"""
    statistic: float
    """of Kolmogorov and Smirnov; NaN where no values were recorded"""
    like_a: str
    """the known initialisation that A's numbers are like, or empty"""
    like_b: str

    def as_json(self) -> dict[str, Any]:
        """Return the fields by their names in JSON."""
        about = {"a": self.name_a, "b": self.name_b, **named(self, "shape", "kind"), "elements": self.a.count}
        sides = (("a", self.a), ("b", self.b))
        numbers = {f"{name}_{side}": getattr(each, name) for name in ("mean", "std", "largest") for side, each in sides}
        tests = {
            "p": {test.value: p for test, p in self.p.items()},
            **named(self, "failed"),
            "ks": plain(self.statistic),
        }
        return about | numbers | tests | named(self, "like_a", "like_b")


@dataclass(frozen=True, repr=False)
class Initial(CheckResult):
    """Whether two models initialise alike."""

    check = "initial"
    level: float = math.nan
    """p below which a test fails: `alpha`, divided by the number of tests"""
    parameters: tuple[Parameter, ...] = ()
    """in the order of A"""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[Parameter, ...]:
        """Those that were drawn otherwise."""
        return tuple(each for each in self.parameters if each.kind is Kind.DIFFERS)


def check_init(
    a: str | Path, b: str | Path, mapping: str | Path | Mapping[str, Any] | None = None, *, direction: DirectionName | None = None,
    alpha: float = ALPHA, min_confidence: float = MIN_CONFIDENCE,
) -> Initial:  # fmt: skip
    """Hold the distribution of each initial parameter against its counterpart's, where both were drawn with other random numbers.

    Parameters
    ----------
    a, b
        recordings that hold their first step; values (``task="tensor"``) tell the distribution, statistics its mean, its
        standard deviation and its largest magnitude
    mapping, direction, min_confidence
        as for `probe.compare`
    alpha
        how often two seeds of one initialisation may be told apart by chance, over all tests together

    Raises
    ------
    StoreError, FormatError
        a file cannot be read
    MappingError
        the mapping cannot be used
    ConfigError
        ``alpha`` is no probability, or the direction is none
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha={alpha!r} is no level of significance: expected a number between 0 and 1")
    with open_reader(a) as first, open_reader(b) as second:
        first.require_steps()
        second.require_steps()
        step = _paired(first, second, mapping, direction, min_confidence)
        if step is None:
            return Initial((str(a), str(b)), (unchecked(_TOPIC, "no-initial-weights"),))
        tested = [_tested(step, event) for event in _weights(step) if _is_float(event)]
        count = sum(len(each.p) for each in tested) + len(_together(tested))
        level = alpha / count if count else math.nan
        found = tuple(_judged(tested, level))
        only_a, only_b = _alone(step)
    lines = tuple(_lines(found, level, count, only_a, only_b))
    return Initial((str(a), str(b)), lines, level, found, only_a, only_b)


def _paired(
    a: Reader, b: Reader, mapping: Any, direction: DirectionName | None, min_confidence: float
) -> Step | None:  # fmt: skip
    """Return the first steps of both, paired; None where one has no initial weights."""
    sides = (a, Tree(a.modules)), (b, Tree(b.modules))
    matching: Matching = paired_modules(
        *sides, load_mapping(mapping), Direction.named(direction), False, min_confidence
    )
    steps = [int(reader.steps["step"][0]) if len(reader.steps) else -1 for reader in (a, b)]
    whole = completed(matching, a, b)
    halves = Side(a, steps[0], whole.views_a, begins=True), Side(b, steps[1], whole.views_b, begins=True)
    return Step(*halves, whole) if all(map(_has_weights, halves)) else None


def _has_weights(side: Side) -> bool:
    return any(each.hash is not None for each in side.params.get((Phase.INIT, Role.PARAM), {}).values())


def _is_float(event: Event) -> bool:
    return event.a is not None and event.b is not None and event.a.kind == event.b.kind == "float"


def _weights(step: Step) -> Iterator[Event]:
    """Yield the weights that both sides began with."""
    found = step.parameters.events(Phase.INIT, Role.PARAM)
    return (each for each in found if each.a is not None and each.b is not None)


def _places(step: Step, event: Event) -> Iterator[list[Place]]:
    """Yield the parameters of A, and those of B, that a weight is: several where they lie in one on the other side."""
    assert event.place is not None
    sides = ((step.a, "A", event.place), (step.b, "B", (step.pair_of[event.place[0]].b, event.slot_b)))
    for (half, name, (module, slot)), (other, _, there) in zip(sides, sides[::-1], strict=True):
        known = (bundle for bundle in step.parameters.fused if bundle.side == name)
        parts = (b.parts for b in known if (b.whole[0], other.canonical(*b.whole)) == there)
        found = [place for row in next(parts, ()) for place in row]
        yield found or [(module, half.recorded_slot(module, slot))]


def _names(step: Step, event: Event) -> list[str]:
    """Return what a parameter is called in A and in B; several with a plus between them."""
    readers = step.a.reader, step.b.reader
    return [
        " + ".join(f"{path}.{slot}" if (path := reader.modules[at].path) else slot for at, slot in places)
        for reader, places in zip(readers, _places(step, event), strict=True)
    ]


def _sample(tensor: Tensor, other: Tensor) -> Drawn:
    """Return what is known of a parameter, without the rows that a vocabulary is padded with."""
    if tensor.has_values:
        is_padded = len(tensor.laid) == 2 and tensor.laid[1:] == other.laid[1:]
        return drawn_from(tensor.values()[: other.laid[0]] if is_padded else tensor.values())
    std = math.sqrt(max(tensor.rms**2 - tensor.mean**2, 0.0))
    return Drawn(tensor.size, tensor.mean, std, tensor.largest)


def _tested(step: Step, event: Event) -> Parameter:
    """Return a parameter with the p of each test; nothing is judged yet."""
    assert event.a is not None and event.b is not None and event.place is not None
    a, b = _sample(event.a, event.b), _sample(event.b, event.a)
    kind, statistic = Kind.ALIKE, math.nan
    p: dict[Trait, float] = {}
    if step.is_equal(event) or _same_values(a, b) or _same_statistics(a, b):
        kind = Kind.EQUAL
    elif a.is_constant or b.is_constant:
        p[Trait.CONSTANT] = float(a.is_constant and b.is_constant and math.isclose(a.mean, b.mean, rel_tol=1e-6))
    elif min(a.count, b.count) < FEWEST:
        kind = Kind.FEW
    else:
        p = {Trait.MEAN: p_of_means(a, b), Trait.STD: p_of_stds(a, b)}
        if a.values is not None and b.values is not None:
            statistic, p[Trait.KS] = kolmogorov_smirnov(a.values, b.values)
        else:
            p[Trait.PEAK] = p_of_peaks(a, b)
    is_table = "embed" in step.a.reader.modules[event.place[0]].class_name.casefold()
    likes = like(a, event.a.laid, is_table), like(b, event.a.laid, is_table)
    bare = [Drawn(each.count, each.mean, each.std, each.largest) for each in (a, b)]
    name_a, name_b = _names(step, event)
    return Parameter(name_a, name_b, event.a.laid, kind, *bare, p, (), statistic, *likes)


def _same_values(a: Drawn, b: Drawn) -> bool:
    """Return True if both hold the same numbers, in whatever order of axes."""
    if a.values is None or b.values is None or not a.count == b.count == a.values.size == b.values.size:
        return False
    is_other = a.is_constant or a.largest != b.largest
    return not is_other and np.array_equal(np.sort(a.values), np.sort(b.values))


def _together(tested: Sequence[Parameter]) -> dict[tuple[str, Trait], float]:
    """Return p of each test of parameters whose names differ in numbers only, layer by layer: together they tell more than each."""
    found: dict[tuple[str, Trait], list[float]] = {}
    for each in tested:
        for test, p in each.p.items():
            if test is not Trait.CONSTANT:
                found.setdefault((family(each.name_a), test), []).append(p)
    return {key: combined(several) for key, several in found.items() if len(several) > 1}


def _judged(tested: Sequence[Parameter], level: float) -> list[Parameter]:
    """Return parameters with the tests that failed: their own first, then those of the other layers together."""
    alone = [_failing(each, each.p, level) for each in tested]
    together = _together([each for each in alone if not each.failed])
    return [
        each if each.failed else _failing(each, {
            test: min(p, together.get((family(each.name_a), test), 1.0)) for test, p in each.p.items()
        }, level) for each in alone
    ]  # fmt: skip


def _same_statistics(a: Drawn, b: Drawn) -> bool:
    """Return True if two samples without values are the same numbers: as many, with the same ends, mean and spread."""
    if (a.values is not None and b.values is not None) or a.is_constant or a.count != b.count:
        return False
    ends = ((a.mean, b.mean), (a.std, b.std), (a.largest, b.largest))
    return all(math.isclose(x, y, rel_tol=_OF_SUMS, abs_tol=_OF_SUMS * a.std) for x, y in ends)


def _failing(each: Parameter, p: Mapping[Trait, float], level: float) -> Parameter:
    """Return a parameter that differs where a p is below the level; as it is otherwise."""
    failed = tuple(test for test, least in p.items() if least < level)
    return replace(each, kind=Kind.DIFFERS, p=p, failed=failed) if failed else each


def _alone(step: Step) -> tuple[tuple[str, ...], ...]:
    """Return the parameters that one side alone has."""
    taken = [
        [place for each in found for place in each]
        for found in zip(*(_places(step, e) for e in _weights(step)), strict=True)
    ]
    ignored = step.matching.ignored_a, step.matching.ignored_b
    return tuple(
        tuple(
            each.names[0] for each in half.reader.parameters
            if not each.is_buffer and each.module not in left_out and (each.module, each.slot) not in own
        )
        for half, left_out, own in zip((step.a, step.b), ignored, taken or ((), ()), strict=True)
    )  # fmt: skip


def _lines(
    found: Sequence[Parameter], level: float, tests: int, only_a: Sequence[str], only_b: Sequence[str]
) -> Iterator[Line]:  # fmt: skip
    """Yield what came of it."""
    differing = [each for each in found if each.kind is Kind.DIFFERS]
    equal = sum(each.kind is Kind.EQUAL for each in found)
    tested = sum(bool(each.p) for each in found)
    for group in sorted(_groups(differing), key=lambda each: min(each[0].p[test] for test in each[0].failed)):
        yield Line(_TOPIC, State.FOUND, _difference(group))
    if tested and not differing:
        yield fine(_TOPIC, "initialised-alike", count=tested, tests=tests, level=level)
    elif not tested:
        yield Line(
            _TOPIC, State.OK if equal else State.UNKNOWN, note("weights-are-equal", count=equal, total=len(found))
        )
    if equal and tested:
        yield fine("equal weights", "some-weights-are-equal", count=equal, total=len(found))
    few = sum(each.kind is Kind.FEW for each in found)
    if few:
        yield unchecked("small weights", "too-few-elements", count=few, fewest=FEWEST)
    if only_a or only_b:
        yield unchecked("pairs", "parameters-without-counterpart", a=tuple(only_a), b=tuple(only_b))


def _groups(found: Sequence[Parameter]) -> list[list[Parameter]]:
    """Return parameters that fail the same tests and whose names differ in numbers only, together."""
    groups: dict[tuple[str, tuple[Trait, ...]], list[Parameter]] = {}
    for each in found:
        groups.setdefault((family(each.name_a), each.failed), []).append(each)
    return list(groups.values())


def _difference(group: Sequence[Parameter]) -> Note:
    """Say how parameters differ, by the first of them."""
    first = group[0]
    return note(
        "initialised-otherwise", names=tuple(each.name_a for each in group), failed=tuple(test.value for test in first.failed),
        mean_a=first.a.mean, mean_b=first.b.mean, std_a=first.a.std, std_b=first.b.std,
        p=min(first.p[test] for test in first.failed), like_a=first.like_a, like_b=first.like_b,
    )  # fmt: skip
