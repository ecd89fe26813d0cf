"""Errors that lie in padding alone: where a mask that the model was given, alike on both sides, is 0."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from probe.comparison.distance.estimates import same_layout
from probe.comparison.distance.metrics import Metrics, Status, kind_of, values_of_pair
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node
from probe.records import Role

_LARGEST = 16 << 20
"""elements of a tensor that is read for it"""


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor that differs in padding alone."""

    node: Node
    event: Event
    whole: Metrics
    """what it is with its padding"""
    padding: Padding

    @property
    def matters(self) -> bool | None:
        """Whether A's loss depends on that padding, as its gradient tells; None where no values of one were recorded."""
        return self.padding.is_used(self.node, self.event)


class Padding:
    """The padding of one micro-batch.

    Parameters
    ----------
    pairs, micro
        the step's paired calls, and the micro-batch
    """

    def __init__(self, pairs: StepPairs, micro: int) -> None:
        self._pairs, self._micro = pairs, micro

    @functools.cached_property
    def _mask(self) -> tuple[str, np.ndarray] | None:
        """The mask with its argument: integers or truth values, 0 and 1, for each token; None where there is none, or no values."""
        a, b = self._pairs.a, self._pairs.b
        for (micro, module, call), node in self._pairs.nodes.items():
            if micro != self._micro or node.parent is not None:
                continue
            other = self._pairs.matching.pairs[node.pair].b
            theirs = self._pairs.rows_b.get((micro, other, node.call_b), Role.INPUT).values()
            for slot, rows in self._pairs.rows_a.get((micro, module, call), Role.INPUT).items():
                i = rows[0]
                is_given = any(
                    same_layout(a, i, b, found[0]) and a.digest(i) == b.digest(found[0]) is not None for found in theirs
                )
                if not is_given or len(a.shapes[i]) != 2 or kind_of(a.dtypes[i]) == "complex" or not a.has_values(i):
                    continue
                values = np.asarray(a.values(i)).reshape(a.shapes[i])
                if set(np.unique(values)) == {0, 1}:
                    return slot, values != 0
        return None

    @property
    def name(self) -> str:
        """The mask's argument."""
        assert self._mask is not None
        slot = self._mask[0]
        return f"argument {slot}" if slot[:1].isdigit() else slot

    def without(self, event: Event) -> Metrics | None:
        """Compare two tensors where the mask is not 0; None where values or a mask are missing, or no axes are those of tokens."""
        if self._mask is None or event.metrics is None or event.metrics.estimated or event.factor != 1:
            return None
        a, b = self._pairs.a, self._pairs.b
        if math.prod(a.shapes[event.row_a]) > _LARGEST:
            return None
        free = self._pairs.has_free_axes(event.role, event.pair, event.row_a)
        values = values_of_pair(a, event.row_a, b, event.row_b, free_axes=free)
        if values is None:
            return None
        kept = [_kept(each, self._mask[1]) for each in values]
        return None if kept[0] is None or kept[1] is None else measured_values(kept[0], kept[1], event.metrics)

    def is_used(self, node: Node, event: Event) -> bool | None:
        """Tell whether A's gradient of a tensor is other than 0 anywhere in padding; None where it has no recorded values."""
        a, key = self._pairs.a, (node.micro, self._pairs.matching.pairs[node.pair].a, node.call)
        role = Role.GRAD_INPUT if event.role is Role.INPUT else Role.GRAD_OUTPUT
        rows = self._pairs.rows_a.get(key, role).get(event.slot_a)
        if self._mask is None or not rows or not a.has_values(rows[0]):
            return None
        kept = _kept(np.asarray(a.values(rows[0])).reshape(a.shapes[rows[0]]), ~self._mask[1])
        return None if kept is None else bool(np.any(kept != 0))


def _kept(values: np.ndarray, mask: np.ndarray) -> np.ndarray | None:
    """Return what of a tensor belongs to tokens that are no padding."""
    for order in (mask, mask.T):
        if values.ndim > 1 and values.shape[:2] == order.shape:
            return values[order]
    if values.ndim == 4 and (values.shape[0], values.shape[2]) == mask.shape:  # [batch, heads, tokens, ...]
        return np.moveaxis(values, 2, 1)[mask]
    return values[mask.reshape(-1)] if values.ndim > 1 and values.shape[0] == mask.size else None


def measured_values(a: np.ndarray, b: np.ndarray, whole: Metrics) -> Metrics | None:
    """Compare some of the elements of two tensors, of which all of them are known; None where they are not finite."""
    x, y = (np.asarray(each, np.float64).reshape(-1) for each in (a, b))
    gap = y - x
    norm_a, norm_b, distance = (float(np.linalg.norm(each)) for each in (x, y, gap))
    larger = max(norm_a, norm_b)
    if not math.isfinite(distance + larger):
        return None
    return replace(
        whole, status=Status.COMPARED if distance else Status.EQUAL, rel_l2=distance / larger if larger else 0.0,
        cosine=float(x @ y) / (norm_a * norm_b) if norm_a and norm_b else float(not larger),
        coherence=float(x @ gap) / (norm_a * distance) if norm_a and distance else 0.0,
        norm_a=norm_a, norm_b=norm_b, max_abs=float(np.abs(gap).max(initial=0.0)), max_abs_at=None, max_rel=math.nan,
        mean_abs=float(np.abs(gap).mean()) if gap.size else 0.0, why=None,
    )  # fmt: skip
