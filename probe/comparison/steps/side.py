"""One step of a recording as the comparison reads it, and what is known of a pair of its tensors."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from probe.comparison.distance.sums import Sums
from probe.comparison.notes import Note, note
from probe.comparison.steps.parameter_names import Names
from probe.comparison.steps.tied_homes import Homes, at_home
from probe.config import RecordConfig
from probe.damage import reading
from probe.matching import Place, View
from probe.numbers.axis_sums import axis_sums, squeezed
from probe.numbers.layouts import state_name
from probe.numbers.statistics import dtype_of, is_float, unit_roundoff
from probe.records import JOINED_HASH, HashKind, Phase, Role, StepState, Task
from probe.store.reading.reader import Reader
from probe.store.reading.streams import Piece
from probe.store.reading.validation import of_step
from probe.structure.tree import Tree

PARAMETER_ROLES = (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE, Role.DELTA)
"""roles of what belongs to a parameter or buffer, not to a call"""

OVERFLOW = note("squares-overflow")

SumsKey = tuple[int, int, int]
"""B, and the numbers of two stored tensors (`probe.comparison.distance.values.key_of_sums`)"""


class Status(enum.StrEnum):
    """What is known of a pair of tensors."""

    EQUAL = "equal"
    """bit for bit, or every number the same"""
    COMPARED = "compared"
    """the error is known, or estimated"""
    NONFINITE = "nonfinite"
    """NaN or Inf on one side where the other has none, or elsewhere"""
    PERMUTED = "looks permuted"
    """axes of the same size, equal norms, other values: not decided"""
    NOT_COMPARABLE = "not comparable"
    """shapes or kinds differ, or nothing was measured"""


_KNOWN = Status.EQUAL, Status.COMPARED, Status.NONFINITE


@dataclass(frozen=True, slots=True)
class Metrics:
    """The error of B against A for one pair of tensors."""

    status: Status
    rel_l2: float = math.nan
    """‖A−B‖ / max(‖A‖, ‖B‖); for integers the share of elements that differ"""
    cosine: float = math.nan
    coherence: float = math.nan
    """cosine between A and B−A: ±1 when the error is a uniform scale of the value"""
    norm_a: float = math.nan
    norm_b: float = math.nan
    max_abs: float = math.nan
    max_abs_at: tuple[int, ...] | None = None
    max_rel: float = math.nan
    mean_abs: float = math.nan
    estimated: bool = False
    """from sketches or statistics, not from values"""
    is_lower_bound: bool = False
    """the error is not smaller, which is all that is known: there are no two sketches that can be compared"""
    why: Note | None = None
    """why it is not comparable, or how it was compared"""
    of_integers: bool = False
    """of integers, of which the error is the share that differs"""
    other_zeros: bool = False
    """every number is the same, and some zeros have another sign: equal, and not bit for bit"""

    @property
    def reason(self) -> str:
        """Why, in words; empty where there is nothing to say."""
        return "" if self.why is None else str(self.why)

    @property
    def norm_ratio(self) -> float:
        """‖B‖ / ‖A‖."""
        return self.norm_b / self.norm_a if self.norm_a else math.nan

    @property
    def is_known(self) -> bool:
        """Tell whether the error is a number."""
        return self.status in _KNOWN


@dataclass(frozen=True, slots=True)
class Taken:
    """How the elements of two tensors are taken when they are compared."""

    factor: float = 1.0
    """what A's are multiplied by"""
    as_masks: bool = False
    """as 0 and 1: 1 where they are not 0"""
    inverted: bool = False
    """B's masks: 1 where they are 0"""


PLAIN = Taken()

Digest = tuple[int, ...]
"""a hash, and its kind at the end"""


class Combined(Protocol):
    """What several tensors are together."""

    digest: Digest | None
    """what tells it from others; never that of a single tensor"""
    sketch: np.ndarray | None

    @property
    def parts(self) -> tuple[int, ...]:
        """The rows of the tensors."""

    def values(self, side: Side) -> np.ndarray:
        """Return the values."""


