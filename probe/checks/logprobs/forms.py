"""What form the differences of log-probabilities have: `FORMS`, each a function that returns what it found, or None.

What 16 bits alone do
---------------------
A logit of size z is a sum that bfloat16 rounds, and so does every layer before it: relative steps of 2⁻⁸. Logits of trained models lie around
10 to 30, so that a log-probability, a logit less the logarithm of a sum, is off by up to 30 · 2⁻⁸ ≈ 0.12 for one token: `ATOL`. The roundings of two
engines have no direction and a standard deviation of about a quarter of it; published measurements of bfloat16 trainers against vLLM find 0.02 to 0.04.

So differences are noise (`is_noise`) if at most one in fifty is beyond the bound (the tails of the noise are heavier than a normal
distribution's), their median is within an eighth of the bound or four of its standard errors, and the median of their magnitudes within a quarter. Medians and
shares are robust: a few tokens whose experts flip move none of them. ``--atol`` puts another bound in place of `ATOL`, and all else follows it.
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
_EXPLAINED = 0.5
"""share of the variance of differences from which on a line through A's explains them"""
_CLEAR = 2.0
"""times the median magnitude of what is left: the least offset"""
_CLEARLY = 0.3
"""share of a part's tokens beyond the bound"""
_NEAR = 16
"""tokens behind a border"""
_ALONE = 20.0
"""times the bound"""
_SURE, _TINY = 0.05, 1e-9
"""1 − p of a token that is sure, and a difference that is none"""
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


def filled(pairs: Pairs, atol: float) -> Facts | None:
    """Zeros of one side where the other has none: a part that was never filled in."""
    for side, own, other in (("B", pairs.b, pairs.a), ("A", pairs.a, pairs.b)):
        if ((own == 0) & (other < -atol)).any():
            return {"side": side, **_place(pairs, own == 0), "which": own == 0}
    return None


def shifted(pairs: Pairs, atol: float) -> Facts | None:
    """A's at one token are B's at the next one, or the one before."""
    own = float(np.median(np.abs(pairs.d)))
    for by in (1, -1, 2, -2):
        x, y = (slice(None, -by), slice(by, None)) if by > 0 else (slice(-by, None), slice(None, by))
        same = (pairs.row[x] == pairs.row[y]) & (np.abs(pairs.token[x] - pairs.token[y]) == abs(by))
        apart = (pairs.b[y] - pairs.a[x])[same]
        if apart.size >= _NEAR and own > atol and is_noise(apart, atol):
            return {"at": -by}
    return None


def constant(pairs: Pairs, atol: float) -> Facts | None:
    """One number between both sides."""
    offset = float(np.median(pairs.d))
    rest = pairs.d - offset
    is_clear = abs(offset) > _CLEAR * float(np.median(np.abs(rest)))
    return {"offset": offset} if is_clear and is_noise(rest, atol) and not is_noise(pairs.d, atol) else None


def factor(pairs: Pairs, atol: float) -> Facts | None:
    """Differences in proportion to A's: log-probabilities at another temperature.

    With logits z / T the log-probability of a token is (1/T) · (A's) − log Σ p^(1/T). The sum varies less than the first term: the line has a slope near 1/T.
    """
    if pairs.a.size < _FEWEST or not np.ptp(pairs.a) * np.ptp(pairs.d):
        return None
    explained = float(np.corrcoef(pairs.a, pairs.d)[0, 1]) ** 2
    if explained < _EXPLAINED:
        return None
    slope = float(np.polyfit(pairs.a, pairs.b, 1)[0])
    return {"slope": slope, "explained": explained} if slope > 0 else None


def one_sided(pairs: Pairs, atol: float) -> Facts | None:
    """B's are never smaller: only the tokens that sampling keeps share the probability."""
    for side, d in (("B", pairs.d), ("A", -pairs.d)):
        if (d < -atol).mean() <= SHARE and float(d.mean()) > SPREAD * atol and (d > atol).mean() > SHARE:
            return {"side": side, "mean": float(d.mean())}
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
    found = _part(pairs, np.isin(pairs.row, wrong), atol)
    return found and {**found, "rows": len(wrong), "total": len(rows), "numbers": tuple(map(int, wrong))}


