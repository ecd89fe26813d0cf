"""What is known of one model when its modules are to be paired: weights, the order of calls, what came out."""

from __future__ import annotations

import functools
import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.matching.automatic.likeness import kind_of
from probe.matching.automatic.weights.turned import turned_classes
from probe.numbers.layouts import layout_of, recorded_kind
from probe.records import HashKind, ModuleInfo, ParameterInfo, Phase, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

LISTS = {"ModuleList", "ModuleDict", "LayerList", "LayerDict", "CellList", "CellDict", "ParameterList", "list"}
"""classes that only hold modules"""
_MATRICES = {"linear", "conv", "embedding", "recurrent"}
_WITH_WEIGHTS = {*_MATRICES, "norm"}
_SEQUENCES = {"Sequential", "SequentialCell"}


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
        """Tell whether it is anything but one number over and over."""
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
    slots: list[tuple[str, ...]] = field(default_factory=list)
    """what the parameters of each module are called there"""
    buffers: dict[int, tuple[Weight, ...]] = field(default_factory=dict)
    """by module, of floating-point numbers that were recorded"""

    def __post_init__(self) -> None:
        size = len(self.tree)
        self.begin, self.end = [0] * size, [0] * size
        preorder = _preorder(self.tree)
        for place, index in enumerate(preorder):
            self.begin[index] = place
        self.core = [sum(w.size for w in mine if len(w.shape) > 1 and not w.is_again) for mine in self.weights]
        """elements of weights of two axes and more, those below included: fusing and nesting do not change it"""
        self.carriers = [int(bool(core)) for core in self.core]
        for index in reversed(preorder):
            self.end[index] = max((self.end[c] for c in self.tree.children[index].values()), default=self.begin[index])
            parent = self.tree.modules[index].parent
            if parent >= 0:
                self.core[parent] += self.core[index]
                self.carriers[parent] += self.carriers[index]
        self.preorder = preorder
        self.by_lists = False

    @functools.cached_property
    def unmeasured(self) -> frozenset[int]:
        """Modules that must have weights, of which none is known: printed without sizes, or sharded away."""
        return frozenset(
            i for i in range(len(self))
            if not self.weights[i] and not self.tree.children[i] and kind_of(self.tree.class_name(i)) in _WITH_WEIGHTS
            and not self._is_loop(i)
        )  # fmt: skip

    def _is_loop(self, index: int) -> bool:
        """Tell whether a recurrent layer has the weights that a module in it is handed, as those of MindSpore have."""
        above = self.tree.modules[index].parent
        names = [self.tree.class_name(each) for each in (index, above)] if above >= 0 and self.weights[above] else []
        return bool(names) and all(kind_of(name) == "recurrent" for name in names)

    @property
    def lacks_sizes(self) -> bool:
        """Tell whether the sizes of many weights are not known."""
        return 5 * len(self.unmeasured) > len(self.unmeasured) + sum(map(bool, self.weights))

    def count_lists(self) -> None:
        """Let the sizes of blocks be how many members the lists in them have: the weights' are not known."""
        self.by_lists = True
        self.__dict__.pop("rows", None)
        self.core = [0] * len(self)
        for index in reversed(self.preorder):
            parent = self.tree.modules[index].parent
            is_member = bool(self.tree.children[index]) and self.tree.name(index).isdigit() and parent >= 0
            if is_member and len(self.tree.children[parent]) > 1:
                self.core[index] += 1
            if parent >= 0:
                self.core[parent] += self.core[index]

    def __len__(self) -> int:
        return len(self.tree)

    def is_below(self, index: int, top: int) -> bool:
        """Tell whether a module is another one or stands below it."""
        return self.begin[top] <= self.begin[index] <= self.end[top]

    def children(self, index: int) -> Iterable[int]:
        """Return the modules right below."""
        return self.tree.children[index].values()

    def is_list(self, index: int) -> bool:
        """Tell whether a module only holds others, and has no forward of its own."""
        return not self.weights[index] and self.tree.class_name(index) in LISTS

    def adds_nothing(self, index: int) -> bool:
        """Tell whether nobody misses a module on the other side: containers, Identity, a Dropout that drops nothing."""
        name = self.tree.class_name(index)
        if self.weights[index]:
            return False
        if self.tree.children[index]:
            return name in LISTS or name in _SEQUENCES or self.tree.wrapped(index) is not None
        return name in LISTS or "Identity" in name or ("Dropout" in name and self._passes_on(index))

    def _passes_on(self, index: int) -> bool:
        given, made = self.inputs.get(index, ()), self.outputs.get(index, ())
        if not given or not made or given[0].numbers is None or made[0].numbers is None:
            return True
        return given[0].numbers == made[0].numbers

    @functools.cached_property
    def rows(self) -> list[dict[tuple[int, ...], int]]:
        """How many rows of weights there are below each module, by what follows the first axis.

        Layers that are fused along their rows, and layers that are stacked, have as many as they have apart.
        """
        found: list[dict[tuple[int, ...], int]] = [{} for _ in self.weights]
        if self.by_lists:
            return [{(): count} for count in self.core]
        for index in reversed(self.preorder):
            mine = found[index]
            for weight in self.weights[index]:
                for key, count in () if weight.is_again else rows_of(weight):
                    mine[key] = mine.get(key, 0) + count
            parent = self.tree.modules[index].parent
            if parent >= 0:
                theirs = found[parent]
                for key, count in mine.items():
                    theirs[key] = theirs.get(key, 0) + count
        return found

    @functools.cached_property
    def prints(self) -> tuple[list[int], list[int], list[int]]:
        """Fingerprints of each module and all below, the strictest first.

        With classes and the names of weights; with shapes and nesting alone, what only holds others left out; with the
        shapes alone, in no order.
        """
        strict, nested, shapes = ([0] * len(self) for _ in range(3))
        for index in reversed(self.preorder):
            mine, below = [w for w in self.weights[index] if not w.is_again], list(self.children(index))
            counted = [child for child in below if not self.adds_nothing(child) or self.carriers[child]]
            own = tuple(sorted((w.slot, w.shape) for w in mine))
            strict[index] = hash((self.tree.class_name(index), own, tuple(strict[c] for c in counted)))
            sizes = tuple(sorted(w.shape for w in mine))
            inner = tuple(nested[c] for c in counted if nested[c])
            nested[index] = inner[0] if len(inner) == 1 and not sizes else hash((sizes, inner)) if sizes or inner else 0
            total = sum(hash(shape) for shape in sizes) + sum(shapes[c] for c in below)
            shapes[index] = total & 0xFFFFFFFFFFFFFFFF
        return strict, nested, shapes

    def stack(self, index: int) -> int:
        """Return how many like parts lie along a first axis of all matrices of a module; 0 where none do."""
        found = [weight.shape for weight in self.weights[index] if len(weight.shape) > 1]
        is_stacked = found and all(len(shape) == 3 and shape[0] == found[0][0] > 1 for shape in found)
        return found[0][0] if is_stacked and kind_of(self.tree.class_name(index)) != "conv" else 0

    def is_block(self, index: int) -> bool:
        """Tell whether a module holds several matrices."""
        if self.by_lists:
            return self.core[index] > 0
        return bool(self.stack(index)) or (self.carriers[index] > 1 and bool(self.tree.children[index]))

    def order(self, by_calls: bool) -> list[float]:
        """Return numbers by which modules sort: when they ran first, or as they stand in the tree.

        A module that was not seen to run stands behind the one before it in the tree.
        """
        if not by_calls or not self.first_call:
            return [float(place) for place in self.begin]
        found = [math.nan] * len(self)
        step = 0.5 / (len(self) + 1)
        earliest = self._earliest_below()
        last = 0.0
        for index in self.preorder:
            seen = earliest[index]
            last = found[index] = float(seen) if seen is not None else last + step
        return found

    def holds_all(self, index: int) -> bool:
        """Tell whether a module has weights of its own, and what stands below it has no others."""
        own = sum(w.size for w in self.weights[index] if len(w.shape) > 1)
        return bool(own) and own == self.core[index]

    def _earliest_below(self) -> list[int | None]:
        found: list[int | None] = [self.first_call.get(index) for index in range(len(self))]
        for index in reversed(self.preorder):
            parent = self.tree.modules[index].parent
            if parent >= 0 and parent not in self.first_call and found[index] is not None:
                mine = found[parent]
                found[parent] = found[index] if mine is None else min(mine, found[index])
        return found


