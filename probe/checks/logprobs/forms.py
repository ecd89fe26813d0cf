"""What form the differences of log-probabilities have: `FORMS`, each a function that returns what it found, or None.

What 16 bits alone do
---------------------
A logit of size z is a sum that bfloat16 rounds, and so does every layer before it: relative steps of 2⁻⁸. Logits of trained models lie around
10 to 30, so that a log-probability, a logit less the logarithm of a sum, is off by up to 30 · 2⁻⁸ ≈ 0.12 for one token: `ATOL`. The roundings of two
engines have no direction and a standard deviation of about a quarter of it; published measurements of bfloat16 trainers against vLLM find 0.02 to 0.04.

So differences are noise (`is_noise`) if at most one in fifty is beyond the bound (the tails of the noise are heavier than a normal
distribution's), their median is within an eighth of the bound or four of its standard errors, and the median of their magnitudes within a quarter. Medians and
shares are robust: a few tokens whose experts flip move none of them. ``--atol`` puts another bound in place of `ATOL`, and all else follows it.

A temperature T divides logits and so their noise, and files do not say which it was. So what is left when a form is taken off is noise up to the bound over
`COOLEST` (`is_left`). Differences between both bounds that have no form may be noise or other weights: then neither is said.

What forms rest on
------------------
Noise has no direction, no place, and nothing to do with a token's probability. Each cause breaks one of these in a way that its arithmetic prescribes:
B is a function of A; A's and B's are probabilities of two tokens, at most 1 together; B is A over what was kept, never lower; B is between the bounds that p
raised to a power has; tokens, sequences or positions of one kind alone differ. What breaks none of these is said without a cause.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from probe.checks.logprobs.pairing import Pairs, tile_of

ATOL = 30 * 2.0**-8
SHARE = 0.02
"""of tokens that may be beyond the bound"""
CENTRE, SPREAD = 1 / 8, 1 / 4
"""of the bound: the largest median, and the largest median magnitude, of noise"""
_ERRORS, _OF_MEDIAN = 4.0, 1.25 * 1.4826
"""standard errors of a median; one of them in median deviations, of a normal distribution, times the root of the number"""
_JUMP = 1.4
"""how many times larger differences are behind a position where something begins"""
_GAIN, _FEWEST = 20.0, 32
"""logarithm of the likelihood that a change gains over none, and tokens on each side of it"""
_LIKELY, _LONGER = 6.0, 4
"""logarithm of the likelihood that a position may lose against the best one; tokens of a tile for each position that is likely"""
COOLEST = 0.6
"""the lowest usual temperature"""
_UNEXPLAINED = 0.02
"""share of the squares of the differences that a function of the other side leaves"""
_WITHIN, _EXPLAINED = 0.97, 0.4
"""share of the tokens within the bounds of a temperature, and of the variance that a line through A's explains"""
_BY_CHANCE, _HARDLY = 10.0, 0.05
"""tokens whose probabilities are above 1 together by chance, and the share of these that other tokens may have"""
_ASIDE, _APART, _Z = 0.7, 0.15, 5.0
"""what differences have in one direction, more than in the other; what ranks of two kinds of tokens are apart; standard errors"""
_SUREST = 0.25
"""by how much the ranks of a part's probabilities are above the others'"""
_STEPS, _ASKED = (1, -1, 2, -2), 8
"""places that tokens are moved by, and sequences that are looked for elsewhere"""
_CLEAR = 2.0
"""times the median magnitude of what is left: the least offset"""
_CLEARLY = 0.3
"""share of a part's tokens beyond the bound"""
_NEAR, _FEW = 16, 5
"""tokens behind a border, or of a sequence; equal ids one behind the other"""
_ALONE, _FAR = 20.0, 7.0
"""times the bound; times the median of magnitudes"""
_SURE, _TINY = 0.05, 1e-9
"""1 − p of a token that is sure, and a difference that is none"""
_MOST, _LARGE = 20_000, 50.0
"""tokens that a power is solved of, and a logarithm that none exceeds"""
Facts = Mapping[str, Any]


