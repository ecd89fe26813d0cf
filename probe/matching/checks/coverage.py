"""How much of two models a mapping pairs, by what, and what is near to each module that it leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from probe.mapping.nearest import nearest
from probe.matching.known import Known, canonical_shape
from probe.matching.lists import grouped
from probe.matching.loose import NUMBER, numbers_left_out
from probe.matching.result import Matching
from probe.structure.tree import Tree

KINDS = 100
"""kinds of modules for which something near is looked for"""
_SEARCHED = 5_000
_SHOWN = 3
_LETTERS = ("{i}", "{j}", "{k}", "{l}", "{m}")


@dataclass(frozen=True, slots=True)
class Left:
    """Modules of one side without a counterpart, whose paths differ in numbers only."""

    path: str
    """with ``{i}``, ``{j}`` … where their numbers differ"""
    class_name: str
    count: int
    nearest: tuple[str, ...]
    """modules of the other side that may be meant, written alike; not what has the same path"""

    @property
    def named(self) -> tuple[str, str, int]:
        """What it is, whatever may be meant."""
        return self.path, self.class_name, self.count


@dataclass(frozen=True, slots=True)
class Coverage:
    """What became of the modules of both sides; wrappers do not count."""

    modules: tuple[int, int]
    paired: dict[str, int]
    """by reason"""
    further: tuple[int, int]
    """parts of a module of the other side beside the first, which is its pair"""
    ignored: tuple[int, int]
    by_weights: tuple[int, int]
    """without a counterpart, but all their weights lie in, or hold, those of others that are compared"""
    weights_a: tuple[Left, ...]
    """these"""
    weights_b: tuple[Left, ...]
    unneeded: tuple[tuple[int, ...], tuple[int, ...]]
    """modules of either side that have no counterpart and need none, beside these"""
    only_a: tuple[Left, ...]
    only_b: tuple[Left, ...]


def coverage(
    matching: Matching, a: Known, b: Known, unneeded: tuple[Set[int], Set[int]] = (frozenset(), frozenset())
) -> Coverage:
    """Count what a matching pairs, and look for what the rest may be.

    Modules that only hold another one, and are stepped over, count among those that need no counterpart; those of
    which the weights are compared are counted apart.
    """
    weights = _by_weights(matching, a, "A"), _by_weights(matching, b, "B")
    none, left = [], []
    for side, needless, told in zip("AB", unneeded, weights, strict=True):
        none.append(tuple(sorted({*needless, *matching.stepped(side)} - told)))
        left.append([i for i in matching.only(side) if i not in told and i not in none[-1]])
    further = [sum(len(each.parts) - 1 for each in matching.bundles if each.side == side) for side in "AB"]
    reasons = Counter(pair.reason.value for pair in matching.pairs if a.tree.wrapped(pair.a) is None)
    to_b, to_a = matching.partners("A"), matching.partners("B")
    return Coverage(
        (_count(a.tree, range(len(a.tree))), _count(b.tree, range(len(b.tree)))),
        dict(reasons),
        (further[0], further[1]),
        (_count(a.tree, matching.ignored_a), _count(b.tree, matching.ignored_b)),
        (len(weights[0]), len(weights[1])),
        tuple(_left(sorted(weights[0]), (), a, b, to_b)),
        tuple(_left(sorted(weights[1]), (), b, a, to_a)),
        (none[0], none[1]),
        tuple(_left(*left, a, b, to_b)),
        tuple(_left(*left[::-1], b, a, to_a)),
    )


def _by_weights(matching: Matching, known: Known, side: str) -> set[int]:
    """Return modules without a counterpart that hold weights, all of which are compared with those of other modules."""
    compared = matching.compared_apart(side)
    inside: dict[int, set[bool]] = {}
    for parameter in known.parameters or ():
        for module in (parameter.module, *known.tree.ancestors(parameter.module)):
            inside.setdefault(module, set()).add((parameter.module, parameter.slot) in compared)
    return {index for index in matching.only(side) if inside.get(index) == {True}}


def _count(tree: Tree, modules: Iterable[int]) -> int:
    return sum(tree.wrapped(index) is None for index in modules)


def _left(
    mine: Sequence[int], theirs: Sequence[int], here: Known, there: Known, partner: dict[int, int]
) -> Iterator[Left]:
    together = grouped(mine, lambda index: (_numbered(here.tree, index), here.tree.class_name(index)))
    for number, ((_, class_name), members) in enumerate(together.items()):
        letters = _letters([here.tree.path(index) for index in members])
        shown = _lettered(here.tree.path(members[0]), letters)
        near = _nearest(members[0], theirs[:_SEARCHED], here, there, partner) if number < KINDS else []
        names = dict.fromkeys(_lettered(path, letters) for path in near)
        yield Left(shown, class_name, len(members), tuple(name for name in names if name != shown))


def _numbered(tree: Tree, index: int) -> str:
    """Return a path with ``{i}`` for numbers, but for that of a model in a list of models, which a mapping's key names."""
    path = tree.path(index)
    if tree.class_name(tree.root) != "list" or not path:
        return numbers_left_out(path)
    model, dot, rest = path.partition(".")
    return model + dot + numbers_left_out(rest)


def _letters(paths: Sequence[str]) -> list[str]:
    """Return, for each number in paths that differ in numbers only, a letter if it is not the same in all of them."""
    numbers = list(zip(*map(NUMBER.findall, paths), strict=True))
    letters = iter(_LETTERS)
    return [next(letters, "{n}") if len(set(each)) > 1 else "" for each in numbers]


def _lettered(path: str, letters: Sequence[str]) -> str:
    """Write letters in the place of the first numbers of a path."""
    found = iter(letters)
    return NUMBER.sub(lambda number: next(found, "") or number[0], path)


def _nearest(index: int, left: Sequence[int], here: Known, there: Known, partner: dict[int, int]) -> list[str]:
    """Return what may be meant: below the counterpart of what is around the module, of its shapes, with such a name."""
    top = next((partner[around] for around in here.tree.ancestors(index) if around in partner), None)
    inside = [each for each in left if top is None or top in there.tree.ancestors(each)]
    if not inside:
        return []
    shapes = _shapes(here, index)
    alike = [each for each in inside if shapes and _shapes(there, each) == shapes]
    names = grouped(alike or inside, there.tree.name)
    close = [each for name in nearest(here.tree.name(index), names, _SHOWN) for each in names[name]]
    return list(dict.fromkeys(map(there.tree.path, close or alike)))[:_SHOWN]


def _shapes(known: Known, index: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    own = {each.canonical_slot: canonical_shape(each) for each in known.slots.get(index, {}).values()}
    return tuple(sorted(own.items()))
