"""Other representations of one tensor, each a function with its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from probe.verdict.distance.error import Error, View
from probe.verdict.distance.estimates import SAME, from_statistics
from probe.verdict.distance.values import shared_error
from probe.verdict.tensors import Tensor

Function = Callable[[np.ndarray], np.ndarray]
_TOLD = 0.1
"""an activation leaves at most this share of what a factor leaves"""
MONOTONE = {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}
OTHERS: dict[str, Function] = {
    "softmax": lambda x: (
        np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)
    ),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
}


@np.errstate(over="ignore", invalid="ignore")
def activation_between(a: Tensor, b: Tensor, limit: float) -> str | None:
    """Return the activation that one side applies to a tensor inside the call and the other behind it.

    Fused activations: ``BatchNorm(act="relu")``, ``Dense(activation=…)``, probabilities for logits. Statistics show
    those that keep the order of numbers, by minimum and maximum.
    """
    if a.kind != "float" or b.kind != "float" or a.form != b.form or not a.form:
        return None
    is_known = a.has_values and b.has_values
    if not is_known and (limit > SAME or np.allclose((a.low, a.high), (b.low, b.high), rtol=SAME, atol=0)):
        return None
    known = [each.values() if is_known else np.array([each.low, each.high]) for each in (a, b)]
    for name, function in (MONOTONE | OTHERS if is_known else MONOTONE).items():
        for x, y in (known, known[::-1]):
            made, near = function(y), y * (np.vdot(x, y) / max(np.vdot(y, y), 1e-300))  # silu halves small numbers
            fits_ends = not is_known and np.allclose(made, x, rtol=SAME, atol=0) and x[0] < x[1]
            least = min(limit * np.linalg.norm(x), _TOLD * np.linalg.norm(x - near))
            if fits_ends or (is_known and np.linalg.norm(made - x) <= least):
                return name
    return None


def padded_error(a: Tensor, b: Tensor, padding: Collection[tuple[int, int]]) -> Error | None:
    """Return the error of what both have of a table that one side pads in front or behind; None if it cannot be told.

    Norm, mean and extremes tell it where the rows that are padded are zeros.
    """
    axes = [axis for axis, sizes in enumerate(zip(a.form, b.form, strict=False)) if sizes[0] != sizes[1]]
    if len(a.form) != len(b.form) or len(axes) != 1 or not a.kind == b.kind == "float":
        return None
    if (a.form[axes[0]], b.form[axes[0]]) not in padding:
        return None
    if a.has_values and b.has_values:
        found, is_last = shared_error(a, b)
        return replace(found, view=View.PADDED, max_at=-1 if is_last or axes[0] else found.max_at)
    less, more = sorted((a, b), key=lambda each: each.size)
    if more.zeros - less.zeros != more.size - less.size or a.bad != b.bad:
        return None
    more = replace(more, shape=less.shape, axes=less.axes, mean=more.mean * more.size / less.size, sums=None)
    more = replace(more, low=more.low or less.low, high=more.high or less.high)
    return replace(from_statistics(*((less, more) if less is a else (more, less))), view=View.PADDED)


def seen_error(a: Tensor, b: Tensor, gradients: tuple[Tensor, Tensor], measure: Callable[..., Error]) -> Error | None:
    """Return the error of the rows that have a gradient on either side; None if all have, or none."""
    tensors = (a, b, *gradients)
    if not all(each.has_values and each.form == a.form and len(each.form) > 1 for each in tensors):
        return None
    is_seen = np.any([(each.values() != 0).any(-1) for each in gradients], axis=0)
    is_part = is_seen.any() and not is_seen.all()
    return measure(a.values()[is_seen], b.values()[is_seen]) if is_part else None
