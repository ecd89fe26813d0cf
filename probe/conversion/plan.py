"""What becomes of every weight: from which of the source it is made, and how; and what fits nowhere."""

from __future__ import annotations

import fnmatch
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.checkpoints import Stored
from probe.conversion.fusing import Joined, joined, known, viewed
from probe.conversion.structure import COUNTER, Key, Structure, Weight, imagined
from probe.errors import ConversionError
from probe.mapping import LayerMapping
from probe.matching import Direction, Matching, match
from probe.numbers.axis_sums import squeezed
from probe.numbers.fused import Fusion, Shape, problem_of, whole_shape
from probe.numbers.layouts import counterpart
from probe.numbers.statistics import dtype_of, is_float

_MOST_NAMED = 8
_AFTER_ONE_ANOTHER = Fusion()
_TURNED = (
    "; as [out, in] these are {} and {}: if one of the classes holds its weights the other way round, say so with "
    "transpose: true in a layer mapping"
)
_REVERSED = {(): (1, 0), (0, 1): (1, 0), (1, 0): ()}
"""the order of the axes of a matrix that lies the other way round"""
_LEGACY = {"weight": "gamma", "bias": "beta"}
"""what checkpoints from TensorFlow's time call the parameters of LayerNorm"""


@dataclass(frozen=True)
class Cut:
    """Which of several tensors that lie in one it is."""

    shapes: tuple[tuple[Shape, ...], ...]
    """of all of them, in the canonical layout, as `probe.numbers.fused` takes them"""
    fusion: Fusion
    row: int
    column: int


@dataclass(frozen=True)
class Part:
    """A source tensor, or one of the equal parts that it is split into along the first canonical axis, or what is cut out."""

    stored: Stored
    axes: tuple[int, ...] = ()
    index: int = 0
    count: int = 1
    cut: Cut | None = None

    @property
    def canonical_shape(self) -> Shape:
        """The shape of the whole source tensor in the canonical layout."""
        shape = self.stored.shape
        return tuple(shape[axis] for axis in self.axes) if len(self.axes) == len(shape) else shape


@dataclass(frozen=True)
class Move:
    """One tensor of the target and what it is made of: nothing where it is a count that begins at 0."""

    target: Stored
    parts: tuple[Part, ...]
    canonical_shape: tuple[int, ...]
    axes: tuple[int, ...] = ()
    """order of the target's axes in the canonical layout"""
    fusion: Fusion = _AFTER_ONE_ANOTHER
    rows: int = 1
    """in so many rows of equal length the parts stand, see `probe.numbers.fused`"""

    @property
    def action(self) -> str:
        """What is done, in words; ``""`` when the values stay as they are."""
        if not self.parts:
            return "made: 0"
        first = self.parts[0]
        was_turned, is_turned = (axes not in ((), tuple(range(len(axes)))) for axes in (first.axes, self.axes))
        says = [f"part {first.index + 1} of {first.count}"] if first.count > 1 and len(self.parts) == 1 else []
        says += [_split_text(first.cut)] if first.cut is not None else []
        if self.rows > 1 or self.fusion.stacked:
            says += [f"stack {self.rows}"]
            says += [f"concat {len(self.parts) // self.rows}"] if len(self.parts) > self.rows else []
        elif len(self.parts) > 1:
            says += [f"concat {len(self.parts)}"]
        says += _fusion_texts(self.fusion, "halves")
        says += ["transpose"] if was_turned != is_turned else []
        says += ["reshape"] if not says and first.stored.shape != self.target.shape else []
        says += [f"cast to {self.target.dtype}"] if first.stored.dtype != self.target.dtype else []
        return ", ".join(says)


def _split_text(cut: Cut) -> str:
    """Say which part is cut out of a tensor."""
    count, length = len(cut.shapes), len(cut.shapes[0])
    says = [f"index {cut.row}"] if cut.fusion.stacked else []
    says += [f"part {cut.column + 1} of {length}"] if length > 1 or not count else []
    return ", ".join([*says, *_fusion_texts(cut.fusion, "neighbours")])


