"""The module trees of all ranks as one: stages of a pipeline follow one another, experts of all ranks stand side by side."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from probe.notes import Note, note
from probe.ranks.layout.places import ALL, Layout
from probe.records import ModuleInfo
from probe.store.reading.reader import Reader

_CHUNK = re.compile(r"(\d+)(?:\.|$)")
_EXPERTS = re.compile(r"(^|\.)(local_)?experts$")
Facts = Mapping[str, object]


@dataclass(frozen=True)
class Union:
    """The modules of all ranks."""

    modules: tuple[ModuleInfo, ...]
    index_of: tuple[tuple[int, ...], ...]
    """by member, for each of its modules the one of the whole"""
    paths: tuple[tuple[str, ...], ...]
    """by member, for each of its modules the path in the whole"""
    stages: tuple[int, ...]
    """by member, the place of its stage in the pipeline"""
    notes: tuple[Note, ...] = ()


@dataclass
class _Chunk:
    """The modules of a rank that are one part of the pipeline: all of them, or one of several models that it was given."""

    member: int
    prefix: str
    place: int
    """in the order in which parts of the pipeline run"""
    paths: dict[str, str] = field(default_factory=dict)
    """by recorded path, that of the whole"""


def united(readers: Sequence[Reader], layout: Layout) -> Union:
    """Return the modules of all ranks, one reader for each, as one tree."""
    stages = _stages(readers, layout)
    chunks = _chunks(readers, stages)
    facts = [facts_by_name(reader, "modules") for reader in readers]
    notes = _number_layers(chunks, facts)
    _number_experts(chunks, readers, facts, layout)
    found = []
    for member, reader in enumerate(readers):
        own = dict(pair for chunk in chunks if chunk.member == member for pair in chunk.paths.items())
        called = (each.path.rpartition("/") for each in reader.modules if each.is_operation)
        own |= {f"{around}/{name}": f"{own.get(around, around)}/{name}" for around, _, name in called}
        found.append(tuple(own.get(each.path, each.path) for each in reader.modules))
    modules = _ordered([(reader.modules, found[k]) for k, reader in enumerate(readers)], stages)
    index = {module.path: number for number, module in enumerate(modules)}
    indices = tuple(tuple(index[path] for path in each) for each in found)
    return Union(tuple(modules), indices, tuple(found), stages, notes)


def facts_by_name(reader: Reader, kind: str) -> dict[str, Facts]:
    """Return what a rank recorded of its ``modules`` or ``parameters`` beside what they are, by their names."""
    found: dict[str, Facts] = {}
    said = reader.info.parallel.get(kind)
    for each in said if isinstance(said, list) else ():
        if isinstance(each, list) and len(each) == 2 and isinstance(each[0], dict) and isinstance(each[1], list):
            found |= {name: each[0] for name in each[1] if isinstance(name, str)}
    return found


def _stages(readers: Sequence[Reader], layout: Layout) -> tuple[int, ...]:
    """Return the place of each rank's stage; ranks without groups whose modules differ are stages, in their order."""
    if "pp" in layout.groups:
        return tuple(layout.place(reader.info.rank, "pp") for reader in readers)
    if ALL not in layout.groups:
        return (0,) * len(readers)
    seen: dict[tuple[str, ...], int] = {}
    return tuple(seen.setdefault(tuple(module.path for module in reader.modules), len(seen)) for reader in readers)


def _chunks(readers: Sequence[Reader], stages: Sequence[int]) -> list[_Chunk]:
    """Return the parts of the pipeline; those of one rank, as a list of models gives them, run in turn with those of others."""
    count = len(set(stages))
    found = []
    for member, reader in enumerate(readers):
        paths = [module.path for module in reader.modules if not module.is_operation]
        is_list = reader.modules[0].class_name == "list" and not paths[0]
        prefixes = sorted({int(path.partition(".")[0]) for path in paths[1:]}) if is_list else []
        if count < 2 or len(prefixes) < 2:
            found.append(_Chunk(member, "", stages[member], {path: path for path in paths}))
            continue
        for place, prefix in enumerate(prefixes):
            own = [path for path in paths[1:] if path.partition(".")[0] == str(prefix)]
            inside = {path: ".".join(["0", *path.split(".")[1:]]) for path in own}
            found.append(_Chunk(member, str(prefix), place * count + stages[member], {"": "", **inside}))
    return found


# ---- layers


def _number_layers(chunks: Sequence[_Chunk], facts: Sequence[Mapping[str, Facts]]) -> tuple[Note, ...]:
    """Give the members of lists, which each part of the pipeline counts from 0, the numbers that they have in the whole."""
    notes: list[Note] = []
    places = sorted({chunk.place for chunk in chunks})
    lists: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for chunk in chunks:
        for holder, number in _numbered(chunk.paths.values()):
            lists[holder][chunk.place].add(number)
    for holder in sorted(lists, key=lambda path: path.count(".")):
        by_place = lists[holder]
        numbers = [number for place in by_place.values() for number in place]
        if len(by_place) < 2 or len(set(numbers)) == len(numbers) or holder != _outermost(holder, lists):
            continue
        said = _numbers_said(chunks, facts, holder)
        counted, start = {}, 0
        for place in places:
            own = sorted(by_place.get(place, ()))
            counted.update({(place, number): start + k for k, number in enumerate(own)})
            start += len(own)
        given = said if sorted(said.values()) == sorted(counted.values()) and said.keys() == counted.keys() else counted
        wrong = [key for key in said if key in counted and said[key] != counted[key]]
        if wrong and given is counted:
            place, number = wrong[0]
            ranks = tuple(chunk.member for chunk in chunks if chunk.place == place)
            notes.append(note("layer-number-of-stage", path=f"{holder}.{number}", stage=place, said=said[wrong[0]],
                              expected=counted[wrong[0]], ranks=ranks))  # fmt: skip
        for chunk in chunks:
            numbers = {n: given[chunk.place, n] for n in by_place.get(chunk.place, ())}
            chunk.paths = {path: _renumbered(whole, holder, numbers) for path, whole in chunk.paths.items()}
    return tuple(notes)


