"""Applying a mapping to two trees, in tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.mapping import load_mapping
from probe.mapping.parsing import parse_mapping
from probe.matching import Direction, Known, Matching, match
from probe.records import ParameterInfo
from probe.structure.tree import Tree


def nothing(_: int) -> frozenset[object]:
    return frozenset()


def matched(a: Tree | Known, b: Tree | Known, sections: Any, direction: Direction | None = None) -> Matching:
    mapping = parse_mapping(sections, "m") if isinstance(sections, str) else load_mapping(sections)
    return match(a, b, mapping, nothing, nothing, direction)


def names(found: Matching, a: Tree, b: Tree) -> dict[str, str]:
    return {a.path(pair.a): b.path(pair.b) for pair in found.pairs}


def with_parameters(
    net: Tree, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None, **more: Mapping[str, Any]
) -> Known:
    """Give a tree parameters by path; ``more`` has further fields, by name and path."""
    found = []
    for path, shape in shapes.items():
        owner, _, slot = path.rpartition(".")
        fields = {name: values[path] for name, values in more.items() if path in values}
        found.append(ParameterInfo((path,), net.by_path[owner], slot, shape, "float32", True, **fields))
    return Known(net, found, config)
