"""The parameters of all ranks as those of one model: which are one, how they are divided, and what shape the whole has."""

from __future__ import annotations

import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from probe.notes import Note, note
from probe.ranks.dims.arranging import Arrangement, arranged
from probe.ranks.dims.defaults import is_gated, of_parameter
from probe.ranks.dims.language import Dims, parsed
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member
from probe.ranks.tree import Facts, Union
from probe.records import ModuleInfo, ParameterInfo

Told = Callable[[str, str], Dims | None]
"""what the user says of a module's tensor: by path, and by role and slot such as ``output 0`` or ``param weight``"""


@dataclass(frozen=True)
class Weights:
    """The parameters of the whole."""

    infos: tuple[ParameterInfo, ...]
    index_of: tuple[tuple[int, ...], ...]
    """by member, for each of its parameters that of the whole"""
    dims: tuple[Dims | None, ...]
    """how each is divided; None where nothing says it"""
    facts: tuple[Facts, ...]
    held: tuple[frozenset[tuple[int, ...]], ...]
    """the shapes that ranks hold of each"""
    notes: tuple[Note, ...] = ()


@dataclass
class _Found:
    """A parameter, and who has it."""

    info: ParameterInfo
    holders: list[tuple[int, int]]
    """member, and index there"""
    facts: Facts
    names: dict[str, None]


def weights_of(
    members: Sequence[Member], layout: Layout, union: Union, told: Told, known: Mapping[str, int]
) -> Weights:
    """Return the parameters of all ranks.

    ``told`` is what the user says of their dims; ``known`` are sizes of factors of axes, by name.
    """
    found, index_of = _collected(members, union)
    infos: list[ParameterInfo] = []
    dims: list[Dims | None] = []
    notes: list[Note] = []
    for each in found:
        own = _dims_of(each, members, union, layout, told)
        shape, problem = _whole_shape(each, own, members, layout, known)
        if problem:
            ranks = tuple(members[member].rank for member, _ in each.holders)
            notes.append(note("parts-do-not-fit", path=each.info.names[0], ranks=ranks, why=problem))
        infos.append(replace(each.info, names=tuple(each.names), shape=shape))
        dims.append(own)
    held = tuple(
        frozenset(members[member].reader.parameters[index].shape for member, index in each.holders) for each in found
    )
    return Weights(tuple(infos), index_of, tuple(dims), tuple(each.facts for each in found), held, tuple(notes))


def with_parameters(modules: Sequence[ModuleInfo], infos: Sequence[ParameterInfo]) -> list[ModuleInfo]:
    """Return modules with the numbers of elements of all their parameters; one that has several names in a module counts once there."""
    index, counts = {module.path: k for k, module in enumerate(modules)}, [0] * len(modules)
    for info in infos:
        holders = set[int]()
        for name in () if info.is_buffer else info.names:
            at = index.get(name.rpartition(".")[0], -1)
            while at >= 0 and at not in holders:
                holders.add(at)
                at = modules[at].parent
        for at in holders:
            counts[at] += math.prod(info.shape)
    return [replace(module, n_params=count) for module, count in zip(modules, counts, strict=True)]


def resolved(dims: Dims, layout: Layout) -> Dims:
    """Return dims over the groups that there are; what is said of groups of one rank divides nothing."""
    splits = tuple(replace(split, group=layout.meant(split.group)) for split in dims.splits)
    kept = tuple(split for split in splits if layout.size(split.group) > 1)
    partial = tuple(layout.meant(name) for name in dims.partial if layout.size(layout.meant(name)) > 1)
    return replace(dims, splits=kept, partial=partial)


def first_of_each(dims: Dims, holders: Sequence[tuple[int, Mapping[str, int]]]) -> dict[tuple[int, ...], list[int]]:
    """Return which of some holders, by their numbers, are copies: by their places in the groups over which a tensor is divided."""
    found: dict[tuple[int, ...], list[int]] = defaultdict(list)
    groups = dims.groups
    for number, places in holders:
        found[tuple(places.get(group, 0) for group in groups)].append(number)
    return found


