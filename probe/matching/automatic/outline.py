"""What is known of one model when its modules are to be paired: weights, the order of calls, what came out."""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from probe.matching.automatic.likeness import kind_of
from probe.numbers.axis_sums import squeezed
from probe.numbers.layouts import layout_of, recorded_kind
from probe.numbers.statistics import dtype_of, is_float
from probe.records import HashKind, ModuleInfo, ParameterInfo, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

LISTS = {"ModuleList", "ModuleDict", "LayerList", "LayerDict", "CellList", "CellDict", "ParameterList", "list"}
"""classes that only hold modules"""
_MATRICES = {"linear", "conv", "embedding", "recurrent"}
_WITH_WEIGHTS = {*_MATRICES, "norm"}
_SEQUENCES = {"Sequential", "SequentialCell"}

N = TypeVar("N", int, float, Counter[tuple[int, ...]])


@dataclass(frozen=True, slots=True)
class Numbers:
    """Statistics of one tensor, none of which depends on the order of its elements."""

    min: float
    max: float
    mean: float
    norm: float
    digest: tuple[int, int, int] | None = None

    @property
    def is_telling(self) -> bool:
        """Return True if it is anything but one number over and over."""
        return math.isfinite(self.norm) and self.min != self.max


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter, in the canonical layout."""

    slot: str
    shape: tuple[int, ...]
    numbers: Numbers | None = None
    tensor: int = -1
    """of the file, where its values are stored"""
    axes: tuple[int, ...] = ()
    """order of the stored axes in the canonical layout; empty when it is the stored one"""
    recorded: str = ""
    """the slot under which it is recorded at this module; empty for another name of a tied one"""
    is_turned: bool = False
    """whether its axes are those of `turned_classes`: no table says it"""
    parameter: int = -1
    """index of what is recorded among the parameters"""
    is_again: bool = False
    """whether a layer around this module has it as its own: PaddlePaddle's recurrent layers list what their cells have"""

    @property
    def size(self) -> int:
        """Its elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Seen:
    """An activation, of a module's first call."""

    shape: tuple[int, ...]
    """without axes of size 1, sorted: layouts differ"""
    numbers: Numbers | None = None