def _fusion_texts(fusion: Fusion, to: str) -> list[str]:
    """Say how parts lie in a tensor."""
    says = [f"in {fusion.groups} groups"] if fusion.groups > 1 else []
    says += [f"rows of {fusion.rotary} heads to {to}"] if fusion.rotary else []
    return [*says, f"rows of {len(fusion.order)} blocks in another order"] if fusion.order else says


@dataclass(frozen=True)
class Plan:
    """What a conversion will do."""

    moves: tuple[Move, ...]
    left_out: tuple[Stored, ...] = ()
    """of the source, allowed to be in no target"""
    tied: tuple[tuple[Part, Part], ...] = ()
    """of the source, one tensor in one of the models: they must hold the same values"""
    said: tuple[str, ...] = ()
    """what was taken for granted, in words"""

    def __repr__(self) -> str:
        counts = Counter(move.action for move in self.moves).items()
        changed = [f"{count} {action}" for action, count in counts if action]
        left = [f"{len(self.left_out)} left out"] if self.left_out else []
        return f"<Plan of {len(self.moves)} tensors: {', '.join([*changed, *left]) or 'all as they are'}>"


def planned(
    state: Mapping[str, Stored], sides: Sides, *,
    dtype: str | None = None, allow_missing: Iterable[str] = (), allow_extra: Iterable[str] = (),
    left_misshapen: list[str] | None = None,
) -> Plan:  # fmt: skip
    """Work out how the target's weights are made.

    ``state`` are the tensors of the source, by name; floating-point weights are to have the ``dtype``, None for what
    they have. ``allow_missing`` and ``allow_extra`` are names or globs of what the source need not have, of what the
    target need not take. ``left_misshapen`` takes what is misshapen, in words; it is an error when None. Raises
    ConversionError where a tensor is missing, extra or misshapen.
    """
    finder, target = _Finder(state, sides), sides.target
    wanted = None if dtype is None else dtype_of(dtype)
    moves, missing, misshapen = [], [], [] if left_misshapen is None else left_misshapen
    found = [(weight, *finder.made_of(weight)) for weight in target.weights]
    turned = _turned_classes(sides, found)
    for weight, made, parts in found:
        if _kind(sides, weight) in turned and made is None:
            weight = replace(weight, layout=replace(weight.layout, axes=_REVERSED[weight.layout.axes]))  # noqa: PLW2901
        if parts is None:
            if weight.module in sides.left_out[1]:
                continue
            if weight.slot == COUNTER:
                moves.append(Move(Stored(weight.names[0], np.dtype("i8"), ()), (), ()))
            elif weight.is_persistent and not is_allowed(weight.names, allow_missing):
                missing.append(weight.names[0])
            continue
        shape, problem = (weight.canonical_shape, made.problem) if made else _canonical_shape(weight, parts)[:2]
        if problem:
            misshapen.append(problem)
            continue
        was = parts[0].stored.dtype
        kind = wanted if wanted is not None and is_float(was) else was
        names = weight.names if target.framework != "mindspore" else weight.names[:1]
        how = (made.fusion, made.rows) if made is not None else (_AFTER_ONE_ANOTHER, 1)
        moves += [Move(Stored(name, kind, weight.shape), parts, shape, weight.layout.axes, *how) for name in names]
    left = [stored for name, stored in state.items() if name not in finder.used]
    extra = [s.name for s in left if not finder.may_go(s.name) and not is_allowed((s.name,), allow_extra)]
    complain(missing, extra, misshapen if left_misshapen is None else [], target.framework)
    said = [
        f"{there}.{slot} of the target lies the other way round than {here}'s of the source: the sizes say so"
        for here, there, slot in sorted(turned)
    ]
    return Plan(tuple(moves), tuple(left), tuple(finder.tied), tuple(said))


def _kind(sides: Sides, weight: Weight) -> tuple[str, str, str]:
    """Return the classes that hold a weight of the target, in the source and in the target, and its slot."""
    here = sides.partner.get(weight.module)
    name = "" if here is None else sides.source.tree.class_name(here)
    return name, sides.target.tree.class_name(weight.module), weight.slot


