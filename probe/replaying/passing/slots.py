"""Which tensor that A recorded stands for which of those that a module of B is given or returns, and how it lies there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.answer.metrics import kind_of
from probe.numbers.axis_sums import squeezed
from probe.numbers.statistics import is_float
from probe.verdict.distance.values import can_be_laid, error_of

Read = Callable[[], np.ndarray]

_ALIKE = 0.5
"""relative difference up to which two tensors are taken for the same where names do not say it"""
_MOST_TRIED = 6
"""axes of which all orders are tried"""


@dataclass(frozen=True)
class Form:
    """What a tensor is, without its values."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """``float``, ``integer`` …; masks are of several kinds, and never stand for each other."""
        return "bool" if self.dtype == "bool" else kind_of(self.dtype)

    def fits(self, other: Form) -> bool:
        """Return True if elements of the two may correspond."""
        is_alike = can_be_laid(squeezed(self.shape), squeezed(other.shape))
        return self.kind == other.kind and math.prod(self.shape) == math.prod(other.shape) and is_alike


def paired(
    a: Mapping[str, Form], b: Mapping[str, Form], names: Sequence[str], read_a: Callable[[str], np.ndarray],
    read_b: Callable[[str], np.ndarray],
) -> dict[str, str]:  # fmt: skip
    """Return A's slot for each of B's that has one.

    By name, by the position that the parameter of a name has, and else by values: what B's code made of A's tensors is close to what A's made.

    Parameters
    ----------
    a, b
        forms by slot
    names
        of the parameters of B's function, in their order
    read_a, read_b
        return the values of a slot
    """
    found: dict[str, str] = {}
    left = dict(a)
    for slot_b, form in b.items():
        for slot_a in (slot_b, _renamed(slot_b, names)):
            if slot_a in left and left[slot_a].fits(form):
                found[slot_b] = slot_a
                del left[slot_a]
                break
    open_b = {slot: form for slot, form in b.items() if slot not in found}
    while open_b and left:
        fitting = [(i, j) for i, one in left.items() for j, other in open_b.items() if one.fits(other)]
        best = min(((distance(read_a(i), read_b(j)), i, j) for i, j in fitting), default=None)
        if best is None or not (best[0] < _ALIKE or _is_only(best[1], best[2], left, open_b)):
            break
        found[best[2]] = best[1]
        del left[best[1]], open_b[best[2]]
    return found


def _renamed(slot: str, names: Sequence[str]) -> str:
    """Return what the other side may call a slot: the position of a parameter by its name, or the other way round."""
    first, dot, rest = slot.partition(".")
    if first.isdigit():
        return f"{names[int(first)]}{dot}{rest}" if int(first) < len(names) else ""
    return f"{names.index(first)}{dot}{rest}" if first in names else ""


def _is_only(slot_a: str, slot_b: str, a: Mapping[str, Form], b: Mapping[str, Form]) -> bool:
    """Return True if nothing else is left that either could be."""
    return sum(form.fits(b[slot_b]) for form in a.values()) == 1 == sum(a[slot_a].fits(form) for form in b.values())


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return the relative difference of two tensors that fit, A laid as B; of integers the share that differs."""
    laid = laid_as(a, b.shape, lambda: b)
    if not is_float(laid.dtype):
        return float(np.mean(laid != b)) if laid.size else 0.0
    return error_of(laid, b).size


def laid_as(values: np.ndarray, shape: tuple[int, ...], like: Read, forward: Read | None = None) -> np.ndarray:
    """Return values in another shape: axes of size 1 added or taken away, merged or split, or in another order.

    Parameters
    ----------
    like
        reads what B has there: which of several orders is meant is the one in which it is closest to A's
    forward
        of a gradient: what of A's ``like`` is to be close to; the values themselves when None
    """
    if values.shape == shape:
        return values
    here, there = squeezed(values.shape), squeezed(shape)
    if here == there or sorted(here) != sorted(there):
        return values.reshape(shape)
    plain, orders = values.reshape(here), _orders(here, there)
    order = orders[0] if len(orders) == 1 else _meant(orders, values if forward is None else forward(), like())
    return np.ascontiguousarray(plain.transpose(order)).reshape(shape)


def _orders(here: tuple[int, ...], there: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the orders of axes in which one shape is the other."""
    if len(here) > _MOST_TRIED:
        return [tuple(sorted(range(len(here)), key=lambda k: there.index(here[k])))]
    return [order for order in itertools.permutations(range(len(here))) if tuple(here[k] for k in order) == there]


def _meant(orders: Sequence[tuple[int, ...]], a: np.ndarray, b: np.ndarray) -> tuple[int, ...]:
    """Return the order in which A's axes are B's."""
    here, there = a.reshape(squeezed(a.shape)), b.reshape(squeezed(b.shape))
    return min(orders, key=lambda order: distance(np.ascontiguousarray(here.transpose(order)), there))
