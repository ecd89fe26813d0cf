"""Other representations of one tensor, each a function with its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from probe.verdict.distance.error import Error
from probe.verdict.distance.estimates import SAME
from probe.verdict.tensors import Tensor

Function = Callable[[np.ndarray], np.ndarray]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


MONOTONE: dict[str, Function] = {"sigmoid": _sigmoid, "tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}
OTHERS: dict[str, Function] = {"softmax": _softmax, "silu": lambda x: x * _sigmoid(x), "gelu": _gelu}


@np.errstate(over="ignore")
def activation_between(a: Tensor, b: Tensor, limit: float) -> str | None:
    """Return the activation that one side applies to a tensor inside the call and the other behind it.

    Fused activations: ``BatchNorm(act="relu")``, ``Dense(activation=…)``, probabilities for logits. Statistics show
    those that keep the order of numbers, by minimum and maximum.
    """
    if a.kind != "float" or b.kind != "float" or a.form != b.form or not a.form:
        return None
    if not (a.has_values and b.has_values):
        if limit > SAME:
            return None
        for name, function in MONOTONE.items():
            for x, y in ((a, b), (b, a)):
                made = function(np.array([y.low, y.high]))
                if np.allclose(made, (x.low, x.high), rtol=SAME, atol=0) and x.high > x.low:
                    return name
        return None
    values = a.values(), b.values()
    for name, function in (MONOTONE | OTHERS).items():
        for x, y in (values, values[::-1]):
            if np.linalg.norm(function(y) - x) <= limit * np.linalg.norm(x):
                return name
    return None


def seen_error(a: Tensor, b: Tensor, gradients: tuple[Tensor, Tensor], measure: Callable[..., Error]) -> Error | None:
    """Return the error of the rows that have a gradient on either side; None if all have, or none."""
    tensors = (a, b, *gradients)
    if not all(each.has_values and each.form == a.form and len(each.form) > 1 for each in tensors):
        return None
    is_seen = np.any([(each.values() != 0).any(-1) for each in gradients], axis=0)
    if is_seen.all() or not is_seen.any():
        return None
    return measure(a.values()[is_seen], b.values()[is_seen])