def _turned_classes(
    sides: Sides, found: Iterable[tuple[Weight, Fused | None, tuple[Part, ...] | None]]
) -> frozenset[tuple[str, str, str]]:
    """Return the kinds of weights of which nothing but the sizes says that they lie the other way round.

    One of the classes is not the framework's: a matrix of it may be [in, out]. A square one does not tell; it lies as
    the others of its kind do, where these agree.
    """
    votes: dict[tuple[str, str, str], set[bool]] = defaultdict(set)
    for weight, made, parts in found:
        wanted = weight.canonical_shape
        if made is None and parts is not None and len(wanted) == 2 and not _is_known(sides, weight):
            shape = _canonical_shape(weight, parts)[2]
            if sorted(shape) == sorted(wanted) and wanted[0] != wanted[1]:
                votes[_kind(sides, weight)].add(shape != wanted)
    return frozenset(kind for kind, seen in votes.items() if seen == {True})


def _is_known(sides: Sides, weight: Weight) -> bool:
    """Return True if both classes that hold a weight are known, or none: names alone tell nothing of classes."""
    here = sides.partner.get(weight.module)
    kinds = (
        (sides.source.framework, () if here is None else sides.source.kinds[here]),
        (sides.target.framework, sides.target.kinds[weight.module]),
    )
    return not all(names for _, names in kinds) or all(
        counterpart(framework, names, "paddle" if framework == "torch" else "torch") for framework, names in kinds
    )


@dataclass(frozen=True)
class Sides:
    """Two models, and which module and weight of one is which of the other."""

    source: Structure
    target: Structure
    partner: Mapping[int, int]
    """module of the source for each of the target's that has one"""
    wholes: Sequence[Joined] = ()
    """weights of the target in which several of the source lie"""
    splits: Sequence[Joined] = ()
    """weights of the source in which several of the target lie"""
    left_out: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    """modules of the source, and of the target, that the mapping leaves out"""


def matched(source: Structure, target: Structure, mapping: LayerMapping, direction: Direction | None = None) -> Sides:
    """Find out which weights of two models correspond."""

    def unknown(_: int) -> frozenset[object]:
        return frozenset()

    return sides_of(match(known(source), known(target), mapping, unknown, unknown, direction), source, target)


def sides_of(found: Matching, source: Structure, target: Structure) -> Sides:
    """Return two models of which the modules are paired already."""
    here, there = viewed(source, found.views_a), viewed(target, found.views_b)
    partner = {pair.b: pair.a for pair in found.pairs}
    return Sides(here, there, partner, *joined(found, here, there), (found.ignored_a, found.ignored_b))


def both_structures(
    source: Structure | None, target: Structure | None, source_framework: str, to: str, mapping: LayerMapping,
    direction: Direction | None = None, by_paconvert: bool = False,
) -> Sides:  # fmt: skip
    """Return both models, where one may have to be worked out from the other, see `imagined`."""
    if source is not None and target is not None:
        return matched(source, target, mapping, direction)
    if source is not None:
        target, places = imagined(source, to, mapping, by_paconvert)
        return Sides(source, target, {there: here for here, there in places.items()})
    if target is None:
        raise ConversionError(
            "names of tensors do not tell the classes of modules, and only these tell which weights to transpose: give "
            'a recording of either model (task "structure" is enough) with --from or --like, or the model itself in Python'
        )
    source, places = imagined(target, source_framework, mapping, by_paconvert)
    return Sides(source, target, places)