def is_matrix(side: Outline, index: int) -> bool:
    """Tell whether a module holds a matrix, or must."""
    is_unknown = index in side.unmeasured and kind_of(side.tree.class_name(index)) in _MATRICES
    return is_unknown or any(len(w.shape) > 1 for w in side.weights[index])


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


def _preorder(tree: Tree) -> list[int]:
    found = []
    stack = [tree.root] if len(tree) else []
    while stack:
        index = stack.pop()
        found.append(index)
        stack.extend(reversed(tree.children[index].values()))
    return found


def outline_of(reader: Reader, tree: Tree | None = None) -> Outline:
    """Return the outline of a recorded model, from the first step of the recording if there is one."""
    tree = Tree(reader.modules) if tree is None else tree
    first = int(reader.steps["step"][0]) if len(reader.steps) else None
    records = _plain(reader.of_step("records", first)) if first is not None else None
    numbers = {} if records is None else _measured(reader, records)
    turned = frozenset() if records is None else turned_classes(reader, records)
    made = Outline(tree, weights_of(tree, reader.parameters, reader.info.framework, numbers, turned),
                   config=reader.info.model_config, reader=reader, slots=_slots(tree, reader.parameters))  # fmt: skip
    if records is not None:
        made.buffers = _buffers_of(reader, records)
        calls = reader.of_step("calls", first)
        calls = calls[calls["recomputed"] == 0]
        made.first_call = _first_calls(calls)
        made.inputs = dict(_seen(reader, records, Role.INPUT))
        made.outputs = dict(_seen(reader, records, Role.OUTPUT))
    return made


