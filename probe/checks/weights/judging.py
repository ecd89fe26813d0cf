"""What two sets of trained weights tell: weights that were never loaded, groups that decayed otherwise, single ones that stick out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

from probe.checks.outcome import Line, fault, fine, unchecked
from probe.checks.weights.measuring import Kind, WeightRow
from probe.matching.lists import family

_LOADED, _SIZES, _SINGLE, _FINITE = "loaded", "size by kind", "single weights", "finite"
GROUP = {Kind.MATRIX: 0.05, Kind.EMBEDDING: 0.05, Kind.SCALE: 0.015, Kind.BIAS: 0.25}
"""logarithm of the ratio of norms, and of that ratio to the matrices', from which on a kind of weights has another size. In six architectures,
trained with other seeds or orders of the data, the median was at most 0.04 of matrices, 0.005 of norm weights, 0.16 of biases; norm weights that
decayed in one of both were apart by 0.03 and more"""
LEARNED = 0.5
"""share of the spread inside norm weights, which training alone has made, that their norms may be apart in any case"""
ALONE = 0.1
"""the same of a kind that has too few weights to show how far their norms scatter"""
SEVERAL = 5
"""weights that are not too few"""
SINGLE = {
    "norm_ratio": {Kind.MATRIX: 0.1, Kind.EMBEDDING: 0.1, Kind.SCALE: 0.1, Kind.BIAS: 0.7},
    "std_ratio": {Kind.MATRIX: 0.1, Kind.EMBEDDING: 0.1, Kind.SCALE: 0.7, Kind.BIAS: 0.7},
}
ANEW = 2.0
"""times these, and as many times the limit of all matrices, where both sides were trained from other weights"""
"""by measure and kind: logarithm of the ratio of a weight's to its kind's, from which on it may stick out; biases begin at 0, norm weights at one
number, so that their spreads are what training alone has made, and scatter most"""
SPREADS = 6.0
"""robust standard deviations of its kind's ratios, from which on it does"""
ERRORS = 4.0
"""standard errors of the median of a kind's ratios"""
NOTHING = 1e-3
"""share of its kind's usual root mean square below which a weight has learned nothing but rounding, as biases of keys do"""
RELATED = 0.5
"""median correlation from which on both sides were trained from the same weights, so that each weight should be correlated"""
UNRELATED = 0.1
"""correlation up to which a weight is another one, and no later state of it"""
FEWEST = 256
"""elements from which on a correlation, or a likeness to an initialisation, tells"""
CLEARLY = 0.2
"""logarithm of the ratio of standard deviations by which A's weight is another one than B's, which is like a fresh one"""
_MAD = 1.4826
"""times the median deviation is the standard deviation of a normal distribution"""


def never_loaded(rows: Sequence[WeightRow], fresh: Iterable[str]) -> list[tuple[WeightRow, str]]:
    """Return the weights of B that were never loaded, or trained, each with the reason.

    ``fresh`` are names of B's weights that are equal to a fresh initialisation of the model.
    """
    same, is_related = set(fresh), are_related(rows)
    reasons = ((row, _why_fresh(row, row.name_b in same, is_related)) for row in rows if not row.is_equal)
    return [(row, reason) for row, reason in reasons if reason]


def are_related(rows: Sequence[WeightRow]) -> bool:
    """Return True if both sides were trained from the same weights."""
    known = [abs(row.correlation) for row in rows if row.b.count >= FEWEST and math.isfinite(row.correlation)]
    return len(known) > 2 and statistics.median(known) >= RELATED


def _why_fresh(row: WeightRow, is_as_init: bool, is_related: bool) -> str:
    if is_as_init:
        return "equal to the fresh initialisation"
    if row.b.drawn.is_constant and not row.a.drawn.is_constant and row.b.count > 1:
        return f"constant {row.b.mean:.6g}"
    if row.b.count < FEWEST or row.b.drawn.is_constant:
        return ""
    if is_related and abs(row.correlation) < max(UNRELATED, ERRORS / math.sqrt(row.b.count)):
        return f"not related to A's{f', and like {row.like_b}' if row.like_b else ''}"
    is_apart = math.isfinite(row.std_ratio) and abs(math.log(row.std_ratio)) > CLEARLY
    return f"like {row.like_b}" if row.like_b and not row.like_a and is_apart else ""