class _Finder:
    """Finds what a weight of the target is made of."""

    def __init__(self, state: Mapping[str, Stored], sides: Sides) -> None:
        self.state, self.sides = state, sides
        self.source, self.target, self.partner = sides.source, sides.target, sides.partner
        self.used: set[str] = set()
        self.tied: list[tuple[Part, Part]] = []
        self._pieces: dict[Key, tuple[Weight, int, int]] = {}
        for weight in self.source.weights:
            parts = self.source.parts(weight)
            keys = self.source.keys_of(weight) if parts == (weight.layout.name,) else []
            for number, part in enumerate(parts):
                for key in keys or [(weight.module, part)]:
                    self._pieces.setdefault(key, (weight, number, len(parts)))

        self._wholes = {(each.whole.module, each.whole.slot): each for each in sides.wholes}
        self._splits = {
            (part.module, part.slot): (each, row, column)
            for each in sides.splits
            for row, parts in enumerate(each.parts)
            for column, part in enumerate(parts)
        }

    def made_of(self, weight: Weight) -> tuple[Fused | None, tuple[Part, ...] | None]:
        """Return what a weight of the target is made of where a mapping says one to many, and its parts, None when one is missing."""
        place, made = (weight.module, weight.slot), None
        if place in self._wholes:
            found = self._wholes[place]
            parts = [[self._stored(part) for part in row] for row in found.parts]
            if not any(part is None for row in parts for part in row):
                made = _put_together(weight, parts, found.fusion)
        elif place in self._splits:
            found, row, column = self._splits[place]
            whole = self._stored(found.whole)
            made = None if whole is None else _cut_out(weight, whole, found, row, column)
        else:
            return None, self.parts_of(weight)
        return made, None if made is None else made.parts

    def _stored(self, weight: Weight) -> Part | None:
        """Return a weight of the source as the state has it."""
        spelled = next(filter(None, map(self._spelled, weight.names)), "")
        if not spelled:
            return None
        self.used.update(filter(None, map(self._spelled, weight.names)))
        return Part(self.state[spelled], weight.layout.axes)

    def parts_of(self, weight: Weight) -> tuple[Part, ...] | None:
        """Return the parts of a weight of the target, None when one is missing."""
        parts = self.target.parts(weight)
        if parts == (weight.layout.name,):
            found = [self._part(module, name) for module, name in self.target.keys_of(weight)]
            several = [part for part in found if part is not None]
            self.tied += [(several[0], other) for other in several[1:] if other.stored != several[0].stored]
            return tuple(several[:1]) or None
        packed = [self._part(weight.module, part) for part in parts]
        found = tuple(part for part in packed if part is not None)
        if len(found) < len(parts):
            return None
        same = all(
            (part.stored, part.index, part.count) == (found[0].stored, i, len(parts)) for i, part in enumerate(found)
        )
        return (Part(found[0].stored, found[0].axes),) if same else found

    def _part(self, module: int, name: str) -> Part | None:
        """Return what a part is, looked for below the nearest module around it that has a partner."""
        tree = self.target.tree
        while True:
            here = self.partner.get(module)
            if here is not None:
                piece = self._piece(here, name)
                if piece is not None:
                    return piece
            parent = tree.modules[module].parent
            if parent < 0:
                return None
            module, name = parent, f"{tree.name(module)}.{name}"

    def _piece(self, module: int, name: str) -> Part | None:
        tree, found = self.source.tree, self._pieces.get((module, name))
        if found is None and "." in name:
            *path, slot = name.split(".")
            inner = tree.resolve(module, path)
            found = None if inner is None else self._pieces.get((inner, slot))
        if found is None:
            return None
        weight, index, count = found
        spelled = [name for name in map(self._spelled, weight.names) if name]
        if not spelled:
            return None
        parts = [Part(self.state[name], weight.layout.axes, index, count) for name in spelled]
        if not self.used.issuperset(spelled):
            self.tied += [(parts[0], other) for other in parts[1:]]
        self.used.update(spelled)
        return parts[0]

    def _spelled(self, name: str) -> str:
        """Return how the state spells a name: as it is, without wrappers, or as old checkpoints did."""
        owner, _, slot = name.rpartition(".")
        index = self.source.tree.by_path.get(owner)
        bare = name if index is None else ".".join([*self._bare(index), slot])
        for candidate in (name, bare):
            prefix = candidate[: len(candidate) - len(slot)]
            for spelling in (candidate, f"{prefix}{_LEGACY.get(slot, slot)}"):
                if spelling in self.state:
                    return spelling
        return ""

    def _bare(self, index: int) -> list[str]:
        tree, names = self.source.tree, []
        while tree.modules[index].parent >= 0:
            parent = tree.modules[index].parent
            if tree.wrapped(parent) != tree.name(index):
                names.append(tree.name(index))
            index = parent
        return names[::-1]

    def may_go(self, name: str) -> bool:
        """Return True if the target can do without a tensor: BatchNorm's count of batches, what is in no checkpoint."""
        slot = name.rpartition(".")[2]
        known = [weight for weight in self.source.weights if name in weight.names]
        return any(
            slot == COUNTER or not weight.is_persistent or weight.module in self.sides.left_out[0] for weight in known
        )