def _outermost(holder: str, lists: Mapping[str, object]) -> str:
    """Return the outermost list that holds a list, or itself: what lies within layers has its numbers there."""
    parts = holder.split(".")
    for end in range(1, len(parts)):
        if parts[end].isdigit() and ".".join(parts[:end]) in lists:
            return ".".join(parts[:end])
    return holder


def _numbered(paths: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the holder and the number of every member of a list."""
    for path in paths:
        holder, dot, name = path.rpartition(".")
        if dot and name.isdigit():
            yield holder, int(name)


def _numbers_said(
    chunks: Sequence[_Chunk], facts: Sequence[Mapping[str, Facts]], holder: str
) -> dict[tuple[int, int], int]:
    """Return the numbers that layers themselves have in the whole, from 0, by part of the pipeline and number there."""
    found: dict[tuple[int, int], int] = {}
    for chunk in chunks:
        for path, whole in chunk.paths.items():
            above, _, name = whole.rpartition(".")
            if above == holder and name.isdigit():
                own = facts[chunk.member].get(path, {})
                if isinstance(own.get("layer_number"), int):
                    found[chunk.place, int(name)] = int(own["layer_number"]) - 1  # type: ignore[call-overload]
    return found


def _renumbered(path: str, holder: str, numbers: Mapping[int, int]) -> str:
    if not path.startswith(f"{holder}."):
        return path
    name, dot, rest = path[len(holder) + 1 :].partition(".")
    return f"{holder}.{numbers.get(int(name), int(name))}{dot}{rest}" if name.isdigit() else path


# ---- experts


def _number_experts(
    chunks: Sequence[_Chunk], readers: Sequence[Reader], facts: Sequence[Mapping[str, Facts]], layout: Layout
) -> None:
    """Give the experts that a rank counts from 0 the numbers that they have among those of all ranks of its group."""
    if layout.size("ep") < 2:
        return
    holders = {holder for chunk in chunks for holder, _ in _numbered(chunk.paths.values()) if _EXPERTS.search(holder)}
    for holder in holders:
        owners: dict[int, set[int]] = defaultdict(set)
        for chunk in chunks:
            own = {number for above, number in _numbered(chunk.paths.values()) if above == holder}
            owners[layout.place(readers[chunk.member].info.rank, "ep")] |= own
        sets = list(owners.values())
        if len(sets) < 2 or any(each != sets[0] for each in sets):
            continue  # they have their numbers of the whole already
        for chunk in chunks:
            place = layout.place(readers[chunk.member].info.rank, "ep")
            indices = _local_indices(chunk, facts[chunk.member], holder)
            numbers = {n: indices[n] if n < len(indices) else place * len(sets[0]) + n for n in sets[0]}
            chunk.paths = {path: _renumbered(whole, holder, numbers) for path, whole in chunk.paths.items()}


def _local_indices(chunk: _Chunk, facts: Mapping[str, Facts], holder: str) -> list[int]:
    """Return which experts of all a rank has, by the module around them that says it."""
    for path, whole in chunk.paths.items():
        indices = facts.get(path, {}).get("local_expert_indices")
        if isinstance(indices, list) and (holder == whole or holder.startswith(f"{whole}.") or not whole):
            return [int(each) for each in indices]
    return []


# ---- one tree


def _ordered(trees: Sequence[tuple[Sequence[ModuleInfo], Sequence[str]]], stages: Sequence[int]) -> list[ModuleInfo]:
    """Return the modules of all trees, parents first; members of lists by their numbers, others in the order of stages."""
    infos: dict[str, ModuleInfo] = {}
    for k in sorted(range(len(trees)), key=lambda k: stages[k]):
        for module, path in zip(*trees[k], strict=True):
            infos.setdefault(path, module)
    children: dict[str, list[str]] = defaultdict(list)
    roots = []
    for path in (path for path, info in infos.items() if not info.is_operation):
        parent = _parent(path, infos)
        (roots if parent is None else children[parent]).append(path)
    found: list[ModuleInfo] = []

    def add(path: str, parent: int) -> None:
        index = len(found)
        found.append(replace(infos[path], path=path, parent=parent))
        own = children.get(path, [])
        by_number = own and all(each.rpartition(".")[2].isdigit() for each in own)
        for child in sorted(own, key=lambda each: int(each.rpartition(".")[2])) if by_number else own:
            add(child, index)

    for root in roots:
        add(root, -1)
    places, called = {each.path: k for k, each in enumerate(found)}, {p: i for p, i in infos.items() if i.is_operation}
    return found + [replace(i, path=p, parent=places.get(p.rpartition("/")[0], -1)) for p, i in called.items()]


def _parent(path: str, known: Mapping[str, object]) -> str | None:
    while path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return None
