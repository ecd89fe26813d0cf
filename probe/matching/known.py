"""What matching knows of a side beside its tree: parameters and the model's configuration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from probe.matching.result import Place
from probe.records import ParameterInfo
from probe.structure.tree import Tree

ALIASES = (
    ("num_key_value_heads", "num_query_groups", "multi_query_group_num", "kv_heads", "n_kv_heads", "num_kv_heads"),
    ("num_attention_heads", "n_heads", "num_heads", "n_head"),
)
"""what frameworks call the number of key and value heads, and that of heads"""


@dataclass(frozen=True)
class Known:
    """A tree, and what its recording knows of parameters and ``model_config``; None where nothing is known."""

    tree: Tree
    parameters: Sequence[ParameterInfo] | None = None
    config: Mapping[str, Any] | None = None

    def of(self, tree: Tree) -> Known:
        """Return the same of another tree."""
        return self if tree is self.tree else replace(self, tree=tree)

    @cached_property
    def _shapes(self) -> dict[int, tuple[tuple[int, ...], ...]]:
        return {}

    @cached_property
    def slots(self) -> dict[int, dict[str, ParameterInfo]]:
        """The parameters of each module, by what its class and what torch call them."""
        found: dict[int, dict[str, ParameterInfo]] = {}
        for parameter in self.parameters or ():
            own = found.setdefault(parameter.module, {})
            own.setdefault(parameter.canonical_slot, parameter)
            own[parameter.slot] = parameter
            for name in parameter.names[1:]:
                path, _, slot = name.rpartition(".")
                module = self.tree.by_path.get(path)
                if module is not None:
                    found.setdefault(module, {}).setdefault(slot, parameter)
        return found

    def shapes_below(self, module: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of all parameters of a module and below, in their canonical layouts, sorted."""
        if module not in self._shapes:
            own = [
                canonical_shape(each) for index in self.tree.subtree(module)
                for each in {id(p): p for p in self.slots.get(index, {}).values()}.values()
            ]  # fmt: skip
            self._shapes[module] = tuple(sorted(own))
        return self._shapes[module]

    def elements(self, module: int) -> int:
        """Return how many elements the parameters of a module and below have, tied ones counted once."""
        found = {id(each): each for index in self.tree.subtree(module) for each in self.slots.get(index, {}).values()}
        return sum(math.prod(each.shape) for each in found.values() if not each.is_buffer)

    def is_as_large(self, outer: int, inner: int, other: Known, like: int) -> bool:
        """Return True if a module, rather than one in it, is as large as a module of another side; of equals the outer."""
        wanted = other.elements(like)
        return abs(self.elements(outer) - wanted) <= abs(self.elements(inner) - wanted)

    def parameter(self, module: int, path: Sequence[str]) -> tuple[Place, ParameterInfo | None] | None:
        """Return a parameter at a path below a module, None where there is none."""
        used = 0
        while used < len(path) - 1 and (child := self.tree.child(module, path[used])) is not None:
            module, used = child, used + 1
        module, slot = self.tree.unwrapped(module), ".".join(path[used:])
        if self.parameters is None:
            return ((module, slot), None) if used == len(path) - 1 else None
        found = self.slots.get(module, {}).get(slot)
        return None if found is None else ((found.module, found.slot), found)

    def number(self, key: str) -> int | None:
        """Return a number of the configuration; the names that frameworks have for one thing count as one.

        Raises ValueError where several parts of the configuration have different numbers of that name.
        """
        *path, last = key.split(".")
        config: Any = self.config or {}
        for name in path:
            config = config.get(name) if isinstance(config, Mapping) else None
        keys = next(([last, *sorted({*names} - {last})] for names in ALIASES if last in names), [last])
        if not isinstance(config, Mapping):
            return None
        for depth in (_here, _below):
            found = {(path, value) for name in keys for path, value in depth(config, name)}
            if len({value for _, value in found}) > 1:
                choices = " or ".join(sorted(path for path, _ in found))
                raise ValueError(f"the recorded model_config has several: write {choices}")
            if found:
                return next(iter(found))[1]
        return None


def _here(config: Mapping[str, Any], name: str) -> Iterator[tuple[str, int]]:
    value = config.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield name, value


def _below(config: Mapping[str, Any], name: str) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{path}", number) for path, number in [*_here(value, name), *_below(value, name)])


def canonical_shape(parameter: ParameterInfo, axes: Sequence[int] = ()) -> tuple[int, ...]:
    """Return a parameter's shape in its canonical layout, or with its axes in a given order."""
    shape, order = parameter.shape, axes or parameter.axes
    if any(axis >= len(shape) for axis in order):
        return shape
    return tuple(shape[axis] for axis in (*order, *range(len(order), len(shape))))