def loaded_lines(rows: Sequence[WeightRow], fresh: Sequence[tuple[WeightRow, str]]) -> Iterator[Line]:
    """Yield what was never loaded."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row, reason in fresh:
        groups.setdefault((family(row.name_b), reason), []).append(row.name_b)
    for (_, reason), names in groups.items():
        yield fault(_LOADED, "weights-never-loaded", names=tuple(names), why=reason)
    if not fresh:
        equal = sum(row.is_equal for row in rows)
        yield fine(_LOADED, "weights-look-loaded", count=len(rows), equal=equal)


def finite_lines(rows: Sequence[WeightRow]) -> Iterator[Line]:
    """Yield which weights have NaN or Inf."""
    names = [row.name_a for row in rows if row.a.bad], [row.name_b for row in rows if row.b.bad]
    for side, bad in zip("AB", names, strict=True):
        if bad:
            yield fault(_FINITE, "trained-weights-not-finite", side, names=tuple(bad))


def size_lines(rows: Sequence[WeightRow]) -> Iterator[Line]:
    """Yield which kinds of weights, and which single ones, are longer or shorter than the others are.

    Weight decay makes weights shorter: a group that decays in B and not in A is shorter there than the other groups are.
    """
    by_kind = _by_kind(rows)
    if not by_kind:
        yield unchecked(_SIZES, "no-sizes-to-compare")
        return
    base = Kind.MATRIX if Kind.MATRIX in by_kind else max(by_kind, key=lambda kind: len(by_kind[kind]))
    ratios = {kind: [math.log(row.norm_ratio) for row in found] for kind, found in by_kind.items()}
    centre, times = statistics.median(ratios[base]), 1.0 if are_related(rows) else ANEW
    others = list(_kinds(by_kind, ratios, base, centre))
    if abs(centre) > times * _threshold(by_kind[base], ratios[base], base):
        others.insert(0, fault(_SIZES, "matrices-of-other-size", kind=base.value, ratio=math.exp(centre)))
    yield from others
    if not others:
        yield fine(_SIZES, "kinds-of-one-size", ratios=tuple(f"{kind.value} {math.exp(statistics.median(found)):.3f}" for kind, found in ratios.items()))  # fmt: skip
    outliers = sticking_out(by_kind, times)
    for group in _families(outliers):
        first = group[0]
        yield fault(_SINGLE, "weight-sticks-out", names=tuple(row.name_b for row in group), norm=first.norm_ratio, std=first.std_ratio, kind=first.kind.value, usual=math.exp(statistics.median(ratios[first.kind])))  # fmt: skip
    if not outliers:
        yield fine(_SINGLE, "no-weight-sticks-out", count=len(rows))


def _by_kind(rows: Sequence[WeightRow]) -> dict[Kind, list[WeightRow]]:
    """Return the weights that have a size on both sides."""
    found: dict[Kind, list[WeightRow]] = {}
    for row in rows:
        is_trained = math.isfinite(row.norm_ratio) and row.kind is not Kind.STATISTIC
        if is_trained and not (row.a.drawn.is_constant and row.b.drawn.is_constant):
            found.setdefault(row.kind, []).append(row)
    for kind, members in found.items():
        usual = statistics.median(_rms(row) for row in members)
        found[kind] = [row for row in members if _rms(row) >= NOTHING * usual]
    return found


def _rms(row: WeightRow) -> float:
    return max(row.a.norm, row.b.norm) / math.sqrt(row.b.count)


def _kinds(
    by_kind: dict[Kind, list[WeightRow]], ratios: dict[Kind, list[float]], base: Kind, centre: float
) -> Iterator[Line]:
    """Yield the kinds whose norms are to A's otherwise than those of the matrices."""
    for kind, found in ratios.items():
        own = statistics.median(found)
        apart = own - centre
        if kind is not base and min(abs(own), 2 * abs(apart)) > _threshold(by_kind[kind], found, kind):
            facts = {"kind": kind.value, "base": base.value, "count": len(found)}
            yield fault(_SIZES, "kind-of-other-size", **facts, ratio=math.exp(own), usual=math.exp(centre), is_smaller=apart < 0)  # fmt: skip


def _threshold(rows: Sequence[WeightRow], found: Sequence[float], kind: Kind) -> float:
    """Return from which difference on the median of ratios tells."""
    if len(found) < SEVERAL:
        return max(ALONE, GROUP[kind])
    learned = statistics.median(max(row.a.std, row.b.std) / _rms(row) for row in rows) if kind is Kind.SCALE else 0.0
    return max(GROUP[kind], LEARNED * learned, ERRORS * _spread(found) / math.sqrt(len(found)))


def _spread(found: Sequence[float]) -> float:
    centre = statistics.median(found)
    return _MAD * statistics.median(abs(each - centre) for each in found)


def sticking_out(by_kind: dict[Kind, list[WeightRow]], times: float = 1.0) -> list[WeightRow]:
    """Return the weights whose norm, or spread, is to A's otherwise than those of their kind are, by ``times`` the limits."""
    found: dict[int, WeightRow] = {}
    for kind, rows in by_kind.items():
        for measure, least in SINGLE.items():
            logs = {
                id(row): math.log(ratio) for row in rows if math.isfinite(ratio := getattr(row, measure)) and ratio > 0
            }
            if len(logs) < SEVERAL:
                continue
            centre, spread = statistics.median(logs.values()), _spread(list(logs.values()))
            limit = max(times * least[kind], SPREADS * spread)
            found.update({id(row): row for row in rows if id(row) in logs and abs(logs[id(row)] - centre) > limit})
    return list(found.values())


def _families(rows: Sequence[WeightRow]) -> list[list[WeightRow]]:
    groups: dict[str, list[WeightRow]] = {}
    for row in rows:
        groups.setdefault(family(row.name_b), []).append(row)
    return list(groups.values())
