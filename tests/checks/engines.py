"""A small language model in numpy, run by a trainer in float32 and by rollout engines that make one mistake each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

VOCABULARY, WIDTH, LENGTH = 300, 64, 300
Array = np.ndarray


def to(dtype: object) -> Callable[[Array], Array]:
    """Return a function that rounds to a dtype."""
    return lambda values: values.astype(dtype).astype(np.float32)


EXACT, BFLOAT16, FLOAT8 = to(np.float32), to(ml_dtypes.bfloat16), to(ml_dtypes.float8_e4m3fn)


@dataclass(frozen=True)
class Engine:
    """How a model is run."""

    seed: int = 0
    stale: float = 0.0
    """how far the weights are from the trainer's"""
    rounded: Callable[[Array], Array] = EXACT
    head: Callable[[Array], Array] = EXACT
    """of logits and of log-probabilities"""
    temperature: float = 1.0
    narrow_from: int = 1 << 20
    """position from which on keys and values are kept in float8"""
    leaks: bool = False
    """attention crosses the borders of documents"""

    def weights(self) -> dict[str, Array]:
        rng, other = np.random.default_rng(self.seed), np.random.default_rng(99)
        shapes = {"table": (VOCABULARY, WIDTH), "head": (VOCABULARY, WIDTH), **dict.fromkeys("qkvud", (WIDTH, WIDTH))}
        found = {}
        for name, shape in shapes.items():
            std = 1.0 if len(name) > 1 else WIDTH**-0.5
            found[name] = ((rng.standard_normal(shape) + self.stale * other.standard_normal(shape)) * std).astype(
                np.float32
            )
        return {name: self.rounded(each) for name, each in found.items()}

    def logits(self, ids: Array, borders: Array) -> Array:
        """Return the logits of the next token behind each one, of documents that begin at ``borders``."""
        w, r, at = self.weights(), self.rounded, np.arange(len(ids))
        document = np.searchsorted(borders, at, side="right")
        x = r(w["table"][ids])
        keys, values = r(x @ w["k"]), r(x @ w["v"])
        narrow = (at >= self.narrow_from)[:, None]
        keys, values = np.where(narrow, FLOAT8(keys), keys), np.where(narrow, FLOAT8(values), values)
        hidden = (at[None] > at[:, None]) | (~np.bool_(self.leaks) & (document[None] != document[:, None]))
        scores = r(r(x @ w["q"]) @ keys.T) * WIDTH**-0.5 - 0.04 * np.abs(at[None] - at[:, None])
        scores = np.where(hidden, -np.inf, scores)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        h = r(x + r(r(shares / shares.sum(axis=1, keepdims=True)) @ values))
        h = r(h + r(r(np.tanh(r(h @ w["u"]))) @ w["d"]))
        h = r(h / np.sqrt((h * h).mean(axis=1, keepdims=True)))
        return self.head(h @ w["head"].T * 0.5) / self.temperature

    def logprobs(self, ids: Array, borders: Array) -> Array:
        """Return the log-probability of each token but the first."""
        z = self.logits(ids, borders)[:-1]
        z = z - z.max(axis=1, keepdims=True)
        return self.head(z - np.log(np.exp(z).sum(axis=1, keepdims=True)))[np.arange(len(ids) - 1), ids[1:]]


TRAINER, CLEAN = Engine(), Engine(rounded=BFLOAT16)


def text(seed: int, length: int = LENGTH) -> Array:
    """Return ids, each drawn behind the one before by the trainer's model without its layers."""
    rng, w = np.random.default_rng(seed), TRAINER.weights()
    table, ids = w["table"] @ w["head"].T * 0.5, [seed % VOCABULARY]
    while len(ids) < length:
        ids.append(int((table[ids[-1]] + rng.gumbel(size=VOCABULARY)).argmax()))
    return np.array(ids)
