"""What two recordings hold about one finding: all that a hint may ask. Either engine fills it."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

import numpy as np

from probe.comparison.distance.metrics import Metrics
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence
from probe.numbers.axis_sums import axis_sums
from probe.numbers.statistics import as_real, unit_roundoff
from probe.records import OptimizerGroup, Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.side import PARAMETER_ROLES, Place
from probe.verdict.tensors import Shape, Tensor

MOST = 4 << 20
"""elements of a tensor that are read: the leading part of a larger one"""
_ROUNDINGS = 64
"""unit roundoffs that are noise where nothing else says what is"""
_HEADS = (
    "num_attention_heads", "num_heads", "n_head", "n_heads", "num_key_value_heads", "num_query_groups",
)  # fmt: skip
"""what configurations call the number of heads"""
_EXPLAINED = 0.25
"""what a hypothesis leaves over is at most this share of the error"""
_CLEARLY = 1e-3
"""what it may leave over, as a share of the error, where that is more than rounding: rounding that it was scaled by"""
NOTHING = Tensor((0,), "float32", 0.0, 0.0, 0.0, 0.0, (0, 0, 0), 0)
"""in the place of a tensor that a side does not have, or that is a number of the step"""

T = TypeVar("T")
Call = Callable[[Role], Mapping[str, Tensor]]
"""gives the tensors of a call by slot"""
Made = tuple[str, str, Tensor, bool]
"""the path of what returned a tensor, the slot, the tensor, whether it came in from outside"""


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


@dataclass(frozen=True, eq=False)
class Half:
    """One side of a finding.

    Attributes
    ----------
    name
        of the parameter that it is about, in the canonical layout; of a call's tensor its slot
    call
        the call that it is about
    calls
        those of the module in training
    roots
        those of the whole model, with their micro-batches
    params
        by phase and role: what belongs to parameters, by module and canonical name
    logged
        what the program logged beside the model
    made_from
        what the tensor may be made from, the last first, of what several modules returned as one each; of an input it is what
        its caller was given and has called before it
    """

    reader: Reader
    step: int
    module: int
    name: str
    tensor: Tensor
    call: Call
    calls: Sequence[Call]
    roots: Sequence[tuple[int, Call]]
    params: Mapping[tuple[Phase, Role], Mapping[Place, Tensor]]
    logged: Mapping[str, Tensor]
    made_from: Callable[[bool], list[list[Made]]]

    @property
    def dtype(self) -> str:
        """The dtype of the tensor."""
        return self.tensor.dtype

    @property
    def class_name(self) -> str:
        """The class of the module."""
        return self.reader.modules[self.module].class_name

    @functools.cached_property
    def values(self) -> np.ndarray | None:
        """The values of the tensor."""
        return read(self.tensor)

    def config(self, *names: str) -> float | None:
        """Return the first number that the model's own configuration has under one of several names."""
        facts = self.reader.info.model_config
        found = (facts[name] for name in names if name in facts)
        return next((float(value) for value in found if isinstance(value, (int, float))), None)

    def given(self, role: Role = Role.INPUT, kind: str = "float") -> list[np.ndarray]:
        """Return what the call was given, or another role of it: numbers with a fraction, or integers."""
        found = (read(tensor) for tensor in self.call(role).values() if tensor.kind == kind)
        return [values for values in found if values is not None and (values.size > 1 or kind == "integer")]

    def belonging(self, name: str, role: Role = Role.PARAM, phase: Phase = Phase.INIT) -> Tensor | None:
        """Return what belongs to a parameter of the module, by its canonical name."""
        return self.params.get((phase, role), {}).get((self.module, name))

    def parameter(self, name: str, role: Role = Role.PARAM, phase: Phase = Phase.INIT) -> np.ndarray | None:
        """Return the values of what belongs to a parameter of the module."""
        tensor = self.belonging(name, role, phase)
        return None if tensor is None or tensor.size > MOST else read(tensor)

    @functools.cached_property
    def group(self) -> OptimizerGroup | None:
        """How the parameter is trained."""
        name = self.name.partition(".")[0]
        for group in self.reader.groups_of(self.step):
            for number in group.parameters:
                each = self.reader.parameters[number]
                if each.module == self.module and name in (each.canonical_slot, each.slot):
                    return group
        return None

    def sources(self, before: bool) -> list[Source]:
        """Return what the tensor may be made from; of what several modules returned as one, each.

        Parameters
        ----------
        before
            the tensor is an input
        """
        return [each for several in self._sources(before) for each in several]

    def joined_sources(self, before: bool) -> list[list[np.ndarray]]:
        """Return what several modules returned that are one on the other side."""
        return [[each.values for each in several] for several in self._sources(before) if len(several) > 1]

    def _sources(self, before: bool) -> list[list[Source]]:
        found = []
        for several in self.made_from(before):
            parts = [(*each, read(each[2])) for each in several if each[2].kind == "float"]
            found.append(
                [
                    Source(_end_of(path), slot, values, is_input)
                    for path, slot, _, is_input, values in parts
                    if values is not None and values.size > 1
                ]
            )
        return found

    @property
    def sums(self) -> tuple[np.ndarray, ...]:
        """The sums along the axes of a weight that the step begins with, in the canonical layout; nothing where they are not known."""
        weight = self.belonging(self.name)
        if weight is None or weight is not self.tensor or weight.reader is None:
            return ()
        axes = weight.axes or tuple(range(len(weight.shape)))
        if weight.has_values:
            return axis_sums(weight.values().reshape(weight.laid), tuple(range(len(axes))))
        places = {(each.module, each.canonical_slot): number for number, each in enumerate(self.reader.parameters)}
        number = places.get((self.module, self.name))
        return () if number is None else self.reader.axis_sums(self.step, number, axes)


