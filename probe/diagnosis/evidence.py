"""What two recordings hold about one finding: all that a hint may ask."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from probe.answer.metrics import Metrics
from probe.answer.result import Divergence
from probe.notes import Note, note
from probe.numbers.axis_sums import axis_sums, squeezed
from probe.numbers.statistics import as_real, unit_roundoff
from probe.records import OptimizerGroup, Phase, Role
from probe.verdict.judge.verdicts import Finding
from probe.verdict.rows import metrics_of
from probe.verdict.side import PARAMETER_ROLES, Place
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

MOST = 4 << 20
"""elements of a tensor that are read: the leading part of a larger one"""
_MOST_SOURCES = 6
"""of the calls that an input may be made from: the last"""
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


class Source(NamedTuple):
    """A tensor that another one may be made from."""

    module: str
    """the end of the path of what returned it; empty for what came in from outside"""
    slot: str
    values: np.ndarray

    @property
    def is_input(self) -> bool:
        """Whether it came in from outside."""
        return not self.module

    @property
    def name(self) -> Note:
        """The module, and which of its outputs it is."""
        return note("output-of", module=self.module, slot=self.slot)


class Half:
    """One side of a finding.

    ``name`` is that of the parameter that it is about, in the canonical layout, or the slot of a call's tensor;
    ``call`` gives the tensors of its call. ``calls`` are those of the module in training, in evaluation where nothing
    trains; ``roots`` those of the whole model, with their micro-batches.
    """

    def __init__(self, step: Step, letter: str, module: int, event: Event | None, node: Node | None) -> None:
        self._step, self.letter, self.module, self._event, self._node = step, letter, module, event, node
        self._at = "AB".index(letter)
        self.side = (step.a, step.b)[self._at]
        self.reader = self.side.reader
        self.name = "" if event is None else (event.slot_a, event.slot_b)[self._at]
        self.tensor = (None if event is None else event.both[self._at]) or NOTHING
        self.call = self._call(node)
        trained = [each for each in step.nodes if each.a.micro >= 0] or step.nodes
        self.calls = [self._call(each) for each in trained if (each.a, each.b)[self._at].module == module]
        self.roots = [(each.a.micro, self._call(each)) for each in trained if each.parent is None]

    def _call(self, node: Node | None) -> Call:
        return lambda role: {} if node is None else self._step.tensors(node, self.letter, role)

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

    @functools.cached_property
    def params(self) -> dict[tuple[Phase, Role], dict[Place, Tensor]]:
        """What belongs to parameters, by phase and role; of those that are one on the other side, what they are together."""
        found = {key: dict(tensors) for key, tensors in self.side.params.items()}
        pairs = self._step.parameters
        is_of_fused = self._event is not None and self._event.place is not None and pairs.bundles
        for key in [key for key in found if key[1] is Role.PARAM and is_of_fused]:
            for each in pairs.events(*key):
                tensor = each.both[self._at]
                if each.place is not None and each.is_paired and tensor is not None:
                    module = self._step.modules_of(each)[self._at]
                    found[key][module, (each.slot_a, each.slot_b)[self._at]] = tensor
        return found

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

    @property
    def group(self) -> OptimizerGroup | None:
        """How the parameter is trained."""
        return self.side.given.get((self.module, self.name.partition(".")[0]))

    def sources(self, before: bool) -> list[Source]:
        """Return what the tensor may be made from; of what several modules returned as one, each.

        ``before``: the tensor is an input, so it is what its caller was given and has called before it.
        """
        return [each for several in self._sources(before) for each in several]

    def joined_sources(self, before: bool) -> list[list[np.ndarray]]:
        """Return what several modules returned that are one on the other side."""
        return [[each.values for each in several] for several in self._sources(before) if len(several) > 1]

    def _sources(self, before: bool) -> list[list[Source]]:
        """Return what the tensor may be made from, the last first: not what calls without a counterpart returned."""
        node, at = self._node, self._at
        around = node.parent if node is not None and before else node
        if node is None or around is None:
            return []
        inside = [each for each in around.inner if not before or each.calls[at][0].end < node.calls[at][0].begin]
        found = []
        for each in reversed(inside[-_MOST_SOURCES:]):
            calls, whole = each.calls[at], self._step.tensors(each, self.letter, Role.OUTPUT)
            if len({call.module for call in calls}) > 1:  # of several modules that are one on the other side
                made = [(call.path, call.of(Role.OUTPUT)) for call in calls]
                found += [_read_of(slot, *made) for slot in made[0][1]]
            else:
                found += [_read_of(slot, (calls[0].path, whole)) for slot in whole]
        given = self._step.tensors(around, self.letter, Role.INPUT)
        return found + [_read_of(slot, ("", given)) for slot in given]

    @property
    def sums(self) -> tuple[np.ndarray, ...]:
        """The sums along the axes of a weight that the step begins with, in the canonical layout; nothing where they are not known."""
        weight = self.tensor
        if weight.sums is None or not weight.has_values:
            return () if weight.sums is None else weight.sums()
        return axis_sums(weight.values().reshape(weight.laid), tuple(range(len(weight.shape))))


def _read_of(slot: str, *made: tuple[str, Mapping[str, Tensor]]) -> list[Source]:
    """Return what one or several modules returned under a slot, where the values are known."""
    tensors = [(_end_of(path), by_slot[slot]) for path, by_slot in made if slot in by_slot]
    found = [(name, read(tensor)) for name, tensor in tensors if tensor.kind == "float"]
    return [Source(name, slot, values) for name, values in found if values is not None and values.size > 1]


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
        stored = squeezed(tensor.reader.shape_of(tensor.stored))
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

    def squares(self, axis: int) -> tuple[np.ndarray, np.ndarray]:
        """Return at each index of an axis the squared error, and the squared norm of the larger side."""
        others = tuple(each for each in range(self.a.ndim) if each != axis)
        error, a, b = (np.sum(each * each, axis=others) for each in (self.difference, self.a, self.b))
        return error, np.maximum(np.maximum(a, b), 1e-300)


@dataclass(frozen=True, eq=False)
class Evidence:
    """A finding, and what tells its cause."""

    finding: Divergence
    phase: Phase
    """of the tensor that shows it"""
    role: Role
    a: Half
    b: Half
    metrics: Metrics
    """how far the two tensors are apart, no factor taken out"""
    micro: int = 0
    micro_batches: tuple[int, int] = (1, 1)
    """that each side ran"""
    is_guess: bool = False
    """the modules are a pair by structure or values alone"""
    known: dict[object, Any] = field(default_factory=dict)
    """what functions made of it (`once`)"""

    @property
    def halves(self) -> tuple[Half, Half]:
        """Both sides."""
        return self.a, self.b

    @property
    def is_one_sided(self) -> bool:
        """Whether one side alone has the tensor, or none: a number of the step."""
        return NOTHING in (self.a.tensor, self.b.tensor)

    @property
    def size(self) -> int:
        """The number of elements of A's tensor."""
        return self.a.tensor.size

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
        return self.metrics.rel_l2

    @property
    def limit(self) -> float:
        """The relative error of the two tensors that would be noise."""
        limit, held = self.finding.limit, self.finding.error
        if self.finding.measure or not (math.isfinite(limit) and limit > 0):
            return _ROUNDINGS * max(unit_roundoff(half.dtype) for half in self.halves)
        return limit * self.error / held if math.isfinite(held) and held > 0 else limit  # relative to other gradients

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
        """Whether it is about a single number, as a loss is."""
        return self.is_one_sided or self.size == 1

    @property
    def is_of_integers(self) -> bool:
        """Whether the tensor holds integers: tokens, positions."""
        return self.a.tensor.kind == "integer"

    def explains(self, expected: np.ndarray, found: np.ndarray) -> bool:
        """Return True if two tensors are one but for noise, which is clearly less than the error."""
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
        """Whether a configuration says how many heads there are."""
        return any(half.config(name) for half in self.halves for name in _HEADS)

    @functools.cached_property
    def tokens(self) -> tuple[int, int] | None:
        """Samples and positions of what the model was given as integers."""
        found = (
            tensor.shape
            for micro, call in self.a.roots
            if micro in (max(self.micro, 0), min(self.micro, -1))
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
            fitting = [axis for axis, size in enumerate(shape[:-1]) if size == self.tokens[1] > 1]
            return fitting[0] if len(fitting) == 1 else None
        return 1 if len(shape) == 3 else None

    def given_to_model(self, half: Half) -> Iterator[tuple[str, Tensor]]:
        """Yield what the whole model was given, and what was logged beside it, by slot."""
        for micro, call in half.roots:
            if micro in (max(self.micro, 0), min(self.micro, -1)):
                for role in (Role.INPUT, Role.VALUE):
                    yield from call(role).items()
        yield from ((name, tensor) for name, (_, tensor) in half.side.beside.items())

    def model_inputs(self, half: Half) -> Iterator[tuple[str, np.ndarray]]:
        """Yield their values."""
        found = ((slot, read(tensor)) for slot, tensor in self.given_to_model(half))
        yield from ((slot, values) for slot, values in found if values is not None)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return ‖a − b‖ / max(‖a‖, ‖b‖)."""
    larger = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    apart = float(np.linalg.norm(a - b))
    return apart / larger if larger and math.isfinite(apart) else 0.0 if apart == 0 else math.inf


def are_of_ranks(evidence: Evidence) -> bool:
    """Return True if both sides were run by several ranks."""
    return all(half.reader.info.world_size > 1 for half in evidence.halves)


def once(compute: Callable[[Evidence], T]) -> Callable[[Evidence], T]:
    """Return a function of evidence that is computed the first time only."""

    @functools.wraps(compute)
    def found(evidence: Evidence) -> T:
        if compute not in evidence.known:
            evidence.known[compute] = compute(evidence)
        return cast("T", evidence.known[compute])

    return found


def evidence_of(step: Step, finding: Finding, said: Divergence) -> Evidence | None:
    """Return what a step holds about a finding; None if it names no pair of tensors."""
    event = finding.event
    node = event.node if event is not None else None
    if event is None:
        node = next((each for each in reversed(step.nodes) if each.parent is None), None)
        if finding.phase is not Phase.LOSS or node is None:
            return None
    module = node.a.module if node is not None else event.place[0] if event is not None and event.place else 0
    if module not in step.pair_of:
        return None
    pair, error = step.pair_of[module], None if event is None else step.error(event)
    metrics = said.metrics if error is None else metrics_of(event, error)
    if metrics is None:
        return None
    micros = [len({call.micro for call in side.calls if call.micro >= 0}) for side in (step.a, step.b)]
    return Evidence(
        said,
        event.phase if event is not None else finding.phase,
        event.role if event is not None else said.role,
        Half(step, "A", pair.a, event, node),
        Half(step, "B", pair.b, event, node),
        metrics,
        finding.micro,
        (micros[0], micros[1]),
        is_guess=pair.confidence < 1,
    )
