"""What form the differences of log-probabilities have: `FORMS`, each a function that returns what it found, or None.

Noise (`is_noise`) has no direction, no place, and nothing to do with a token's probability; docs/reference/checks.md derives how wide it is. Each cause breaks
one of these in a way that its arithmetic prescribes: B is a function of A; A's and B's are of two tokens, whose probabilities are at most 1 together; B is
A over what was kept, never lower; B is within the bounds that p raised to a power has; tokens, sequences or positions of one kind alone differ. What
breaks none of these is said without a cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from probe.checks.logprobs.pairing import Pairs, tile_of
from probe.checks.logprobs.reading import TABLE

ATOL = 30 * 2.0**-8
BOUND = SimpleNamespace(**TABLE["bounds"])
Facts = Mapping[str, Any]


def is_noise(d: np.ndarray, atol: float) -> bool:
    """Return True if differences are as the noise of 16 bits is; none are."""
    if not d.size:
        return True
    centre, usual = float(np.median(d)), float(np.median(np.abs(d)))
    error = BOUND.errors * 1.85 * float(np.median(np.abs(d - centre))) / math.sqrt(d.size)  # of a normal median
    is_centred = abs(centre) <= max(BOUND.centre * atol, error)
    return int((np.abs(d) > atol).sum()) <= max(BOUND.share * d.size, 1) and is_centred and usual <= BOUND.spread * atol


def is_left(d: np.ndarray, atol: float) -> bool:
    """Return True if what is left of differences is as noise is at a low temperature, which divides it."""
    return is_noise(d, atol / BOUND.coolest)


def _tile(position: int) -> int:
    """Return the tile at a multiple of which something begins: the token at t is predicted by the one at t − 1."""
    return max(tile_of(position), tile_of(position - 1))


def _place(pairs: Pairs, which: np.ndarray) -> Facts:
    """Return how many tokens these are, and where the first of them is."""
    first = {name: int(getattr(pairs, name)[which.argmax()]) for name in ("row", "token", "position")}
    return {"count": int(which.sum()), "share": float(which.mean()), **first, "tile": _tile(first["position"])}


def _sides(pairs: Pairs) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield each side with its log-probabilities, and the other's."""
    yield from (("B", pairs.b, pairs.a), ("A", pairs.a, pairs.b))


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.corrcoef(x, y)[0, 1]) if np.ptp(x) * np.ptp(y) else 0.0


def not_finite(pairs: Pairs, atol: float) -> Facts | None:
    """NaN or Inf."""
    bad = [~np.isfinite(each) for each in (pairs.a, pairs.b)]
    side = " and ".join(name for name, each in zip("AB", bad, strict=True) if each.any())
    which = bad[0] | bad[1]
    is_cut = bool(np.isneginf(np.where(bad[0], pairs.a, pairs.b)[which]).all())
    return {"side": side, "is_cut": is_cut, **_place(pairs, which), "which": which} if side else None


def _zeros(pairs: Pairs, atol: float) -> tuple[str, np.ndarray, bool]:
    """Return the side that has zeros where the other has none, these, and whether the other side is surest of them."""
    for side, own, other in _sides(pairs):
        zero = own == 0
        if (zero & (other < -atol / BOUND.coolest)).sum() > max(BOUND.share / 2 * zero.sum(), 1):
            ranks = np.argsort(np.argsort(other)) / other.size
            return side, zero, not zero.all() and bool(ranks[zero].mean() - ranks[~zero].mean() > BOUND.surest)
    return "", np.zeros(0, bool), False


def filled(pairs: Pairs, atol: float) -> Facts | None:
    """Zeros of one side where the other has none, whatever that has there: a part that was never filled in."""
    side, zero, is_surest = _zeros(pairs, atol)
    is_it = side and not is_surest and (zero.all() or not one_sided(pairs.only(~zero), atol))
    return {"side": side, **_place(pairs, zero), "which": zero} if is_it else None