def outline(modules: Sequence[ModuleInfo], parameters: Sequence[ParameterInfo] = (), framework: str = "") -> Outline:
    """Return the outline of a model of which nothing was seen to run."""
    tree = Tree(modules)
    return Outline(tree, weights_of(tree, parameters, framework, {}), slots=_slots(tree, parameters))


def _slots(tree: Tree, parameters: Sequence[ParameterInfo]) -> list[tuple[str, ...]]:
    found: list[list[str]] = [[] for _ in range(len(tree))]
    for each in parameters:
        if not each.is_buffer:
            found[each.module].append(each.slot)
    return [tuple(each) for each in found]


def weights_of(
    tree: Tree,
    parameters: Sequence[ParameterInfo],
    framework: str,
    measured: Mapping[tuple[int, str], tuple[Numbers | None, int]],
    turned: Container[tuple[str, str]] = (),
) -> list[tuple[Weight, ...]]:
    """Return the parameters of each module, tied ones at every module that has them.

    Parameters
    ----------
    turned
        see `turned_classes`
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
                is_again = kind_of(tree.class_name(each.module)) == "recurrent" and _is_below(tree, other, each.module)
                found[other].append(Weight(canonical, shape, *known, stored, parameter=index, is_again=is_again))
    return [tuple(each) for each in found]


def _is_below(tree: Tree, index: int, top: int) -> bool:
    return tree.modules[index].path.startswith(f"{tree.modules[top].path}.")


def _plain(records: np.ndarray) -> np.ndarray:
    """Leave out all records but the weights at the beginning and the first calls of the first forward."""
    is_weight = np.isin(records["role"], (Role.PARAM, Role.BUFFER)) & (records["phase"] == Phase.INIT)
    forwards = records["phase"] == Phase.FORWARD
    micros = records["micro"][forwards]
    first = (
        micros[micros >= 0].min(initial=np.iinfo(micros.dtype).max) if (micros >= 0).any() else micros.max(initial=-1)
    )
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


def _first_calls(calls: np.ndarray) -> dict[int, int]:
    found: dict[int, int] = {}
    for module, seq in zip(calls["module"].tolist(), calls["seq"].tolist(), strict=True):
        found[module] = min(seq, found.get(module, seq))
    return found


def _seen(reader: Reader, records: np.ndarray, role: Role) -> Iterator[tuple[int, tuple[Seen, ...]]]:
    rows = records[(records["role"] == role) & (records["phase"] == Phase.FORWARD)]
    found: dict[int, list[Seen]] = {}
    for module, shape, known in zip(rows["module"].tolist(), rows["shape"].tolist(), _numbers(rows), strict=True):
        sizes = tuple(sorted(size for size in reader.shapes[shape] if size != 1))
        found.setdefault(module, []).append(Seen(sizes, known))
    for module, seen in found.items():
        yield module, tuple(seen)