@dataclass
class Outline:
    """One model, as matching looks at it; every list is by the index of the module."""

    tree: Tree
    weights: list[tuple[Weight, ...]]
    first_call: dict[int, int] = field(default_factory=dict)
    """when a module ran first; empty where nothing was seen to run"""
    inputs: dict[int, tuple[Seen, ...]] = field(default_factory=dict)
    outputs: dict[int, tuple[Seen, ...]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """of the model"""
    reader: Reader | None = None
    buffers: dict[int, tuple[Weight, ...]] = field(default_factory=dict)
    """by module, of floating-point numbers that were recorded"""

    def __post_init__(self) -> None:
        size = len(self.tree)
        self.begin, self.end = [0] * size, [0] * size
        preorder = list(self.tree.subtree(self.tree.root)) if size else []
        for place, index in enumerate(preorder):
            self.begin[index] = place
        for index in reversed(preorder):
            self.end[index] = max((self.end[c] for c in self.children(index)), default=self.begin[index])
        self.preorder = preorder
        own = [sum(w.size for w in self.matrices(index) if not w.is_again) for index in range(size)]
        self.core = self.with_below(own)
        """elements of weights of two axes and more, those below included: fusing and nesting do not change it"""
        self.carriers = self.with_below([int(bool(each)) for each in own])
        self.by_lists = False

    def with_below(self, own: list[N]) -> list[N]:
        """Return numbers of modules, each with those of all modules below it added."""
        found = list(own)
        for index in reversed(self.preorder):
            parent = self.tree.modules[index].parent
            if parent >= 0:
                found[parent] += found[index]
        return found

    def inside(self, top: int) -> list[int]:
        """Return a module and all below it, in the order in which they are defined."""
        return self.preorder[self.begin[top] : self.end[top] + 1]

    def matrices(self, index: int) -> list[Weight]:
        """Return the weights of a module that have two axes or more."""
        return [weight for weight in self.weights[index] if len(weight.shape) > 1]

    def matrix(self, index: int) -> Weight | None:
        """Return the first of them."""
        return next(iter(self.matrices(index)), None)

    def kind(self, index: int) -> str:
        """Return what sort of thing a module is, as far as its class tells; see `kind_of`."""
        return kind_of(self.tree.class_name(index))

    def is_matrix(self, index: int) -> bool:
        """Return True if a module holds a matrix, or must."""
        return bool(self.matrices(index)) or (index in self.unmeasured and self.kind(index) in _MATRICES)

    @functools.cached_property
    def unmeasured(self) -> frozenset[int]:
        """Modules that must have weights, of which none is known: printed without sizes, or sharded away."""
        return frozenset(
            i
            for i in range(len(self))
            if self.kind(i) in _WITH_WEIGHTS and not (self.weights[i] or self.tree.children[i] or _is_loop(self, i))
        )

    @property
    def lacks_sizes(self) -> bool:
        """Return True if the sizes of many weights are not known."""
        return 5 * len(self.unmeasured) > len(self.unmeasured) + sum(map(bool, self.weights))

    def count_lists(self) -> None:
        """Let the sizes of blocks be how many members the lists in them have: the weights' are not known."""
        self.by_lists = True
        self.__dict__.pop("rows", None)
        self.core = self.with_below([int(_is_member(self.tree, index)) for index in range(len(self))])

    def __len__(self) -> int:
        return len(self.tree)

    def is_below(self, index: int, top: int) -> bool:
        """Return True if a module is another one or stands below it."""
        return self.begin[top] <= self.begin[index] <= self.end[top]

    def children(self, index: int) -> Iterable[int]:
        """Return the modules right below."""
        return self.tree.children[index].values()

    def is_list(self, index: int) -> bool:
        """Return True if a module only holds others, and has no forward of its own."""
        return not self.weights[index] and self.tree.class_name(index) in LISTS

    def adds_nothing(self, index: int) -> bool:
        """Return True if nobody misses a module there: containers, Identity, a Dropout that drops nothing."""
        name = self.tree.class_name(index)
        if self.weights[index]:
            return False
        if self.tree.children[index]:
            return name in LISTS or name in _SEQUENCES or self.tree.wrapped(index) is not None
        ends = [seen.get(index, ())[:1] for seen in (self.inputs, self.outputs)]
        numbers = [each.numbers for end in ends for each in end if each.numbers is not None]
        passes_on = len(numbers) < 2 or numbers[0] == numbers[1]
        return name in LISTS or "Identity" in name or ("Dropout" in name and passes_on)

    @functools.cached_property
    def rows(self) -> list[Counter[tuple[int, ...]]]:
        """How many rows of weights there are below each module, by what follows the first axis.

        Layers that are fused along their rows, and layers that are stacked, have as many as they have apart.
        """
        if self.by_lists:
            return [Counter({(): count}) for count in self.core]
        own: list[Counter[tuple[int, ...]]] = [Counter() for _ in self.weights]
        for mine, weights in zip(own, self.weights, strict=True):
            for key, count in (each for weight in weights if not weight.is_again for each in rows_of(weight)):
                mine[key] += count
        return self.with_below(own)

    def stack(self, index: int) -> int:
        """Return how many like parts lie along a first axis of all matrices of a module; 0 where none do."""
        found = [weight.shape for weight in self.matrices(index)]
        is_stacked = found and all(len(shape) == 3 and shape[0] == found[0][0] > 1 for shape in found)
        return found[0][0] if is_stacked and self.kind(index) != "conv" else 0

    def is_block(self, index: int) -> bool:
        """Return True if a module holds several matrices."""
        if self.by_lists:
            return self.core[index] > 0
        return bool(self.stack(index)) or (self.carriers[index] > 1 and bool(self.tree.children[index]))

    def order(self, by_calls: bool) -> list[float]:
        """Return numbers by which modules sort: when they ran first, or as they stand in the tree.

        A module that was not seen to run stands behind the one before it in the tree.
        """
        if not by_calls or not self.first_call:
            return [float(place) for place in self.begin]
        earliest = dict(self.first_call)
        for index in reversed(self.preorder):
            parent = self.tree.modules[index].parent
            if index in earliest and parent >= 0 and parent not in self.first_call:
                earliest[parent] = min(earliest[index], earliest.get(parent, earliest[index]))
        found, step, last = [math.nan] * len(self), 0.5 / (len(self) + 1), 0.0
        for index in self.preorder:
            last = found[index] = float(earliest[index]) if index in earliest else last + step
        return found

    def holds_all(self, index: int) -> bool:
        """Return True if a module has weights of its own, and what stands below it has no others."""
        own = sum(w.size for w in self.matrices(index))
        return bool(own) and own == self.core[index]


def shapes_of(side: Outline, index: int) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a module's weights, sorted."""
    return tuple(sorted(weight.shape for weight in side.weights[index]))


def _is_loop(side: Outline, index: int) -> bool:
    """Return True if a recurrent layer has the weights that a module in it is handed, as those of MindSpore have."""
    above = side.tree.modules[index].parent
    return above >= 0 and bool(side.weights[above]) and side.kind(index) == side.kind(above) == "recurrent"


def _is_member(tree: Tree, index: int) -> bool:
    """Return True if a module that holds others is one of several of a list."""
    parent = tree.modules[index].parent
    return parent >= 0 and len(tree.children[parent]) > 1 and bool(tree.children[index]) and tree.name(index).isdigit()


def rows_of(weight: Weight) -> list[tuple[tuple[int, ...], int]]:
    """Return what follows the rows of a weight, and how many rows there are; nothing for vectors."""
    if len(weight.shape) < 2:
        return []
    if len(weight.shape) == 3:  # stacked, or of a convolution of one axis: each row of a slice counts
        return [((weight.shape[2],), weight.shape[0] * weight.shape[1])]
    return [(weight.shape[1:], weight.shape[0])]


def values_of(side: Outline, weight: Weight) -> np.ndarray | None:
    """Return the stored values of a weight in the canonical layout, as float32; None where they were not stored."""
    if side.reader is None or weight.tensor < 0:
        return None
    raw = side.reader.values(weight.tensor).astype(np.float32)
    return raw.transpose(weight.axes) if len(weight.axes) == raw.ndim else raw


def outline_of(reader: Reader, tree: Tree | None = None) -> Outline:
    """Return the outline of a recorded model, from the first step of the recording if there is one."""
    tree = Tree(reader.modules) if tree is None else tree
    first = int(reader.steps["step"][0]) if len(reader.steps) else None
    records = _plain(reader.of_step("records", first)) if first is not None else None
    numbers = {} if records is None else _measured(reader, records)
    turned = frozenset() if records is None else turned_classes(reader, records)
    weights = weights_of(tree, reader.parameters, reader.info.framework, numbers, turned)
    made = Outline(tree, weights, config=reader.info.model_config, reader=reader)
    if records is not None:
        made.buffers = _buffers_of(reader, records)
        calls = reader.of_step("calls", first)
        calls = calls[(calls["recomputed"] == 0) & (calls["module"] < len(tree))]  # operations stand behind the modules
        calls = calls[np.argsort(calls["seq"])[::-1]]
        made.first_call = dict(zip(calls["module"].tolist(), calls["seq"].tolist(), strict=True))
        made.inputs, made.outputs = (_seen(reader, records, role) for role in (Role.INPUT, Role.OUTPUT))
    return made


def outline(modules: Sequence[ModuleInfo], parameters: Sequence[ParameterInfo] = (), framework: str = "") -> Outline:
    """Return the outline of a model of which nothing was seen to run."""
    tree = Tree(modules)
    return Outline(tree, weights_of(tree, parameters, framework, {}))


def weights_of(
    tree: Tree,
    parameters: Sequence[ParameterInfo],
    framework: str,
    measured: Mapping[tuple[int, str], tuple[Numbers | None, int]],
    turned: Container[tuple[str, str]] = (),
) -> list[tuple[Weight, ...]]:
    """Return the parameters of each module, tied ones at every module that has them.

    ``turned`` are those of `turned_classes`.
    """
    found: list[list[Weight]] = [[] for _ in range(len(tree))]
    for index, each in enumerate(parameters):
        if each.is_buffer or 0 in each.shape:  # what is sharded away has no shape that tells anything
            continue
        is_turned = (tree.class_name(each.module), each.slot) in turned
        stored = (1, 0) if is_turned else each.axes
        axes = stored if len(stored) == len(each.shape) else range(len(each.shape))
        shape = tuple(each.shape[axis] for axis in axes)
        known = measured.get((each.module, each.slot), (None, -1))
        found[each.module].append(Weight(each.canonical_slot, shape, *known, stored, each.slot, is_turned, index))
        for name in each.names[1:]:
            owner, _, slot = name.rpartition(".")
            other = tree.by_path.get(owner)
            if other is not None and other != each.module:
                canonical = layout_of(framework, recorded_kind(framework, tree.modules[other]), slot).name
                is_again = kind_of(tree.class_name(each.module)) == "recurrent" and each.module in tree.ancestors(other)
                found[other].append(Weight(canonical, shape, *known, stored, parameter=index, is_again=is_again))
    return [tuple(each) for each in found]


def _plain(records: np.ndarray) -> np.ndarray:
    """Leave out all records but the weights at the beginning and the first calls of the first forward."""
    is_weight = np.isin(records["role"], (Role.PARAM, Role.BUFFER)) & (records["phase"] == Phase.INIT)
    forwards = records["phase"] == Phase.FORWARD
    micros = records["micro"][forwards]
    counted = micros[micros >= 0]
    first = counted.min() if len(counted) else micros.max(initial=-1)
    is_call = forwards & (records["micro"] == first) & (records["call"] == 0)
    return records[is_weight | is_call]


def _buffers_of(reader: Reader, records: np.ndarray) -> dict[int, tuple[Weight, ...]]:
    """Return the buffers of each module."""
    measured, found = _measured(reader, records, Role.BUFFER), {}
    for index, each in enumerate(reader.parameters):
        known = measured.get((each.module, each.slot))
        if each.is_buffer and known is not None:
            weight = Weight(each.canonical_slot, tuple(each.shape), *known, (), each.slot, parameter=index)
            found[each.module] = (*found.get(each.module, ()), weight)
    return found


def _measured(
    reader: Reader, records: np.ndarray, role: Role = Role.PARAM
) -> dict[tuple[int, str], tuple[Numbers | None, int]]:
    rows = records[(records["role"] == role) & (records["phase"] == Phase.INIT)]
    columns = (rows[name].tolist() for name in ("module", "slot", "tensor"))
    found = zip(*columns, _numbers(rows), strict=True)
    return {(module, reader.slots[slot]): (known, tensor) for module, slot, tensor, known in found}


def _numbers(rows: np.ndarray) -> Iterator[Numbers | None]:
    names = ("min", "max", "mean", "norm", "hash_lo", "hash_hi", "hash_kind")
    for low, high, mean, norm, lo, hi, kind in zip(*(rows[name].tolist() for name in names), strict=True):
        digest = (lo, hi, kind) if kind != HashKind.NONE else None
        yield None if math.isnan(norm) else Numbers(low, high, mean, norm, digest)


def _seen(reader: Reader, records: np.ndarray, role: Role) -> dict[int, tuple[Seen, ...]]:
    rows = records[(records["role"] == role) & (records["phase"] == Phase.FORWARD)]
    found: dict[int, list[Seen]] = {}
    for module, shape, known in zip(rows["module"].tolist(), rows["shape"].tolist(), _numbers(rows), strict=True):
        sizes = tuple(sorted(squeezed(reader.shapes[shape])))
        found.setdefault(module, []).append(Seen(sizes, known))
    return {module: tuple(seen) for module, seen in found.items()}


# Classes of which nothing says how their matrices lie: what they are given and return says it

Kind = tuple[str, str]
"""a class, and the slot of a parameter"""


def turned_classes(reader: Reader, records: np.ndarray) -> frozenset[Kind]:
    """Return the classes, with a slot each, that hold a matrix as [in, out]: all of their modules that tell say so.

    A square one does not tell; it lies as those of the other modules of its class do. The records are of the first
    calls.
    """
    given, made = (_widths(reader, records, role) for role in (Role.INPUT, Role.OUTPUT))
    votes: dict[Kind, set[bool]] = defaultdict(set)
    for each in reader.parameters:
        wide, high = given.get(each.module), made.get(each.module)
        if each.is_buffer or each.axes or len(each.shape) != 2 or wide is None or high is None or wide == high:
            continue
        if sorted(each.shape) == sorted((wide, high)):
            votes[reader.modules[each.module].class_name, each.slot].add(each.shape == (wide, high))
    return frozenset(kind for kind, seen in votes.items() if seen == {True})


def _widths(reader: Reader, records: np.ndarray, role: Role) -> dict[int, int]:
    """Return the size of the last axis of the only tensor of floats that each module was given, or returned."""
    rows = records[(records["role"] == role) & (records["phase"] == Phase.FORWARD)]
    found: dict[int, list[int]] = defaultdict(list)
    for module, shape, dtype in zip(
        rows["module"].tolist(), rows["shape"].tolist(), rows["dtype"].tolist(), strict=True
    ):
        if is_float(dtype_of(dtype.decode())) and reader.shapes[shape]:
            found[module].append(reader.shapes[shape][-1])
    return {module: sizes[0] for module, sizes in found.items() if len(sizes) == 1}
