"""How far two recorded tensors are apart: from their values where both are stored, else from their sketches.

The relative error is e = ‖A−B‖ / max(‖A‖, ‖B‖). From sketches ‖A−B‖ is estimated (``docs/file-format.md``);
norms are exact either way, so the cosine and the coherence follow from ‖A−B‖² = ‖A‖² + ‖B‖² − 2⟨A, B⟩.
"""

from __future__ import annotations

import enum
import itertools
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from probe.config import RecordConfig
from probe.records import HashKind, Phase, Role, StepState, Task
from probe.sketch import CHUNK
from probe.statistics import as_real, dtype_of, is_float
from probe.store.reader import Reader

_PART = 1 << 13
"""elements that are taken in at a time: they stay in the cache, and BLAS starts no threads for so few"""
_BLOCK = 8 * CHUNK
"""elements that are read at a time where the axes stand in another order"""
_READ = 8 * _PART
"""elements that are read at a time where they stand in the same order: what is read stays in the cache too"""
_WIDEST = 16
"""bytes of the widest dtype, complex128"""
_TINY = float(np.finfo(np.float64).tiny)
_PERMUTED = "axes of the same size may be swapped; record with task='tensor' to decide"
_REGROUPED = "the elements may stand in another order: axes were merged or split"
_OVERFLOW = "the squares of the elements overflow"
PARAMETER_ROLES = (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE, Role.DELTA)
"""roles of what belongs to a parameter or buffer, not to a call"""
_SMALL = 4 << 20
"""elements up to which a tensor is read whole to try other orders of its axes"""


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
    reason: str = ""
    """why it is not comparable"""

    @property
    def norm_ratio(self) -> float:
        """‖B‖ / ‖A‖."""
        return self.norm_b / self.norm_a if self.norm_a else math.nan

    @property
    def is_known(self) -> bool:
        """Tell whether the error is a number."""
        return self.status in (Status.EQUAL, Status.COMPARED, Status.NONFINITE)


