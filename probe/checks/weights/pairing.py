"""Which weight of one checkpoint is which of another: by names, or by a mapping and the structures of both models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from probe.checkpoints import Checkpoint
from probe.conversion.plan import Move, matched, planned
from probe.conversion.structure import Structure, Weight, structure_of
from probe.conversion.weights import made
from probe.mapping import load_mapping
from probe.matching import Direction
from probe.numbers.axis_sums import squeezed
from probe.numbers.layouts import layout_of
from probe.records import DirectionName, ModuleInfo
from probe.structure.tree import Tree

_WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_layers"}
"""what wrappers put before the names of what they hold"""


@dataclass(frozen=True)
class WeightPair:
    """A weight of B and what of A it is."""

    name_a: str
    """several with a plus between them where they lie in one in B"""
    name_b: str
    shape: tuple[int, ...]
    """of B, in the canonical layout where the structure is known"""
    a: Callable[[], np.ndarray]
    """gives A's values, as they lie in B where that is known"""
    b: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Pairing:
    """What of two checkpoints belongs together."""

    pairs: tuple[WeightPair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    misshapen: tuple[str, ...] = ()
    """what has the same name, and no shape in common, in words"""


def paired_weights(
    a: Checkpoint,
    b: Checkpoint,
    mapping: Any = None,
    source: Any = None,
    like: Any = None,
    direction: DirectionName | None = None,
) -> Pairing:
    """Return which weights of two checkpoints belong together.

    The layer mapping is None where names are equal; ``direction`` says which side it is written from, found out when
    None. ``source`` and ``like`` are recordings of A's and of B's model, or the models: then the classes of the
    modules are known; else names alone are. Raises MappingError or ConversionError where the mapping cannot be used.
    """
    if mapping is None and source is None and like is None:
        return _by_names(a, b)
    here = structure_of(source) if source is not None else _of_names(a)
    there = structure_of(like) if like is not None else _of_names(b)
    misshapen: list[str] = []
    sides = matched(here, there, load_mapping(mapping), Direction.named(direction))
    plan = planned(a.tensors, sides, allow_missing=("*",), allow_extra=("*",), left_misshapen=misshapen)
    pairs, taken = [], set()
    for move in plan.moves:
        name = _spelled(move.target.name, b.tensors)
        if name and move.parts:
            taken.add(name)
            pairs.append(_moved(move, name, a, b))
    used = {part.stored.name for move in plan.moves for part in move.parts}
    only_a, only_b = (
        tuple(name for name in each.tensors if name not in gone) for each, gone in ((a, used), (b, taken))
    )
    return Pairing(tuple(pairs), only_a, only_b, tuple(misshapen))


def _moved(move: Move, name: str, a: Checkpoint, b: Checkpoint) -> WeightPair:
    names = " + ".join(dict.fromkeys(part.stored.name for part in move.parts))
    return WeightPair(names, name, move.canonical_shape, partial(made, move, a.read), partial(b.read, name))


def _spelled(name: str, tensors: Container[str]) -> str:
    """Return a name as a checkpoint has it, with fewer components in front; empty where it has none."""
    parts = name.split(".")
    return next((each for at in range(len(parts)) if (each := ".".join(parts[at:])) in tensors), "")


# By names alone


def _by_names(a: Checkpoint, b: Checkpoint) -> Pairing:
    """Pair by equal names, but for wrappers and one prefix that one side alone has."""
    mine, theirs = ({_bare(name): name for name in each.tensors} for each in (a, b))
    prefix_a, prefix_b = _prefixes(mine, theirs)
    theirs = {name.removeprefix(prefix_b): full for name, full in theirs.items()}
    mine = {name.removeprefix(prefix_a): full for name, full in mine.items()}
    pairs, misshapen = [], []
    for name, full_a in mine.items():
        full_b = theirs.get(name)
        if full_b is None:
            continue
        shapes = a.tensors[full_a].shape, b.tensors[full_b].shape
        if sorted(squeezed(shapes[0])) != sorted(squeezed(shapes[1])):
            misshapen.append(f"{full_a} {list(shapes[0])}, in B {list(shapes[1])}")
            continue
        read = partial(_as_b, a, full_a, shapes[1])
        pairs.append(WeightPair(full_a, full_b, shapes[1], read, partial(b.read, full_b)))
    only_a = tuple(full for name, full in mine.items() if name not in theirs)
    only_b = tuple(full for name, full in theirs.items() if name not in mine)
    return Pairing(tuple(pairs), only_a, only_b, tuple(misshapen))


def _bare(name: str) -> str:
    parts = name.split(".")
    while len(parts) > 1 and parts[0] in _WRAPPERS:
        parts.pop(0)
    return ".".join(parts)


def _prefixes(a: Iterable[str], b: Iterable[str]) -> tuple[str, str]:
    """Return what to take from the beginning of A's names and of B's, so that most of them are the same."""
    mine, theirs = set(a), set(b)
    best = len(mine & theirs), ("", "")
    for names, others, side in ((mine, theirs, 0), (theirs, mine, 1)):
        for first, _ in Counter(name.partition(".")[0] for name in names).most_common(2):
            prefix = f"{first}."
            count = len({name.removeprefix(prefix) for name in names} & others)
            if count > best[0]:
                best = count, (prefix, "") if side == 0 else ("", prefix)
    return best[1]


def _as_b(a: Checkpoint, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values of A as they may lie in B: turned where the shape says so."""
    values = a.read(name)
    if values.shape != shape and values.shape == shape[::-1]:
        return values.T
    return values.reshape(shape) if squeezed(values.shape) == squeezed(shape) else values


def _of_names(checkpoint: Checkpoint) -> Structure:
    """Return what the names of a checkpoint tell of its model: modules without classes."""
    framework = checkpoint.framework or "torch"
    modules, places = [ModuleInfo("", "", -1)], {"": 0}
    weights = []
    for name, stored in checkpoint.tensors.items():
        owner, _, slot = name.rpartition(".")
        module = _placed(owner, modules, places)
        weights.append(Weight((name,), module, slot, stored.shape, layout_of(framework, (), slot)))
    return Structure(framework, Tree(modules), [()] * len(modules), weights)


def _placed(path: str, modules: list[ModuleInfo], places: dict[str, int]) -> int:
    if path not in places:
        parent = _placed(path.rpartition(".")[0], modules, places)
        places[path] = len(modules)
        modules.append(ModuleInfo(path, "", parent))
    return places[path]


__all__ = ["Pairing", "WeightPair", "paired_weights"]
