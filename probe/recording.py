"""Looking into one recording from Python: `probe.open`."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import NotRecordedError
from probe.numbers.boxes import box_of, expanded
from probe.ranks.reader import open_reader
from probe.records import ByPath, ByRole, ModuleInfo, ParameterInfo, Phase, Role, RunInfo
from probe.store.reading.reader import Reader


@dataclass(frozen=True)
class Observed:
    """One tensor as it was seen once."""

    step: int
    micro: int
    """below 0: a forward without gradients, −1 the first of the step"""
    phase: Phase
    role: Role
    path: str
    call: int
    slot: str
    dtype: str
    shape: tuple[int, ...]
    min: float
    max: float
    mean: float
    rms: float
    norm: float
    nan: int
    posinf: int
    neginf: int
    zeros: int
    tensor: int = field(repr=False)
    _reader: Reader = field(repr=False, compare=False)

    def values(self) -> np.ndarray:
        """Return the values, in their own dtype (bfloat16 and float8 as ml_dtypes).

        Raises
        ------
        NotRecordedError
            only statistics were recorded
        """
        return self._reader.values(self.tensor)

    @property
    def has_values(self) -> bool:
        """Tell whether the values themselves were recorded."""
        return self.tensor >= 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values(), dtype)

    def __getitem__(self, index: Any) -> Any:
        """Return a part of the values, as numpy indexes an array; of plain slices and numbers only that part is read.

        Raises
        ------
        NotRecordedError
            only statistics were recorded
        """
        box = box_of(index, self.shape)
        if box is None or not self.has_values:
            return self.values()[index]
        read = self._reader.block(self.tensor, [part for part, size in zip(box, self.shape, strict=True) if size != 1])
        numbers = tuple(0 if isinstance(each, Integral) else slice(None) for each in expanded(index, len(self.shape)))
        return read.reshape([part.stop - part.start for part in box])[numbers]

    def plot(self, ax: Any = None) -> Any:
        """Draw the histogram of the values (needs matplotlib and recorded values); return the matplotlib Axes."""
        from probe.report.plots.one import draw

        return draw(self, ax)

    def _repr_html_(self) -> str:
        from probe.report.notebook.recordings import of_record

        return of_record(self)


class ModuleRecords(ByRole[Observed]):
    """What was recorded of one module, in the order of the run; ``.output[0]`` is its first output."""

    def _repr_html_(self) -> str:
        from probe.report.notebook.recordings import of_records

        return of_records(self)


class Recording(ByPath[ModuleRecords]):
    """One run's file: a mapping from the paths of its modules to what was recorded of them. Close it, or use it as a context manager."""

    def __init__(self, path: str | Path) -> None:
        self._reader = open_reader(path)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        info = self.info
        return f"<probe recording {self._reader.path.name}: {info.framework}, {len(self.steps)} step{'' if len(self.steps) == 1 else 's'}>"

    def _repr_html_(self) -> str:
        from probe.report.notebook.recordings import of_recording

        return of_recording(self)

    def close(self) -> None:
        """Close the file; values can no longer be read."""
        self._reader.close()

    @property
    def path(self) -> Path:
        """The file."""
        return self._reader.path

    @property
    def observations(self) -> int:
        """How many tensors were seen in the complete steps."""
        return self._reader.observations

    @property
    def info(self) -> RunInfo:
        """Who recorded, when, with which options."""
        return self._reader.info

    @property
    def steps(self) -> list[int]:
        """Numbers of the complete steps."""
        return [int(row["step"]) for row in self._reader.steps]

    @property
    def modules(self) -> list[ModuleInfo]:
        """The module tree, parents first."""
        return self._reader.modules

    @property
    def parameters(self) -> list[ParameterInfo]:
        """Parameters and buffers, with all of their names."""
        return self._reader.parameters

    @property
    def scalars(self) -> dict[str, dict[int, float]]:
        """What was logged as numbers: name → step → value."""
        found: dict[str, dict[int, float]] = {}
        for step, name, value in self._reader.scalars:
            found.setdefault(name, {})[step] = value
        return found

    @property
    def notes(self) -> list[str]:
        """What could not be recorded, in words."""
        return [text for _, _, text in self._reader.notes]

    def batch(self, step: int, micro: int = 0) -> dict[str, np.ndarray]:
        """Return what the models were given in a step, by the names of arguments, where values were recorded.

        Raises
        ------
        NotRecordedError
            no values of that step's batch were recorded; ``probe.start(..., batch="ids")`` records integers
        """
        roots = [index for index, module in enumerate(self.modules) if module.parent < 0]
        rows = self._reader.records_of(roots)
        wanted = (
            (rows["step"] == step) & (rows["micro"] == micro) & (rows["role"] == Role.INPUT) & (rows["tensor"] >= 0)
        )
        found = {self._reader.slots[row["slot"]]: self._reader.values(int(row["tensor"])) for row in rows[wanted]}
        if not found:
            raise NotRecordedError(
                f'{self._reader.path.name} has no values of what the model was given in step {step}: record with batch="ids"'
            )
        return found

    def plot(self, what: str = "gradients", *, only: str = "*", ax: Any = None) -> Any:
        """Draw norms, or what was logged, over the steps (needs matplotlib).

        Parameters
        ----------
        what
            ``"gradients"``, ``"weights"`` or ``"updates"``: the norm of each parameter's, and of all together; or the
            name of a logged number, such as ``"loss"``
        only
            a glob: of which parameters
        ax
            where to draw

        Returns
        -------
        the matplotlib Axes

        Raises
        ------
        NotRecordedError
            nothing of that kind was recorded
        """
        from probe.report.plots.norms import draw

        return draw(self._reader, what, only, ax)

    def _paths(self) -> tuple[str, ...]:
        return tuple(module.path for module in self.modules)

    def __getitem__(self, path: str) -> ModuleRecords:
        """Return what was recorded of a module, by its path or a glob.

        Raises
        ------
        NotRecordedError
            no module has that path
        """
        chosen = self._chosen(path)
        if not chosen:
            raise NotRecordedError(f"{self._reader.path.name} has no module {path!r}; see .modules")
        return ModuleRecords(self._observed(row) for row in self._reader.records_of(sorted(chosen)))

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str) and bool(self._chosen(path))

    def _chosen(self, path: str) -> set[int]:
        """Return the modules of a path, or of a glob."""
        exact = {i for i, module in enumerate(self.modules) if module.path == path}
        return exact or {i for i, module in enumerate(self.modules) if fnmatch.fnmatchcase(module.path, path)}

    def _observed(self, row: Any) -> Observed:
        numbers = {name: float(row[name]) for name in ("min", "max", "mean", "rms", "norm")}
        counts = {name: int(row[name]) for name in ("nan", "posinf", "neginf", "zeros")}
        reader = self._reader
        return Observed(
            step=int(row["step"]), micro=int(row["micro"]), phase=Phase(row["phase"]), role=Role(row["role"]),
            path=self.modules[row["module"]].path, call=int(row["call"]), slot=reader.slots[row["slot"]],
            dtype=row["dtype"].decode(), shape=reader.shapes[row["shape"]], **numbers, **counts,
            tensor=int(row["tensor"]), _reader=reader,
        )  # fmt: skip


def open_recording(path: str | Path) -> Recording:
    """Open a recording to look into it; public as `probe.open`.

    Raises
    ------
    StoreError, FormatError
        the file cannot be read
    """
    return Recording(path)