@dataclass(frozen=True)
class Fused:
    """What a weight of the target is made of."""

    parts: tuple[Part, ...]
    problem: str = ""
    fusion: Fusion = _AFTER_ONE_ANOTHER
    rows: int = 1


def _put_together(weight: Weight, rows: Sequence[Sequence[Part | None]], fusion: Fusion) -> Fused:
    parts = [[part for part in row if part is not None] for row in rows]
    flat = tuple(part for row in parts for part in row)
    shapes = [[part.canonical_shape for part in row] for row in parts]
    problem = problem_of(shapes, fusion)
    if problem or squeezed(whole_shape(shapes, fusion)) != squeezed(weight.canonical_shape):
        problem = _misshapen(weight, flat)
    return Fused(flat, problem, fusion, len(rows))


def _cut_out(weight: Weight, whole: Part, found: Joined, row: int, column: int) -> Fused:
    shapes = tuple(tuple(part.canonical_shape for part in parts) for parts in found.parts)
    problem = problem_of(shapes, found.fusion)
    if problem or squeezed(whole_shape(shapes, found.fusion)) != squeezed(whole.canonical_shape):
        problem = _misshapen(weight, (whole,))
    return Fused((replace(whole, cut=Cut(shapes, found.fusion, row, column)),), problem)


def _canonical_shape(weight: Weight, parts: Sequence[Part]) -> tuple[tuple[int, ...], str, tuple[int, ...]]:
    """Return the shape of what the parts make, as the target has it; what is wrong with it; and as the source has it."""
    shapes = []
    for part in parts:
        order = part.axes if len(part.axes) == len(part.stored.shape) else range(len(part.stored.shape))
        shape = tuple(part.stored.shape[axis] for axis in order)
        whole, left = divmod(shape[0], part.count) if part.count > 1 and shape else (0, 0)
        shapes.append((whole, *shape[1:]) if whole and not left else shape)
    made = (sum(shape[0] for shape in shapes), *shapes[0][1:]) if len(shapes) > 1 else shapes[0]
    wanted = weight.canonical_shape
    if squeezed(made) == squeezed(wanted):
        return wanted, "", made
    is_turned = len(wanted) == 2 and made == wanted[::-1]
    return wanted, _misshapen(weight, parts) + (_TURNED.format(list(wanted), list(made)) if is_turned else ""), made


def _misshapen(weight: Weight, parts: Sequence[Part]) -> str:
    of = " + ".join(f"{part.stored.name} {list(part.stored.shape)}" for part in parts[:_MOST_NAMED])
    return f"{weight.names[0]} is to be {list(weight.shape)}, the source has {of}"


def is_allowed(names: Iterable[str], patterns: Iterable[str]) -> bool:
    """Return True if one of the names is one of the patterns, or fits one."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def complain(missing: list[str], extra: list[str], misshapen: list[str], to: str) -> None:
    """Raise `ConversionError` when there is anything."""
    texts = []
    if missing:
        texts.append(
            f"{_some(missing)}: the {to} model has {_them(missing)}, the source does not (--allow-missing "
            "NAME leaves out what is meant to be)"
        )
    if extra:
        texts.append(
            f"{_some(extra)}: in the source, but the {to} model has no place for {_them(extra)} "
            "(--allow-extra NAME leaves out what is meant to be)"
        )
    if misshapen:
        texts.append(_some(misshapen))
    if missing and extra:
        texts.append(
            "where these are the same under other names, a layer mapping says so (-lm, mapping=); probe map suggest drafts one"
        )
    if texts:
        raise ConversionError("\n".join(texts))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _them(names: list[str]) -> str:
    return "it" if len(names) == 1 else "them"