def _collected(members: Sequence[Member], union: Union) -> tuple[list[_Found], tuple[tuple[int, ...], ...]]:
    found: list[_Found] = []
    by_name: dict[str, int] = {}
    shared: dict[str, int] = {}
    index_of = []
    for member in sorted(members, key=lambda each: (each.stage, each.number)):
        facts = member.parameters
        whole = dict(zip((m.path for m in member.reader.modules), union.paths[member.number], strict=True))
        own = []
        for index, info in enumerate(member.reader.parameters):
            names = [_renamed(name, whole) for name in info.names]
            said = next((facts[name] for name in info.names if name in facts), {})
            tie = "embedding" if said.get("shared_embedding") or said.get("shared") else ""
            at = next((by_name[name] for name in names if name in by_name), shared.get(tie))
            if at is None:
                at = len(found)
                module = int(member.module_of[info.module])
                found.append(_Found(replace(info, module=module, names=tuple(names)), [], said, {}))
            entry = found[at]
            entry.holders.append((member.number, index))
            entry.names.update(dict.fromkeys(names))
            by_name.update(dict.fromkeys(names, at))
            if tie:
                shared.setdefault(tie, at)
            own.append(at)
        index_of.append((member.number, tuple(own)))
    return found, tuple(each for _, each in sorted(index_of))


def _renamed(name: str, whole: Mapping[str, str]) -> str:
    owner, _, slot = name.rpartition(".")
    path = whole.get(owner, owner)
    return f"{path}.{slot}" if path else slot


def _dims_of(found: _Found, members: Sequence[Member], union: Union, layout: Layout, told: Told) -> Dims | None:
    module = union.modules[found.info.module]
    said = told(module.path, f"param {found.info.slot}")
    if said is None:
        member, _ = found.holders[0]
        reader = members[member].reader
        local = reader.modules[reader.parameters[found.holders[0][1]].module].path
        gated = is_gated(module.path, reader.info.model_config)
        own = members[member].modules.get(local, {})
        said = of_parameter(module.class_name, found.facts, own, found.info.slot, reader.info.framework, is_gated=gated)
    return None if said is None else resolved(said, layout)


def _whole_shape(
    found: _Found, dims: Dims | None, members: Sequence[Member], layout: Layout, known: Mapping[str, int]
) -> tuple[tuple[int, ...], str]:
    """Return the shape of the whole, and what is wrong with its parts."""
    shapes = [members[member].reader.parameters[index].shape for member, index in found.holders]
    if dims is None or not dims.groups:
        same = len(set(shapes)) == 1
        return shapes[
            0
        ], "" if same else f"ranks hold shapes {', '.join(str(list(each)) for each in sorted(set(shapes)))}"
    holders = [(k, members[member].places) for k, (member, _) in enumerate(found.holders)]
    firsts = [copies[0] for _, copies in sorted(first_of_each(dims, holders).items())]
    sizes = {name: layout.size(name) for name in dims.groups}
    made = arranged(dims, [(holders[k][1], shapes[k]) for k in firsts], sizes, known)
    return (made.shape, "") if isinstance(made, Arrangement) else (shapes[0], made)


# ---- what the user says


def fits(path: str, pattern: str) -> bool:
    """Return True if a path is one of a module that a glob names."""
    return path == pattern or fnmatch.fnmatchcase(path, pattern)


def told_by(layouts: Mapping[str, str]) -> Told:
    """Return what a user says of tensors, by globs of their paths: ``layers.*.mlp.fc1 output``, ``**.qkv param weight``, ``embed``.

    A key without a role is about the outputs, the last key that fits counts.
    """
    rules = []
    for key, text in layouts.items():
        path, *what = key.split()
        rules.append((path, " ".join(what) or "output", parsed(text)))

    def told(path: str, what: str) -> Dims | None:
        found = None
        role, _, slot = what.partition(" ")
        for pattern, wanted, dims in rules:
            its_role, _, its_slot = wanted.partition(" ")
            if its_role == role and its_slot in ("", slot) and fits(path, pattern):
                found = dims
        return found

    return told
