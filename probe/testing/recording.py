"""A recording as plain Python objects, for tests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probe.records import Phase, Role
from probe.store.reading.reader import Reader


@dataclass(frozen=True)
class Seen:
    """One observation, read back from a file."""

    step: int
    micro: int
    phase: str
    path: str
    call: int
    role: str
    slot: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    order: int
    norm: float
    hash: tuple[int, int]
    hash_kind: int
    values: np.ndarray | None = dataclasses.field(repr=False)


class Recording:
    """A file as plain Python objects, for tests."""

    def __init__(self, path: Path) -> None:
        with Reader(path) as reader:
            self.modules, self.parameters = reader.modules, reader.parameters
            self.calls, self.steps, self.optimizer = reader.calls, reader.steps, reader.optimizer
            self.scalars, self.notes, self.info = reader.scalars, reader.notes, reader.info
            self.seen = [_seen(reader, row) for row in reader.records]

    def find(self, **wanted: object) -> list[Seen]:
        """Return the observations whose attributes are these, in the order in which they were made."""
        return [s for s in self.seen if all(getattr(s, name) == value for name, value in wanted.items())]

    def one(self, **wanted: object) -> Seen:
        """Return the only observation whose attributes are these."""
        found = self.find(**wanted)
        assert len(found) == 1, f"{wanted}: {len(found)} observations, of {sorted(self.keys())}"
        return found[0]

    def keys(self) -> set[tuple[str, str, str, str]]:
        """Return (phase, role, path, slot) of everything that was seen."""
        return {(s.phase, s.role, s.path, s.slot) for s in self.seen}

    def called(self) -> list[tuple[int, str, int]]:
        """Return (micro, path, call) of every module call, in order."""
        return [(int(c["micro"]), self.modules[c["module"]].path, int(c["call"])) for c in self.calls]


def _seen(reader: Reader, row: np.void) -> Seen:
    tensor = int(row["tensor"])
    return Seen(
        int(row["step"]), int(row["micro"]), Phase(row["phase"]).label, reader.modules[row["module"]].path,
        int(row["call"]), Role(row["role"]).label, reader.slots[row["slot"]], row["dtype"].decode(),
        reader.shapes[row["shape"]], bool(row["requires_grad"]), int(row["order"]), float(row["norm"]),
        (int(row["hash_hi"]), int(row["hash_lo"])), int(row["hash_kind"]),
        reader.values(tensor) if tensor >= 0 else None,
    )  # fmt: skip
