"""Attention over recorded queries, keys and values, in the ways that it is mistaken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from probe.diagnosis.evidence import Evidence, Half, distance, once, read
from probe.diagnosis.hint import Found, verified
from probe.notes import Note, note
from probe.numbers.axis_sums import squeezed
from probe.numbers.documents import begins_in_mask, begins_of
from probe.numbers.statistics import unit_roundoff
from probe.records import Role
from probe.verdict.distance.masks import MASKING

_MOST_SCORES = 1 << 21
"""scores that are computed"""
_MOST_HEADS = 6
"""numbers of heads that are tried where no configuration says it"""
_KINDS = (("q", "query", "q_proj", "query_proj", "wq", "linear_q"), ("k", "key", "k_proj", "key_proj", "wk", "linear_k"),
          ("v", "value", "v_proj", "value_proj", "wv", "linear_v"))  # fmt: skip
_KV_HEADS = ("num_key_value_heads", "num_query_groups", "n_kv_heads")
_TINY = 1e-30
_GOLDEN = (math.sqrt(5) - 1) / 2
_HALVINGS = 40
_WIDEST = 4.0
"""a scale is looked for up to this factor about a known one"""
_FURTHEST = 32.0
"""a cap is looked for up to this factor about the largest score"""


@dataclass(frozen=True, slots=True)
class Way:
    """How attention is computed; the fields stand in the order in which a difference is told."""

    parts: Note
    rotary: Note
    mask: Note
    scale: Note
    groups: Note
    cap: Note


@dataclass(frozen=True)
class Recorded:
    """What one side's attention was computed from."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    """[samples, heads, positions, size]"""
    angles: tuple[np.ndarray, np.ndarray] | None
    """cosines and sines, [samples, 1, positions, size]"""
    mask: np.ndarray | None
    """what the module was given as one, to be added"""
    begins: tuple[int, ...] = ()
    """at which tokens documents begin, as positions or lengths say"""
    cap: float | None = None
    """the soft cap of scores, as the configuration says"""
    parts: Note = field(default_factory=lambda: note("parts-as-recorded"))

    def exchanged(self) -> Iterator[Recorded]:
        """Yield the same with queries, keys and values of one shape taken for each other."""
        tensors = {"queries": self.q, "keys": self.k, "values": self.v}
        for order in list(itertools.permutations(tensors))[1:]:
            taken = dict(zip(tensors, order, strict=True))
            if all(tensors[name].shape == tensors[other].shape for name, other in taken.items()):
                q, k, v = (tensors[other] for other in order)
                said = tuple((name, other) for other, name in taken.items() if other != name)
                yield replace(self, q=q, k=k, v=v, parts=note("parts-exchanged", taken=said))

    def rotations(self) -> dict[Note, tuple[np.ndarray, np.ndarray]]:
        """Return queries and keys, rotated in each way."""
        plain = {note("no-rotary"): (self.q, self.k)}
        if self.angles is None:
            return plain
        cos, sin = self.angles
        halves, back, pairs, mixed = (
            (turn(self.q), turn(self.k))
            for turn in (
                lambda x: x * cos + _swapped(x) * sin,
                lambda x: x * cos - _swapped(x) * sin,
                lambda x: x * _spread(cos) + _swapped_pairs(x) * _spread(sin),
                lambda x: x * cos + _swapped_pairs(x) * sin,
            )
        )
        return {note("rotary-of-halves"): halves, **plain, note("rotary-backwards"): back, note("rotary-of-pairs"): pairs,
                note("rotary-of-pairs-with-angles-of-halves"): mixed, note("rotary-of-queries"): (halves[0], self.k),
                note("rotary-of-keys"): (self.q, halves[1])}  # fmt: skip

    def masks(self) -> dict[Note, np.ndarray | float]:
        """Return what is added to the scores, by what it hides: a causal mask is one however it was given."""
        rows, columns = self.q.shape[2], self.k.shape[2]
        causal = np.triu(np.full((rows, columns), -np.inf), columns - rows + 1)
        found: dict[Note, np.ndarray | float] = {note("causal-mask"): causal, note("no-mask"): 0.0}
        if self.mask is None or (_hidden(self.mask) == _hidden(causal)).all() or not _hidden(self.mask).any():
            if len(self.begins) <= len(self.q) or rows != columns:
                return found
            document = np.isin(np.arange(len(self.q) * rows), self.begins).cumsum().reshape(-1, rows)
            inside = document[:, None, :, None] == document[:, None, None]
            return {note("causal-mask-of-documents", begins=self.begins): np.where(inside, causal, -np.inf), **found}
        if (documents := begins_in_mask(_hidden(self.mask)[:, 0])) is not None:
            return {note("causal-mask-of-documents", begins=documents): self.mask, **found}
        share = float(_hidden(self.mask).mean())
        return {note("mask-that-hides", share=float(f"{share:.4g}")): self.mask, **found}

    def scales(self) -> dict[Note, float]:
        """Return factors on the scores."""
        size, width = self.q.shape[3], self.q.shape[1] * self.q.shape[3]
        return {note("divided-by-root-of-head-size"): 1 / math.sqrt(size), note("not-divided"): 1.0,
                note("divided-by-root-of-width"): 1 / math.sqrt(width), note("divided-by-head-size"): 1 / size}  # fmt: skip

    def orders(self) -> dict[Note, np.ndarray]:
        """Return which head of keys and values is for each head of queries."""
        heads, groups = self.q.shape[1], self.k.shape[1]
        found = {note("heads-repeated-in-place"): np.repeat(np.arange(groups), heads // groups)}
        if groups not in (1, heads):
            found[note("heads-repeated-as-a-whole")] = np.tile(np.arange(groups), heads // groups)
        return found

    def caps(self) -> dict[Note, float]:
        """Return what scores are capped by."""
        known = {note("capped-scores", cap=self.cap): self.cap} if self.cap else {}
        return {**known, note("scores-not-capped"): math.inf}

    def computed(self, rotary: Note, mask: Note, factor: float, groups: Note, cap: float) -> np.ndarray:
        """Return softmax(q kᵀ · factor + mask) v, its scores capped, as [samples, positions, width]."""
        q, k = self.rotations()[rotary]
        index = self.orders()[groups]
        scores = q @ k[:, index].swapaxes(-1, -2) * factor
        scores = (scores if math.isinf(cap) else cap * np.tanh(scores / cap)) + self.masks()[mask]
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = weights / weights.sum(axis=-1, keepdims=True) @ self.v[:, index]
        return mixed.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)


def _hidden(mask: np.ndarray) -> np.ndarray:
    """Return which scores a mask that is added to them leaves out."""
    return mask <= MASKING


def _swapped(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    return np.concatenate([-x[..., half:], x[..., :half]], axis=-1)


def _swapped_pairs(x: np.ndarray) -> np.ndarray:
    return np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)


def _spread(angles: np.ndarray) -> np.ndarray:
    return np.repeat(angles[..., : angles.shape[-1] // 2], 2, axis=-1)


# What was recorded


def _recorded(half: Half, evidence: Evidence) -> Iterator[Recorded]:
    """Yield what a tensor may be the attention of, by numbers of heads."""
    sources = half.sources(evidence.role is Role.INPUT)
    named = []
    for names in _KINDS:
        fitting = [
            each.values for each in sources
            if each.module.casefold() in names and each.slot == "0" and not each.is_input and each.values.ndim == 3
        ]  # fmt: skip
        if len(fitting) != 1:
            return
        named.append(fitting[0])
    q, k, v = named
    if q.shape[0] != k.shape[0] or k.shape[:2] != v.shape[:2]:
        return
    others = [each.values for each in sources if each.is_input]
    for heads, groups in _splits(half, evidence, q, k):
        if q.shape[0] * heads * q.shape[1] * k.shape[1] > _MOST_SCORES:
            continue
        split = [x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2) for x, n in ((q, heads), (k, groups), (v, groups))]
        angles, mask = _angles(others, q.shape[1], q.shape[2] // heads), _mask(others, q, k)
        begins = max(begins_told(half, evidence).values(), key=len, default=())
        yield Recorded(split[0], split[1], split[2], angles, mask, begins, half.config("attn_logit_softcapping"))


def begins_told(half: Half, evidence: Evidence) -> dict[str, tuple[int, ...]]:
    """Return where documents begin, by each input of the model that says it."""
    given = dict(evidence.given_to_model(half)).items()
    told = {slot: begins_of(slot, each.shape, partial(read, each)) for slot, each in given}
    return {slot: begins for slot, begins in told.items() if begins is not None}


def _recorded_of_either(half: Half, evidence: Evidence) -> Iterator[Recorded]:
    """Yield what a side's tensor may be the attention of; where its q, k and v lie in one, of those of the other side.

    They agree: it is the attention that differs first.
    """
    own = list(_recorded(half, evidence))
    yield from own or _recorded(evidence.b if half is evidence.a else evidence.a, evidence)


def _splits(half: Half, evidence: Evidence, q: np.ndarray, k: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield numbers of query heads and of key and value heads."""
    groups = half.config(*_KV_HEADS)
    for heads in evidence.heads(q.shape[-1])[:_MOST_HEADS]:
        size = q.shape[-1] // heads
        own = int(groups) if groups and k.shape[-1] == int(groups) * size else k.shape[-1] // size
        if own and k.shape[-1] == own * size and heads % own == 0:
            yield heads, own


def _angles(others: list[np.ndarray], positions: int, size: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return cosines and sines, [samples or 1, 1, positions, size], among what a module was given."""
    fitting = [x for x in others if squeezed(x.shape)[-2:] == (positions, size) and np.abs(x).max() <= 1 + 1e-2]
    pairs = [
        (x, y)
        for x, y in itertools.permutations(fitting, 2)
        if x.shape == y.shape and np.abs(x * x + y * y - 1).max() < 0.05
    ]
    first = [pair for pair in pairs if np.abs(pair[0][..., 0, :]).sum() > np.abs(pair[1][..., 0, :]).sum()] or pairs
    return (first[0][0].reshape(-1, 1, positions, size), first[0][1].reshape(-1, 1, positions, size)) if first else None


def _mask(others: list[np.ndarray], q: np.ndarray, k: np.ndarray) -> np.ndarray | None:
    """Return an additive mask of [samples or 1, heads or 1, positions, positions] among what a module was given."""
    return next((x for x in others if x.ndim == 4 and x.shape[-2:] == (q.shape[1], k.shape[1]) and x.max() <= 0), None)


# What it is


def _fitted(half: Half, evidence: Evidence) -> Way | None:
    """Return how the recorded tensor was computed, None where no known way gives it."""
    found = half.values
    if found is None:
        return None
    best: tuple[float, Way | None] = math.inf, None
    recorded = list(_recorded_of_either(half, evidence))
    for each, ways in itertools.chain(
        ((own, (own.scales(), own.orders(), own.caps())) for own in recorded),
        (
            (each, (*map(_first, (each.scales(), each.orders(), each.caps())),))
            for own in recorded
            for each in own.exchanged()
        ),
    ):
        if best[1] is not None and each.parts != recorded[0].parts:
            break  # what was recorded gives it as it is
        for rotary, mask, scale, groups, cap in itertools.product(each.rotations(), each.masks(), *ways):
            value = each.computed(rotary, mask, each.scales()[scale], groups, each.caps()[cap])
            rest = distance(value.reshape(found.shape), found) if value.size == found.size else math.inf
            if rest <= _limit(half, evidence) and rest < 0.9 * best[0]:
                best = rest, Way(each.parts, rotary, mask, scale, groups, cap)
    return best[1]


def _first(names: Iterable[Note]) -> list[Note]:
    return list(itertools.islice(names, 1))


def _limit(half: Half, evidence: Evidence) -> float:
    return max(min(evidence.tolerance, 64 * unit_roundoff(half.dtype)), evidence.tolerance / 4)


@once
def _told(evidence: Evidence) -> tuple[Way | None, Way | None]:
    """Return how both sides compute their attention; where one is known, another scale, or cap, is solved for on the other."""
    a, b = (_fitted(half, evidence) for half in evidence.halves)
    if a is not None and b is None:
        b = _with_solved(evidence.b, evidence, a)
    elif b is not None and a is None:
        a = _with_solved(evidence.a, evidence, b)
    return a, b


def _with_solved(half: Half, evidence: Evidence, way: Way) -> Way | None:
    """Return a way like another one but for the scale or the cap of the scores, where there is one that gives the recorded tensor."""
    found = half.values
    for recorded in _recorded_of_either(half, evidence):
        known = recorded.scales()[way.scale], recorded.caps().get(way.cap, math.inf)
        if (
            found is None
            or recorded.q.size != found.size
            or way.rotary not in recorded.rotations()
            or way.mask not in recorded.masks()
        ):
            continue

        def rest(factor: float, cap: float, recorded: Recorded = recorded) -> float:
            made = recorded.computed(way.rotary, way.mask, factor, way.groups, cap)
            return distance(made.reshape(found.shape), found)

        factor = least(lambda x: rest(x, known[1]), known[0] / _WIDEST, known[0] * _WIDEST)  # noqa: B023
        if rest(factor, known[1]) <= _limit(half, evidence):
            return replace(way, scale=note("scores-times", factor=factor, times=factor / known[0]))
        norms = (float(np.linalg.norm(each, axis=-1).max()) for each in (recorded.q, recorded.k))
        largest = max(known[0] * math.prod(norms), _TINY)
        cap = least(lambda x: rest(known[0], x), largest / _FURTHEST, largest * _FURTHEST)  # noqa: B023
        if rest(known[0], cap) <= _limit(half, evidence):
            return replace(way, cap=note("capped-scores", cap=float(f"{cap:.4g}")))
    return None


def least(of: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of a positive number is least."""
    low, high = math.log(low), math.log(high)
    for _ in range(_HALVINGS):
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, other) if of(math.exp(one)) < of(math.exp(other)) else (one, high)
    return math.exp((low + high) / 2)


def attention(evidence: Evidence, part: str) -> Found | None:
    """Attention over the recorded queries, keys and values; one part differs first."""
    ways = _told(evidence)
    if None in ways:
        return None
    parts = {name: [getattr(way, name) for way in ways] for name in Way.__dataclass_fields__}
    if next((name for name, (a, b) in parts.items() if a != b), "") != part:
        return None
    a, b = parts[part]
    return verified(note("attention-differs", a=a, b=b), by="from-queries-keys-and-values", a=a, b=b)
