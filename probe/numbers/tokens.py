"""Tokens that tell a module from another though rounding routed others otherwise: those whose inputs differ least."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

LOOSEST = 0.3
"""limit up to which an error tells: two activations of one input are as far apart"""
MIXES = 2.0
"""errors of all tokens that each one may be off by if others may be mixed into it, as attention does"""
_FEWEST = 32
"""tokens that tell, at least"""
_SHARE, _NEAR = 0.25, 2.0
"""those that tell: the tokens that differ least, this share of them, and what differs at most so many times as much"""


@dataclass(frozen=True)
class Near:
    """The tokens whose inputs differ least.

    Attributes
    ----------
    event
        a tensor, as if these tokens were all
    x, y
        their values of A and of B, by rows
    at
        which tokens they are
    error, off
        of what they are made of: the largest error, and the largest difference of norms
    """

    event: Any
    x: np.ndarray
    y: np.ndarray
    at: np.ndarray
    error: float
    off: float


def count_of(choice: Any, inputs: Iterable[Any]) -> int:
    """Return how many tokens some choices are of: as many as what they are made from has rows."""
    given = [each.a.size // each.a.shape[-1] for each in inputs if each.is_paired and each.a.shape and each.a.size]
    rows = [count for count in given if choice.a.size % count == 0]
    return max(rows, default=choice.a.size // (choice.a.form[-1] if len(choice.a.form) > 1 else 1))


def sums_of(event: Any, count: int) -> np.ndarray | None:
    """Return the squares of A, of B and of their difference, summed up by tokens; None unless values show them."""
    rows = _rows_of(event, count)
    if rows is None or event.a.kind == "integer":
        return None
    with np.errstate(all="ignore"):
        apart = np.where(rows[0] == rows[1], 0.0, rows[0] - rows[1])
        return np.stack([np.square(each).sum(-1) for each in (*rows, apart)])


def near(
    event: Any,
    made_of: Iterable[Any],
    choices: Iterable[Any],
    count: int,
    u: float,
    sums: Callable[..., Any] = sums_of,
    in_order: bool = False,
) -> Near | None:
    """Return what tells of the tokens that both sides route alike and whose inputs differ least; None of too few.

    Parameters
    ----------
    event
        a tensor of both sides
    made_of
        the tensors that it is made of; those that have no row for each token tell nothing here
    choices
        the experts that were chosen for the tokens
    count
        how many tokens there are
    u
        error of a row that is rounding
    sums
        `sums_of`, or what remembers what it returned
    in_order
        a token is routed alike if its experts stand in the same order, too: gradients of their weights do
    """
    rows = _rows_of(event, count)
    known = [each for each in (sums(one, count) for one in made_of) if each is not None] if rows is not None else []
    if rows is None or not known:
        return None
    among = np.ones(count, bool)
    for here, there in (each for each in (_rows_of(one, count) for one in choices) if each is not None):
        among &= (here == there if in_order else np.sort(here, -1) == np.sort(there, -1)).all(-1)
    with np.errstate(all="ignore"):
        off = np.max([np.nan_to_num(np.sqrt(apart / np.maximum(a, b)), posinf=np.inf) for a, b, apart in known], axis=0)
    among &= np.isfinite(off)
    kept = max(_FEWEST, int(_SHARE * among.sum()))
    if among.sum() < kept:
        return None
    at = np.flatnonzero(among & (off <= max(u, _NEAR * np.sort(off[among])[kept - 1])))
    norms = [np.sqrt(each[:, at].sum(-1)) for each in known]
    larger = [max(a, b, np.finfo(float).tiny) for a, b, _ in norms]
    x, y = (each[at] for each in rows)
    tensors = [replace(each, shape=x.shape, axes=(), **_statistics(of)) for each, of in ((event.a, x), (event.b, y))]
    errors = [float(apart / size) for (_, _, apart), size in zip(norms, larger, strict=True)]
    differences = [float(abs(a - b) / size) for (a, b, _), size in zip(norms, larger, strict=True)]
    return Near(replace(event, a=tensors[0], b=tensors[1]), x, y, at, max(errors), max(differences))


def _rows_of(event: Any, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of both sides, a row for each token."""
    for each in event.both:
        if each is None or not each.has_values or count not in itertools.accumulate(each.form, operator.mul):
            return None
    x, y = (each.values().reshape(count, -1) for each in event.both)
    return (x, y) if x.shape == y.shape else None


def _statistics(values: np.ndarray) -> dict[str, float]:
    norm, mean = float(np.linalg.norm(values.astype(float))), float(values.mean())
    return {"norm": norm, "mean": mean, "low": float(values.min()), "high": float(values.max())}
