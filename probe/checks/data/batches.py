"""The batches of a recording: token ids, mask, labels and whatever else its model was given, micro-batch by micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.checks.seen import Seen, first_call, in_time, seen
from probe.numbers.statistics import dtype_of
from probe.records import HashKind, Phase, Role
from probe.store.reading.reader import Reader

IDS, MASK, LABELS = "token ids", "attention mask", "labels"
"""keys of a batch for what is found by what it is, whatever a model calls it"""
_MASKS = ("attention_mask", "attn_mask", "padding_mask", "input_mask", "mask")
_LABELS = ("labels", "label", "lm_labels", "masked_lm_labels", "targets", "target")
_IS_PART = "vocabparallel"
"""in the class of an embedding of which a rank holds some rows"""


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding, and the ids that it was given over the whole run."""

    path: str
    class_name: str
    rows: int
    low: float
    high: float
    is_part: bool
    """a rank holds some of its rows"""
    module: int


@dataclass(frozen=True)
class Field:
    """A tensor that a model was given."""

    name: str
    """as the model calls it, or as it was logged"""
    tensor: Seen
    mean: float
    digest: tuple[int, int, int] | None
    """what tells its bytes from others; None where nothing does"""
    is_logged: bool
    _reader: Reader = field(repr=False, compare=False)
    _id: int = field(repr=False)

    @property
    def has_values(self) -> bool:
        """Whether its values were recorded."""
        return self._id >= 0

    def values(self) -> np.ndarray:
        """Return its values."""
        return self._reader.values(self._id)

    @property
    def is_integer(self) -> bool:
        """Whether it holds integers or bools."""
        return dtype_of(self.tensor.dtype).kind in "iub"


@dataclass(frozen=True)
class Batch:
    """What a model was given in one micro-batch."""

    step: int
    micro: int
    fields: dict[str, Field]
    """by `IDS`, `MASK`, `LABELS`, and the names of the others"""

    def get(self, key: str) -> Field | None:
        """Return a field, None where there is none."""
        return self.fields.get(key)


@dataclass(frozen=True)
class Batches:
    """What a recorded model was given."""

    tables: tuple[Table, ...]
    """embeddings that were given ids, the one with the most rows first"""
    batches: tuple[Batch, ...]

    @property
    def vocabulary(self) -> Table | None:
        """The embedding of the tokens."""
        return self.tables[0] if self.tables else None


def batches_of(reader: Reader) -> Batches:
    """Return the batches of all complete steps."""
    rows_of = _embedding_rows(reader)
    ends: dict[int, list[float]] = {}
    for step in reader.steps["step"].tolist():
        for row in _id_rows(reader, int(step), rows_of):
            ends.setdefault(int(row["module"]), []).extend((float(row["min"]), float(row["max"])))
    tables = sorted((_table(reader, module, rows_of[module], found) for module, found in ends.items()), key=lambda each: -each.rows)  # fmt: skip
    main = tables[0].module if tables else None
    batches = [batch for step in reader.steps["step"].tolist() for batch in _of_step(reader, int(step), main)]
    return Batches(tuple(tables), tuple(batches))


def _embedding_rows(reader: Reader) -> dict[int, int]:
    """Return how many rows each embedding has, by module."""
    return {
        each.module: each.shape[0] for each in reader.parameters
        if len(each.shape) == 2 and not each.is_buffer and "embed" in reader.modules[each.module].class_name.casefold()
    }  # fmt: skip


def _id_rows(reader: Reader, step: int, rows_of: Iterable[int]) -> Iterator[Any]:
    """Yield the records of integers that embeddings are given."""
    rows = in_time(reader, step)
    chosen = rows[(rows["role"] == Role.INPUT) & np.isin(rows["module"], list(rows_of))]
    for row in chosen:
        if dtype_of(row["dtype"].decode()).kind in "iu" and row["hash_kind"] != HashKind.NONE:
            yield row


def _table(reader: Reader, module: int, rows: int, ends: Sequence[float]) -> Table:
    info = reader.modules[module]
    is_part = _IS_PART in info.class_name.casefold() and reader.info.world_size > 1
    return Table(info.path, info.class_name, rows, min(ends), max(ends), is_part, module)


def _of_step(reader: Reader, step: int, main: int | None) -> Iterator[Batch]:
    """Yield the batches of a step."""
    rows, calls = in_time(reader, step), reader.of_step("calls", step)
    start = first_call(reader, step)
    roots = calls[(calls["caller"] < start) & (calls["recomputed"] == 0)]
    logged = rows[(rows["role"] == Role.VALUE) & np.isin(rows["phase"], (Phase.FORWARD, Phase.LOSS))]
    for micro in dict.fromkeys(roots["micro"].tolist()):
        mine = rows[(rows["role"] == Role.INPUT) & (rows["micro"] == micro)]
        given: list[Field] = []
        for call in roots[roots["micro"] == micro]:
            own = mine[(mine["module"] == call["module"]) & (mine["call"] == call["call"])]
            given += [_field(reader, row) for row in own]
        ids = next((_field(reader, row) for row in mine if row["module"] == main and dtype_of(row["dtype"].decode()).kind in "iu"), None)  # fmt: skip
        noted = [_field(reader, row, is_logged=True) for row in logged[logged["micro"] == micro]]
        fields = _named(ids, given, noted)
        if fields:
            yield Batch(step, int(micro), fields)


def _field(reader: Reader, row: Any, *, is_logged: bool = False) -> Field:
    kind = int(row["hash_kind"])
    digest = None if kind == HashKind.NONE else (int(row["hash_lo"]), int(row["hash_hi"]), kind)
    return Field(reader.slots[row["slot"]], seen(reader, row), float(row["mean"]), digest, is_logged, reader, int(row["tensor"]))  # fmt: skip


def _named(ids: Field | None, given: Sequence[Field], logged: Sequence[Field]) -> dict[str, Field]:
    """Return the fields by what they are; ids by what the embedding is given, the others by their names."""
    found: dict[str, Field] = {}
    if ids is not None:
        same = [each for each in given if each.digest == ids.digest and each.digest is not None]
        own = min(same, key=lambda each: _plain_name(each.name) in _LABELS, default=None)  # labels may be the ids
        found[IDS] = ids if own is None else own
    for each in (*given, *logged):
        if each is found.get(IDS):
            continue
        name = _plain_name(each.name)
        shape = found[IDS].tensor.shape if IDS in found else None
        key = each.name
        if name in _LABELS and each.is_integer:
            key = LABELS
        elif name in _MASKS and each.tensor.shape == shape:
            key = MASK
        found.setdefault(key, each)
    return found


def _plain_name(name: str) -> str:
    return name.rpartition(".")[2].casefold()


def as_mask(values: np.ndarray) -> np.ndarray:
    """Return which positions a mask keeps: those that are not 0; of an additive mask those that are."""
    kept = np.asarray(values) != 0
    is_additive = values.dtype.kind == "f" and values.size > 0 and float(values.min()) < 0
    return ~kept if is_additive else kept
