"""What two recordings hold about one finding: its tensors, and what they were computed from."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, cast

import numpy as np

from probe.comparison.distance.combined import Fused, Piece, canonical_shape, read
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key
from probe.comparison.steps.side import PARAMETER_ROLES, Metrics, kind_of, squeezed
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.numbers.statistics import as_real, unit_roundoff
from probe.records import OptimizerGroup, Phase, Role

MOST = 4 << 20
"""elements of a tensor that are read: the leading part of a larger one"""
_ROUNDINGS = 64
"""unit roundoffs that are noise where nothing else says what is"""
_MOST_SOURCES = 6
"""of the calls that an input may be made from: the last"""
_HEADS = (
    "num_attention_heads", "num_heads", "n_head", "n_heads", "num_key_value_heads", "num_query_groups",
)  # fmt: skip
"""what configurations call the number of heads"""
_EXPLAINED = 0.25
"""what a hypothesis leaves over is at most this share of the error"""
_CLEARLY = 1e-3
"""what it may leave over, as a share of the error, where that is more than rounding: rounding that it was scaled by"""

_OF_CALLS = (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)

T = TypeVar("T")


class Half:
    """One side of a finding.

    Parameters
    ----------
    half
        the step of this side
    module
        the module whose tensor it is
    key
        its call: (micro, module, call)
    row
        the tensor's record
    paired
        the calls of this side that have a counterpart
    """

    def __init__(self, half: StepHalf, module: int, key: Key, row: int, paired: Container[Key]) -> None:
        self.side, self.module, self.key, self.row, self._paired = half.side, module, key, row, paired
        self._rows, self._calls = half.rows, half.calls

    @property
    def dtype(self) -> str:
        """The dtype of the tensor."""
        return self.side.dtypes[self.row]

    @property
    def class_name(self) -> str:
        """The class of the module."""
        return self.side.reader.modules[self.module].class_name

    def column(self, name: str) -> float:
        """Return a statistic of the tensor."""
        return float(self.side.columns[name][self.row])

    def config(self, *names: str) -> float | None:
        """Return the first number that the model's own configuration has under one of several names."""
        facts = self.side.reader.info.model_config
        found = (facts[name] for name in names if name in facts)
        return next((float(value) for value in found if isinstance(value, (int, float))), None)

    def read(self, row: int) -> np.ndarray | None:
        """Return the values of a record as real numbers in float64 or int64, None where they are not stored.

        Of a large one it is the part that comes first along its first axis.
        """
        side = self.side
        if row < 0 or not side.has_values(row) or kind_of(side.dtypes[row]) == "complex":
            return None
        shape = canonical_shape(side, row)
        if math.prod(shape) <= MOST:
            values = read(side, Piece(row, shape))
        elif side.axes(row) != tuple(range(len(shape))):
            return None
        else:
            stored = squeezed(side.stored_shape(row))
            kept = max(1, MOST * stored[0] // math.prod(stored))
            values = side.block(row, [slice(0, kept), *(slice(0, size) for size in stored[1:])])
        return _wide(values)

    def slots(self, role: Role, key: tuple[int, int, int] | None = None) -> dict[str, int]:
        """Return the rows of a role of a call, by slot; by default of the finding's own call."""
        return {slot: rows[0] for slot, rows in self._rows.get(key or self.key, role).items()}

    def given(self, role: Role = Role.INPUT) -> list[np.ndarray]:
        """Return what the call was given, or another role of it, that consists of numbers with a fraction."""
        rows = [row for row in self.slots(role).values() if kind_of(self.side.dtypes[row]) == "float"]
        found = (self.read(row) for row in rows)
        return [values for values in found if values is not None and values.size > 1]

    def integers(self, role: Role = Role.INPUT) -> list[np.ndarray]:
        """Return the integers that the call was given."""
        rows = [row for row in self.slots(role).values() if kind_of(self.side.dtypes[row]) == "integer"]
        found = (self.read(row) for row in rows)
        return [values for values in found if values is not None]

    def parameter_row(self, name: str, role: Role = Role.PARAM, phase: Phase = Phase.INIT) -> int:
        """Return the record of what belongs to a parameter of the module, by its canonical name; −1 for none."""
        prefix = f"{phase.label}:"
        for slot, rows in self._rows.get((0, self.module, 0), role).items():
            if slot.startswith(prefix) and self.side.canonical(self.module, slot[len(prefix) :]) == name:
                return rows[-1]
        return -1

    def parameter(self, name: str, role: Role = Role.PARAM, phase: Phase = Phase.INIT) -> np.ndarray | None:
        """Return the values of what belongs to a parameter of the module."""
        row = self.parameter_row(name, role, phase)
        return None if row < 0 or math.prod(self.side.shapes[row]) > MOST else self.read(row)

    def sources(self, before: bool) -> list[Source]:
        """Return what the tensor may be made from; of what several modules returned as one, each.

        Not what calls without a counterpart returned: nothing tells whether that is right.

        Parameters
        ----------
        before
            the tensor is an input: what its caller was given, and what that has called before it, the last first
        """
        return [each for several in self._sources(before) for each in several]

    def joined_sources(self, before: bool) -> list[list[np.ndarray]]:
        """Return what several modules returned that are one on the other side."""
        return [[each.values for each in several] for several in self._sources(before) if len(several) > 1]

    def _sources(self, before: bool) -> list[list[Source]]:
        own = next((c for c in self._calls if (c.micro, c.module, c.number) == self.key), None)
        if own is None:
            return []
        around = next((c for c in self._calls if c.row == own.caller), None) if before else own
        if around is None:
            return []
        inside = [
            c for c in self._calls
            if c.caller == around.row and (not before or c.end < own.begin) and c.key in self._paired
        ]  # fmt: skip
        found = []
        for call in [*reversed(inside[-_MOST_SOURCES:]), around]:
            role = Role.INPUT if call is around else Role.OUTPUT
            for slot, whole in self.slots(role, (call.micro, call.module, call.number)).items():
                several = []
                for row in self._parts(whole):
                    name = "" if call is around else self._name_of(row)
                    values = self.read(row) if kind_of(self.side.dtypes[row]) == "float" else None
                    if values is not None and values.size > 1:
                        several.append(Source(name, slot, values, call is around))
                found.append(several)
        return found

    def _parts(self, row: int) -> tuple[int, ...]:
        """Return the records of which one consists that stands for several, as that of q, k and v does; else itself."""
        fused = self.side.combined.get(row)
        return fused.parts if isinstance(fused, Fused) else (row,)

    def _name_of(self, row: int) -> str:
        parts = self.side.reader.modules[self.side.columns["module"][row]].path.split(".")
        return ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])

    @property
    def group(self) -> OptimizerGroup | None:
        """How the parameter is trained."""
        slot = self.side.slots[self.row].partition(".")[0]
        for group in self.side.reader.groups_of(self.side.step):
            for number in group.parameters:
                parameter = self.side.parameters[number]
                if (parameter.module, parameter.slot) == (self.module, slot):
                    return group
        return None