class Side:
    """One step of a recording as the comparison reads it: plain lists, for speed; rows count from 0 in each step."""

    def __init__(self, reader: Reader, step: int) -> None:
        self.reader, self.step = reader, step
        rows = reader.of_step("records", step)
        self.columns = {name: rows[name].tolist() for name in rows.dtype.names}
        self.dtypes = [name.decode() for name in self.columns["dtype"]]
        self.shapes = [reader.shapes[i] for i in self.columns["shape"]]
        self.slots = [reader.slots[i] for i in self.columns["slot"]]
        self.sketches = reader.of_step("sketches", step)
        self._config = RecordConfig.from_recording(reader.info.config)
        self._task = reader.info.config.get("task")
        self._is_aborted = any(row["state"] == StepState.ABORTED for row in reader.steps if row["step"] == step)
        self._axes = {(p.module, p.slot): p.axes for p in reader.parameters if p.axes}
        self.measured: dict[tuple[object, ...], Metrics] = {}
        """what was found of pairs of stored tensors: one that was recorded several times is read once"""

    def digest(self, row: int) -> tuple[int, int, int] | None:
        """Return the hash of a record with its kind, or None when there is none."""
        kind = self.columns["hash_kind"][row]
        if kind == HashKind.NONE:
            return None
        return self.columns["hash_lo"][row], self.columns["hash_hi"][row], kind

    def axes(self, row: int) -> tuple[int, ...]:
        """Return the order of a parameter's axes in the canonical layout."""
        own = tuple(range(len(self.shapes[row])))
        if not self._axes or self.columns["role"][row] not in PARAMETER_ROLES:
            return own
        found = self._axes.get((self.columns["module"][row], self.slots[row].partition(".")[0]), own)
        return found if len(found) == len(own) else own

    def watches(self, phase: Phase, module: int) -> bool:
        """Tell whether a phase of a module was to be recorded, and the step came to its end."""
        info = self.reader.modules[module]
        wanted = self._config.wants_phase(phase) and self._config.wants_module(info.path, info.class_name)
        has_updates = self._task != Task.STRUCTURE or phase is not Phase.UPDATE
        return wanted and has_updates and not self._is_aborted

    def has_values(self, row: int) -> bool:
        """Tell whether the values of a record are stored."""
        return self.columns["tensor"][row] >= 0


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without its axes of size 1."""
    return tuple(size for size in shape if size != 1)


def kind_of(dtype: str) -> str:
    """Return ``float``, ``complex``, ``integer`` (bools too)."""
    resolved = dtype_of(dtype)
    if resolved.kind == "c":
        return "complex"
    return "float" if is_float(resolved) else "integer"


def measure_pair(a: Side, i: int, b: Side, j: int, *, free_axes: bool = True) -> Metrics:
    """Compare record i of A with record j of B.

    With ``free_axes``, axes of the same size may stand in another order in B ([s, b, h] against [b, s, h] with
    s = b); never allow it for weights, where a square one that was not transposed is a fault.
    """
    shape_a, shape_b = a.shapes[i], b.shapes[j]
    kind = kind_of(a.dtypes[i])
    if kind != kind_of(b.dtypes[j]):
        return Metrics(Status.NOT_COMPARABLE, reason=f"{a.dtypes[i]} against {b.dtypes[j]}")
    if math.prod(shape_a) != math.prod(shape_b):
        return Metrics(Status.NOT_COMPARABLE, reason=f"shape {list(shape_a)} against {list(shape_b)}")
    digest = a.digest(i)
    if digest is None or b.digest(j) is None:
        return Metrics(Status.NOT_COMPARABLE, reason="no statistics were recorded")
    norm_a, norm_b = a.columns["norm"][i], b.columns["norm"][j]
    turned = _turned(shape_a, a.axes(i), shape_b, b.axes(j))
    if turned is None and _same_layout(a, i, b, j) and digest == b.digest(j):
        return Metrics(Status.EQUAL, 0.0, 1.0, 0.0, norm_a, norm_b, 0.0, None, 0.0, 0.0)
    can_be_read = a.has_values(i) and b.has_values(j)
    if can_be_read and (sorted(squeezed(shape_a)) == sorted(squeezed(shape_b)) or _are_merged(shape_a, shape_b)):
        return _from_values(a, i, b, j, free_axes, turned)
    return _from_sketches(a, i, b, j, kind, free_axes, turned)


def _same_layout(a: Side, i: int, b: Side, j: int) -> bool:
    return squeezed(a.shapes[i]) == squeezed(b.shapes[j]) and a.dtypes[i] == b.dtypes[j]


def _turned(
    shape_a: tuple[int, ...], axes_a: tuple[int, ...], shape_b: tuple[int, ...], axes_b: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return which axis of B (those of size 1 left out) is each of A's where their layouts differ, else None."""
    if axes_a == axes_b or len(axes_a) != len(axes_b):
        return None
    order = [axes_b[axes_a.index(axis)] for axis in range(len(axes_a))]
    if tuple(shape_b[axis] for axis in order) != shape_a:
        return None
    kept = [axis for axis, size in enumerate(shape_b) if size != 1]
    found = tuple(kept.index(axis) for axis in order if shape_b[axis] != 1)
    return None if found == tuple(range(len(kept))) else found


