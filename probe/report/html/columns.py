"""What a page knows of a run, and tables that lie by columns: of one recording as of two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from probe.comparison.distance.metrics import Side
from probe.report.html.numbers import Words, numbers
from probe.store.reading.reader import Reader

_STATISTICS = ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros")


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
            "parameters": [module.n_params for module in modules],
        },
    }  # fmt: skip


def statistics(places: Sequence[tuple[Side, int]]) -> dict[str, object]:
    """Return the statistics of records, each given by its step and its row there."""
    return {name: numbers(side.columns[name][row] for side, row in places) for name in _STATISTICS}


def by_columns(names: Sequence[str], found: Iterable[Sequence[Any]]) -> dict[str, list[object]]:
    """Return rows by columns."""
    rows = list(found)
    columns: Iterator[Sequence[object]] = zip(*rows, strict=True) if rows else iter(((),) * len(names))
    return {name: list(column) for name, column in zip(names, columns, strict=True)}
