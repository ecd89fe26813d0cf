"""One step of all ranks as the step of one process: each tensor once, put together from what ranks hold of it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xxhash

from probe.ranks import replicas
from probe.ranks.dims.arranging import Arrangement, Part, arranged, sketch_of, statistics
from probe.ranks.dims.held import differing_groups
from probe.ranks.dims.language import Dims
from probe.ranks.dims.resolving import Resolving
from probe.ranks.gathering import OF_PARAMETERS, Gathered, Step
from probe.ranks.members import Member
from probe.ranks.replicas import Copy, Difference
from probe.ranks.weights import first_of_each
from probe.records import JOINED_HASH, HashKind, Phase, Role

STATISTICS = ("min", "max", "mean", "rms", "norm")
OF_MEMBER = 1 << 40
"""numbers of tensors that one rank holds are its own, behind so many times its place; those of several come behind all of them"""


Held = tuple[Arrangement, tuple[tuple[int, ...], ...]]
"""where parts of a tensor lie, and the ranks that hold each"""
Owners = tuple[np.ndarray, np.ndarray, np.ndarray]
"""whose each gathered row is; by tensor, its first row and their number"""
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
        made = whole.arrangement
        key = (whole.sources, made.shape, tuple(_places_of(made)), made.is_sum, made.factor)
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
    """Tensors of all ranks, put together."""

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
    signatures: Mapping[int, Dims]
    """how what has the same bytes on the same ranks is divided"""
    owners: Owners


class Joining:
    """Puts together what ranks hold.

    Tensors that the same ranks hold, in the same shapes and divided alike, are put together at once: layers are alike, so there are
    few such sets.
    """

    def __init__(self, gathered: Gathered, step: Step, tensors: Tensors) -> None:
        self.gathered, self.step, self.names, self.tensors = gathered, step, step.names, tensors
        self.members, self.layout = step.members, step.layout
        self.sizes = {name: step.layout.size(name) for name in step.layout.groups}
        self.rows = gathered.rows[gathered.starts]
        self.sketches = gathered.sketches[gathered.starts]
        self.member = gathered.member[gathered.starts].copy()
        self.seq = gathered.seq[gathered.starts].copy()
        self.digests = np.stack([gathered.rows["hash_lo"], gathered.rows["hash_hi"]], axis=-1)
        self.differences: list[Difference] = []
        self.arranged: dict[int, Held] = {}
        self.lost: dict[int, Lost] = {}

    def joined(self, signatures: Mapping[int, Dims]) -> Joined:
        """Return the tensors.

        ``signatures`` tell how what has the same bytes on the same ranks is divided, as other parts of the step have
        shown.
        """
        direct = self.rows["tensor"] >= 0
        self.rows["tensor"] = np.where(direct, self.rows["tensor"] + self.member.astype(np.int64) * OF_MEMBER, -1)
        resolving = Resolving(self.gathered, self.step, signatures)
        for dims, tensors in self._divided_alike(resolving.result()):
            self._join(dims, tensors)
        self._scale(np.flatnonzero(self.rows["phase"] == Phase.BACKWARD))
        self.differences.sort(key=lambda each: each.tensor)
        lost = tuple(self.lost[tensor] for tensor in sorted(self.lost))
        owners = self.gathered.member, self.gathered.starts, self.gathered.counts
        return Joined(
            self.rows, self.sketches, self.member, self.seq, tuple(self.differences), lost, self.arranged, resolving.by_bytes, owners
        )  # fmt: skip

    def _divided_alike(self, found: Mapping[int, Dims | None]) -> Iterator[tuple[Dims, np.ndarray]]:
        """Yield the tensors that the same ranks hold in the same shapes, and that are divided alike."""
        sets: dict[tuple[Dims, bytes, bytes, bool], list[int]] = defaultdict(list)
        starts, counts = self.gathered.starts.tolist(), self.gathered.counts.tolist()
        shapes = np.ascontiguousarray(self.gathered.rows["shape"])
        is_left = (self.rows["phase"] == Phase.GRADIENT) & (self.rows["role"] == Role.PARAM_GRAD)
        for tensor, dims in found.items():
            if dims is None:
                self._lose(tensor, "dims-unknown")
                continue
            own = slice(starts[tensor], starts[tensor] + counts[tensor])
            key = self.gathered.member[own].tobytes(), shapes[own].tobytes()
            sets[(dims, *key, bool(is_left[tensor]))].append(tensor)
        for (dims, _, _, may_be_parts), tensors in sets.items():
            if may_be_parts:
                yield from self._as_left_by_backward(np.array(tensors), dims)
            else:
                yield dims, np.array(tensors)

    def _as_left_by_backward(self, tensors: np.ndarray, dims: Dims) -> Iterator[tuple[Dims, np.ndarray]]:
        """Let gradients of a weight that differ between copies, as backward left them, be parts of a sum: they are added up behind it."""
        rows = self._rows_of(tensors)
        differing = differing_groups(self.digests[rows], self._members(rows[0]), self.layout)
        names = [name for name in differing if name not in dims.groups]
        table = np.stack([differing[name] for name in names], axis=1) if names else np.zeros((len(tensors), 0), bool)
        for pattern in np.unique(table, axis=0):
            more = tuple(name for name, is_part in zip(names, pattern, strict=True) if is_part)
            own = tensors[(table == pattern).all(axis=1)]
            yield replace(dims, partial=(*dims.partial, *more)) if more else dims, own

    def _rows_of(self, tensors: np.ndarray) -> np.ndarray:
        """Return the rows of tensors of which as many are held of each, shape (tensors, holders)."""
        return self.gathered.starts[tensors][:, None] + np.arange(self.gathered.counts[tensors[0]])

    def _members(self, rows: np.ndarray) -> list[Member]:
        return [self.members[k] for k in self.gathered.member[rows].tolist()]

    def _lose(self, tensor: int, why: str) -> None:
        """Let a tensor be there, of which nothing is known: it is no missing one."""
        row = self.rows[tensor]
        slot = self.names.slots[row["slot"]]
        self.lost[tensor] = (int(row["module"]), Role(row["role"]), slot, why)
        wholes = set(self.step.whole(int(row["module"]), Role(row["role"]), slot.rpartition(":")[2]))
        if len(wholes) == 1:
            row["shape"] = self.names.shapes.number(wholes.pop())
        for name in STATISTICS:
            row[name] = math.nan
        row["tensor"] = -1
        self.sketches[tensor] = np.nan
        self._hash(np.array([tensor]), self.gathered.rows[self.gathered.of(tensor)][None], why)

    def _join(self, dims: Dims, tensors: np.ndarray) -> None:
        rows = self._rows_of(tensors)
        members = self._members(rows[0])
        copies = first_of_each(dims, [(k, member.places) for k, member in enumerate(members)])
        sets = [own for _, own in sorted(copies.items())]
        chosen = np.stack([self._one_of(tensors, rows[:, own]) for own in sets], axis=1)
        if not any(self.sizes.get(group, 1) > 1 for group in dims.groups):
            self._put(tensors, chosen[:, 0])
            return
        ranks = tuple(tuple(members[k].rank for k in own) for own in sets)
        places = [members[own[0]].places for own in sets]
        shapes = self.gathered.rows["shape"][chosen]
        for each in np.unique(shapes, axis=0):
            some = (shapes == each).all(axis=1)
            self._join_parts(dims, tensors[some], chosen[some], [self.names.shapes[k] for k in each], places, ranks)

    def _join_parts(
        self, dims: Dims, tensors: np.ndarray, chosen: np.ndarray, shapes: Sequence[tuple[int, ...]],
        places: Sequence[Mapping[str, int]], ranks: tuple[tuple[int, ...], ...],
    ) -> None:  # fmt: skip
        made = arranged(dims, list(zip(places, shapes, strict=True)), self.sizes, self.step.sizes)
        if isinstance(made, str):
            for tensor in tensors.tolist():
                self._lose(tensor, made)
            return
        self._combine(tensors, chosen, shapes, made)
        self.arranged.update(dict.fromkeys(tensors.tolist(), (made, ranks)))
        if set(self.step.shares.groups).intersection(dims.partial):
            self._scale(tensors[self.rows["role"][tensors] == Role.PARAM_GRAD])

    def _scale(self, tensors: np.ndarray) -> None:
        """Let gradients of a share of the batch be what they are in those of the mean of all shares."""
        share = self.step.share
        if share == 1 or not len(tensors):
            return
        for name in STATISTICS:
            self.rows[name][tensors] *= share
        self.sketches[tensors] *= share
        self._hash(tensors, self.rows[tensors][:, None], ("scaled", share))
        for tensor in tensors[self.rows["tensor"][tensors] >= 0].tolist():
            row = self.rows[tensor]
            row["tensor"] = self.tensors.scaled(int(row["tensor"]), self.names.shapes[row["shape"]], share)

    # Copies

    def _one_of(self, tensors: np.ndarray, copies: np.ndarray) -> np.ndarray:
        """Return by tensor the row that stands for its copies, shape (tensors, copies); take note of those that differ from it."""
        chosen = copies[:, 0].copy()
        differs = (self.digests[copies] != self.digests[chosen][:, None]).any(axis=(1, 2))
        for k in np.flatnonzero(differs).tolist():
            chosen[k] = self._majority(int(tensors[k]), copies[k].tolist())
        return chosen

    def _majority(self, tensor: int, copies: Sequence[int]) -> int:
        table, member = self.gathered.rows, self.gathered.member
        digests = [(int(low), int(high)) for low, high in self.digests[copies]]
        chosen, odd = replicas.majority(digests)
        row = table[copies[chosen]]
        error = replicas.error_between(table[copies], self.gathered.sketches[copies], chosen, odd)
        if not replicas.is_rounding(row["dtype"].decode(), error):
            agreeing = [k for k in range(len(copies)) if digests[k] == digests[chosen]]
            some, others = ([int(member[copies[k]]) for k in each] for each in (odd, agreeing))
            self.differences.append(Difference(
                self.step.number, int(row["micro"]), Phase(row["phase"]), Role(row["role"]), int(row["module"]), int(row["call"]),
                self.names.slots[row["slot"]], int(self.gathered.seq[copies[chosen]]),
                tuple(self.members[k].rank for k in some), tuple(self.members[k].rank for k in others),
                replicas.groups_between(self.members, some, others), error, bool(OF_PARAMETERS[row["role"]]),
                self.names.shapes[row["shape"]], tuple(
                    Copy(self.members[int(member[k])].rank, self.gathered.sketches[k]) for k in copies
                ), tensor,
            ))  # fmt: skip
        return copies[chosen]

    # Rows

    def _put(self, tensors: np.ndarray, rows: np.ndarray) -> None:
        """Let the rows of one rank stand for all."""
        source, member = self.gathered.rows[rows], self.gathered.member[rows]
        self.rows[tensors] = source
        stored = source["tensor"] + member.astype(np.int64) * OF_MEMBER
        self.rows["tensor"][tensors] = np.where(source["tensor"] < 0, -1, stored)
        self.sketches[tensors] = self.gathered.sketches[rows]
        self.member[tensors], self.seq[tensors] = member, self.gathered.seq[rows]

    def _combine(
        self, tensors: np.ndarray, chosen: np.ndarray, shapes: Sequence[tuple[int, ...]], made: Arrangement
    ) -> None:
        """Let rows say what several ranks hold together."""
        parts = self.gathered.rows[chosen]
        self._put(tensors, chosen[:, 0])
        self.rows["shape"][tensors] = self.names.shapes.number(made.shape)
        if made.is_sum:
            known: dict[str, object] = {**dict.fromkeys(STATISTICS, math.nan), "zeros": 0}
            if made.shape == shapes[0]:
                known["mean"] = parts["mean"].sum(axis=1)
        else:
            factor = np.where(np.char.startswith(parts["dtype"][:, :1], b"complex"), 2, 1)
            known = dict(statistics(parts, np.array([math.prod(shape) for shape in shapes])[None] * factor))
        for name, values in known.items():
            self.rows[name][tensors] = values
        found = sketch_of(made, shapes, [self.gathered.sketches[rows] for rows in chosen.T])
        self.sketches[tensors] = np.nan if found is None else found
        self._hash(tensors, parts, (made.shape, made.is_sum, _places_of(made)))
        self.rows["tensor"][tensors] = -1
        is_stored = np.all(parts["tensor"] >= 0, axis=1)
        for tensor, rows in zip(tensors[is_stored].tolist(), chosen[is_stored], strict=True):
            members, numbers = self.gathered.member[rows].tolist(), self.gathered.rows["tensor"][rows].tolist()
            self.rows["tensor"][tensor] = self.tensors.add(Whole(made, tuple(zip(members, numbers, strict=True))))

    def _hash(self, tensors: np.ndarray, parts: np.ndarray, made: object) -> None:
        """Give what several ranks hold hashes of their own, which tell it from all else that ranks of this layout hold.

        ``parts`` are the records of the parts, shape (tensors, parts).
        """
        how = repr(made).encode()
        unknown = (parts["hash_kind"] == HashKind.NONE).any(axis=1)
        both = np.ascontiguousarray(np.stack([parts["hash_lo"], parts["hash_hi"]], axis=-1), "<u8")
        digests = np.array([_halves(xxhash.xxh3_128_intdigest(each.tobytes() + how)) for each in both], np.uint64)
        for name, column in zip(("hash_lo", "hash_hi"), digests.reshape(-1, 2).T, strict=True):
            self.rows[name][tensors] = np.where(unknown, 0, column)
        self.rows["hash_kind"][tensors] = np.where(unknown, HashKind.NONE, JOINED_HASH)


def _halves(digest: int) -> tuple[int, int]:
    return digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64


def _places_of(made: Arrangement) -> list[tuple[object, ...]]:
    """Return where parts lie, as what can be compared and printed."""
    return [
        tuple((at.start, at.stop) if isinstance(at, slice) else at.tobytes() for at in part.at) for part in made.parts
    ]
