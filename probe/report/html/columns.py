"""What pages show of a run as plain data: numbers as JSON can say them, tables that lie by columns, the data flow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from probe.answer.result import Divergence, SlotResult
from probe.report.graph.both import both_flows, looked_at, pairs_of
from probe.report.graph.flow import Flow, Kind
from probe.store.reading.reader import Reader
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

Number = float | int | str | None
_SHORT, _FEW = 64, 4
"""columns of so many numbers are written down as they are, and those with more than one run among so many"""
STATISTICS = ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros")
Statistics = tuple[float, ...]
_KINDS = list(Kind)


def number(value: float, digits: int = 6) -> Number:
    """Return a number of a few digits; NaN as None, infinities as ``"inf"`` and ``"-inf"``."""
    if math.isfinite(value):
        return value if isinstance(value, int) else float(f"{value:.{digits}g}")
    return None if math.isnan(value) else "inf" if value > 0 else "-inf"


def numbers(values: Iterable[float]) -> list[Number]:
    """Return `number` of each."""
    return [number(value) for value in values]


def speakable(value: Any) -> Any:
    """Return nested dicts and lists with every `number` in them as JSON can say it."""
    if isinstance(value, dict):
        return {name: speakable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [speakable(each) for each in value]
    return number(value) if isinstance(value, float) else value


def in_runs(table: dict[str, Any]) -> dict[str, Any]:
    """Return columns, or tables of them, in which those that hardly change are ``{"runs": [value, count, …]}``: they are unpacked much faster."""
    return {name: in_runs(column) if isinstance(column, dict) else _in_runs(column) for name, column in table.items()}


def _in_runs(column: Sequence[Number]) -> object:
    """Return a column, or its runs where there are few."""
    if len(column) < _SHORT or (column[0] is not None and not isinstance(column[0], int)):
        return column
    runs: list[Number] = []
    for value, same in itertools.groupby(column):
        runs += [value, sum(1 for _ in same)]
        if _FEW * len(runs) > len(column):
            return column
    return {"runs": runs}


class Words:
    """Texts that are said often, by number."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self._known.setdefault(text, len(self._known))

    @property
    def all(self) -> list[str]:
        """All texts, in the order of their numbers."""
        return list(self._known)


# Tables


def side_of(reader: Reader, file: str, words: Words) -> dict[str, object]:
    """Return who recorded what, and its modules; texts that are said often by their numbers."""
    info, modules = reader.info, reader.modules
    return {
        "file": file, "run": info.run_id, "framework": f"{info.framework} {info.framework_version}",
        "created": info.created, "task": str(info.config.get("task", "")), "rank": info.rank,
        "world_size": info.world_size, "notes": [text for _, _, text in reader.notes],
        "modules": {
            "path": [module.path for module in modules],
            "class": [words.number(module.class_name) for module in modules],
            "file": [words.number(module.file) for module in modules],
            "line": [module.line for module in modules],
            "called": [words.number(module.called_from) for module in modules],
            "parameters": [module.n_params for module in modules],
        },
    }  # fmt: skip


def statistics(found: Sequence[Statistics]) -> dict[str, object]:
    """Return statistics by columns."""
    return {name: numbers(each[at] for each in found) for at, name in enumerate(STATISTICS)}


def statistics_of(tensor: Tensor | None) -> Statistics:
    """Return the statistics of a tensor; NaN if it is not known."""
    if tensor is None:
        return (math.nan,) * len(STATISTICS)
    return tensor.low, tensor.high, tensor.mean, tensor.rms, tensor.norm, *tensor.bad, tensor.zeros


def by_columns(names: Sequence[str], found: Iterable[Sequence[Any]]) -> dict[str, list[object]]:
    """Return rows by columns."""
    rows = list(found)
    columns: Iterator[Sequence[object]] = zip(*rows, strict=True) if rows else iter(((),) * len(names))
    return {name: list(column) for name, column in zip(names, columns, strict=True)}


# The graph: nodes and edges of both sides, each edge with the pair of tensors that it is


def both_as_columns(
    steps: Mapping[int, Step], slots: Sequence[SlotResult], first: Divergence | None, words: Words
) -> dict[str, object] | None:
    """Return the data flow of the micro-batch of the first divergence, of the first one where there is none; None if nothing ran."""
    place = looked_at(steps, first)
    if place is None:
        return None
    step, micro = place
    found = both_flows(step, micro, slots)
    return {
        "step": step.a.step, "micro": micro, "twin": list(found.twins),
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