def begins(pairs: Pairs, atol: float) -> Facts | None:
    """Differences that are wider from a position on; at a multiple of a tile where one is as likely."""
    at, size = _magnitudes(pairs)
    cut, tile = _onset(at, size)
    if not cut:
        return None
    before, after = float(size[:cut].mean()), float(size[cut:].mean())
    step = _likelihood(size, np.append(np.full(cut, before), _line(at[cut:], size[cut:])))
    if after < _JUMP * before or step < _likelihood(size, _line(at, size)) + math.log(size.size) / 2:
        return None
    return {"position": int(at[cut]), "tile": tile, "before": before, "after": after}


def grows(pairs: Pairs, atol: float) -> Facts | None:
    """Differences that become wider with the position."""
    at, size = _magnitudes(pairs)
    if size.size < 2 * _FEWEST or is_noise(pairs.d, atol):
        return None
    line = _line(at, size)
    gain = _likelihood(size, line) - _likelihood(size, np.full(size.size, size.mean()))
    return {"first": float(line[0]), "end": float(line[-1])} if gain > _GAIN and line[-1] > 2 * line[0] else None


def _magnitudes(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return positions in ascending order, and how large the differences are there.

    An error of its logit reaches the log-probability of a token of probability p times 1 − p, so magnitudes are divided by that: what is easy to predict would
    look as if it were more exact.
    """
    order = np.argsort(pairs.position, kind="stable")
    return pairs.position[order], (np.abs(pairs.d) / np.maximum(-np.expm1(pairs.a), _SURE))[order] + _TINY


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
    for dtype in (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)):
        with np.errstate(over="ignore"):
            are = [bool((each == each.astype(dtype).astype(np.float64)).all()) for each in (pairs.a, pairs.b)]
        if are[0] is not are[1] and pairs.a.size >= _FEWEST:
            return {"side": "A" if are[0] else "B", "dtype": dtype.name}
    return None


def wide(pairs: Pairs, atol: float) -> Facts | None:
    """Everywhere, in no other form: other weights."""
    return None if is_noise(pairs.d, atol) else {"mean": float(np.abs(pairs.d).mean())}


def single(pairs: Pairs, atol: float) -> Facts | None:
    """A few tokens by far, all others not at all."""
    which = np.abs(pairs.d) > _ALONE * atol
    return {**_place(pairs, which), "largest": float(np.abs(pairs.d).max())} if which.any() else None


FORMS: Mapping[str, Callable[[Pairs, float], Facts | None]] = {
    "logprobs-not-finite": not_finite,
    "logprobs-filled": filled,
    "logprobs-last": _alone(lambda pairs: pairs.is_last),
    "logprobs-borders": _alone(lambda pairs: (pairs.document > 0) & (pairs.since < _NEAR)),
    "logprobs-documents": _alone(lambda pairs: pairs.document > 0),
    "logprobs-sequences": sequences,
    "logprobs-shifted": shifted,
    "logprobs-constant": constant,
    "logprobs-factor": factor,
    "logprobs-one-sided": one_sided,
    "logprobs-begins": begins,
    "logprobs-grows": grows,
    "logprobs-grid": grid,
    "logprobs-wide": wide,
    "logprobs-single": single,
}
"""by code, in the order in which they are asked; the first two are taken off, of the others the first that is found is the form"""


def forms_of(pairs: Pairs, atol: float) -> tuple[list[tuple[str, Facts]], Pairs]:
    """Return the forms that are found, and the tokens without those that are not finite or filled."""
    found = []
    for name, form in FORMS.items():
        facts = form(pairs, atol) if pairs.a.size else None
        if facts is None:
            continue
        found.append((name, {key: value for key, value in facts.items() if key != "which"}))
        if "which" not in facts:
            break
        pairs = pairs.only(~facts["which"])
    return found, pairs