def is_noise(d: np.ndarray, atol: float) -> bool:
    """Return True if differences are as the noise of 16 bits is; none are."""
    if not d.size:
        return True
    centre = float(np.median(d))
    error = _ERRORS * _OF_MEDIAN * float(np.median(np.abs(d - centre))) / math.sqrt(d.size)
    beyond = int((np.abs(d) > atol).sum())
    is_centred = abs(centre) <= max(CENTRE * atol, error)
    return beyond <= max(SHARE * d.size, 1) and is_centred and float(np.median(np.abs(d))) <= SPREAD * atol


def is_left(d: np.ndarray, atol: float) -> bool:
    """Return True if what is left of differences is as noise at a low temperature is."""
    return is_noise(d, atol / COOLEST)


def _tile(position: int) -> int:
    """Return the tile at a multiple of which something begins: the token at t is predicted by the one at t − 1."""
    return max(tile_of(position), tile_of(position - 1))


def _place(pairs: Pairs, which: np.ndarray) -> Facts:
    """Return how many tokens these are, and where the first of them is."""
    first = {name: int(getattr(pairs, name)[which.argmax()]) for name in ("row", "token", "position")}
    return {"count": int(which.sum()), **first, "tile": _tile(first["position"])}


def not_finite(pairs: Pairs, atol: float) -> Facts | None:
    """NaN or Inf."""
    bad = [~np.isfinite(each) for each in (pairs.a, pairs.b)]
    side = " and ".join(name for name, each in zip("AB", bad, strict=True) if each.any())
    which = bad[0] | bad[1]
    is_cut = bool(np.isneginf(np.where(bad[0], pairs.a, pairs.b)[which]).all())
    return {"side": side, "is_cut": is_cut, **_place(pairs, which), "which": which} if side else None


def _zeros(pairs: Pairs, atol: float) -> tuple[str, np.ndarray, bool]:
    """Return the side that has zeros where the other has none, which these are, and whether they are the tokens that the other side is surest of."""
    for side, own, other in (("B", pairs.b, pairs.a), ("A", pairs.a, pairs.b)):
        zero = own == 0
        if (zero & (other < -atol / COOLEST)).sum() > max(SHARE / 2 * zero.sum(), 1):
            ranks = np.argsort(np.argsort(other)) / max(other.size - 1, 1)
            return side, zero, bool((~zero).any() and ranks[zero].mean() - ranks[~zero].mean() > _SUREST)
    return "", np.zeros(0, bool), False


def filled(pairs: Pairs, atol: float) -> Facts | None:
    """Zeros of one side where the other has none, whatever that has there: a part that was never filled in."""
    side, zero, is_surest = _zeros(pairs, atol)
    if not side or is_surest or one_sided(pairs.only(~zero), atol):
        return None
    return {"side": side, **_place(pairs, zero), "which": zero}


