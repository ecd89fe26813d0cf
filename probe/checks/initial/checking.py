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
)
from probe.checks.initial.known import like
from probe.checks.outcome import CheckResult, Line, State
from probe.commands.defaults import MIN_CONFIDENCE
from probe.comparison.blame.guesses import paired_modules
from probe.comparison.distance.combined import canonical_shape
from probe.comparison.fusion.one_to_many import completed
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.paired_step import paired_step
from probe.comparison.steps.side import Side, kind_of
from probe.comparison.steps.step_half import Event
from probe.errors import ConfigError
from probe.mapping import load_mapping
from probe.matching import Direction, Matching
from probe.matching.lists import family
from probe.ranks.opening import open_reader
from probe.records import DirectionName, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

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
        return {
            "a": self.name_a, "b": self.name_b, "shape": list(self.shape), "kind": self.kind.value, "elements": self.a.count,
            "mean_a": self.a.mean, "mean_b": self.b.mean, "std_a": self.a.std, "std_b": self.b.std,
            "largest_a": self.a.largest, "largest_b": self.b.largest, "p": {test.value: p for test, p in self.p.items()},
            "failed": [test.value for test in self.failed], "ks": None if math.isnan(self.statistic) else self.statistic,
            "like_a": self.like_a, "like_b": self.like_b,
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Initial(CheckResult):
    """Whether two models initialise alike."""

    parameters: tuple[Parameter, ...] = ()
    """in the order of A"""
    level: float = math.nan
    """p below which a test fails: `alpha`, divided by the number of tests"""
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def differing(self) -> tuple[Parameter, ...]:
        """Those that were drawn otherwise."""
        return tuple(each for each in self.parameters if each.kind is Kind.DIFFERS)

    def __str__(self) -> str:
        from probe.report.checks.initial import render

        return render(self).plain

    def as_json(self) -> dict[str, Any]:
        """Return the answer by the names that ``--json`` uses."""
        return {
            **super().as_json(),
            "level": None if math.isnan(self.level) else self.level,
            "parameters": [each.as_json() for each in self.parameters],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
        }


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
        pairs = _paired(first, second, mapping, direction, min_confidence)
        if pairs is None:
            return Initial((str(a), str(b)), (Line(_TOPIC, State.UNKNOWN, note("no-initial-weights")),))
        tested = [
            _tested(pairs, event)
            for event in pairs.initial_weights
            if not event.is_one_sided and _is_float(pairs, event)
        ]
        count = sum(len(each.p) for each in tested) + len(_together(tested))
        level = alpha / count if count else math.nan
        found = tuple(_judged(tested, level))
        only_a, only_b = _alone(pairs)
    lines = tuple(_lines(found, level, count, only_a, only_b))
    return Initial((str(a), str(b)), lines, found, level, only_a, only_b)


def _paired(
    a: Reader, b: Reader, mapping: Any, direction: DirectionName | None, min_confidence: float
) -> StepPairs | None:  # fmt: skip
    """Return the first steps of both, paired; None where one has no initial weights."""
    try:
        chosen = None if direction is None else Direction(direction)
    except ValueError:
        raise ConfigError(f"direction={direction!r} is not known; expected a-to-b or b-to-a") from None
    sides = (a, Tree(a.modules)), (b, Tree(b.modules))
    matching: Matching = paired_modules(*sides, load_mapping(mapping), chosen, False, min_confidence)
    steps = [int(reader.steps["step"][0]) if len(reader.steps) else -1 for reader in (a, b)]
    pairs = paired_step(a, b, steps[0], steps[1], completed(matching, a, b))
    has_numbers = [_has_weights(side) for side in (pairs.a, pairs.b)]
    return pairs if all(has_numbers) else None


def _has_weights(side: Side) -> bool:
    columns = side.columns
    kinds = zip(columns["phase"], columns["role"], columns["hash_kind"], strict=True)
    return any(phase == Phase.INIT and role == Role.PARAM and kind for phase, role, kind in kinds)


def _is_float(pairs: StepPairs, event: Event) -> bool:
    return kind_of(pairs.a.dtypes[event.row_a]) == kind_of(pairs.b.dtypes[event.row_b]) == "float"


def _names(pairs: StepPairs, event: Event) -> tuple[str, str]:
    """Return what a parameter is called in A and in B; several with a plus between them."""
    names = []
    pair = pairs.matching.pairs[event.pair]
    for side, module, slot in ((pairs.a, pair.a, event.slot_a), (pairs.b, pair.b, event.slot_b)):
        places = side.places_of(module, slot)
        names.append(
            " + ".join(f"{path}.{name}" if (path := side.reader.modules[at].path) else name for at, name in places)
        )
    return names[0], names[1]


def _sample(side: Side, row: int) -> Drawn:
    """Return what is known of a parameter."""
    if side.has_values(row):
        return drawn_from(side.values(row))
    columns = side.columns
    mean, rms = float(columns["mean"][row]), float(columns["rms"][row])
    largest = max(abs(columns["min"][row]), abs(columns["max"][row]))
    return Drawn(math.prod(side.shapes[row]), mean, math.sqrt(max(rms**2 - mean**2, 0.0)), float(largest))


def _tested(pairs: StepPairs, event: Event) -> Parameter:
    """Return a parameter with the p of each test; nothing is judged yet."""
    i, j = pairs.vocabulary.without(pairs.a, event.row_a, pairs.b, event.row_b)
    a, b = _sample(pairs.a, i), _sample(pairs.b, j)
    digest = pairs.a.digest(i)
    kind, statistic = Kind.ALIKE, math.nan
    p: dict[Trait, float] = {}
    if (digest is not None and digest == pairs.b.digest(j)) or _same_values(a, b) or _same_statistics(a, b):
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
    shape = canonical_shape(pairs.a, i)
    is_table = "embed" in pairs.a.reader.modules[pairs.matching.pairs[event.pair].a].class_name.casefold()
    likes = like(a, shape, is_table), like(b, shape, is_table)
    bare = [Drawn(each.count, each.mean, each.std, each.largest) for each in (a, b)]
    return Parameter(*_names(pairs, event), shape, kind, *bare, p, (), statistic, *likes)


def _same_values(a: Drawn, b: Drawn) -> bool:
    """Tell whether both hold the same numbers, in whatever order of axes."""
    is_same_size = (
        a.values is not None and b.values is not None and a.count == b.count == a.values.size == b.values.size
    )
    if not is_same_size or a.largest != b.largest:
        return False
    assert a.values is not None and b.values is not None
    return not a.is_constant and np.array_equal(np.sort(a.values), np.sort(b.values))


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
    """Tell whether two samples without values are the same numbers: as many, with the same ends, mean and spread."""
    if (a.values is not None and b.values is not None) or a.is_constant or a.count != b.count:
        return False
    ends = ((a.mean, b.mean), (a.std, b.std), (a.largest, b.largest))
    return all(math.isclose(x, y, rel_tol=_OF_SUMS, abs_tol=_OF_SUMS * a.std) for x, y in ends)


def _failing(each: Parameter, p: Mapping[Trait, float], level: float) -> Parameter:
    """Return a parameter that differs where a p is below the level; as it is otherwise."""
    failed = tuple(test for test, least in p.items() if least < level)
    return replace(each, kind=Kind.DIFFERS, p=p, failed=failed) if failed else each


def _alone(pairs: StepPairs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the parameters that one side alone has."""
    found = []
    for half in pairs.halves:
        side, taken = half.side, set()
        for event in pairs.initial_weights:
            if not event.is_one_sided:
                taken |= set(side.places_of(half.modules[event.pair], half.slot(event)))
        names = [
            (each.module, each.slot, each.names[0]) for each in side.parameters
            if not each.is_buffer and each.module not in half.ignored
        ]  # fmt: skip
        found.append(tuple(name for module, slot, name in names if (module, slot) not in taken))
    return found[0], found[1]


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
        yield Line(_TOPIC, State.OK, note("initialised-alike", count=tested, tests=tests, level=level))
    elif not tested:
        yield Line(
            _TOPIC, State.OK if equal else State.UNKNOWN, note("weights-are-equal", count=equal, total=len(found))
        )
    if equal and tested:
        yield Line("equal weights", State.OK, note("some-weights-are-equal", count=equal, total=len(found)))
    few = sum(each.kind is Kind.FEW for each in found)
    if few:
        yield Line("small weights", State.UNKNOWN, note("too-few-elements", count=few, fewest=FEWEST))
    if only_a or only_b:
        yield Line("pairs", State.UNKNOWN, note("parameters-without-counterpart", a=tuple(only_a), b=tuple(only_b)))


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
