"""A comparison as rows: CSV, and a pandas.DataFrame or Parquet where pandas (and pyarrow) are installed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer.comparison import Comparison
from probe.answer.metrics import PARAMETER_ROLES, Metrics
from probe.answer.result import SlotResult
from probe.errors import ConfigError
from probe.records import Phase, Role
from probe.report.layout import harmless
from probe.store.reading.reader import Reader

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""what makes a spreadsheet run a text (OWASP, CSV Injection)"""
_GUARD = "'"


def rows(comparison: Comparison) -> list[dict[str, object]]:
    """Return one dict per compared pair of tensors, in causal order."""
    return [_row(slot) for slot in comparison.slots]


def frame(comparison: Comparison) -> Any:
    """Return a pandas.DataFrame with one row per compared pair of tensors.

    Raises
    ------
    ImportError
        pandas is not installed
    """
    return _pandas().DataFrame(rows(comparison), columns=COLUMNS)


def records_frame(reader: Reader, records: np.ndarray) -> Any:
    """Return a pandas.DataFrame with one row per tensor that a recording has seen.

    Raises
    ------
    ImportError
        pandas is not installed
    """
    modules = reader.modules
    texts = {
        "phase": ([phase.label for phase in Phase], "phase"), "role": ([role.label for role in Role], "role"),
        "path": ([module.path for module in modules], "module"), "class": ([module.class_name for module in modules], "module"),
        "slot": (reader.slots, "slot"), "shape": ([_text(shape) for shape in reader.shapes], "shape"),
    }  # fmt: skip
    found = {name: np.array(names, object)[records[column]] for name, (names, column) in texts.items()}
    found |= {name: records[name] for name in (*_COUNTS, *_NUMBERS)}
    found |= {"dtype": records["dtype"].astype(str).astype(object), "has_values": records["tensor"] >= 0}
    return _pandas().DataFrame(found, columns=RECORD_COLUMNS)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("a table needs pandas: pip install 'probe-align[table]'") from None
    return pandas


def as_csv(comparison: Comparison) -> str:
    """Return the rows as CSV; texts are written by `safe_text`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows(comparison):
        writer.writerow([_cell(row[name]) for name in COLUMNS])
    return out.getvalue()


def write_parquet(comparison: Comparison, path: str | Path) -> None:
    """Write the rows to a Parquet file; names stand in it as they are.

    Raises
    ------
    ConfigError
        pandas or pyarrow is not installed
    OSError
        the file cannot be written
    """
    try:
        import pandas
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            f"a Parquet file needs pandas and pyarrow: pip install 'probe-align[table]' ({error})"
        ) from None
    table = pandas.DataFrame(rows(comparison), columns=COLUMNS)
    pyarrow.parquet.write_table(pyarrow.Table.from_pandas(table, preserve_index=False), path)


def safe_text(text: str) -> str:
    """Return a text for a cell of a CSV: no formula, no control characters.

    What a spreadsheet would run gets an apostrophe in front; so does what begins with one, so that taking one away gives the
    text back. Control characters are written out, as ``\\x1b``.
    """
    return f"{_GUARD}{harmless(text)}" if text.startswith((*_FORMULA, _GUARD)) else harmless(text)


COLUMNS = [
    "step", "micro", "phase", "verdict", "path_a", "path_b", "class_a", "class_b", "call", "role", "slot_a", "slot_b",
    "rel_l2", "error", "limit", "cosine", "coherence", "norm_a", "norm_b", "norm_ratio", "max_abs", "max_abs_at", "max_rel",
    "mean_abs", "estimated", "dtype_a", "dtype_b", "shape_a", "shape_b", "status", "matched_by", "why_not", "parts_a",
    "parts_b",
]  # fmt: skip
"""docs/reference/output.md says what is in them"""
_COUNTS = ("step", "micro", "call", "nan", "posinf", "neginf", "zeros")
_NUMBERS = ("min", "max", "mean", "rms", "norm")
RECORD_COLUMNS = [
    "step", "micro", "phase", "path", "class", "call", "role", "slot", "dtype", "shape", *_NUMBERS, "nan", "posinf", "neginf", "zeros",
    "has_values",
]  # fmt: skip
"""of the table of a recording"""
TEXTS = [
    "phase", "verdict", "path_a", "path_b", "class_a", "class_b", "role", "slot_a", "slot_b", "max_abs_at", "dtype_a", "dtype_b",
    "shape_a", "shape_b", "status", "matched_by", "why_not", "parts_a", "parts_b",
]  # fmt: skip
"""those of them that are texts"""


_CELLS: Mapping[str, Callable[[SlotResult], object]] = {
    "phase": lambda slot: slot.phase.label, "role": lambda slot: slot.role.label,
    "max_abs_at": lambda slot: _text(slot.metrics.max_abs_at), "shape_a": lambda slot: _text(slot.shape_a),
    "shape_b": lambda slot: _text(slot.shape_b), "status": lambda slot: slot.metrics.status.value,
    "matched_by": lambda slot: slot.reason, "why_not": lambda slot: slot.metrics.reason,
    "parts_a": lambda slot: _names(slot.parts_a, slot), "parts_b": lambda slot: _names(slot.parts_b, slot),
}  # fmt: skip
"""columns that are not the attribute of that name, of the pair of tensors or of its metrics"""
_OF_METRICS = {name for name in COLUMNS if hasattr(Metrics, name)}


def _row(slot: SlotResult) -> dict[str, object]:
    return {
        name: _CELLS[name](slot) if name in _CELLS else getattr(slot.metrics if name in _OF_METRICS else slot, name)
        for name in COLUMNS
    }


def _names(parts: tuple[tuple[str, str], ...], slot: SlotResult) -> str:
    """Return what one side has in the place of one module, or of one parameter."""
    is_parameter = slot.role in PARAMETER_ROLES
    return ", ".join(f"{path}.{name}" if is_parameter else path for path, name in parts)


def _text(sizes: tuple[int, ...] | None) -> str:
    return "" if sizes is None else str(list(sizes))


def _cell(value: object) -> object:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return safe_text(value) if isinstance(value, str) else value
