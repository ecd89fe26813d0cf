"""Outputs whose bias is returned beside them, for the caller to add: Megatron's ``skip_bias_add``.

Where the other side's module returns no such bias, what is compared is output + bias. Sketches are linear, and the sketch of a
vector along the last axis is that of ones along the other axes, convolved with the vector's own (`probe.numbers.sketch`). The gradient of
the output is the same either way, and that of the bias belongs to the parameter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import add_sum, is_finite
from probe.comparison.optimizer.derived_updates import weights_begun
from probe.comparison.steps.side import Digest, Side, kind_of
from probe.matching import Matching, Place
from probe.numbers.sketch import along, axes_of, outer
from probe.records import Role

_BIAS = "bias"
_Call = tuple[int, int, int]
"""(module, micro, number)"""


@dataclass(frozen=True, slots=True)
class _Returned:
    """A bias that a call returned."""

    output: int
    """row of the output that it belongs to"""
    bias: int
    """its row"""
    parameter: Place


def add_returned_biases(a: Side, b: Side, matching: Matching) -> None:
    """Let output + bias stand for what modules return apart, where the other side's return it as one.

    Parameters
    ----------
    a, b
        a step of both sides, which are changed before parts are joined
    matching
        see `probe.comparison.fusion.one_to_many.completed`
    """
    found = {"A": _returned(a), "B": _returned(b)}
    if not any(found.values()):
        return
    both = _returned_on_both(matching, {name: {call[0] for call in each} for name, each in found.items()})
    for name, side in (("A", a), ("B", b)):
        for call, returned in found[name].items():
            if (name, call[0]) not in both:
                _add(side, call[0], returned)


def _returned_on_both(matching: Matching, returning: dict[str, Set[int]]) -> set[tuple[str, int]]:
    """Return the modules, by side, that return their biases as their counterparts do."""
    pairs = [{"A": pair.a, "B": pair.b} for pair in matching.pairs]
    for bundle in matching.bundles:
        other = "A" if bundle.side == "B" else "B"
        pairs += [{bundle.side: part, other: bundle.whole} for part in bundle.parts]
    return {place for pair in pairs if all(pair[name] in returning[name] for name in "AB") for place in pair.items()}


def _returned(side: Side) -> dict[_Call, _Returned]:
    """Return the biases that calls returned: a module's own, and what its callers hand on."""
    outputs: dict[_Call, list[int]] = defaultdict(list)
    columns = side.columns
    for row, role in enumerate(columns["role"]):
        if role == Role.OUTPUT and row not in side.hidden:
            outputs[columns["module"][row], columns["micro"][row], columns["call"][row]].append(row)
    outputs = {call: rows for call, rows in outputs.items() if len(rows) > 1}
    shapes = _biases(side)
    recorded = weights_begun(side) if any(call[0] in shapes for call in outputs) else {}
    known: dict[tuple[int, Digest | None], Place] = {}
    for call, rows in outputs.items():
        slot, shape = shapes.get(call[0], ("", ()))
        for _, bias in _candidates(side, rows):
            digest = side.digest(bias)
            _, own = recorded.get((call[0], slot), (None, digest))  # where no weights were recorded, its shape tells
            if side.shapes[bias] == shape and digest and own == digest:
                known[call[1], digest] = call[0], slot
    return {
        call: _Returned(output, bias, known[call[1], side.digest(bias)])
        for call, rows in outputs.items()
        for output, bias in _candidates(side, rows)
        if (call[1], side.digest(bias)) in known
    }


def _candidates(side: Side, rows: list[int]) -> Iterator[tuple[int, int]]:
    """Yield outputs that are followed by a vector of the size of their last axis."""
    for output, bias in zip(rows, rows[1:], strict=False):
        made, added = side.shapes[output], side.shapes[bias]
        are_floats = all(kind_of(side.dtypes[row]) == "float" for row in (output, bias))
        if are_floats and len(added) == 1 and made[-1:] == added and is_finite(side, bias):
            yield output, bias


def _biases(side: Side) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Return slot and shape of the bias of each module that has one."""
    return {
        each.module: (each.slot, tuple(each.shape))
        for each in side.parameters
        if not each.is_buffer and side.canonical(each.module, each.slot) == _BIAS
    }


def _add(side: Side, module: int, returned: _Returned) -> None:
    """Append the row of output + bias, and hide both."""
    rows = returned.output, returned.bias
    add_sum(side, rows, module, [side.sketch(returned.output), _along_last_axis(side, returned)])
    side.hidden.update(rows)


def _along_last_axis(side: Side, returned: _Returned) -> np.ndarray | None:
    """Return the sketch of a bias in the shape of its output; None where its elements would be needed and are not known."""
    shape = side.shapes[returned.output]
    axes = axes_of(shape)
    own = side.sketch(returned.bias)
    if axes and axes[-1].size == shape[-1] and axes[-1].rank:  # keys other than those of the vector alone
        elements = _elements(side, returned)
        own = None if elements is None else along(axes[-1], elements.astype(np.float64))
    ones = [along(axis, np.ones(axis.size)) for axis in (axes if shape[-1] == 1 else axes[:-1])]
    return None if own is None else outer([own, *ones])


def _elements(side: Side, returned: _Returned) -> np.ndarray | None:
    if side.has_values(returned.bias):
        return side.values(returned.bias)
    places = enumerate(zip(side.columns["module"], side.slots, strict=True))
    sums = (side.axis_sums(row) for row, place in places if place == returned.parameter)
    return next((each[0] for each in sums if each), None)
