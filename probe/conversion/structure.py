"""What is known of a model's weights without their values: the modules, their classes, and how each weight lies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.adapters.base import adapter_for
from probe.errors import ConversionError, MappingError
from probe.mapping import LayerMapping
from probe.mapping.patterns import places
from probe.mapping.sections import SectionIndex, ways
from probe.numbers.layouts import (
    RECURRENT,
    Layout,
    class_names,
    counterpart,
    layout_of,
    recorded_kind,
    stored_as,
    unpacked,
)
from probe.ranks.opening import open_reader
from probe.records import ModuleInfo
from probe.structure.parametrized import parametrized
from probe.structure.tree import Tree

Key = tuple[int, str]
"""(module, canonical name below it) of a weight, or of a part of one"""

_PACKED = ("q_proj", "k_proj", "v_proj")
COUNTER = "num_batches_tracked"
"""BatchNorm's count of batches: only torch has it"""


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer."""

    names: tuple[str, ...]
    """every qualified name, the first is the owner's"""
    module: int
    slot: str
    shape: tuple[int, ...]
    layout: Layout
    is_persistent: bool = True
    """checkpoints hold it"""

    @property
    def canonical_shape(self) -> tuple[int, ...]:
        """The shape in the canonical layout."""
        order = self.layout.axes if len(self.layout.axes) == len(self.shape) else range(len(self.shape))
        return tuple(self.shape[axis] for axis in order if axis not in self.layout.unit)


@dataclass(frozen=True)
class Structure:
    """The modules and weights of a model."""

    framework: str
    tree: Tree
    kinds: Sequence[tuple[str, ...]]
    """names of the class and its bases, as `probe.numbers.layouts` takes them, by module"""
    weights: Sequence[Weight]
    config: Mapping[str, object] | None = None
    """of the model; None where nothing is known of it"""

    def parts(self, weight: Weight) -> tuple[str, ...]:
        """Return the canonical names of what is packed in a weight; only itself when nothing is."""
        return unpacked(self.framework, self.kinds[weight.module], weight.slot) or (weight.layout.name,)

    def keys_of(self, weight: Weight) -> list[Key]:
        """Return the keys of a weight that is not packed, by each of its names."""
        found = [parametrized(self.tree, weight.module, weight.slot) or (weight.module, weight.layout.name)]
        for name in weight.names[1:]:
            owner, _, slot = name.rpartition(".")
            module = self.tree.by_path.get(owner)
            if module is not None:
                found.append((module, layout_of(self.framework, self.kinds[module], slot).name))
        return found


def structure_of(source: Any) -> Structure:
    """Return the structure of a model of a framework that probe knows, or of the model that a recording is of.

    A recording is given by its path.
    """
    return _of_recording(source) if isinstance(source, (str, os.PathLike)) else _of_model(source)


def _of_recording(path: str | os.PathLike[str]) -> Structure:
    with open_reader(path) as reader:
        framework, modules, parameters = reader.info.framework, reader.modules, reader.parameters
        config = reader.info.model_config
    kinds = [recorded_kind(framework, module) for module in modules]
    weights = []
    for p in parameters:
        by_class = layout_of(framework, kinds[p.module], p.slot)
        layout = Layout(p.canonical, p.axes, by_class.unit) if p.canonical else by_class
        weights.append(Weight(p.names, p.module, p.slot, p.shape, _fitting(layout, p.shape), p.is_persistent))
    return Structure(framework, Tree(modules), kinds, weights, config)