def _in_rows(a: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return for each token how many its sequence has, their sum, and the sum up to it."""
    count, total, running = np.bincount(row), np.bincount(row, a), np.cumsum(a)
    return count[row], total[row], running - (np.cumsum(total) - total)[row]


UNITS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "exp({})": lambda a, row: np.exp(np.minimum(a, 1)),
    "−{}": lambda a, row: -a,
    "{} / ln 2": lambda a, row: a / math.log(2),
    "{} / ln 10": lambda a, row: a / math.log(10),
    "{} / n, n the tokens of its sequence": lambda a, row: a / _in_rows(a, row)[0],
    "the mean of {} over its sequence": lambda a, row: _in_rows(a, row)[1] / _in_rows(a, row)[0],
    "the sum of {} over its sequence": lambda a, row: _in_rows(a, row)[1],
    "the sum of {} up to the token": lambda a, row: _in_rows(a, row)[2],
}
"""functions of the other side's log-probabilities, by formula"""


def unit(pairs: Pairs, atol: float) -> Facts | None:
    """One side's are a function of the other's: no logarithms, of another base, of whole sequences."""
    if is_noise(pairs.d, atol):
        return None
    row = np.unique(pairs.row, return_inverse=True)[1]
    for side, own, by, other in (("B", pairs.b, "A", pairs.a), ("A", pairs.a, "B", pairs.b)):
        for name, function in UNITS.items():
            rest = own - function(other, row)
            left = (rest**2).sum() / (pairs.d**2).sum()
            if left < (_UNEXPLAINED if is_left(rest, atol) else _UNEXPLAINED / 20):
                return {"side": side, "function": name.format(by)}
    return None


def swapped(pairs: Pairs, atol: float) -> Facts | None:
    """B's of a sequence are A's of another one."""
    parts = {int(row): np.flatnonzero(pairs.row == row) for row in np.unique(pairs.row)}
    wrong = [row for row, own in parts.items() if own.size >= _NEAR and not is_left(pairs.d[own], atol)]
    found = {}
    for row in wrong[:_ASKED]:
        for other, theirs in parts.items():
            size = min(parts[row].size, theirs.size)
            if other != row and size >= _NEAR and is_left(pairs.b[parts[row][:size]] - pairs.a[theirs[:size]], atol):
                found[row] = other
    return (
        {"rows": len(wrong), "row": wrong[0], "other": found[wrong[0]]}
        if wrong and len(found) == len(wrong[:_ASKED])
        else None
    )


def _neighbours(pairs: Pairs, by: int) -> tuple[slice, slice, np.ndarray]:
    """Return tokens, those that stand ``by`` behind them, and which of these are of one sequence."""
    x, y = (slice(None, -by), slice(by, None)) if by > 0 else (slice(-by, None), slice(None, by))
    return x, y, (pairs.row[x] == pairs.row[y]) & (np.abs(pairs.token[x] - pairs.token[y]) == abs(by))


def shifted(pairs: Pairs, atol: float) -> Facts | None:
    """A's at one token are B's at the next one, or the one before."""
    own = float(np.median(np.abs(pairs.d)))
    for by in _STEPS:
        x, y, same = _neighbours(pairs, by)
        apart = (pairs.b[y] - pairs.a[x])[same]
        if (
            apart.size >= _NEAR
            and not is_noise(pairs.d, atol)
            and float(np.median(np.abs(apart))) < own
            and is_left(apart, atol)
        ):
            return {"at": -by}
    return None


def other(pairs: Pairs, atol: float) -> Facts | None:
    """Log-probabilities of other tokens: where A's and B's token are one, they agree; where not, the probabilities of both are at most 1 together."""
    far, most = np.abs(pairs.d) > atol / COOLEST, math.exp(atol)
    if not far.any() or float(np.median(np.abs(pairs.d[far]))) < 1:
        return None
    x, y = (np.exp(np.minimum(each, 0)) for each in (pairs.a, pairs.b))
    by_chance = float(far.mean() * (1 - np.searchsorted(np.sort(y[far]), most - x) / far.sum()).sum())
    is_other = by_chance >= _BY_CHANCE and (far & (x + y > most)).sum() <= _HARDLY * by_chance
    side = next((side for side, d in (("B", pairs.d), ("A", -pairs.d)) if (d < -atol / COOLEST).mean() <= SHARE), "")
    label = next((by for by in _STEPS if not side and _is_label(pairs, far, by)), 0)
    return (
        {**_place(pairs, far), "share": float(far.mean()), "side": side, "label": label} if is_other or label else None
    )


def _is_label(pairs: Pairs, far: np.ndarray, by: int) -> bool:
    """Return True if tokens agree where the id ``by`` places behind is the same, and most others do not."""
    mine, theirs, same = _neighbours(pairs, by)
    equal = same & (pairs.id[mine] == pairs.id[theirs])
    return bool(equal.sum() >= _FEW and far[mine][equal].mean() <= SHARE and far[mine][same & ~equal].mean() > 1 / 2)


def constant(pairs: Pairs, atol: float) -> Facts | None:
    """One number between both sides, of tokens too that are sure: these then have more than 0."""
    offset = float(np.median(pairs.d))
    rest = pairs.d - offset
    lower, higher = (pairs.a, pairs.b) if offset > 0 else (pairs.b, pairs.a)
    sure = lower > -abs(offset) / 2
    is_clear = abs(offset) > _CLEAR * float(np.median(np.abs(rest))) and (
        not sure.any() or (higher[sure] > 0).mean() > 1 / 2
    )
    return {"offset": offset} if is_clear and is_left(rest, atol) and not is_noise(pairs.d, atol) else None


def seen(pairs: Pairs, atol: float) -> Facts | None:
    """Tokens that came before in their sequence are lower than the others that are as likely: a penalty."""
    if is_noise(pairs.d, atol):
        return None
    _, first = np.unique(np.stack((pairs.row, pairs.id)), axis=1, return_index=True)
    again = np.ones(pairs.d.size, bool)
    again[first] = False
    ranks = np.zeros(pairs.d.size)
    for part in np.array_split(np.argsort(pairs.a, kind="stable"), max(pairs.a.size // _FEWEST, 1)):
        ranks[part[np.argsort(pairs.d[part])]] = (np.arange(part.size) + 0.5) / part.size
    if min(again.sum(), (~again).sum()) < _FEWEST:
        return None
    lower = float(ranks[~again].mean() - ranks[again].mean())
    is_clear = abs(lower) > max(_APART, _Z * math.sqrt((1 / again.sum() + 1 / (~again).sum()) / 12))
    medians = {name: float(np.median(pairs.d[which])) for name, which in (("again", again), ("first", ~again))}
    return {"side": "B" if lower > 0 else "A", "count": int(again.sum()), **medians} if is_clear else None


def _at(pairs: Pairs, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest log-probability that a token can have if all p are raised to a power.

    What is not the token's is least and most, raised, where one other token has all of it, or all others have the same.
    """
    a = np.minimum(pairs.a, -_TINY)
    left = np.log(-np.expm1(a))
    spread = (1 - power) * math.log(max(float(pairs.id.max()), 1.0))
    edges = [power * a - np.logaddexp(power * a, power * left + each) for each in (0.0, spread)]
    return np.minimum(*edges), np.maximum(*edges)


def _power(a: np.ndarray, b: np.ndarray) -> float:
    """Return the power k that makes B's probabilities of A's; where it cannot be solved, the slope of a line.

    Of tokens that were drawn from p the mean of p^(k−1) is that of Σ p^k, and by the definition of k of exp(k · A − B); and the mean of exp(B − A) is 1, which tells who drew them.
    """
    every = slice(None, None, max(a.size // _MOST, 1))
    sides = {1: (a[every], b[every]), -1: (b[every], a[every])}
    off = {}
    for sign, (x, y) in sides.items():
        ratio = np.exp(np.minimum(y - x, _LARGE))
        off[sign] = abs(float(ratio.mean()) - 1) / (float(ratio.std()) / math.sqrt(x.size) + _TINY)
    sign = min(off, key=off.__getitem__)
    x, y = sides[sign]
    powers = np.geomspace(1 / 5, 5, 401)
    wrong = [
        math.log(np.exp((k - 1) * x).mean()) - math.log(np.exp(np.minimum(k * x - y, _LARGE)).mean()) for k in powers
    ]
    roots = powers[np.flatnonzero(np.diff(np.sign(wrong)))]
    if off[sign] > _ERRORS or not roots.size:
        return max(float(np.polyfit(a, b, 1)[0]), _SURE)
    return float(roots[np.abs(np.log(roots)).argmax()]) ** sign


def factor(pairs: Pairs, atol: float) -> Facts | None:
    """Log-probabilities at another temperature.

    With logits z / T the log-probability of a token is (1/T) · (A's) − log Σ p^(1/T), and the sum lies between bounds that p gives: see `_at`.
    """
    if pairs.a.size < _FEWEST or is_noise(pairs.d, atol) or not np.ptp(pairs.a):
        return None
    power = _power(pairs.a, pairs.b)
    low, high = _at(pairs, power)
    edge = atol * max(power, 1)
    inside = float(((pairs.b > low - edge) & (pairs.b < high + edge)).mean())
    explained = float(np.corrcoef(pairs.a, pairs.d)[0, 1]) ** 2
    is_it = inside >= _WITHIN and explained > _EXPLAINED and (power > 1) == (np.polyfit(pairs.a, pairs.d, 1)[0] > 0)
    return {"slope": power, "inside": inside, "explained": explained} if is_it else None


def one_sided(pairs: Pairs, atol: float) -> Facts | None:
    """One side's are never lower, and 0 where the other is surest: that side shares the probability among fewer tokens."""
    found = _zeros(pairs, atol)
    for side, d, own in (("B", pairs.d, pairs.b), ("A", -pairs.d, pairs.a)):
        size = float(np.abs(d).sum())
        is_never = (
            (d < -atol / COOLEST).mean() <= SHARE
            and d.sum() > _ASIDE * size
            and (np.sign(d).sum()) > _Z * math.sqrt(d.size)
        )
        is_one = is_never and not is_noise(d, atol) and own.max() <= atol / COOLEST
        if d.size and (is_one or (found[2] and found[0] == side)):
            both = np.exp(np.minimum(pairs.a, 0)) + np.exp(np.minimum(pairs.b, 0))
            may_be_likeliest = is_one and not found[0] and not (both[d > atol / COOLEST] > math.exp(atol)).any()
            which = {} if is_one else {"which": found[1]}
            return {
                "side": side,
                "mean": float(d.mean()),
                "zeros": int((own == 0).sum()),
                "may_be_likeliest": may_be_likeliest,
                **which,
            }
    return None


def _part(pairs: Pairs, which: np.ndarray, atol: float) -> Facts | None:
    """Return the facts of a part of the tokens outside of which there is noise alone."""
    if not which.any() or which.all():
        return None
    inside, outside = pairs.d[which], pairs.d[~which]
    sizes = float(np.abs(inside).mean()), float(np.abs(outside).mean())
    is_wide = (np.abs(inside) > atol).mean() >= _CLEARLY or (inside.size >= _FEWEST and not is_noise(inside, atol))
    if not is_wide or not is_noise(outside, atol) or sizes[0] < 2 * sizes[1]:
        return None
    return {"inside": sizes[0], "outside": sizes[1], **_place(pairs, which)}


def _alone(part: Callable[[Pairs], np.ndarray]) -> Callable[[Pairs, float], Facts | None]:
    """Return the form of differences that a part of the tokens alone has."""
    return lambda pairs, atol: _part(pairs, part(pairs), atol)


def sequences(pairs: Pairs, atol: float) -> Facts | None:
    """Whole sequences, and others not at all."""
    rows = np.unique(pairs.row)
    wrong = [row for row in rows if not is_noise(pairs.d[pairs.row == row], atol)]
    which = np.isin(pairs.row, wrong)
    found = _part(pairs, which, atol)
    size = np.abs(pairs.d) / _unsure(pairs)
    if not found or _grows_inside(pairs.only(which)) or np.median(size[which]) < 2 * np.median(size[~which]):
        return None
    is_prefix = bool((which == pairs.is_shared).mean() > 1 - SHARE)
    return {**found, "rows": len(wrong), "total": len(rows), "numbers": tuple(map(int, wrong)), "is_prefix": is_prefix}


def _grows_inside(pairs: Pairs) -> bool:
    """Return True if the first third of each sequence differs far less than the last one."""
    count, _, number = _in_rows(np.ones(pairs.a.size), np.unique(pairs.row, return_inverse=True)[1])
    size = np.abs(pairs.d) / _unsure(pairs)
    first, last = (float(np.median(size[which])) for which in (number <= count / 3, number > 2 * count / 3))
    return _FAR / 2 * first < last


def begins(pairs: Pairs, atol: float) -> Facts | None:
    """Differences that are wider from a position on; at a multiple of a tile where one is as likely."""
    at, size = _magnitudes(pairs)
    cut, tile = _onset(at, size)
    if not cut:
        return None
    before, after = float(size[:cut].mean()), float(size[cut:].mean())
    step = _likelihood(size, np.append(np.full(cut, before), _line(at[cut:], size[cut:])))
    if (
        min(after / before, _rise(pairs, int(at[cut]), int(at[cut]))) < _JUMP
        or step < _likelihood(size, _line(at, size)) + math.log(size.size) / 2
    ):
        return None
    return {"position": int(at[cut]), "tile": tile, "before": before, "after": after}


def grows(pairs: Pairs, atol: float) -> Facts | None:
    """Differences that become wider with the position."""
    at, size = _magnitudes(pairs)
    if size.size < 2 * _FEWEST or is_noise(pairs.d, atol):
        return None
    line = _line(at, size)
    gain = _likelihood(size, line) - _likelihood(size, np.full(size.size, size.mean()))
    thirds = (int(each) for each in np.quantile(at, (1 / 3, 2 / 3)))
    is_it = gain > _GAIN and line[-1] > 2 * line[0] and _rise(pairs, *thirds) > _JUMP
    return {"first": float(line[0]), "end": float(line[-1])} if is_it else None


def _rise(pairs: Pairs, end: int, start: int) -> float:
    """Return how many times larger differences are from a position on than before another: noise need not be less of tokens that are sure."""
    size = np.abs(pairs.d)
    return float(size[pairs.position >= start].mean() / (size[pairs.position < end].mean() + _TINY))


def _magnitudes(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return positions in ascending order, and how large the differences are there.

    An error of its logit reaches the log-probability of a token of probability p times 1 − p, so magnitudes are divided by that: what is easy to predict would
    look as if it were more exact.
    """
    order = np.argsort(pairs.position, kind="stable")
    size = (np.abs(pairs.d) / _unsure(pairs))[order] + _TINY
    usual = np.sort(size)[: math.ceil(0.9 * size.size)].mean()
    return pairs.position[order], np.minimum(size, _FAR * usual)  # a few tokens by far have no say


def _unsure(pairs: Pairs) -> np.ndarray:
    """Return 1 − p."""
    return np.maximum(-np.expm1(pairs.a), _SURE)


def _likelihood(size: np.ndarray, scale: np.ndarray) -> float:
    """Return the logarithm of the likelihood of magnitudes that are exponentially distributed."""
    return float(-(np.log(scale) + size / scale).sum())


def _line(at: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return the scale of magnitudes as a line over the position, or over its logarithm, whichever fits."""
    lines = (np.maximum(np.polyval(np.polyfit(x, size, 1), x), 0.1 * size.mean()) for x in (at, np.log1p(at)))
    return max(lines, key=lambda line: _likelihood(size, line))


def _onset(at: np.ndarray, size: np.ndarray) -> tuple[int, int]:
    """Return before which token the magnitudes are of one scale, and behind which of a larger one, 0 where they do not change; and the tile that it is at.

    What becomes larger by and by changes at its middle in the first place: the part before a change is searched again. A tile is said where it is much longer
    than the part in which the change may lie: otherwise a multiple of one lies there by chance.
    """
    found, end, tile = 0, size.size, 0
    while True:
        cuts = np.flatnonzero(np.diff(at[:end])) + 1
        cuts = cuts[(cuts >= _FEWEST) & (cuts <= end - _FEWEST)]
        if not cuts.size:
            return found, tile
        total = np.cumsum(size[:end])
        before, after = total[cuts - 1] / cuts, (total[-1] - total[cuts - 1]) / (end - cuts)
        gains = end * np.log(total[-1] / end) - cuts * np.log(before) - (end - cuts) * np.log(after)
        best = int(gains.argmax())
        if gains[best] < (_GAIN / 2 if found else _GAIN) or after[best] < before[best]:
            return found, tile
        likely = np.flatnonzero(gains > gains[best] - _LIKELY)
        tiles = np.array([_tile(int(at[cuts[each]])) for each in likely])
        tiles[tiles < _LONGER * len(likely)] = 0
        chosen = max(range(len(likely)), key=lambda each: (tiles[each], gains[likely[each]]))
        end = found = int(cuts[likely[chosen]])
        tile = int(tiles[chosen])


def grid(pairs: Pairs, atol: float) -> Facts | None:
    """One side's are numbers of 16 bits, and the other's are not."""
    dtypes = _dtype(pairs.a), _dtype(pairs.b)
    if bool(dtypes[0]) is bool(dtypes[1]) or pairs.a.size < _FEWEST:
        return None
    return {"side": "A" if dtypes[0] else "B", "dtype": dtypes[0] or dtypes[1]}


def _dtype(values: np.ndarray) -> str:
    """Return the dtype of 16 bits that all values are numbers of, or nothing."""
    with np.errstate(over="ignore"):
        return next(
            (
                each.name
                for each in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16))
                if (values == values.astype(each).astype(np.float64)).all()
            ),
            "",
        )


def some(pairs: Pairs, atol: float) -> Facts | None:
    """A part of the tokens by far, of no common place; all others as noise."""
    size = np.abs(pairs.d) / _unsure(pairs)
    far = (size > _FAR * np.median(size)) & (np.abs(pairs.d) > atol / COOLEST)
    is_some = far.mean() > SHARE and not is_noise(pairs.d, atol) and is_noise(pairs.d[~far], atol)
    return {**_place(pairs, far), "share": float(far.mean())} if is_some else None


def wide(pairs: Pairs, atol: float) -> Facts | None:
    """Everywhere, in no other form; as of other weights if both sides rise and fall together, and neither is above."""
    if is_left(pairs.d, atol):
        return None
    alike = float(np.corrcoef(pairs.a, pairs.b)[0, 1]) if np.ptp(pairs.a) * np.ptp(pairs.b) else 0.0
    above = float((pairs.d > 0).mean())
    explained = float(np.corrcoef(pairs.a, pairs.d)[0, 1]) ** 2 if alike else 0.0
    is_weights = alike > 1 / 2 and explained < _EXPLAINED / 2 and abs(above - 1 / 2) < _EXPLAINED
    return {
        "mean": float(np.abs(pairs.d).mean()),
        "alike": alike,
        "above": above,
        "explained": explained,
        "is_weights": is_weights,
    }


def single(pairs: Pairs, atol: float) -> Facts | None:
    """A few tokens by far, all others not at all."""
    which = np.abs(pairs.d) > _ALONE * atol
    return {**_place(pairs, which), "largest": float(np.abs(pairs.d).max())} if which.any() else None


FORMS: Mapping[str, Callable[[Pairs, float], Facts | None]] = {
    "logprobs-not-finite": not_finite,
    "logprobs-filled": filled,
    "logprobs-unit": unit,
    "logprobs-last": _alone(lambda pairs: pairs.is_last),
    "logprobs-borders": _alone(lambda pairs: (pairs.document > 0) & (pairs.since < _NEAR)),
    "logprobs-documents": _alone(lambda pairs: pairs.document > 0),
    "logprobs-shifted": shifted,
    "logprobs-swapped": swapped,
    "logprobs-other": other,
    "logprobs-constant": constant,
    "logprobs-seen": seen,
    "logprobs-factor": factor,
    "logprobs-one-sided": one_sided,
    "logprobs-sequences": sequences,
    "logprobs-begins": begins,
    "logprobs-grows": grows,
    "logprobs-grid": grid,
    "logprobs-some": some,
    "logprobs-wide": wide,
    "logprobs-single": single,
}
"""by code, in the order in which they are asked; those that say which tokens are theirs are taken off, of the others the first that is found is the form"""


def forms_of(pairs: Pairs, atol: float) -> tuple[list[tuple[str, Facts]], Pairs]:
    """Return the forms that are found, and the tokens without those that are not finite or filled."""
    found = []
    for name, form in FORMS.items():
        facts = form(pairs, atol) if pairs.a.size and not (found and form is wide) else None
        if facts is None:
            continue
        found.append((name, {key: value for key, value in facts.items() if key != "which"}))
        if "which" not in facts:
            break
        pairs = pairs.only(~facts["which"])
    return found, pairs
