"""Looking into one recording from Python: `probe.open`."""

from __future__ import annotations

import fnmatch
import functools
import math
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import EllipsisType
from typing import Any, SupportsIndex, overload

import numpy as np

from probe.errors import NotRecordedError
from probe.mapping.nearest import did_you_mean
from probe.numbers.boxes import box_of
from probe.ranks.opening import open_reader
from probe.records import (
    ByPath,
    ByRole,
    ModuleInfo,
    OptimizerGroup,
    ParameterInfo,
    Phase,
    Role,
    RunInfo,
    is_among,
    listed,
)
from probe.store.reading.reader import Reader

Index = SupportsIndex | slice | EllipsisType | np.ndarray | Sequence[int] | None
"""what numpy takes in one place of ``tensor[…]``"""


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
    tensor: int
    _reader: Reader = field(compare=False)

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
        """Whether the values themselves were recorded."""
        return self.tensor >= 0

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        micro = f", micro {self.micro}" if self.micro else ""
        call = f", call {self.call}" if self.call > 0 else ""
        held = "values" if self.has_values else "statistics"
        return (
            f"<{self.path or 'the whole model'} {self.role.label} {self.slot}, step {self.step}{micro}{call}: "
            f"{self.dtype} {list(self.shape)}, rms {self.rms:.6g}, {held}>"
        )

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a tensor without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a recorded tensor cannot become an array without a copy: its values are read from a file")
        return np.asarray(self.values(), dtype)

    @overload
    def __getitem__(self, index: SupportsIndex | tuple[SupportsIndex, ...], /) -> Any: ...  # a number, or an array

    @overload
    def __getitem__(self, index: Index | tuple[Index, ...], /) -> np.ndarray: ...

    def __getitem__(self, index: Any, /) -> Any:
        """Return a part of the values, indexed as a numpy array is. Of numbers and slices, only that part is read.

        Raises
        ------
        NotRecordedError
            only statistics were recorded
        """
        found = box_of(index, self.shape)
        if found is None or self.size <= 1 or not self.has_values:
            return self.values()[index]
        box, rest = found
        read = self._reader.block(self.tensor, [part for part, size in zip(box, self.shape, strict=True) if size != 1])
        return read.reshape([part.stop - part.start for part in box])[rest]

    def to_xarray(self) -> Any:
        """Return the values as an xarray.DataArray (needs xarray); axes of weights have names.

        Raises
        ------
        NotRecordedError
            only statistics were recorded
        ImportError
            xarray is not installed
        """
        from probe.report.formats.arrays import data_array

        return data_array(self, self._reader)

    def plot(self, ax: Any = None) -> Any:
        """Draw the histogram of the values (needs matplotlib and recorded values); return the matplotlib Axes."""
        from probe.report.plots.one import draw

        return draw(self, ax)

    def _repr_html_(self) -> str:
        from probe.report.notebook.recordings import of_record

        return of_record(self)


class ModuleRecords(ByRole[Observed]):
    """What was recorded of one module, in the order of the run; ``.output[0]`` is its first output, ``.param["weight"]`` its weight."""

    def to_xarray(self) -> Any:
        """Return the values of one tensor over the steps as an xarray.DataArray with the dimension ``step`` (needs xarray).

        Raises
        ------
        ConfigError
            there are several tensors, or several of one step: `sel` chooses
        NotRecordedError
            only statistics were recorded
        ImportError
            xarray is not installed
        """
        from probe.report.formats.arrays import over_steps

        return over_steps(self)

    def _repr_html_(self) -> str:
        from probe.report.notebook.recordings import of_records

        return of_records(self)


class _Records:
    """The records of modules: a few are searched for in the file; when more are asked for, all are kept, if they fit."""

    SEARCHES = 8
    MOST_KEPT = 1 << 19
    """records of 156 bytes"""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._searches = 0

    def of(self, modules: list[int]) -> np.ndarray:
        """Return the records of some modules, in the order of the run."""
        self._searches += 1
        if self._searches <= self.SEARCHES or self._reader.observations > self.MOST_KEPT:
            return self._reader.records_of(modules)
        bounds = zip(self._firsts[modules], self._firsts[[module + 1 for module in modules]], strict=True)
        rows = np.concatenate([self._order[first:last] for first, last in bounds])
        return self._reader.records[np.sort(rows)]

    @functools.cached_property
    def _order(self) -> np.ndarray:
        """The rows of all records, those of one module after the other."""
        return np.argsort(self._reader.records["module"], kind="stable")

    @functools.cached_property
    def _firsts(self) -> np.ndarray:
        """Where the rows of each module begin in `_order`; one more for the end."""
        return np.searchsorted(self._reader.records["module"][self._order], np.arange(len(self._reader.modules) + 1))


class _Run(AbstractContextManager["_Run"]):
    """The file of a run, and what it says of the run as a whole."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = open_reader(path)
        self._is_closed = False

    def __fspath__(self) -> str:
        return str(self._reader.path)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; nothing more can be read of it."""
        self._is_closed = True
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
    def config(self) -> dict[str, object]:
        """The configuration of the model (``model.config``), empty if it has none; the options of `probe.start` are in ``info.config``."""
        return self.info.model_config

    @property
    def optimizers(self) -> dict[int, list[OptimizerGroup]]:
        """The parameter groups of the optimizers by step: class, ``hyper`` (lr, betas …), and the indices of their ``parameters``."""
        return {step: self._reader.groups_of(step) for step in self.steps}

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