class Side:
    """One step of a recording as the comparison reads it: plain lists, for speed; rows count from 0 in each step.

    Parameters
    ----------
    reader
        the recording
    step
        the step
    views
        of parameters of which a mapping says how they lie
    homes
        of tied weights, where to look for their records
    continues
        what the steps before left is also what this one began with: it was not recorded again
    """

    def __init__(
        self, reader: Reader, step: int, views: Mapping[Place, View] | None = None, *, homes: Homes | None = None,
        continues: bool = False,
    ) -> None:  # fmt: skip
        self.reader, self.step, self.homes = reader, step, homes or {}
        self.parameters = [at_home(each, self.homes) for each in reader.parameters]
        rows, sketches = _judged(reader, step)
        self._n_own = len(rows)
        """rows of this step; behind them are those that the step before left"""
        if continues:
            left = what_was_left(reader, step)
            rows, sketches = np.concatenate([rows, left[0]]), np.concatenate([sketches, left[1]])
        self.columns = {name: rows[name].tolist() for name in rows.dtype.names}
        self.calls = reader.of_step("calls", step)
        with reading(reader.path, f"step {step} of it"):
            of_step(rows[: self._n_own], self.calls)
        self.counted = self.calls["recomputed"] == 0
        """calls that count: not those that activation checkpointing made again, nor those that another one stands for"""
        self._name_what_wrappers_hold()
        names = {name: name.decode() for name in set(self.columns["dtype"])}
        self.dtypes = [names[name] for name in self.columns["dtype"]]
        roundoffs = {name: unit_roundoff(name) for name in names.values()}
        self.roundoffs = [roundoffs[name] for name in self.dtypes]
        self.shapes = [reader.shapes[i] for i in self.columns["shape"]]
        self.slots = [reader.slots[i] for i in self.columns["slot"]]
        self._bring_home()
        self._sketches = sketches
        self._config = RecordConfig.from_recording(reader.info.config)
        self._task = reader.info.config.get("task")
        self._is_aborted = any(row["state"] == StepState.ABORTED for row in reader.steps if row["step"] == step)
        self._views = views
        self.names = Names(reader, self.parameters, views or {})
        self._canonical: dict[tuple[int, str], str] = {}
        self.hidden: set[int] = set()
        """rows of parts: one of `combined` stands for them"""
        self.gathered: set[int] = set()
        """rows of tokens that ranks had gathered, in the order of the batch: what is made of them inside the call lies as ranks had them"""
        self.combined: dict[int, Combined] = {}
        """rows behind the recorded ones: what several tensors are together"""
        self.parts: dict[Place, tuple[Place, ...]] = {}
        """by the module, or the parameter, that stands for several: those"""
        self.given_otherwise: dict[int, dict[int, None]] = {}
        """by the first of several modules that stand for one: others of them that are not given what it is given"""
        self.numbers: dict[object, int] = {}
        """of the values that several tensors hold together"""
        self._held: tuple[int, np.ndarray] = (-1, np.empty(0))
        self._summed: dict[int, tuple[np.ndarray, ...]] = {}
        """sums along the axes of weights of which the values are stored"""
        self.measured: dict[tuple[object, ...], Metrics] = {}
        """what was found of pairs of stored tensors: one that was recorded several times is read once"""
        self.summed_ahead: Mapping[SumsKey, Callable[[], Sums | None]] = {}
        """what waits for the sums over the elements of two tensors, one behind the other (`probe.comparison.distance.in_threads`)"""
        self.to_measure: dict[tuple[object, ...], Any] | None = None
        """the pairs that would be read, while they are listed (`probe.comparison.ahead`)"""

    def _name_what_wrappers_hold(self) -> None:
        """Let what a compiled model holds stand for it: the wrapper alone was seen to run."""
        tree = Tree(self.reader.modules)
        inner = stand_ins(set(np.unique(self.calls["module"]).tolist()), tree)
        if inner:
            self.columns["module"] = [inner.get(module, module) for module in self.columns["module"]]
            self.calls["module"] = [inner.get(module, module) for module in self.calls["module"].tolist()]

    def _bring_home(self) -> None:
        """Let records of tied weights stand where the comparison looks for them."""
        if self.homes:
            modules = self.columns["module"]
            for row, (module, role) in enumerate(zip(modules, self.columns["role"], strict=True)):
                parameter, dot, rest = self.slots[row].partition(".")
                if role in PARAMETER_ROLES and (module, parameter) in self.homes:
                    modules[row], slot = self.homes[module, parameter]
                    self.slots[row] = f"{slot}{dot}{rest}"

    def why_unknown(self, row: int) -> Note | None:
        """Return why nothing is known of a row that stands for several tensors; None where it is, or was not recorded."""
        return getattr(self.combined.get(row), "why", None)

    def digest(self, row: int) -> Digest | None:
        """Return the hash of a record with its kind, or None when there is none."""
        return self.combined[row].digest if row in self.combined else self._digests[row]

    def digests_of(self, rows: Iterable[int]) -> set[Digest | None]:
        """Return the hashes of records."""
        if self.combined:
            return {self.digest(row) for row in rows}
        return set(map(self._digests.__getitem__, rows))

    @functools.cached_property
    def _digests(self) -> list[Digest | None]:
        """The hashes of the recorded rows."""
        of_none = int(HashKind.NONE)
        columns = (self.columns[name] for name in ("hash_lo", "hash_hi", "hash_kind"))
        return [None if each[2] == of_none else each for each in zip(*columns, strict=True)]

    def norm(self, row: int) -> float:
        """Return the norm of a record; of several tensors in one, of which it is not known, the length of its sketch."""
        norm, sketch = self.columns["norm"][row], self.combined[row].sketch if row in self.combined else None
        return float(np.linalg.norm(sketch)) if norm != norm and sketch is not None else norm

    def digests(self, row: int) -> list[Digest | None]:
        """Return what identifies a record, or each of the records that it stands for."""
        fused = self.combined.get(row)
        return [self.digest(row)] if fused is None else [self.digest(part) for part in fused.parts]

    def is_joined(self, row: int) -> bool:
        """Tell whether a record stands for several tensors, or for what several ranks hold together."""
        return row in self.combined or self.columns["hash_kind"][row] == JOINED_HASH

    def axes(self, row: int) -> tuple[int, ...]:
        """Return the order of a parameter's axes in the canonical layout."""
        own = tuple(range(len(self.shapes[row])))
        if row in self.combined or self.columns["role"][row] not in PARAMETER_ROLES:
            return own
        found = self.names.axes.get((self.columns["module"][row], self.slots[row].partition(".")[0]), own)
        return found if len(found) == len(own) else own

    def sketch(self, row: int) -> np.ndarray | None:
        """Return the sketch of a record; None where nothing gives it: of several tensors in one, and where a mapping alone
        says how axes of one size lie.
        """  # noqa: D205
        if row in self.combined:
            return self.combined[row].sketch
        found = self._sketches[row]
        if found[0] != found[0] and self.is_joined(row):
            return None
        if not self.names.turned:
            return found
        place = self.columns["module"][row], self.slots[row].partition(".")[0]
        is_turned = place in self.names.turned and self.columns["role"][row] in PARAMETER_ROLES
        sizes = squeezed(self.shapes[row])
        return None if is_turned and len(set(sizes)) < len(sizes) else found

    def axis_sums(self, row: int) -> tuple[np.ndarray, ...]:
        """Return the sums along the axes of a weight that the step begins with, in the canonical layout; nothing where they are not known."""
        is_weight = self.columns["role"][row] == Role.PARAM and self.columns["phase"][row] == Phase.INIT
        if row in self.combined or not is_weight:
            return ()
        axes = self.axes(row)
        if self.has_values(row):
            if row not in self._summed:
                self._summed[row] = axis_sums(self.values(row), axes)
            return self._summed[row]
        return self.reader.axis_sums(self.step, self.columns["order"][row], axes) if row < self._n_own else ()

    def canonical(self, module: int, slot: str) -> str:
        """Return the slot of a parameter, or of what belongs to it, in the canonical layout.

        ``gamma`` is ``weight``, ``_mean`` is ``running_mean``, ``gamma.moment1_0`` is ``weight.exp_avg``.
        """
        found = self._canonical.get((module, slot))
        if found is None:
            parameter, dot, state = slot.partition(".")
            if dot:
                optimizer = self._optimizers.get((module, parameter), "")
                state = state_name(self.reader.info.framework, optimizer, state)
            found = self._canonical[module, slot] = f"{self.names.of(module, parameter)}{dot}{state}"
        return found

    @functools.cached_property
    def _optimizers(self) -> dict[tuple[int, str], str]:
        """The class of the optimizer of each parameter, by module and slot."""
        parameters = self.parameters
        return {
            (parameters[number].module, parameters[number].slot): group.class_name
            for group in self.reader.groups_of(self.step)
            for number in group.parameters
        }

    @functools.cached_property
    def earlier(self) -> Side | None:
        """The step before, where it was recorded."""
        before = self.step - 1
        return (
            Side(self.reader, before, self._views, homes=self.homes) if before in recorded_steps(self.reader) else None
        )

    @property
    def first_call(self) -> int:
        """The number, in the file, of the step's first call: callers are given by these numbers."""
        first = 0
        for row in self.reader.steps:
            if row["step"] == self.step:
                break
            first = int(row["n_calls"])
        return first

    def watches(self, phase: Phase, module: int) -> bool:
        """Tell whether a phase of a module was to be recorded, and the step came to its end."""
        info = self.reader.modules[module]
        wanted = self._config.wants_phase(phase) and self._config.wants_module(info.path, info.class_name)
        has_updates = self._task != Task.STRUCTURE or phase is not Phase.UPDATE
        return wanted and has_updates and not self._is_aborted and not self._has_norms_alone

    @functools.cached_property
    def _has_norms_alone(self) -> bool:
        """Tell whether the step was recorded for its norms: of a run of such steps, those that stood out are recorded in full."""
        return self._task == Task.NORMS and not np.any(self.columns["hash_kind"])

    def has_values(self, row: int) -> bool:
        """Tell whether the values of a record are stored."""
        return self.columns["tensor"][row] >= 0

    @functools.cached_property
    def has_stored_values(self) -> bool:
        """Tell whether values of anything are stored."""
        return max(self.columns["tensor"], default=-1) >= 0

    # Values

    def values(self, row: int) -> np.ndarray:
        """Return the values of a record."""
        if row not in self.combined:
            return self.reader.values(self.columns["tensor"][row])
        if self._held[0] != row:
            self._held = -1, np.empty(0)  # there is room for one at a time
            self._held = row, self.combined[row].values(self)
        return self._held[1]

    def stream(self, row: int, chunk: int, into: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the values of a record as `Reader.parts` does."""
        if row not in self.combined:
            yield from self.reader.parts(self.columns["tensor"][row], chunk, into)
            return
        flat = self.values(row).reshape(-1)
        for start in range(0, flat.size, chunk):
            yield flat[start : start + chunk]

    def piece(self, row: int) -> Piece | None:
        """Return where the values of a record lie in one piece of a file; None where they lie otherwise, or are made of others."""
        return None if row in self.combined else self.reader.piece(self.columns["tensor"][row])

    def block(self, row: int, box: Sequence[slice]) -> np.ndarray:
        """Return a part of the values of a record; axes of size 1 are left out."""
        if row not in self.combined:
            return self.reader.block(self.columns["tensor"][row], box)
        values = self.values(row)
        return values.reshape(squeezed(values.shape))[tuple(box)]

    def stored_shape(self, row: int) -> tuple[int, ...]:
        """Return the shape in which the values of a record are stored."""
        return self.shapes[row] if row in self.combined else self.reader.shape_of(self.columns["tensor"][row])

    # Several for one

    def places_of(self, module: int, slot: str) -> tuple[Place, ...]:
        """Return what a module and slot stand for: themselves, or several modules or parameters."""
        parameter, dot, state = slot.partition(".")
        if (module, parameter) in self.parts and parameter:
            return tuple((part, f"{name}{dot}{state}") for part, name in self.parts[module, parameter])
        return tuple((part, slot) for part, _ in self.parts.get((module, ""), ((module, ""),)))

    # Rows for what several tensors are together

    def add(
        self, row: int, slot: str, shape: tuple[int, ...], changed: Mapping[str, object], combined: Combined
    ) -> int:
        """Append a row that is like another one but for its slot, its shape and some columns; return its number."""
        new = len(self.slots)
        for name, column in self.columns.items():
            column.append(changed.get(name, column[row]))
        self.slots.append(slot)
        self.shapes.append(shape)
        self.dtypes.append(self.dtypes[row])
        self.roundoffs.append(self.roundoffs[row])
        self.combined[new] = combined
        return new


def begins(reader: Reader, step: int) -> bool:
    """Tell whether a step was recorded with what it began with: the step before was not recorded."""
    return step - 1 not in recorded_steps(reader)


def recorded_steps(reader: Reader) -> set[int]:
    """Return the numbers of the steps that a recording holds."""
    return set(reader.steps["step"].tolist())


def what_was_left(reader: Reader, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return records and sketches of the parameters and buffers that the step before left, as those a step began with.

    What does not learn is as the last step that recorded it found it. Of what learns and was not seen to be updated nothing
    is known.
    """
    taken: set[tuple[int, int]] = set()
    found: list[tuple[np.ndarray, np.ndarray]] = []
    steps = recorded_steps(reader)
    earlier = step
    while earlier - 1 in steps:
        earlier -= 1
        rows = reader.of_step("records", earlier)
        is_left = (rows["phase"] == Phase.UPDATE) & (earlier == step - 1)
        is_kept = (rows["phase"] == Phase.INIT) & (rows["requires_grad"] == 0) & (rows["role"] == Role.PARAM)
        chosen = []
        for row in np.flatnonzero(np.isin(rows["role"], (Role.PARAM, Role.BUFFER)) & (is_left | is_kept))[
            ::-1
        ].tolist():
            place = int(rows["module"][row]), int(rows["slot"][row])
            if place not in taken:
                taken.add(place)
                chosen.append(row)
        found.append((rows[chosen], reader.of_step("sketches", earlier)[chosen]))
    rows, sketches = (np.concatenate(parts) for parts in zip(*found, strict=True))
    rows["phase"], rows["step"] = Phase.INIT, step
    return rows, sketches


def called(calls: np.ndarray, tree: Tree) -> set[int]:
    """Return the modules that were seen to run, what a wrapper holds included where the wrapper alone was."""
    seen = set(np.unique(calls["module"]).tolist())
    return seen | set(stand_ins(seen, tree).values())


def stand_ins(seen: set[int], tree: Tree) -> dict[int, int]:
    """Return wrappers that were seen to run while what they hold was not, as compiled models do, and what they hold."""
    found = {index: tree.unwrapped(index) for index in seen if tree.wrapped(index) is not None}
    return {wrapper: inner for wrapper, inner in found.items() if inner not in seen}


def _judged(reader: Reader, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the records of a step and their sketches.

    Where only norms were recorded, the hashes of what the model was given are left out: probe curves compares them.
    """
    rows, sketches = reader.of_step("records", step), reader.of_step("sketches", step)
    if reader.info.config.get("task") != Task.NORMS:
        return rows, sketches
    is_given = rows["role"] == Role.INPUT
    is_full = bool(np.any(rows["hash_kind"][~is_given]))
    return (rows, sketches) if is_full else (rows[~is_given], sketches[~is_given])


@functools.cache
@functools.cache
def kind_of(dtype: str) -> str:
    """Return ``float``, ``complex``, ``integer`` (bools too)."""
    resolved = dtype_of(dtype)
    if resolved.kind == "c":
        return "complex"
    return "float" if is_float(resolved) else "integer"


def clipped(value: float) -> float:
    """Return a cosine that rounding made larger than 1 as 1."""
    return max(-1.0, min(1.0, value))