def _in_rows(a: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each token how many its sequence has, their sum, and the sum up to it."""
    row = np.unique(row, return_inverse=True)[1]
    count, total = np.bincount(row), np.bincount(row, a)
    return count[row], total[row], np.cumsum(a) - (np.cumsum(total) - total)[row]


UNITS: Mapping[str, Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "exp({})": lambda a, count, total, running: np.exp(np.minimum(a, 1)),
    "−{}": lambda a, count, total, running: -a,
    "{} / ln 2": lambda a, count, total, running: a / math.log(2),
    "{} / ln 10": lambda a, count, total, running: a / math.log(10),
    "{} / n, n the tokens of its sequence": lambda a, count, total, running: a / count,
    "the mean of {} over its sequence": lambda a, count, total, running: total / count,
    "the sum of {} over its sequence": lambda a, count, total, running: total,
    "the sum of {} up to the token": lambda a, count, total, running: running,
}
"""functions of the other side's log-probabilities, by formula"""


def unit(pairs: Pairs, atol: float) -> Facts | None:
    """One side's are a function of the other's: no logarithms, of another base, of whole sequences."""
    for side, own, other in _sides(pairs):
        for name, function in UNITS.items():
            rest = own - function(other, *_in_rows(other, pairs.row))
            left = BOUND.unexplained * (1 if is_left(rest, atol) else 1 / 20)  # noise adds up in a sum
            if (rest**2).sum() < left * (pairs.d**2).sum() and not is_noise(pairs.d, atol):
                return {"side": side, "function": name.format("A" if side == "B" else "B")}
    return None


def swapped(pairs: Pairs, atol: float) -> Facts | None:
    """B's of a sequence are A's of another one."""
    parts = {int(row): pairs.only(pairs.row == row) for row in np.unique(pairs.row)}
    wrong = {row: own for row, own in parts.items() if own.a.size >= BOUND.near and not is_left(own.d, atol)}
    for row, own in wrong.items():
        for other, theirs in parts.items():
            size = min(own.a.size, theirs.a.size)
            if other != row and size >= BOUND.near and is_left(own.b[:size] - theirs.a[:size], atol):
                return {"rows": len(wrong), "row": row, "other": other}
        return None
    return None


def _neighbours(pairs: Pairs) -> Iterator[tuple[int, slice, slice, np.ndarray]]:
    """Yield numbers of places, tokens, those that stand as many places behind, and which of these are of one sequence."""
    for by in (1, -1, 2, -2):
        x, y = (slice(None, -by), slice(by, None)) if by > 0 else (slice(-by, None), slice(None, by))
        yield by, x, y, (pairs.row[x] == pairs.row[y]) & (np.abs(pairs.token[x] - pairs.token[y]) == abs(by))


def shifted(pairs: Pairs, atol: float) -> Facts | None:
    """A's at one token are B's at the next one, or the one before."""
    for by, x, y, same in _neighbours(pairs):
        rest = (pairs.b[y] - pairs.a[x])[same]
        if rest.size >= BOUND.near and is_left(rest, atol) and not is_left(pairs.d, atol):
            return {"at": -by}
    return None


def other(pairs: Pairs, atol: float) -> Facts | None:
    """Log-probabilities of other tokens: where A's and B's are of one token, they agree; where not, p + q is at most 1."""
    far, most = np.abs(pairs.d) > atol / BOUND.coolest, math.exp(atol)
    if not far.any() or float(np.median(np.abs(pairs.d[far]))) < 1:
        return None
    p, q = (np.exp(np.minimum(each, 0)) for each in (pairs.a, pairs.b))
    by_chance = float(far.mean() * (1 - np.searchsorted(np.sort(q[far]), most - p) / far.sum()).sum())
    is_other = by_chance >= BOUND.by_chance and (far & (p + q > most)).sum() <= BOUND.hardly * by_chance
    side = next((side for side, x, y in _sides(pairs) if (x - y < -atol / BOUND.coolest).mean() <= BOUND.share), "")
    label = 0
    for by, x, y, same in () if side else _neighbours(pairs):
        equal, unequal = (far[x][same & is_it] for is_it in (pairs.id[x] == pairs.id[y], pairs.id[x] != pairs.id[y]))
        if equal.size >= BOUND.few and equal.mean() <= BOUND.share and unequal.mean() > 1 / 2:
            label = label or by
    return {**_place(pairs, far), "side": side, "label": label} if is_other or label else None


def constant(pairs: Pairs, atol: float) -> Facts | None:
    """One number between both sides, of tokens too that are sure: these then have more than 0."""
    offset = float(np.median(pairs.d))
    rest = pairs.d - offset
    lower, higher = (pairs.a, pairs.b) if offset > 0 else (pairs.b, pairs.a)
    above = higher[lower > -abs(offset) / 2] > 0
    is_clear = abs(offset) > BOUND.clear * float(np.median(np.abs(rest))) and (not above.size or above.mean() > 1 / 2)
    return {"offset": offset} if is_clear and is_left(rest, atol) and not is_noise(pairs.d, atol) else None


def seen(pairs: Pairs, atol: float) -> Facts | None:
    """Tokens that came before in their sequence are lower than others that are as likely: a penalty."""
    again = np.ones(pairs.d.size, bool)
    again[np.unique(np.stack((pairs.row, pairs.id)), axis=1, return_index=True)[1]] = False
    if is_noise(pairs.d, atol) or min(again.sum(), (~again).sum()) < BOUND.fewest:
        return None
    ranks = np.zeros(pairs.d.size)
    for part in np.array_split(np.argsort(pairs.a, kind="stable"), pairs.a.size // BOUND.fewest):
        ranks[part[np.argsort(pairs.d[part])]] = (np.arange(part.size) + 0.5) / part.size
    lower = float(ranks[~again].mean() - ranks[again].mean())
    is_clear = abs(lower) > max(BOUND.apart, BOUND.z * math.sqrt((1 / again.sum() + 1 / (~again).sum()) / 12))
    medians = {name: float(np.median(pairs.d[which])) for name, which in (("again", again), ("first", ~again))}
    return {"side": "B" if lower > 0 else "A", "count": int(again.sum()), **medians} if is_clear else None


def _power(a: np.ndarray, b: np.ndarray) -> float:
    """Return the power k that makes B's probabilities of A's; where it cannot be solved, the slope of a line.

    Of tokens that were drawn from p the mean of p^(k−1) is that of Σ p^k, and so of exp(k · A − B); that of exp(B − A) is 1, which tells who drew them.
    """
    sides = []
    for sign, x, y in ((1, a, b), (-1, b, a)):
        x, y = (each[:: max(a.size // BOUND.most, 1)] for each in (x, y))
        ratio = np.exp(np.minimum(y - x, BOUND.large))
        sides.append((abs(float(ratio.mean()) - 1) / (float(ratio.std()) + BOUND.tiny) * math.sqrt(x.size), sign, x, y))
    off, sign, x, y = min(sides, key=lambda each: each[:2])
    powers = np.geomspace(1 / 5, 5, 401)
    sums = np.array([(np.exp((k - 1) * x).mean(), np.exp(np.minimum(k * x - y, BOUND.large)).mean()) for k in powers])
    roots = powers[np.flatnonzero(np.diff(sums[:, 0] > sums[:, 1]))]
    if off > BOUND.errors or not roots.size:
        return max(float(np.polyfit(a, b, 1)[0]), BOUND.sure)
    return float(roots[np.abs(np.log(roots)).argmax()]) ** sign


def factor(pairs: Pairs, atol: float) -> Facts | None:
    """Log-probabilities at another temperature, k = T(A)/T(B): k · A − log Σ p^k.

    The sum is p^k and what the other tokens have: from all of 1 − p in one of them to equal parts of it in all.
    """
    if pairs.a.size < BOUND.fewest or is_noise(pairs.d, atol):
        return None
    k, a = _power(pairs.a, pairs.b), np.minimum(pairs.a, -BOUND.tiny)
    parts = (0.0, (1 - k) * math.log(max(float(pairs.id.max()), 1.0)))
    low, high = np.sort([k * a - np.logaddexp(k * a, k * np.log(-np.expm1(a)) + each) for each in parts], axis=0)
    rest = pairs.b - np.clip(pairs.b, low, high)
    inside, left = float((np.abs(rest) < atol * max(k, 1)).mean()), float((rest**2).sum() / (pairs.d**2).sum())
    return {"slope": k, "inside": inside} if inside >= BOUND.within and left < BOUND.explained else None


def one_sided(pairs: Pairs, atol: float) -> Facts | None:
    """One side's are never lower, or 0 where the other is surest: it shares the probability among fewer tokens."""
    zeros, zero, is_surest = _zeros(pairs, atol)
    for side, own, other in _sides(pairs):
        d, loose = own - other, atol / BOUND.coolest
        is_never = (d < -loose).mean() <= BOUND.share and np.sign(d).sum() > BOUND.z * math.sqrt(d.size)
        is_one = is_never and d.sum() > BOUND.aside * np.abs(d).sum() and own.max() <= loose
        is_one = bool(is_one and d.mean() > BOUND.centre * atol)
        if is_one or (is_surest and zeros == side):
            sums = (np.exp(own) + np.exp(other))[d > loose]
            is_open = is_one and bool((d > 1).mean() > BOUND.share and sums.max() < math.exp(atol))
            facts = {"side": side, "mean": float(d.mean()), "zeros": int((own == 0).sum()), "may_be_likeliest": is_open}
            return facts if is_one else {**facts, "which": zero}
    return None


def _part(pairs: Pairs, which: np.ndarray, atol: float) -> Facts | None:
    """Return the facts of a part of the tokens outside of which there is noise alone."""
    if not which.any() or which.all():
        return None
    inside, outside = pairs.d[which], pairs.d[~which]
    sizes = float(np.abs(inside).mean()), float(np.abs(outside).mean())
    is_many = inside.size >= BOUND.fewest and not is_noise(inside, atol)
    is_wide = is_many or (np.abs(inside) > atol).mean() >= BOUND.clearly
    if not is_wide or not is_noise(outside, atol) or sizes[0] < 2 * sizes[1]:
        return None
    return {"inside": sizes[0], "outside": sizes[1], **_place(pairs, which)}


def _alone(part: Callable[[Pairs], np.ndarray]) -> Callable[[Pairs, float], Facts | None]:
    """Return the form of differences that a part of the tokens alone has."""
    return lambda pairs, atol: _part(pairs, part(pairs), atol)


def sequences(pairs: Pairs, atol: float) -> Facts | None:
    """Whole sequences, from their first third on, and others not at all."""
    rows = np.unique(pairs.row)
    wrong = [int(row) for row in rows if not is_left(pairs.d[pairs.row == row], atol)]
    which, size = np.isin(pairs.row, wrong), _sizes(pairs)
    count, _, number = _in_rows(np.ones(pairs.a.size), pairs.row)
    found = _part(pairs, which, atol)
    if not found or np.median(size[which & (number <= count / 3)]) < 2 * np.median(size[~which]):
        return None
    step = begins(pairs, atol)
    ahead = which & (pairs.position < step["position"]) if step and step["axis"] == "position" else np.zeros(1, bool)
    if ahead.sum() >= BOUND.fewest and is_left(pairs.d[ahead], atol):
        return None
    is_prefix = bool((which == pairs.is_shared).mean() > 1 - BOUND.share)
    return {**found, "rows": len(wrong), "total": len(rows), "numbers": tuple(wrong), "is_prefix": is_prefix}


def begins(pairs: Pairs, atol: float) -> Facts | None:
    """Differences that are wider from a position on, from or up to a token of each answer; at a multiple of a tile where one is as likely."""
    for axis, at in (("position", pairs.position), ("token", pairs.token), ("until", -pairs.token)):
        found = _step(replace(pairs, position=at), atol)
        if found:
            return {"axis": axis, **found, "position": abs(found["position"])}
    return None


def _step(pairs: Pairs, atol: float) -> Facts | None:
    at, size = _magnitudes(pairs)
    cut, tile = _onset(at, size)
    if not cut:
        return None
    before, after = float(size[:cut].mean()), float(size[cut:].mean())
    step = _likelihood(size, np.append(np.full(cut, before), _line(at[cut:], size[cut:])))
    is_step = step >= _likelihood(size, _line(at, size)) + math.log(size.size) / 2 and after > BOUND.spread * atol
    is_clear = min(after / before, _rise(pairs, at[cut], at[cut])) >= BOUND.jump
    return {"position": int(at[cut]), "tile": tile, "before": before, "after": after} if is_step and is_clear else None


def grows(pairs: Pairs, atol: float) -> Facts | None:
    """Differences that become wider with the position."""
    at, size = _magnitudes(pairs)
    if size.size < 2 * BOUND.fewest or is_noise(pairs.d, atol):
        return None
    line = _line(at, size)
    gain = _likelihood(size, line) - _likelihood(size, np.full(size.size, size.mean()))
    is_it = gain > BOUND.gain and line[-1] > 2 * line[0] and _rise(pairs, *np.quantile(at, (1 / 3, 2 / 3))) > BOUND.jump
    return {"first": float(line[0]), "end": float(line[-1])} if is_it else None


def _rise(pairs: Pairs, end: float, start: float) -> float:
    """Return how many times larger differences are from a position on than before another, whether they go with 1 − p or not."""
    size = np.abs(pairs.d)
    return float(size[pairs.position >= start].mean() / (size[pairs.position < end].mean() + BOUND.tiny))


def _sizes(pairs: Pairs) -> np.ndarray:
    """Return the magnitudes of the differences over 1 − p: times that an error of its logit reaches a token's log-probability."""
    return np.abs(pairs.d) / np.maximum(-np.expm1(pairs.a), BOUND.sure) + BOUND.tiny


def _magnitudes(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return positions in ascending order and the sizes there, in which a few tokens by far have no say."""
    order = np.argsort(pairs.position, kind="stable")
    size = _sizes(pairs)[order]
    return pairs.position[order], np.minimum(size, BOUND.far * np.sort(size)[: math.ceil(0.9 * size.size)].mean())


def _likelihood(size: np.ndarray, scale: np.ndarray) -> float:
    """Return the logarithm of the likelihood of magnitudes that are exponentially distributed."""
    return float(-(np.log(scale) + size / scale).sum())


def _line(at: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the scale of magnitudes as a line over the position, or over its logarithm, whichever fits."""
    lines = (np.maximum(np.polyval(np.polyfit(x, size, 1), x), 0.1 * size.mean()) for x in (at, np.log1p(at - at[0])))
    return max(lines, key=lambda line: _likelihood(size, line))


def _onset(at: np.ndarray, size: np.ndarray) -> tuple[int, int]:
    """Return before which token the magnitudes are of one scale, and behind which of a larger one, 0 where they do not change; and the tile that it is at.

    What becomes larger by and by changes at its middle in the first place: the part before a change is searched again. A tile is said where it is much longer
    than the part in which the change may lie: otherwise a multiple of one lies there by chance.
    """
    found, end, tile = 0, size.size, 0
    while True:
        cuts = np.flatnonzero(np.diff(at[:end])) + 1
        cuts = cuts[(cuts >= BOUND.fewest) & (cuts <= end - BOUND.fewest)]
        if not cuts.size:
            return found, tile
        total = np.cumsum(size[:end])
        before, after = total[cuts - 1] / cuts, (total[-1] - total[cuts - 1]) / (end - cuts)
        gains = end * np.log(total[-1] / end) - cuts * np.log(before) - (end - cuts) * np.log(after)
        best = int(gains.argmax())
        if gains[best] < (BOUND.gain / 2 if found else BOUND.gain) or after[best] < before[best]:
            return found, tile
        likely = np.flatnonzero(gains > gains[best] - BOUND.likely)
        tiles = np.array([_tile(int(at[cuts[each]])) for each in likely])
        tiles[tiles < BOUND.longer * len(likely)] = 0
        chosen = max(range(len(likely)), key=lambda each: (tiles[each], gains[likely[each]]))
        end = found = int(cuts[likely[chosen]])
        tile = int(tiles[chosen])


def _dtype(values: np.ndarray) -> str:
    """Return the dtype of 16 bits that all values are numbers of, or nothing."""
    with np.errstate(over="ignore"):
        dtypes = (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
        return next((each.name for each in dtypes if (values == values.astype(each).astype(np.float64)).all()), "")


def grid(pairs: Pairs, atol: float) -> Facts | None:
    """One side's are numbers of 16 bits, and the other's are not."""
    a, b = _dtype(pairs.a), _dtype(pairs.b)
    return {"side": "A" if a else "B", "dtype": a or b} if bool(a) != bool(b) and pairs.a.size >= BOUND.fewest else None


def some(pairs: Pairs, atol: float) -> Facts | None:
    """A part of the tokens by far, of no common place; all others as noise."""
    size = _sizes(pairs)
    far = (size > BOUND.far * np.median(size)) & (np.abs(pairs.d) > atol / BOUND.coolest)
    is_some = far.mean() > BOUND.share and not is_noise(pairs.d, atol) and is_left(pairs.d[~far], atol)
    return _place(pairs, far) if is_some else None


def wide(pairs: Pairs, atol: float) -> Facts | None:
    """Everywhere, in no other form; as of other weights if the sides rise and fall together, the differences with none."""
    above, alike = float((pairs.d > 0).mean()), _correlation(pairs.a, pairs.b)
    is_weights = (
        alike > 1 / 2 and _correlation(pairs.a, pairs.d) ** 2 < BOUND.explained / 2 and abs(above - 1 / 2) < 0.4
    )
    facts = {"mean": float(np.abs(pairs.d).mean()), "alike": alike, "above": above, "is_weights": is_weights}
    return None if is_left(pairs.d, atol) else facts


def single(pairs: Pairs, atol: float) -> Facts | None:
    """A few tokens by far, all others not at all."""
    which = np.abs(pairs.d) > BOUND.alone * atol
    return {**_place(pairs, which), "largest": float(np.abs(pairs.d).max())} if which.any() else None


FORMS: Mapping[str, Callable[[Pairs, float], Facts | None]] = {
    "not-finite": not_finite, "filled": filled, "unit": unit, "last": _alone(lambda pairs: pairs.is_last),
    "borders": _alone(lambda pairs: (pairs.document > 0) & (pairs.since < BOUND.near)),
    "documents": _alone(lambda pairs: pairs.document > 0), "shifted": shifted, "swapped": swapped, "other": other,
    "constant": constant, "seen": seen, "factor": factor, "one-sided": one_sided, "sequences": sequences,
    "begins": begins, "grows": grows, "grid": grid, "some": some, "wide": wide, "single": single,
}  # fmt: skip
"""in the order in which they are asked; tokens that one says are its own are taken off, of the others the first that is found is the form"""


def forms_of(pairs: Pairs, atol: float) -> tuple[list[tuple[str, Facts]], Pairs]:
    """Return the forms that are found, and the tokens without those that are not finite or filled."""
    found: list[tuple[str, Facts]] = []
    for name, form in FORMS.items():
        facts = form(pairs, atol) if pairs.a.size and not (found and form is wide) else None
        if facts is None:
            continue
        found.append((name, {key: value for key, value in facts.items() if key != "which"}))
        if "which" not in facts:
            break
        pairs = pairs.only(~facts["which"])
    return found, pairs
