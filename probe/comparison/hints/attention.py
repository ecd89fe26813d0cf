"""Attention over recorded queries, keys and values, in the ways that it is mistaken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from probe.comparison.hints.evidence import Evidence, Half
from probe.records import Role

_MOST_SCORES = 1 << 22
"""scores that are computed"""
_MOST_HEADS = 6
"""numbers of heads that are tried where no configuration says it"""
_KINDS = (("q", "query", "q_proj", "query_proj", "wq"), ("k", "key", "k_proj", "key_proj", "wk"),
          ("v", "value", "v_proj", "value_proj", "wv"))  # fmt: skip
_KV_HEADS = ("num_key_value_heads", "num_query_groups", "n_kv_heads")


def attention_formulas(half: Half, evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """Yield softmax(q kᵀ · scale + mask) v with and without a causal mask, for several scales and orders of groups."""
    found = half.read(half.row)
    qkv = _queries_keys_values(half, evidence)
    if found is None or qkv is None:
        return
    q, k, v = qkv
    for heads, groups in _splits(half, evidence, q, k):
        if q.shape[0] * heads * q.shape[1] * k.shape[1] > _MOST_SCORES:
            continue
        size = q.shape[-1] // heads
        parts = [_in_heads(each, n) for each, n in ((q, heads), (k, groups), (v, groups))]
        orders = {"each key and value head repeated in place": np.repeat(np.arange(groups), heads // groups)}
        if groups not in (1, heads):
            orders["the key and value heads repeated as a whole"] = np.tile(np.arange(groups), heads // groups)
        scales = {
            "scores divided by √head size": 1 / math.sqrt(size), "scores not divided": 1.0,
            "scores divided by √width": 1 / math.sqrt(q.shape[-1]), "scores divided by the head size": 1 / size,
        }  # fmt: skip
        for (order, index), (scale, factor), causal in itertools.product(orders.items(), scales.items(), (True, False)):
            mixed = _mixed(parts[0], parts[1][:, index], parts[2][:, index], factor, causal)
            mask = "a causal mask" if causal else "no causal mask"
            name = f"mask: {mask}; scale: {scale}; groups: {order}"
            joined = mixed.swapaxes(1, 2).reshape(*q.shape[:2], -1)
            if joined.size == found.size:
                yield name, joined.reshape(found.shape)


def _queries_keys_values(half: Half, evidence: Evidence) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return queries, keys and values as [samples, positions, width]."""
    sources = half.sources(evidence.role is Role.INPUT)
    named = []
    for names in _KINDS:
        fitting = [x for name, x in sources if name.casefold() in names and x.ndim == 3]
        if len(fitting) != 1:
            return None
        named.append(fitting[0])
    q, k, v = named
    return (q, k, v) if q.shape[:1] == k.shape[:1] and k.shape[:2] == v.shape[:2] else None


def _splits(half: Half, evidence: Evidence, q: np.ndarray, k: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield numbers of query heads and of key and value heads."""
    groups = half.config(*_KV_HEADS)
    for heads in evidence.heads(q.shape[-1])[:_MOST_HEADS]:
        size = q.shape[-1] // heads
        own = int(groups) if groups and k.shape[-1] == int(groups) * size else k.shape[-1] // size
        if own and k.shape[-1] == own * size and heads % own == 0:
            yield heads, own


def _in_heads(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _mixed(q: np.ndarray, k: np.ndarray, v: np.ndarray, factor: float, causal: bool) -> np.ndarray:
    scores = q @ k.swapaxes(-1, -2) * factor
    if causal:
        scores = scores + np.triu(np.full(scores.shape[-2:], -np.inf), scores.shape[-1] - scores.shape[-2] + 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v
