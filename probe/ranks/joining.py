"""One step of all ranks as the step of one process: each tensor once, put together from what ranks hold of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash

from probe.ranks import replicas
from probe.ranks.dims.arranging import Arrangement, Part, arranged, sketch_of, statistics
from probe.ranks.dims.language import Dims
from probe.ranks.dims.resolving import Facts, all_alike, differing_groups, resolve
from probe.ranks.gathering import OF_PARAMETERS, Gathered, Names
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member
from probe.ranks.replicas import Copy, Difference
from probe.ranks.weights import first_of_each
from probe.records import JOINED_HASH, HashKind, Phase, Role

OF_MEMBER = 1 << 40
"""numbers of tensors that one rank holds are its own, behind so many times its place; those of several come behind all of them"""


Held = tuple[Arrangement, tuple[tuple[int, ...], ...]]
"""where parts of a tensor lie, and the ranks that hold each"""
Lost = tuple[int, Role, str, str]
"""a tensor of which it is not known how it is divided, or of which parts are missing: module, role, slot, and why"""


@dataclass(frozen=True)
class Whole:
    """What several ranks hold together, to be read when it is asked for."""

    arrangement: Arrangement
    sources: tuple[tuple[int, int], ...]
    """member and number of the stored tensor, by holder"""


@dataclass
class Tensors:
    """The stored tensors of all ranks, by numbers of the whole."""

    wholes: list[Whole] = field(default_factory=list)
    first: int = 0
    """number of the first of what several hold"""
    _known: dict[object, int] = field(default_factory=dict)

    def add(self, whole: Whole) -> int:
        """Return the number of a tensor that several ranks hold; the same for the same."""
        at = [tuple(_plain(each) for each in part.at) for part in whole.arrangement.parts]
        key = (whole.sources, whole.arrangement.shape, tuple(at), whole.arrangement.is_sum, whole.arrangement.factor)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.first + len(self.wholes)
            self.wholes.append(whole)
        return found

    def scaled(self, tensor: int, shape: tuple[int, ...], factor: float) -> int:
        """Return the number of a multiple of a tensor."""
        if tensor >= self.first:
            known = self.wholes[tensor - self.first]
            return self.add(replace(known, arrangement=replace(known.arrangement, factor=factor)))
        part = Part(0, tuple(slice(0, size) for size in shape))
        return self.add(Whole(Arrangement(shape, (part,), False, factor), (divmod(tensor, OF_MEMBER),)))


@dataclass(frozen=True)
class Joined:
    """A step of all ranks."""

    rows: np.ndarray
    """of `schema.RECORDS`, with the numbers of when they were made on the rank that stands for all"""
    sketches: np.ndarray
    """NaN where the parts do not tell that of the whole"""
    member: np.ndarray
    """by row, the rank that stands for all"""
    seq: np.ndarray
    differences: tuple[Difference, ...]
    lost: tuple[Lost, ...]
    arranged: Mapping[int, Held]
    """by tensor of which ranks hold parts"""


class Joining:
    """Puts together what ranks hold."""

    def __init__(
        self, gathered: Gathered, facts: Facts, names: Names, tensors: Tensors, known: Mapping[str, int], step: int,
        averaged: tuple[frozenset[str], float] = (frozenset(), 1.0),
    ) -> None:  # fmt: skip
        """Take what there is; ``averaged`` are the groups whose ranks have shares of the batch, and what one counts for."""
        self.shared, self.share = averaged
        self.gathered, self.facts, self.names, self.tensors, self.known, self.step = (
            gathered,
            facts,
            names,
            tensors,
            known,
            step,
        )
        self.members: Sequence[Member] = facts.members
        self.layout: Layout = facts.layout
        self.sizes = {name: facts.layout.size(name) for name in facts.layout.groups}
        self.rows = gathered.rows[gathered.starts]
        self.sketches = gathered.sketches[gathered.starts]
        self.member = gathered.member[gathered.starts].copy()
        self.seq = gathered.seq[gathered.starts].copy()
        self.differences: list[Difference] = []
        self.arranged: dict[int, Held] = {}
        self.lost: list[Lost] = []

    def joined(self) -> Joined:
        """Return the step."""
        alike = all_alike(self.gathered)
        direct = self.rows["tensor"] >= 0
        self.rows["tensor"] = np.where(direct, self.rows["tensor"] + self.member.astype(np.int64) * OF_MEMBER, -1)
        for tensor, dims in resolve(self.gathered, alike, self.facts).items():
            if dims is None:
                self._lose(tensor, "dims-unknown")
            else:
                self._join(tensor, dims)
        if self.share != 1:
            for tensor in np.flatnonzero(self.rows["phase"] == Phase.BACKWARD).tolist():
                self._scale(tensor)
        return Joined(self.rows, self.sketches, self.member, self.seq, tuple(self.differences), tuple(self.lost),
                      self.arranged)  # fmt: skip

    def _lose(self, tensor: int, why: str) -> None:
        """Let a tensor be there, of which nothing is known: it is no missing one."""
        row = self.rows[tensor]
        slot = self.names.slots[row["slot"]]
        self.lost.append((int(row["module"]), Role(row["role"]), slot, why))
        wholes = set(self.facts.whole(int(row["module"]), Role(row["role"]), slot.rpartition(":")[2]))
        if len(wholes) == 1:
            row["shape"] = self.names.shape(wholes.pop())
        for name in ("min", "max", "mean", "rms", "norm"):
            row[name] = math.nan
        row["tensor"] = -1
        self.sketches[tensor] = np.nan
        self._hash(self.rows[tensor : tensor + 1], self.gathered.rows[list(self.gathered.of(tensor))], why)

    def _join(self, tensor: int, dims: Dims) -> None:
        rows = self.gathered.of(tensor)
        table = self.gathered.rows
        dims = self._as_left_by_backward(tensor, dims)
        copies = first_of_each(dims, [(k, self.members[int(self.gathered.member[k])].places) for k in rows])
        chosen = [self._one_of(tensor, own, dims) for _, own in sorted(copies.items())]
        if not any(self.sizes.get(group, 1) > 1 for group in dims.groups):
            self._put(tensor, chosen[0])
            return
        shapes = [self.names.shapes[table["shape"][k]] for k in chosen]
        holders = [(self._places(k), shape) for k, shape in zip(chosen, shapes, strict=True)]
        made = arranged(dims, holders, self.sizes, self.known)
        if isinstance(made, str):
            self._lose(tensor, made)
            return
        self._combine(tensor, chosen, shapes, made)
        self.arranged[tensor] = (
            made,
            tuple(
                tuple(self.members[int(self.gathered.member[k])].rank for k in own) for _, own in sorted(copies.items())
            ),
        )
        if self.rows["role"][tensor] == Role.PARAM_GRAD and self.shared.intersection(dims.partial):
            self._scale(tensor)

    def _scale(self, tensor: int) -> None:
        """Let a gradient of a share of the batch be what it is in that of the mean of all shares."""
        row = self.rows[tensor]
        for name in ("min", "max", "mean", "rms", "norm"):
            row[name] *= self.share
        self.sketches[tensor] *= self.share
        self._hash(self.rows[tensor : tensor + 1], self.rows[tensor : tensor + 1].copy(), ("scaled", self.share))
        if row["tensor"] >= 0:
            row["tensor"] = self.tensors.scaled(int(row["tensor"]), self.names.shapes[row["shape"]], self.share)

    def _places(self, row: int) -> Mapping[str, int]:
        return self.members[int(self.gathered.member[row])].places

    def _as_left_by_backward(self, tensor: int, dims: Dims) -> Dims:
        """Let gradients of a weight that differ between copies, as backward left them, be parts of a sum: they are added up behind it."""
        row = self.rows[tensor]
        if (row["phase"], row["role"]) != (Phase.GRADIENT, Role.PARAM_GRAD):
            return dims
        rows = self.gathered.of(tensor)
        table, member = self.gathered.rows, self.gathered.member
        bytes_of = {int(member[k]): (int(table["hash_lo"][k]), int(table["hash_hi"][k])) for k in rows}
        differing = [name for name in differing_groups(bytes_of, self.members, self.layout) if name not in dims.groups]
        return replace(dims, partial=(*dims.partial, *differing)) if differing else dims

    # Copies

    def _one_of(self, tensor: int, copies: Sequence[int], dims: Dims) -> int:
        """Return the row that stands for copies; take note of those that differ from it."""
        table, member = self.gathered.rows, self.gathered.member
        digests = [(int(table["hash_lo"][k]), int(table["hash_hi"][k])) for k in copies]
        if len(set(digests)) < 2:
            return copies[0]
        chosen, odd = replicas.majority(digests)
        row = table[copies[chosen]]
        error = replicas.error_between(table[copies], self.gathered.sketches[copies], chosen, odd)
        if not replicas.is_rounding(row["dtype"].decode(), error):
            agreeing = [k for k in range(len(copies)) if digests[k] == digests[chosen]]
            some, others = ([int(member[copies[k]]) for k in each] for each in (odd, agreeing))
            self.differences.append(Difference(
                self.step, int(row["micro"]), Phase(row["phase"]), Role(row["role"]), int(row["module"]), int(row["call"]),
                self.names.slots[row["slot"]], int(self.gathered.seq[copies[chosen]]),
                tuple(self.members[k].rank for k in some), tuple(self.members[k].rank for k in others),
                replicas.groups_between(self.members, some, others), error, bool(OF_PARAMETERS[row["role"]]),
                self.names.shapes[row["shape"]], tuple(
                    Copy(self.members[int(member[k])].rank, self.gathered.sketches[k]) for k in copies
                ), tensor,
            ))  # fmt: skip
        return copies[chosen]

    # Rows

    def _put(self, tensor: int, row: int) -> None:
        """Let the row of one rank stand for all."""
        source = self.gathered.rows[row]
        member = int(self.gathered.member[row])
        self.rows[tensor] = source
        self.rows["tensor"][tensor] = -1 if source["tensor"] < 0 else int(source["tensor"]) + member * OF_MEMBER
        self.sketches[tensor] = self.gathered.sketches[row]
        self.member[tensor], self.seq[tensor] = member, self.gathered.seq[row]

    def _combine(
        self, tensor: int, chosen: Sequence[int], shapes: Sequence[tuple[int, ...]], made: Arrangement
    ) -> None:
        """Let a row say what several ranks hold together."""
        parts = self.gathered.rows[list(chosen)]
        self._put(tensor, chosen[0])
        row = self.rows[tensor : tensor + 1]
        row["shape"] = self.names.shape(made.shape)
        if made.is_sum:
            for name in ("min", "max", "rms", "norm"):
                row[name] = math.nan
            row["mean"], row["zeros"] = parts["mean"].sum() if made.shape == shapes[0] else math.nan, 0
        else:
            factor = 2 if parts["dtype"][0].startswith(b"complex") else 1
            counts = np.array([[math.prod(shape) * factor for shape in shapes]])
            for name, values in statistics(parts[None, :], counts).items():
                row[name] = values
        sketch = sketch_of(made, shapes, [self.gathered.sketches[k] for k in chosen])
        self.sketches[tensor] = np.nan if sketch is None else sketch
        self._hash(
            row, parts, (made.shape, made.is_sum, [tuple(_plain(each) for each in part.at) for part in made.parts])
        )
        if np.all(parts["tensor"] >= 0):
            members = [int(self.gathered.member[k]) for k in chosen]
            sources = tuple(zip(members, parts["tensor"].tolist(), strict=True))
            row["tensor"] = self.tensors.add(Whole(made, sources))
        else:
            row["tensor"] = -1

    @staticmethod
    def _hash(row: np.ndarray, parts: np.ndarray, made: object) -> None:
        """Give what several ranks hold a hash of its own, which tells it from all else that ranks of this layout hold."""
        if np.any(parts["hash_kind"] == HashKind.NONE):
            row["hash_lo"], row["hash_hi"], row["hash_kind"] = 0, 0, HashKind.NONE
            return
        how = repr(made).encode()
        digests = b"".join(np.array([part["hash_lo"], part["hash_hi"]], "<u8").tobytes() for part in parts)
        digest = xxhash.xxh3_128_intdigest(digests + how)
        row["hash_lo"], row["hash_hi"], row["hash_kind"] = digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64, JOINED_HASH


def _plain(where: object) -> object:
    return (where.start, where.stop) if isinstance(where, slice) else where.tobytes()  # type: ignore[attr-defined]