def _end_of(path: str) -> str:
    parts = path.split(".")
    return ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])


def read(tensor: Tensor) -> np.ndarray | None:
    """Return the values as real numbers in float64 or int64, in the canonical layout; None where they are not stored.

    Of a large one it is the part that comes first along its first axis.
    """
    if not tensor.size or not tensor.has_values or tensor.kind == "complex":
        return None
    if tensor.size <= MOST:
        values = tensor.values().reshape(tensor.laid)
    elif tensor.axes not in ((), tuple(range(len(tensor.shape)))) or tensor.reader is None or tensor.parts:
        return None
    else:
        stored = tuple(size for size in tensor.reader.shape_of(tensor.stored) if size != 1)
        kept = max(1, MOST * stored[0] // math.prod(stored))
        values = tensor.reader.block(tensor.stored, [slice(0, kept), *(slice(0, size) for size in stored[1:])])
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


@dataclass(frozen=True, eq=False)
class Evidence:
    """A finding, and what tells its cause.

    Attributes
    ----------
    phase, role
        of the tensor that shows it
    metrics
        how far the two tensors are apart, no factor taken out
    micro_batches
        that each side ran
    has_counterpart
        the call that it is about has one on the other side
    is_guess
        the modules are a pair by structure or values alone
    """

    finding: Divergence
    phase: Phase
    role: Role
    a: Half
    b: Half
    metrics: Metrics | None
    micro: int = 0
    micro_batches: tuple[int, int] = (1, 1)
    has_counterpart: bool = True
    is_guess: bool = False
    _once: dict[object, object] = field(default_factory=dict)

    def once(self, compute: Callable[[Evidence], T]) -> T:
        """Return what a function makes of this evidence, computed the first time."""
        if compute not in self._once:
            self._once[compute] = compute(self)
        return cast("T", self._once[compute])

    @property
    def halves(self) -> tuple[Half, Half]:
        """Both sides."""
        return self.a, self.b

    @property
    def is_one_sided(self) -> bool:
        """Tell whether one side alone has the tensor, or none: a number of the step."""
        return NOTHING in (self.a.tensor, self.b.tensor)

    @property
    def size(self) -> int:
        """The number of elements of A's tensor."""
        return self.a.tensor.size

    @functools.cached_property
    def is_guessed_container(self) -> bool:
        """Tell whether the modules hold others, and it is a guess that they are a pair: one may end where the other goes on."""
        return self.is_guess and any(
            any(module.parent == half.module for module in half.reader.modules) for half in self.halves
        )

    @functools.cached_property
    def sums(self) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]] | None:
        """The sums along the axes of a weight that both sides begin with (`probe.numbers.axis_sums`); None where one lacks them."""
        found = self.a.sums, self.b.sums
        return found if not self.is_one_sided and all(found) else None

    @property
    def classes(self) -> tuple[str, str]:
        """The classes of the module in A and in B."""
        return self.a.class_name, self.b.class_name

    @property
    def names(self) -> str:
        """All that says what the modules are, in lower case."""
        refs = (f"{ref.class_name} {ref.path}" for ref in (*self.finding.a, *self.finding.b))
        return " ".join([*self.classes, *refs]).casefold()

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
        return limit * self.error / held if math.isfinite(held) and held > 0 else limit  # relative to other gradients

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
        return self.is_one_sided or self.size == 1

    @property
    def is_of_integers(self) -> bool:
        """Tell whether the tensor holds integers: tokens, positions."""
        return self.a.tensor.kind == "integer"

    def explains(self, expected: np.ndarray, found: np.ndarray) -> bool:
        """Tell whether two tensors are one but for noise, which is clearly less than the error."""
        return expected.shape == found.shape and distance(expected, found) <= self.tolerance

    @functools.cached_property
    def values(self) -> Values | None:
        """The two tensors, None where they are not stored or do not correspond."""
        kinds = {half.tensor.kind for half in self.halves}
        a, b = self.a.values, self.b.values
        if self.is_one_sided or len(kinds) > 1 or a is None or b is None or not a.size:
            return None
        a, b = a.astype(np.float64, copy=False), b.astype(np.float64, copy=False)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        turned = self._turned(a, b)
        return None if turned is None else Values(a, turned, a.size == self.size)

    def _turned(self, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
        """Return B's values with A's axes."""
        is_parameter = self.role in PARAMETER_ROLES
        if a.shape != b.shape and squeezed(a.shape) == squeezed(b.shape):
            b = b.reshape(a.shape)
        if a.shape == b.shape and (is_parameter or self.is_of_integers or distance(a, b) <= 1.01 * self.error + 1e-12):
            return b
        if is_parameter or a.ndim != b.ndim or a.ndim > 4:
            return b.reshape(a.shape) if a.size == b.size and not is_parameter else None
        orders = [order for order in itertools.permutations(range(a.ndim)) if b.transpose(order).shape == a.shape]
        return min((b.transpose(order) for order in orders), key=lambda each: distance(a, each), default=None)

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
        found = (
            tensor.shape
            for micro, call in self.a.roots
            if micro == max(self.micro, 0)
            for tensor in call(Role.INPUT).values()
            if tensor.kind == "integer" and len(tensor.shape) == 2
        )
        return cast("tuple[int, int] | None", next(found, None))

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

    def given_to_model(self, half: Half) -> Iterator[tuple[str, Tensor]]:
        """Yield what the whole model was given, and what was logged beside it, by slot."""
        for micro, call in half.roots:
            if micro == max(self.micro, 0):
                for role in (Role.INPUT, Role.VALUE):
                    yield from call(role).items()
        yield from half.logged.items()

    def model_inputs(self, half: Half) -> Iterator[tuple[str, np.ndarray]]:
        """Yield their values."""
        found = ((slot, read(tensor)) for slot, tensor in self.given_to_model(half))
        yield from ((slot, values) for slot, values in found if values is not None)


def squeezed(shape: Shape) -> Shape:
    """Return a shape without axes of size 1."""
    return tuple(size for size in shape if size != 1)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return ‖a − b‖ / max(‖a‖, ‖b‖)."""
    larger = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    apart = float(np.linalg.norm(a - b))
    return apart / larger if larger and math.isfinite(apart) else 0.0 if apart == 0 else math.inf