def _are_merged(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Tell whether one shape is the other with neighbouring axes merged: [b·s, h] and [b, s, h]."""
    ends = [set(itertools.accumulate(squeezed(shape), operator.mul)) for shape in (a, b)]
    return ends[0] <= ends[1] or ends[1] <= ends[0]


def _from_sketches(
    a: Side, i: int, b: Side, j: int, kind: str, free_axes: bool, turned: tuple[int, ...] | None
) -> Metrics:
    counts = [tuple(side.columns[name][row] for name in ("nan", "posinf", "neginf")) for side, row in ((a, i), (b, j))]
    norm_a, norm_b = a.columns["norm"][i], b.columns["norm"][j]
    if counts[0] != counts[1]:
        return Metrics(Status.NONFINITE, math.inf, norm_a=norm_a, norm_b=norm_b, estimated=True,
                       reason=_nonfinite_text(counts[0], counts[1]))  # fmt: skip
    if sorted(squeezed(a.shapes[i])) != sorted(squeezed(b.shapes[j])):
        return _from_statistics(a, i, b, j)
    with np.errstate(over="ignore"):
        distance = float(np.linalg.norm(a.sketches[i] - b.sketches[j]))
    if kind == "integer":
        share = _share_of_integers(a, i, b, j, distance, turned)
        metrics = Metrics(Status.COMPARED, share, norm_a=norm_a, norm_b=norm_b, estimated=True)
    else:
        metrics = _geometry(distance**2, norm_a, norm_b, estimated=True)
    if free_axes and metrics.rel_l2 > 1e-3 and _looks_permuted(a, i, b, j):
        return Metrics(Status.PERMUTED, norm_a=norm_a, norm_b=norm_b, estimated=True, reason=_PERMUTED)
    return metrics


def _share_of_integers(a: Side, i: int, b: Side, j: int, distance: float, turned: tuple[int, ...] | None) -> float:
    """Estimate the share of integers that differ.

    A sketch holds ±1 by value: elements that differ contribute 4 each, in half of the cases. The means give a lower
    bound, and where the hashes differ at least one element does.
    """
    count = max(1, math.prod(a.shapes[i]))
    share = min(1.0, distance**2 / (2 * count))
    if not _same_statistics(a, i, b, j) or (
        turned is None and _same_layout(a, i, b, j) and _same_hash_kind(a, i, b, j)
    ):
        low = min(a.columns["min"][i], b.columns["min"][j])
        high = max(a.columns["max"][i], b.columns["max"][j])
        gap = abs(a.columns["mean"][i] - b.columns["mean"][j]) / (high - low) if high > low else 0.0
        share = max(share, 1 / count, min(1.0, gap))
    return share


def _same_hash_kind(a: Side, i: int, b: Side, j: int) -> bool:
    return bool(a.columns["hash_kind"][i] == b.columns["hash_kind"][j])


def _from_statistics(a: Side, i: int, b: Side, j: int) -> Metrics:
    """Compare what does not depend on how the elements are arranged: a lower bound of the error."""
    size = max(abs(side.columns[name][row]) for side, row in ((a, i), (b, j)) for name in ("min", "max"))
    norm_a, norm_b = a.columns["norm"][i], b.columns["norm"][j]
    if not size or math.isnan(size):
        return Metrics(Status.EQUAL, 0.0, norm_a=norm_a, norm_b=norm_b, estimated=True)
    gaps = [abs(a.columns[name][i] - b.columns[name][j]) / size for name in ("min", "max", "mean", "rms")]
    return Metrics(Status.COMPARED, max(gaps), norm_a=norm_a, norm_b=norm_b, estimated=True)


def _same_statistics(a: Side, i: int, b: Side, j: int) -> bool:
    return all(_same(a.columns[name][i], b.columns[name][j]) for name in ("min", "max", "mean", "rms", "zeros"))


def _same(x: float, y: float) -> bool:
    return x == y or (x != x and y != y)


def _looks_permuted(a: Side, i: int, b: Side, j: int) -> bool:
    sizes = squeezed(a.shapes[i])
    return len(set(sizes)) < len(sizes) and _same_content(a, i, b, j)


def _same_content(a: Side, i: int, b: Side, j: int) -> bool:
    """Tell whether all that does not depend on the order of the elements agrees."""
    names = ("min", "max", "rms")
    return all(math.isclose(a.columns[n][i], b.columns[n][j], rel_tol=1e-5, abs_tol=1e-12) for n in names)


def _geometry(squared_distance: float, norm_a: float, norm_b: float, *, estimated: bool) -> Metrics:
    """Return what follows from ‖A−B‖², ‖A‖ and ‖B‖."""
    distance = math.sqrt(squared_distance)
    larger = max(norm_a, norm_b)
    if not math.isfinite(larger):
        return Metrics(Status.NOT_COMPARABLE, norm_a=norm_a, norm_b=norm_b, reason=_OVERFLOW)
    if not larger:
        return Metrics(Status.EQUAL, 0.0, 1.0, 0.0, norm_a, norm_b, estimated=estimated)
    distance = min(distance, norm_a + norm_b)
    inner = (norm_a**2 + norm_b**2 - distance**2) / 2
    cosine = _clipped(inner / (norm_a * norm_b)) if norm_a and norm_b else 0.0
    coherence = _clipped((inner - norm_a**2) / (norm_a * distance)) if norm_a and distance else 0.0
    return Metrics(Status.COMPARED, distance / larger, cosine, coherence, norm_a, norm_b, estimated=estimated)


def _clipped(value: float) -> float:
    return max(-1.0, min(1.0, value))


def _nonfinite_text(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    names = ("NaN", "+Inf", "-Inf")
    texts = [", ".join(f"{count} {name}" for count, name in zip(side, names, strict=True) if count) for side in (a, b)]
    return f"A has {texts[0] or 'only finite values'}, B has {texts[1] or 'only finite values'}"


# From values


@dataclass
class _Sums:
    """Sums over pairs of elements, taken in by chunks."""

    squared: float = 0.0
    squares_a: float = 0.0
    squares_b: float = 0.0
    inner: float = 0.0
    absolute: float = 0.0
    count: int = 0
    differing: int = 0
    mismatched: int = 0
    """elements that are not finite in the same way"""
    max_abs: float = 0.0
    max_at: int = 0
    max_rel: float = 0.0
    buffers: np.ndarray = field(default_factory=lambda: np.empty((3, _PART)), repr=False)

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add a chunk of A (flat, in A's order) and what stands there in B."""
        first, second = a.reshape(-1), b.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for start in range(0, first.size, _PART):
                self._add(first[start : start + _PART], second[start : start + _PART])

    def _add(self, a: np.ndarray, b: np.ndarray) -> None:
        x, y, error = self.buffers[:, : a.size]
        x[...], y[...] = a, b
        np.subtract(y, x, out=error)
        squared = float(error @ error)
        if not math.isfinite(squared):
            self._leave_out_nonfinite(x, y)
            np.subtract(y, x, out=error)
            squared = float(error @ error)
        self.squared += squared
        self.squares_a += float(x @ x)
        self.squares_b += float(y @ y)
        self.inner += float(x @ error)
        size = np.abs(error, out=error)
        at = int(size.argmax())
        largest = float(size[at])
        if largest > self.max_abs:
            self.max_abs, self.max_at = largest, self.count + at
        self.count += a.size
        if largest:
            self.absolute += float(np.add.reduce(size))
            larger = np.maximum(np.abs(x, out=x), np.abs(y, out=y), out=x)
            np.maximum(larger, _TINY, out=larger)
            self.max_rel = max(self.max_rel, float(np.maximum.reduce(np.divide(size, larger, out=size))))

    def _leave_out_nonfinite(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count the elements that are not finite in the same way, and put zeros where one of a pair is not finite."""
        finite = np.isfinite(x) & np.isfinite(y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        self.mismatched += int((~finite & ~same).sum())
        x[~finite] = y[~finite] = 0.0


def _from_values(a: Side, i: int, b: Side, j: int, free_axes: bool, turned: tuple[int, ...] | None) -> Metrics:
    key = (id(b), a.columns["tensor"][i], b.columns["tensor"][j], a.shapes[i], b.shapes[j], free_axes, turned)
    found = a.measured.get(key)
    if found is None:
        found = a.measured[key] = _read(a, i, b, j, free_axes, turned)
    return found


def _read(a: Side, i: int, b: Side, j: int, free_axes: bool, turned: tuple[int, ...] | None) -> Metrics:
    shape_a, shape_b = a.shapes[i], b.shapes[j]
    first, second = a.columns["tensor"][i], b.columns["tensor"][j]
    integer = kind_of(a.dtypes[i]) == "integer"
    best: _Sums | None = None
    for order in [turned] if turned is not None else _orders(shape_a, shape_b, free_axes):
        sums = _Sums()
        for x, y in _aligned_chunks(a.reader, first, b.reader, second, order):
            if integer:
                sums.differing += int(np.count_nonzero(x != y))
                sums.count += x.size
            else:
                sums.add(as_real(x), as_real(y))
        if best is None or (sums.squared, sums.differing) < (best.squared, best.differing):
            best = sums
        if best.squared <= 1e-4 * best.squares_a and not best.differing * integer:
            break
    assert best is not None
    norm_a, norm_b = a.columns["norm"][i], b.columns["norm"][j]
    if integer:
        share = best.differing / max(1, best.count)
        metrics = Metrics(Status.COMPARED if share else Status.EQUAL, share, norm_a=norm_a, norm_b=norm_b)
    else:
        metrics = _finished(best, shape_a)
    if free_axes and 1e-3 < metrics.rel_l2 < math.inf and turned is None:
        if sorted(squeezed(shape_a)) != sorted(squeezed(shape_b)) and _same_content(a, i, b, j):
            return Metrics(Status.PERMUTED, norm_a=norm_a, norm_b=norm_b, reason=_REGROUPED)
        if math.prod(shape_a) > _SMALL and squeezed(shape_a) != squeezed(shape_b) and _looks_permuted(a, i, b, j):
            return Metrics(Status.PERMUTED, norm_a=norm_a, norm_b=norm_b, reason=_PERMUTED)
    return metrics


def _finished(sums: _Sums, shape: tuple[int, ...]) -> Metrics:
    norm_a, norm_b = math.sqrt(sums.squares_a), math.sqrt(sums.squares_b)
    distance = math.sqrt(sums.squared)
    parts = sums.count // max(1, math.prod(shape))  # a complex number counts as two
    index = np.unravel_index(sums.max_at // parts, shape) if sums.count else ()
    at = tuple(int(k) for k in index) or None
    larger = max(norm_a, norm_b)
    if not math.isfinite(larger):
        return Metrics(Status.NOT_COMPARABLE, norm_a=norm_a, norm_b=norm_b, reason=_OVERFLOW)
    status = Status.COMPARED if distance else Status.EQUAL
    error = distance / larger if larger else 0.0
    reason = ""
    if sums.mismatched:
        status, error = Status.NONFINITE, math.inf
        noun = "element is" if sums.mismatched == 1 else "elements are"
        reason = f"{sums.mismatched} {noun} NaN or Inf on one side only"
    return Metrics(
        status, error,
        _clipped((sums.squares_a + sums.inner) / (norm_a * norm_b)) if norm_a and norm_b else float(not larger),
        _clipped(sums.inner / (norm_a * distance)) if norm_a and distance else 0.0,
        norm_a, norm_b, sums.max_abs, at, sums.max_rel, sums.absolute / max(1, sums.count), reason=reason,
    )  # fmt: skip


def _orders(a: tuple[int, ...], b: tuple[int, ...], free_axes: bool) -> list[tuple[int, ...] | None]:
    """Return the orders of B's axes (those of size 1 left out) to try; None is B's own, flat.

    The axes of a size are tried in every order only where the tensor is small and has at most four of them.
    """
    sizes_a, sizes_b = squeezed(a), squeezed(b)
    if sizes_a == sizes_b:
        repeated = free_axes and len(set(sizes_a)) < len(sizes_a) <= 4 and math.prod(a) <= _SMALL
        others = _permutations(sizes_a, sizes_b) if repeated else []
        return [None, *[order for order in others if order != tuple(range(len(sizes_b)))]]
    if sorted(sizes_a) == sorted(sizes_b):
        found = _permutations(sizes_a, sizes_b)
        return list(found) if free_axes and math.prod(a) <= _SMALL else [found[0]]
    return [None]


def _permutations(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(b) > 6:
        return [tuple(sorted(range(len(b)), key=lambda k: a.index(b[k])))]
    return [order for order in itertools.permutations(range(len(b))) if tuple(b[k] for k in order) == a]


def _aligned_chunks(
    a: Reader, first: int, b: Reader, second: int, order: tuple[int, ...] | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the elements of A, flat by chunks, and those of B that stand there, B's axes taken in ``order``."""
    if order is None:
        here, there = np.empty((2, _READ * _WIDEST), np.uint8)
        yield from zip(a.parts(first, _READ, here), b.parts(second, _READ, there), strict=True)
        return
    for box in _boxes(squeezed(a.shape_of(first)), _BLOCK):
        x = a.block(first, box)
        y = b.block(second, [box[order.index(axis)] for axis in range(len(order))]).transpose(order)
        yield x.reshape(-1), y.reshape(-1)


def _boxes(sizes: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut a shape into boxes of at most ``limit`` elements that follow each other in C order."""
    axis, inner = len(sizes) - 1, 1
    while axis > 0 and inner * sizes[axis] <= limit:
        inner *= sizes[axis]
        axis -= 1
    rows = max(1, limit // max(1, inner))
    for outer in itertools.product(*(range(size) for size in sizes[:axis])):
        for start in range(0, sizes[axis], rows):
            stop = min(sizes[axis], start + rows)
            rest = (slice(0, size) for size in sizes[axis + 1 :])
            yield (*(slice(at, at + 1) for at in outer), slice(start, stop), *rest)
