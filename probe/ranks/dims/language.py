"""How a tensor is divided among ranks: the language of dims, and which elements of the whole a rank holds.

``b s h[tp]``: the last axis is divided over the tp group. ``s[cp:zigzag]``: by two chunks of each rank, from both ends. ``2·ffn[tp]``: the
rank holds two parts, of each of which it has its share. ``4+1+1[tp]``: three parts of these relative sizes. ``out[tp][fsdp]``: over tp
first, what each of its ranks has over fsdp. ``replicated``, ``partial[tp]``: a part of a sum.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.errors import MappingError
from probe.ranks.layout.groups import canonical

REST = "..."
_TIMES = re.compile(r"[·*×]")
_FACTOR = re.compile(r"(?P<name>[A-Za-z_]\w*|\d+(?:\+\d+)*)(?P<groups>(?:\[[^\[\]]*\])*)")
_PARTIAL = re.compile(r"partial(?:\[(?P<groups>[\w, ]+)\])?")
_HOW = ("block", "zigzag", "striped")
_HELP = "expected for example 'b s h[tp]', 's[cp:zigzag] b h', '2·ffn[tp] h', 'partial[tp]' or 'replicated'"

Shape = tuple[int, ...]
Where = slice | np.ndarray
"""indices along one axis"""


@dataclass(frozen=True, slots=True)
class Split:
    """How an axis is divided over a group."""

    axis: int
    """counted from the back where negative"""
    group: str
    how: str = "block"
    """``zigzag``: of twice as many chunks, one from each end; ``striped``: every n-th index"""
    before: tuple[int | str, ...] = ()
    """factors of the axis before the one that is divided"""
    sections: tuple[int, ...] = (1,)
    """relative sizes of parts of the axis, each of which is divided"""


@dataclass(frozen=True, slots=True)
class Dims:
    """How a tensor is divided."""

    splits: tuple[Split, ...] = ()
    """from the outermost to the innermost: what the ranks of the last group hold is put together first"""
    partial: tuple[str, ...] = ()
    """groups whose ranks hold parts of a sum"""
    axes: int | None = None
    """how many axes it has, where all were named"""
    names: tuple[str, ...] = ()
    """of the axes that were named"""
    from_back: bool = False
    """the last of the names is that of the last axis"""

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups over which it is divided, or summed up."""
        return (*(split.group for split in self.splits), *self.partial)

    def fits(self, rank: int) -> bool:
        """Return True if a tensor of so many axes can be divided so."""
        is_named = self.axes is None or self.axes == rank
        return is_named and all(-rank <= split.axis < rank for split in self.splits)


REPLICATED = Dims()


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> Dims:
    """Read dims; raises MappingError where a text is none."""
    if text.strip() == "replicated":
        return REPLICATED
    words = ["..." if word == "…" else word for word in text.split()]
    summed = [told for word in words for told in [_PARTIAL.fullmatch(word)] if told]
    partial = tuple(canonical(name.strip()) for told in summed for name in (told["groups"] or "tp").split(","))
    named = [word for word in words if not _PARTIAL.fullmatch(word)]
    is_open = named.count(REST) == 1 and REST in (named[0], named[-1])
    if not words or (REST in named and not is_open):
        raise MappingError(f"dims {text!r}: {_HELP}")
    from_back = is_open and named[0] == REST
    axes = [word for word in named if word != REST]
    splits = [
        split
        for place, word in enumerate(axes)
        for split in _axis(word, place - len(axes) if from_back else place, text)
    ]
    names = tuple(re.sub(r"\[.*?\]", "", word) for word in axes)
    return Dims(tuple(splits), partial, None if is_open or not axes else len(axes), names, from_back)


def _axis(word: str, axis: int, text: str) -> list[Split]:
    before: list[int | str] = []
    found: list[Split] = []
    for factor in _TIMES.split(word):
        told = _FACTOR.fullmatch(factor)
        if told is None:
            raise MappingError(f"dims {text!r}: {factor!r} is no axis; {_HELP}")
        name, levels = told["name"], re.findall(r"\[([^\[\]]*)\]", told["groups"])
        if levels and found:
            raise MappingError(f"dims {text!r}: {word!r} is divided at two of its factors")
        sections = tuple(map(int, name.split("+"))) if "+" in name else (1,)
        for level, groups in enumerate(levels):
            inside = (tuple(before), sections) if not level else ((), (1,))
            found += _splits(axis, groups, *inside, text)
        before.append(int(name) if name.isdigit() else name)
    return found


def _splits(axis: int, said: str, before: tuple[int | str, ...], sections: tuple[int, ...], text: str) -> list[Split]:
    groups, _, how = said.partition(":")
    names = [canonical(name.strip()) for name in groups.split(",")]
    how = how.strip() or "block"
    if how not in _HOW or not all(re.fullmatch(r"\w+", name) for name in names) or (len(sections) > 1 and before):
        raise MappingError(f"dims {text!r}: {_HELP}")
    return [Split(axis, name, how, before, sections) for name in names]


# ---- where the elements of a rank lie in the whole


def where(split: Split, sizes: Sequence[int], place: int, known: Mapping[str, int]) -> tuple[int, Where] | str:
    """Return the size of an axis of the whole, and which indices of it a rank holds; a text where that cannot be right.

    ``sizes`` are those of the axis on each of the ranks, in their order; this rank has a ``place`` among them.
    ``known`` are sizes of factors by name.
    """
    total = sum(sizes)
    if len(sizes) == 1:
        return total, slice(0, total)
    if split.how != "block" and len(set(sizes)) > 1:
        return f"ranks hold {_listed(sizes)} along an axis that is divided {split.how}"
    if split.how == "striped":
        return total, np.arange(place, total, len(sizes))
    if split.how == "zigzag":
        if sizes[place] % 2:
            return f"{sizes[place]} cannot be divided into two chunks, as zigzag does"
        chunk = sizes[place] // 2
        starts = place * chunk, (2 * len(sizes) - 1 - place) * chunk
        return total, np.concatenate([np.arange(start, start + chunk) for start in starts])
    blocks = _blocks(split, sizes, known)
    if isinstance(blocks, str):
        return blocks
    if len(blocks) == 1:
        start = sum(sizes[:place])
        return total, slice(start, start + sizes[place])
    return total, _in_blocks(blocks, place)


def _blocks(split: Split, sizes: Sequence[int], known: Mapping[str, int]) -> list[list[int]] | str:
    """Return the sizes on each rank of the parts of an axis that are divided one by one."""
    if len(split.sections) > 1:
        unit = [size / sum(split.sections) for size in sizes]
        if any(each != int(each) for each in unit):
            return f"ranks hold {_listed(sizes)}, which are no {'+'.join(map(str, split.sections))} parts"
        return [[section * int(each) for each in unit] for section in split.sections]
    count = 1
    for factor in split.before:
        size = factor if isinstance(factor, int) else known.get(factor)
        if size is None:
            return f"nothing says how large {factor!r} is"
        count *= size
    if any(size % count for size in sizes):
        return f"ranks hold {_listed(sizes)}, which cannot be divided by {count}"
    return [[size // count for size in sizes]] * count


def _in_blocks(blocks: Sequence[Sequence[int]], place: int) -> np.ndarray:
    found, start = [], 0
    for sizes in blocks:
        first = start + sum(sizes[:place])
        found.append(np.arange(first, first + sizes[place]))
        start += sum(sizes)
    return np.concatenate(found)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, dict.fromkeys(sizes)))