def _of_model(model: Any) -> Structure:
    adapter = adapter_for(model)
    found = list(adapter.modules(model))
    index = {named.path: i for i, named in enumerate(found)}
    modules = [
        ModuleInfo(named.path, type(named.module).__name__, index[_parent(named.path)] if named.path else -1)
        for named in found
    ]
    kinds = [class_names(type(named.module)) for named in found]
    weights = []
    for named in adapter.parameters(model):
        owner, _, slot = named.names[0].rpartition(".")
        shape = tuple(adapter.facts(named.tensor).shape)
        layout = _fitting(layout_of(adapter.framework, kinds[index[owner]], slot), shape)
        weights.append(Weight(named.names, index[owner], slot, shape, layout, named.is_persistent))
    return Structure(adapter.framework, Tree(modules), kinds, weights, adapter.model_config(model))


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _fitting(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return a layout without what a shape does not have."""
    axes = layout.axes if len(layout.axes) == len(shape) else ()
    return Layout(layout.name, axes, tuple(axis for axis in layout.unit if axis < len(shape) and shape[axis] == 1))


# The structure that a model has in another framework, where only one side is known


def imagined(
    known: Structure, framework: str, mapping: LayerMapping, by_paconvert: bool = False
) -> tuple[Structure, dict[int, int]]:
    """Return the structure that a model has in another framework, and its module for each of the known one's.

    ``by_paconvert``: as in `probe.numbers.layouts.counterpart`. Raises ConversionError where a class whose
    counterpart probe does not know holds a weight of more than one axis.
    """
    _check_written_from(known, mapping)
    _check_needs_one(known, mapping)
    there = _Imagined(known, framework, mapping, by_paconvert)
    renamed = [
        ModuleInfo(module.path, kinds[0].rpartition(".")[2] if kinds else "", module.parent)
        for module, kinds in zip(there.modules, there.kinds, strict=True)
    ]
    return Structure(framework, Tree(renamed), there.kinds, there.weights), there.partner


class _Imagined:
    """The other framework's model, as it is put together."""

    def __init__(self, known: Structure, framework: str, mapping: LayerMapping, by_paconvert: bool) -> None:
        self.known, self.framework = known, framework
        self.modules, self.by_path = [ModuleInfo("", "", -1)], {"": 0}
        self.kinds: list[tuple[str, ...]] = [()]
        self.partner: dict[int, int] = {}
        self.weights: list[Weight] = []
        for index, path in enumerate(_renamed(known.tree, mapping)):
            place = self.partner[index] = self._placed(path)
            self.kinds[place] = (counterpart(known.framework, known.kinds[index], framework, by_paconvert),)
        for weight in known.weights:
            if weight.slot != COUNTER:
                self._add(weight)

    def _placed(self, path: str) -> int:
        """Return the module at a path, made with all that it stands in where it is not there yet."""
        if path not in self.by_path:
            parent = self._placed(_parent(path))
            self.by_path[path] = len(self.modules)
            self.modules.append(ModuleInfo(path, "", parent))
            self.kinds.append(())
        return self.by_path[path]

    def _add(self, weight: Weight) -> None:
        """Append what takes the place of a weight."""
        known = self.known
        attention = known.tree.modules[weight.module].parent
        parts = known.parts(weight)
        if len(parts) > 1 or parts[0] != weight.layout.name:
            place = self.partner[weight.module]
            if unpacked(self.framework, self.kinds[place], weight.slot):
                self._append(place, weight.slot, weight.canonical_shape, Layout(weight.slot))
            else:
                self._add_unpacked(place, weight, parts)
        elif attention >= 0 and self._is_packed(attention) and known.tree.name(weight.module) in _PACKED:
            self._add_packed(attention, known.tree.name(weight.module), weight)
        else:
            self._add_single(weight)

    def _is_packed(self, module: int) -> bool:
        """Return True if the counterpart of a module is an attention that packs what its children hold here."""
        return bool(unpacked(self.framework, self.kinds[self.partner[module]], "in_proj_weight"))

    def _add_unpacked(self, place: int, weight: Weight, parts: tuple[str, ...]) -> None:
        shape = (weight.canonical_shape[0] // len(parts), *weight.canonical_shape[1:])
        linear = counterpart("torch", ("Linear",), self.framework)
        for part in parts:
            path, _, canonical = part.rpartition(".")
            base = self.modules[place].path
            child = self._placed(f"{base}.{path}" if base else path)
            self.kinds[child] = (linear,)
            slot, layout = stored_as(self.framework, linear, canonical)
            self._append(child, slot, shape, layout)

    def _add_packed(self, attention: int, child: str, weight: Weight) -> None:
        """Let q, k and v of one size be one parameter, and be three otherwise, as torch does."""
        siblings = [
            other for other in self.known.weights
            if self.known.tree.modules[other.module].parent == attention and other.layout.name == weight.layout.name
            and self.known.tree.name(other.module) in _PACKED
        ]  # fmt: skip
        place = self.partner[attention]
        shapes = {other.canonical_shape for other in siblings}
        is_one = len(siblings) == 3 and len(shapes) == 1
        slot = f"in_proj_{weight.layout.name}" if is_one else f"{child}_{weight.layout.name}"
        shape = (3 * weight.canonical_shape[0], *weight.canonical_shape[1:]) if is_one else weight.canonical_shape
        if not is_one or child == "q_proj":
            self._append(place, slot, shape, Layout(slot))

    def _add_single(self, weight: Weight) -> None:
        known = self.known
        home = known.keys_of(weight)[0][0]
        place = self.partner[home]
        class_name = self.kinds[place][0] if self.kinds[place] else ""
        if not class_name and sum(size > 1 for size in weight.canonical_shape) > 1:
            raise ConversionError(
                f"{weight.names[0]}: probe does not know whether what {known.tree.class_name(weight.module)} is in "
                f"{self.framework} stores it in the same order of axes: record the {self.framework} model too (task "
                '"structure" is enough) and give both recordings with --from and --like'
            )
        for module, canonical in known.keys_of(weight):  # each name of a tied one, as its class has it
            if module == home or not _is_inside_recurrent(known, module):
                place = self.partner[module]
                class_name = self.kinds[place][0] if self.kinds[place] else ""
                slot, layout = stored_as(self.framework, class_name, canonical)
                if self.framework == known.framework and module == weight.module:
                    slot, layout = weight.slot, weight.layout
                self._append(place, slot, weight.canonical_shape, layout, weight.is_persistent)

    def _append(
        self, place: int, slot: str, canonical_shape: tuple[int, ...], layout: Layout, is_persistent: bool = True
    ) -> None:
        path = self.modules[place].path
        shape = stored_shape(canonical_shape, layout)
        self.weights.append(Weight((f"{path}.{slot}" if path else slot,), place, slot, shape, layout, is_persistent))


def stored_shape(canonical: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Return the shape in which a layout stores what has a shape in the canonical one."""
    axes = layout.axes if len(layout.axes) == len(canonical) else tuple(range(len(canonical)))
    shape = [canonical[axes.index(axis)] for axis in range(len(canonical))]
    for axis in layout.unit:
        shape.insert(axis, 1)
    return tuple(shape)


def _is_inside_recurrent(known: Structure, module: int) -> bool:
    """Return True if a module is a cell of an LSTM or GRU, which lists the parameters under names of its own too."""
    parent = known.tree.modules[module].parent
    while parent >= 0:
        if any(name.rpartition(".")[2] in RECURRENT for name in known.kinds[parent]):
            return True
        parent = known.tree.modules[parent].parent
    return False


def _renamed(tree: Tree, mapping: LayerMapping) -> list[str]:
    """Return the path that each module has on the other side, as far as the mapping alone tells."""
    found: list[tuple[str, ...]] = []
    for index, (start, key) in enumerate(ways(tree, SectionIndex(mapping, tree))):
        name = tree.name(index)
        own = key.targets[0] if key and key.targets else () if start < 0 or tree.wrapped(start) == name else (name,)
        found.append((*found[start], *own) if start >= 0 else ())
    return [".".join(names) for names in found]


def _check_needs_one(known: Structure, mapping: LayerMapping) -> None:
    """Refuse a mapping that says more than what modules are called: how weights lie takes the sizes of both sides."""
    more = [
        rule
        for rule in mapping.rules
        if len(rule.targets) > 1 or rule.transpose or rule.permute or rule.rotary or rule.split.shares
    ]
    first = next(iter([*more, *mapping.parameter_rules()]), None)
    if first is not None:
        raise ConversionError(
            f"{mapping.name}: {first}: how weights lie can only be told from both models, and the {known.framework} one alone is "
            "known: give both recordings with --from and --like"
        )


def _check_written_from(known: Structure, mapping: LayerMapping) -> None:
    tree, members = known.tree, SectionIndex(mapping, known.tree).members
    if mapping.rules and not any(
        True
        for section in mapping.sections
        for rule in section.rules
        for index in members[section.name]
        for key in rule.keys
        for _ in places(tree, index, key)
    ):
        raise MappingError(
            f"{mapping.name}: none of its {len(mapping.rules)} keys names a module of the {known.framework} model that was "
            "given: it is written from the other side, whose recording is needed too (--from and --like)"
        )
