"""The graph of the page: nodes and edges of both sides by columns, each edge with the pair of tensors that it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from probe.comparison.result import Divergence, SlotResult
from probe.comparison.steps.events import StepPairs
from probe.report.graph.both import both_flows, looked_at, pairs_of
from probe.report.graph.flow import Flow, Kind
from probe.report.html.numbers import Words

_KINDS = list(Kind)


def both_as_columns(
    steps: Mapping[int, StepPairs], slots: Sequence[SlotResult], first: Divergence | None, words: Words
) -> dict[str, object] | None:
    """Return the data flow of the micro-batch of the first divergence, of the first one where there is none; None if nothing ran."""
    place = looked_at(steps, first)
    if place is None:
        return None
    pairs, micro = place
    found = both_flows(pairs, micro, slots)
    return {
        "step": pairs.step, "micro": micro, "twin": list(found.twins),
        "a": as_columns(found.a, found.tensors_a, words), "b": as_columns(found.b, found.tensors_b, words),
    }  # fmt: skip


def as_columns(flow: Flow, tensors: Mapping[int, int], words: Words) -> dict[str, object]:
    """Return nodes and edges by columns.

    Parameters
    ----------
    flow
        of one side
    tensors
        by a record, its place among the document's tensors
    words
        where texts stand
    """
    known, own = pairs_of(flow, tensors)
    return {
        "kind": [_KINDS.index(node.kind) for node in flow.nodes], "parent": [node.parent for node in flow.nodes],
        "module": [node.module for node in flow.nodes], "call": [node.call for node in flow.nodes],
        "text": [words.number(node.text) for node in flow.nodes], "tensor": own,
        "source": [edge.source for edge in flow.edges], "target": [edge.target for edge in flow.edges],
        "of": known, "is_known": [int(edge.is_known) for edge in flow.edges],
        "learns": [int(edge.learns) for edge in flow.edges], "is_around": [int(edge.is_around) for edge in flow.edges],
    }  # fmt: skip