class Source(NamedTuple):
    """A tensor that another one may be made from."""

    module: str
    """the end of the path of what returned it"""
    slot: str
    values: np.ndarray
    is_input: bool
    """it came in from outside"""

    @property
    def name(self) -> Note:
        """The module, and which of its outputs it is."""
        return note("output-of", module=self.module, slot=self.slot)


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.int64) if values.dtype.kind in "biu" else as_real(values).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Values:
    """The two tensors, B's axes in A's order."""

    a: np.ndarray
    b: np.ndarray
    is_whole: bool
    """they are not only the leading part"""

    @property
    def difference(self) -> np.ndarray:
        """B − A."""
        return self.b - self.a


class Evidence:
    """A finding, and what tells its cause.

    Parameters
    ----------
    pairs
        the step
    finding
        what is wrong
    event
        the tensor that shows it
    """

    def __init__(self, pairs: StepPairs, finding: Divergence, event: Event) -> None:
        self.pairs, self.finding, self.event = pairs, finding, event
        modules = pairs.matching.pairs[event.pair]
        self.node: Node | None = pairs.nodes.get((event.micro, modules.a, event.call))
        call_b = self.node.call_b if self.node is not None else event.call
        a, b = pairs.halves
        paired = [{half.key(node) for node in pairs.nodes.values()} for half in pairs.halves]
        self.a = Half(a, modules.a, (event.micro, modules.a, event.call), event.row_a, paired[0])
        self.b = Half(b, modules.b, (event.micro, modules.b, call_b), event.row_b, paired[1])

        self._once: dict[object, object] = {}

    def once(self, compute: Callable[[Evidence], T]) -> T:
        """Return what a function makes of this evidence, computed the first time."""
        if compute not in self._once:
            self._once[compute] = compute(self)
        return cast("T", self._once[compute])

    @property
    def has_counterpart(self) -> bool:
        """Tell whether the call that it is about has one on the other side; weights and numbers of the step need none."""
        return self.node is not None or self.event.role not in _OF_CALLS

    @functools.cached_property
    def is_guessed_container(self) -> bool:
        """Tell whether the modules hold others, and it is a guess that they are a pair: one may end where the other goes on."""
        holds = any(any(m.parent == half.module for m in half.side.reader.modules) for half in self.halves)
        return holds and self.pairs.matching.pairs[self.event.pair].confidence < 1

    @property
    def metrics(self) -> Metrics | None:
        """How far the two tensors are apart, no factor taken out."""
        return self.finding.metrics or self.event.metrics

    @functools.cached_property
    def sums(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]] | None:
        """The sums along the axes of a weight that both sides begin with (`probe.numbers.axis_sums`); None where one lacks them."""
        if self.event.is_one_sided:
            return None
        found = self.a.side.axis_sums(self.a.row), self.b.side.axis_sums(self.b.row)
        return found if all(found) else None

    @property
    def role(self) -> Role:
        """What the tensor is to its module."""
        return self.event.role

    @property
    def classes(self) -> tuple[str, str]:
        """The classes of the module in A and in B."""
        return self.a.class_name, self.b.class_name

    @property
    def halves(self) -> tuple[Half, Half]:
        """Both sides."""
        return self.a, self.b

    @property
    def error(self) -> float:
        """The relative error of the two tensors."""
        assert self.metrics is not None
        return self.metrics.rel_l2

    @property
    def limit(self) -> float:
        """The relative error of the two tensors that would be noise."""
        limit, held = self.finding.limit, self.finding.error
        if self.finding.measure or not (math.isfinite(limit) and limit > 0):
            return _ROUNDINGS * self.u
        return (
            limit * self.error / held if math.isfinite(held) and held > 0 else limit
        )  # of a gradient: relative to others

    @property
    def u(self) -> float:
        """The unit roundoff of the less precise of both dtypes."""
        return max(unit_roundoff(half.dtype) for half in self.halves)

    @property
    def tolerance(self) -> float:
        """What a hypothesis may leave over of a tensor, relative to it: noise, and clearly less than the error.

        Of integers nothing.
        """
        if self.is_of_integers:
            return 0.0
        return min(max(self.limit, _CLEARLY * self.error), _EXPLAINED * self.error)

    @property
    def is_number(self) -> bool:
        """Tell whether it is about a single number, as a loss is."""
        return self.event.row_a < 0 or math.prod(self.pairs.a.shapes[self.event.row_a]) == 1

    @property
    def is_of_integers(self) -> bool:
        """Tell whether the tensor holds integers: tokens, positions."""
        return self.event.row_a >= 0 and kind_of(self.a.dtype) == "integer"

    def explains(self, expected: np.ndarray, found: np.ndarray) -> bool:
        """Tell whether two tensors are one but for noise, which is clearly less than the error."""
        return expected.shape == found.shape and distance(expected, found) <= self.tolerance

    @functools.cached_property
    def values(self) -> Values | None:
        """The two tensors, None where they are not stored or do not correspond."""
        if self.event.is_one_sided or {kind_of(half.dtype) for half in self.halves} not in ({"float"}, {"integer"}):
            return None
        a, b = self.a.read(self.event.row_a), self.b.read(self.event.row_b)
        if a is None or b is None or not a.size:
            return None
        a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        is_whole = a.size == math.prod(self.pairs.a.shapes[self.event.row_a])
        turned = self._turned(a, b)
        return None if turned is None else Values(a, turned, is_whole)

    def _turned(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """Return B's values with A's axes."""
        if a.shape != b.shape and squeezed(a.shape) == squeezed(b.shape):
            b = b.reshape(a.shape)
        if a.shape == b.shape and (
            self.role in PARAMETER_ROLES or self.is_of_integers or distance(a, b) <= 1.01 * self.error + 1e-12
        ):
            return b
        if self.role in PARAMETER_ROLES or a.ndim != b.ndim or a.ndim > 4:
            return b.reshape(a.shape) if a.size == b.size and self.role not in PARAMETER_ROLES else None
        orders = [order for order in itertools.permutations(range(a.ndim)) if b.transpose(order).shape == a.shape]
        found = [b.transpose(order) for order in orders]
        return min(found, key=lambda each: distance(a, each), default=None)

    def heads(self, width: int) -> list[int]:
        """Return numbers of heads that a width may consist of, those of the configurations first."""
        named = [half.config(name) for half in self.halves for name in _HEADS]
        own = [int(number) for number in named if number and width % int(number) == 0 and int(number) > 1]
        return list(dict.fromkeys(own)) or [n for n in range(2, min(width, 129)) if width % n == 0]

    @property
    def has_known_heads(self) -> bool:
        """Tell whether a configuration says how many heads there are."""
        return any(half.config(name) for half in self.halves for name in _HEADS)

    @functools.cached_property
    def tokens(self) -> tuple[int, int] | None:
        """Samples and positions of what the model was given as integers."""
        for micro, module, call in self.pairs.nodes:
            node = self.pairs.nodes[micro, module, call]
            if node.parent is None and micro == max(self.event.micro, 0):
                for rows in self.pairs.rows_a.get((micro, module, call), Role.INPUT).values():
                    shape = self.pairs.a.shapes[rows[0]]
                    if kind_of(self.pairs.a.dtypes[rows[0]]) == "integer" and len(shape) == 2:
                        return shape[0], shape[1]
        return None

    def axis_of_positions(self, shape: Sequence[int]) -> int | None:
        """Return which axis of an activation counts positions: as the model's tokens do, else the second of three."""
        if len(shape) < 2 or self.role in PARAMETER_ROLES:
            return None
        if self.is_of_integers:
            return len(shape) - 1
        if self.tokens is not None and self.tokens[0] != self.tokens[1]:
            fitting = [axis for axis, size in enumerate(shape[:-1]) if size == self.tokens[1]]
            return fitting[0] if len(fitting) == 1 and self.tokens[1] > 1 else None
        return 1 if len(shape) == 3 else None

    def rows_of_the_model(self, half: Half) -> Iterator[tuple[str, int]]:
        """Yield the records of what the whole model was given, and of what was logged beside it, by slot."""
        rows = self.pairs.rows_a if half is self.a else self.pairs.rows_b
        for node in self.pairs.nodes.values():
            if node.parent is None and node.micro == max(self.event.micro, 0):
                pair = self.pairs.matching.pairs[node.pair]
                module, call = (pair.a, node.call) if half is self.a else (pair.b, node.call_b)
                for role in (Role.INPUT, Role.VALUE):
                    for slot, found in rows.get((node.micro, module, call), role).items():
                        yield slot, found[0]
        for slot, found in rows.get((0, 0, 0), Role.VALUE).items():
            yield slot, found[0]

    def model_inputs(self, half: Half) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the values of what the whole model was given, and of what was logged beside it, by slot."""
        for slot, row in self.rows_of_the_model(half):
            values = half.read(row)
            if values is not None:
                yield slot, values


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return ‖a − b‖ / max(‖a‖, ‖b‖)."""
    larger = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    apart = float(np.linalg.norm(a - b))
    return apart / larger if larger and math.isfinite(apart) else 0.0 if apart == 0 else math.inf
