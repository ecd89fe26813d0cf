"""What an operation is called in each framework."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib.resources import files

from probe.records import ModuleInfo

LAYOUT = frozenset(("copy", "view", "transpose", "part", "expand", "join"))
"""operations that move numbers and compute none"""


def canonical(qualified_name: str) -> str:
    """Return the name of an operation for all frameworks: ``softmax`` for ``torch.nn.functional.softmax``."""
    name = qualified_name.rpartition(".")[2].strip("_")
    return _names().get(name, name)


def arguments_of(operation: ModuleInfo) -> dict[str, object]:
    """Return what an operation was given beside tensors, by name or place."""
    found = json.loads(operation.arguments or "{}")
    return found if isinstance(found, dict) else {}


def differing(a: ModuleInfo, b: ModuleInfo) -> dict[str, tuple[object, object]]:
    """Return the arguments of two operations that differ, with both values: ``{"eps": (1e-06, 1e-05)}``.

    Arguments that one side alone has are left out: of functions with other signatures that tells nothing.
    """
    mine, theirs = arguments_of(a), arguments_of(b)
    return {name: (mine[name], theirs[name]) for name in mine if name in theirs and mine[name] != theirs[name]}


def given_alone(a: ModuleInfo, b: ModuleInfo) -> tuple[str, dict[str, object]]:
    """Return the side that gives one function more arguments than the other does, A or B, and these; an empty text if neither does."""
    mine, theirs = arguments_of(a), arguments_of(b)
    only = {"A": mine.keys() - theirs.keys(), "B": theirs.keys() - mine.keys()}
    if a.class_name != b.class_name or bool(only["A"]) == bool(only["B"]):
        return "", {}
    side, given = ("A", mine) if only["A"] else ("B", theirs)
    return side, {name: given[name] for name in given if name in only[side]}


@functools.cache
def _names() -> Mapping[str, str]:
    import yaml  # few comparisons need the table

    table = yaml.safe_load(files("probe.operations").joinpath("names.yaml").read_text(encoding="utf-8"))
    return {name: own for kinds in table.values() for own, names in kinds.items() for name in names}
