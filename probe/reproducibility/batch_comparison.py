"""`compare_batches`: the first sample and field in which two data pipelines differ."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probe.adapters.base import Adapter, adapters_in_use
from probe.errors import ConfigError
from probe.reproducibility.batches import array_of, check_count, joined, load_batches, parts_of

_END = object()
_SAID = 8


@dataclass(frozen=True)
class BatchDifference:
    """Where two pipelines differ first."""

    batch: int
    """its number, from 0"""
    sample: int | None
    """number of the sample in the batch; None where the batches differ as wholes"""
    field: str
    """name in the batch, for example ``input_ids`` or ``0.label``; empty for the batch itself"""
    text: str
    """what differs, in words"""

    def __str__(self) -> str:
        sample = "" if self.sample is None else f", sample {self.sample}"
        name = f", {self.field}" if self.field else ""
        return f"batch {self.batch}{sample}{name}: {self.text}"


@dataclass(frozen=True)
class BatchComparison:
    """What came out of comparing two pipelines."""

    batches: int
    """how many pairs of batches were compared, the differing one included"""
    fields: tuple[str, ...]
    """what was compared in them"""
    difference: BatchDifference | None
    notes: tuple[str, ...] = field(default=())
    """what differs without changing a value: dtypes, names"""

    @property
    def equal(self) -> bool:
        """Whether all that was compared is the same, and something was."""
        return self.difference is None and self.batches > 0 and bool(self.fields)

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        notes = "".join(f"\n  note: {text}" for text in self.notes)
        if self.difference is not None:
            return f"first difference: {self.difference}{notes}"
        batches = "1 batch is" if self.batches == 1 else f"{self.batches} batches are"
        fields = ", ".join(filter(None, self.fields))
        return f"{batches} equal{f' in {fields}' if fields else ''}{notes}"


def compare_batches(a: Any, b: Any, count: int | None = None, atol: float = 0.0) -> BatchComparison:
    """Name the first sample and field in which two data pipelines differ.

    Parameters
    ----------
    a, b
        what gives batches (a DataLoader of any framework), or files that `save_batches` wrote
    count
        how many batches at most; default until one of them ends
    atol
        floats may differ by this much: decoders of images round in different ways

    Raises
    ------
    ConfigError
        there is nothing to compare, or a file is to be compared with itself
    StoreError, FormatError
        a file cannot be read
    """
    check_count("compare_batches", count)
    if all(isinstance(each, (str, os.PathLike)) for each in (a, b)) and Path(a).resolve() == Path(b).resolve():
        raise ConfigError(f"compare_batches: {a} is given twice; expected what the other side gave")
    notes: dict[str, None] = {}
    names: dict[str, None] = {}
    number = -1
    pairs = itertools.zip_longest(*map(_batches, (a, b)), fillvalue=_END)
    for number, (mine, theirs) in enumerate(itertools.islice(pairs, count)):
        ended = [name for name, batch in (("A", mine), ("B", theirs)) if batch is _END]
        if ended:
            if not number:
                raise ConfigError(f"compare_batches: {ended[0]} gave no batch")
            text = f"{ended[0]} ends after {number} batches, {'B' if ended[0] == 'A' else 'A'} goes on"
            return BatchComparison(number, tuple(names), BatchDifference(number, None, "", text), tuple(notes)[:_SAID])
        difference = _Pair(number, mine, theirs, atol, names, notes).difference()
        if difference is not None:
            return BatchComparison(number + 1, tuple(names), difference, tuple(notes)[:_SAID])
    if number < 0:
        raise ConfigError("compare_batches: neither side gave a batch")
    if not names:
        raise ConfigError("compare_batches: the batches hold neither tensors nor values")
    return BatchComparison(number + 1, tuple(names), None, tuple(notes)[:_SAID])


def _batches(given: Any) -> Iterable[Any]:
    if isinstance(given, (str, os.PathLike)):
        return load_batches(given)
    if not isinstance(given, Iterable) and not hasattr(given, "__getitem__"):
        raise ConfigError(
            f"compare_batches: expected what gives batches, or a file of save_batches, got {type(given).__name__}"
        )
    return given


class _Pair:
    """Two batches."""

    def __init__(
        self, number: int, a: Any, b: Any, atol: float, names: dict[str, None], notes: dict[str, None]
    ) -> None:
        self._number, self._atol, self._names, self._notes = number, atol, names, notes
        adapters = adapters_in_use()
        self._a, self._b = dict(_fields(a, adapters)), dict(_fields(b, adapters))

    def difference(self) -> BatchDifference | None:
        """Return the first sample that differs, in the first field of A that does."""
        pairs = self._pairs()
        if isinstance(pairs, BatchDifference):
            return pairs
        found = []
        for mine, theirs in pairs:
            self._names[mine] = None
            text = self._compared(mine, theirs)
            if text is not None:
                found.append(text)
        return min(found, key=lambda each: -1 if each.sample is None else each.sample, default=None)

    def _pairs(self) -> list[tuple[str, str]] | BatchDifference:
        """Pair the fields by name, or by their order where no name is shared: dicts against lists."""
        alone = [name for name in self._a if name not in self._b], [name for name in self._b if name not in self._a]
        if not any(alone):
            return [(name, name) for name in self._a]
        if len(self._a) == len(self._b) == len(alone[0]):
            pairs = list(zip(self._a, self._b, strict=True))
            self._notes[f"fields are paired by their order: {', '.join(f'{x} with {y}' for x, y in pairs)}"] = None
            return pairs
        texts = [f"{', '.join(names)} only in {side}" for side, names in zip("AB", alone, strict=True) if names]
        return BatchDifference(self._number, None, "", "; ".join(texts))

    def _compared(self, name: str, theirs: str) -> BatchDifference | None:
        a, b = self._a[name], self._b[theirs]
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            same = type(a) is type(b) and (a == b or (a != a and b != b))
            return None if same else BatchDifference(self._number, None, name, f"{_short(a)} against {_short(b)}")
        if a.shape != b.shape:
            return BatchDifference(self._number, None, name, f"shape {list(a.shape)} against {list(b.shape)}")
        differs = self._differing(a, b)
        if not differs.any():
            if a.dtype != b.dtype:
                self._notes[f"{name} is {a.dtype.name} in A and {b.dtype.name} in B"] = None
            return None
        at = tuple(int(i) for i in np.argwhere(differs)[0]) if a.ndim else ()
        text = f"{_short(a[at])} against {_short(b[at])} at {list(at)}; {int(differs.sum())} of {differs.size} values differ"
        if _same_rows(a, b):
            text += "; they are the same samples in another order"
        return BatchDifference(self._number, at[0] if at else None, name, text)

    def _differing(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if "O" in a.dtype.kind + b.dtype.kind or a.dtype.kind in "US" or b.dtype.kind in "US":
            return np.asarray(a.astype(object) != b.astype(object), bool)
        x, y = _plain(a), _plain(b)
        differs = np.asarray(x != y)
        if x.dtype.kind in "fc" or y.dtype.kind in "fc":
            differs &= ~(np.isnan(x) & np.isnan(y))
            with np.errstate(invalid="ignore"):
                differs &= ~(np.abs(x - y) <= self._atol)
        return differs


def _fields(value: Any, adapters: list[Adapter], name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every tensor as an array, and every other value, by name; a list of plain values is an array of them."""
    array = array_of(value, adapters)
    parts = None if array is not None else parts_of(value)
    if parts is None:
        yield name, value if array is None else array
        return
    kind, items = parts
    if kind != "mapping" and items and all(isinstance(item, (str, int, float)) for _, item in items):
        plain = np.empty(len(items), object)
        plain[:] = [item for _, item in items]
        yield name, plain
        return
    for key, item in items:
        yield from _fields(item, adapters, joined(name, key))


def _plain(array: np.ndarray) -> np.ndarray:
    """Return floats that numpy lacks in one that it has."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def _same_rows(a: np.ndarray, b: np.ndarray) -> bool:
    if a.ndim == 0 or len(a) < 2 or a.dtype != b.dtype:
        return False
    rows = [sorted(np.ascontiguousarray(row).tobytes() for row in each) for each in (a, b)]
    return a.dtype.kind != "O" and rows[0] == rows[1]


def _short(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) and hasattr(value, "item") else value)
    return text if len(text) <= 60 else f"{text[:57]}…"