class Recording(_Run, ByPath[ModuleRecords]):
    """One run's file, as a mapping from the paths of its modules to what was recorded of each.

    Close it, or use it as a context manager. Functions that take the path of a recording take it too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._records = _Records(self._reader)

    def __enter__(self) -> Recording:
        return self

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __repr__(self) -> str:
        steps = f"{len(self.steps)} step{'' if len(self.steps) == 1 else 's'}"
        state = ", closed" if self._is_closed else ""
        return f"<probe recording {self._reader.path.name}: {self.info.framework}, {steps}{state}>"

    def _repr_html_(self) -> str | None:
        from probe.report.notebook.recordings import of_recording

        return None if self._is_closed else of_recording(self)

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

    def save(self, path: str | Path, *, step: int | None = None) -> Path:
        """Write a page for the browser: the model's tree with its numbers in each phase, its graph, its curves; return the path.

        Parameters
        ----------
        path
            a name that ends in ``.html``
        step
            the only one that is shown; all when None, of a long run as many as there is room for

        Raises
        ------
        ConfigError
            the file's name ends otherwise
        NotRecordedError
            there is no complete step, or not that one
        StoreError
            the file cannot be written
        """
        from probe.report.formats.saving import save_run

        return save_run(self._reader, path, step)

    def plot(
        self, what: str = "gradients", *, only: str = "*", step: int | None = None, at: str = "", ax: Any = None
    ) -> Any:
        """Draw norms, or what was logged, over the steps, or the model as it ran (needs matplotlib).

        Parameters
        ----------
        what
            ``"gradients"``, ``"weights"`` or ``"updates"``: the norm of each parameter's, and of all together; the name of a logged
            number, such as ``"loss"``; or ``"graph"``: the data flow, with size and norm of what each module returned
        only
            a glob: of which parameters
        step
            of the graph; the first one when None
        at
            path of the module that the graph is drawn around; the whole model when empty
        ax
            where to draw

        Returns
        -------
        matplotlib Axes
            where it is drawn

        Raises
        ------
        NotRecordedError
            nothing of that kind was recorded
        ConfigError
            neither a kind of norm nor a logged number has that name, or no module of that path ran
        """
        from probe.report.plots import graph, norms

        return (
            graph.draw_run(self._reader, step, at, ax) if what == "graph" else norms.draw(self._reader, what, only, ax)
        )

    def sel(self, *, step: int | Iterable[int] | slice) -> Steps:
        """Return what was recorded in some steps, by module; ``run[0]`` is ``run.sel(step=0)``. Both ends of a slice count.

        Raises
        ------
        NotRecordedError
            there is no such step
        """
        chosen = [each for each in self.steps if is_among(each, step)]
        if not chosen:
            raise NotRecordedError(
                f"{self._reader.path.name} has no step {step!r}; its steps are {listed(self.steps) or 'none'}"
            )
        return Steps(self, chosen)

    def table(self) -> Any:
        """Return a pandas.DataFrame with a row for each tensor that was seen, of all steps (needs pandas); ``run[0].table()`` has one step."""
        return Steps(self, self.steps).table()

    def _paths(self) -> tuple[str, ...]:
        return tuple(module.path for module in self.modules)

    @overload
    def __getitem__(self, path: str) -> ModuleRecords: ...

    @overload
    def __getitem__(self, path: int) -> Steps: ...

    def __getitem__(self, path: Any) -> Any:
        """Return what was recorded of a module, by its path or a glob, or in a step, by its number.

        Raises
        ------
        NotRecordedError
            no module has that path, or there is no such step
        """
        if isinstance(path, SupportsIndex):
            return self.sel(step=operator.index(path))
        return ModuleRecords(self._observed(row) for row in self._records.of(self._modules_at(path)))

    def _modules_at(self, path: str) -> list[int]:
        """Return the modules of a path, or of a glob. Raises NotRecordedError if there is none."""
        if not isinstance(path, str):
            raise self._not_a_path(path)
        chosen = self._found(path)
        if not chosen:
            near = did_you_mean(path, (module.path for module in self.modules)) or "; see .modules"
            raise NotRecordedError(f"{self._reader.path.name} has no module {path!r}{near}")
        return chosen

    def _found(self, path: str) -> list[int]:
        """Return the modules of a path, or of a glob."""
        exact = [i for i, module in enumerate(self.modules) if module.path == path]
        return exact or [i for i, module in enumerate(self.modules) if fnmatch.fnmatchcase(module.path, path)]

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


class Steps(ByPath[ModuleRecords]):
    """What was recorded in some steps, as a mapping from the paths of modules."""

    def __init__(self, run: Recording, steps: Sequence[int]) -> None:
        self._run, self.steps = run, tuple(steps)

    def __repr__(self) -> str:
        return f"<{len(self._rows)} tensors of {self._run.path.name}, step {listed(self.steps)}>"

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        return np.concatenate([self._run._reader.of_step("records", step) for step in (*self.steps, -1)])

    def _paths(self) -> tuple[str, ...]:
        return self._run._paths()

    def _found(self, path: str) -> list[int]:
        return self._run._found(path)

    def __getitem__(self, path: str) -> ModuleRecords:
        """Return what was recorded of a module in these steps, by its path or a glob.

        Raises
        ------
        NotRecordedError
            no module has that path
        """
        rows = self._rows
        chosen = rows[np.isin(rows["module"], self._run._modules_at(path))]
        return ModuleRecords(self._run._observed(row) for row in chosen)

    def table(self) -> Any:
        """Return a pandas.DataFrame with a row for each tensor that was seen in these steps (needs pandas)."""
        from probe.report.table import records_frame

        return records_frame(self._run._reader, self._rows)


def open_recording(path: str | os.PathLike[str]) -> Recording:
    """Open a recording to look into it; public as `probe.open`.

    Raises
    ------
    StoreError, FormatError
        the file cannot be read
    """
    return Recording(path)
