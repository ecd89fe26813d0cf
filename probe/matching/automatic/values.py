"""What recorded numbers say of modules: these weights are those, though they may lie another way."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence

from probe.matching.automatic.outline import Numbers, Outline, Seen, Weight
from probe.matching.initial_weights import rounded

_SAME_NORM = 1e-2
_CLOSE = 2e-3
_ENOUGH = 0.3
_SMALLEST = 8


def anchors(a: Outline, b: Outline) -> dict[int, int]:
    """Return the modules of A whose weights are those of one module of B alone, cast or turned as they may be."""
    found: dict[int, int] = {}
    for read in (float, rounded):
        mine, theirs = _by_ends(a, read, found.keys()), _by_ends(b, read, found.values())
        for which, modules in mine.items():
            others = theirs.get(which, ())
            if len(modules) == len(others) == 1 and agree(a, modules[0], b, others[0]):
                found[modules[0]] = others[0]
    return found


def are_same_weights(a: Outline, b: Outline, found: dict[int, int]) -> bool:
    """Return True if both models were given the same weights, so that others are a sign of another module."""
    telling = [sum(bool(_telling(side, i)) for i in range(len(side))) for side in (a, b)]
    return bool(found) and len(found) >= _ENOUGH * min(telling)


def agree(a: Outline, i: int, b: Outline, j: int) -> bool | None:
    """Return True if the weights of two modules are the same numbers; None when nothing tells."""
    mine, theirs = _telling(a, i), _telling(b, j)
    if not mine or not theirs or sorted(w.size for w in mine) != sorted(w.size for w in theirs):
        return None
    left = list(theirs)
    for weight in mine:
        same = next((other for other in left if alike(weight, other)), None)
        if same is None:
            return False
        left.remove(same)
    return True


def add_up(parts: Sequence[Weight], whole: Weight) -> bool | None:
    """Return True if one weight holds just what several others hold; None when nothing tells."""
    numbers = [part.numbers for part in parts]
    total = whole.numbers
    if total is None or not total.is_telling or any(n is None for n in numbers):
        return None
    known = [n for n in numbers if n is not None]
    norm = math.sqrt(sum(n.norm**2 for n in known))
    return _are_equal(Numbers(min(n.min for n in known), max(n.max for n in known), 0.0, norm), total)


def _are_equal(one: Numbers, other: Numbers) -> bool:
    """Return True if two tensors have the same numbers, up to a cast."""
    ends = [(rounded(each.min), rounded(each.max)) for each in (one, other)]
    return math.isclose(one.norm, other.norm, rel_tol=_SAME_NORM) and ends[0] == ends[1]


def close(mine: Sequence[Seen], theirs: Sequence[Seen]) -> float:
    """Return how much two lists of activations speak for a pair: 3 equal bytes, 2 equal numbers, −1 other sizes.

    Several that lie in one on the other side are that one if they have its norm, as cosines and sines have: angles have another.
    """
    if not mine or not theirs:
        return 0.0
    first, second = _as_one(mine, theirs[0]), _as_one(theirs, mine[0])
    is_joined = first is not mine[0] or second is not theirs[0]
    if math.prod(first.shape) != math.prod(second.shape) or (is_joined and not have_one_norm(mine, theirs)):
        return -1.0
    same_form = 0.5 if first.shape == second.shape else 0.0
    x, y = first.numbers, second.numbers
    if x is None or y is None or not x.is_telling or not y.is_telling:
        return same_form
    if x.digest is not None and x.digest == y.digest:
        return 3.0
    spread = max(x.norm, y.norm) / math.sqrt(max(1, math.prod(first.shape)))
    is_close = math.isclose(x.norm, y.norm, rel_tol=_CLOSE) and abs(x.mean - y.mean) <= _CLOSE * spread
    return 2.0 if is_close and abs(x.max - y.max) <= 0.05 * abs(x.max) else same_form


def have_one_norm(mine: Sequence[Seen], theirs: Sequence[Seen]) -> bool:
    """Return True if what two modules return is of one size and norm."""
    if not mine or not theirs:
        return False
    first, second = _as_one(mine, theirs[0]), _as_one(theirs, mine[0])
    norms = [each.numbers.norm for each in (first, second) if each.numbers is not None]
    is_one_size = math.prod(first.shape) == math.prod(second.shape)
    return is_one_size and len(norms) == 2 and math.isclose(*norms, rel_tol=_CLOSE)


def _as_one(several: Sequence[Seen], other: Seen) -> Seen:
    """Return what several tensors of one form are where they lie in the other one, as cosines and sines may; else the first."""
    first, count = several[0], len(several)
    are_parts = count > 1 and math.prod(other.shape) == count * math.prod(first.shape)
    numbers = [each.numbers for each in several if each.numbers is not None]
    if not are_parts or len({each.shape for each in several}) > 1 or len(numbers) < count:
        return first
    joined = Numbers(
        min(each.min for each in numbers), max(each.max for each in numbers), sum(each.mean for each in numbers) / count,
        math.hypot(*(each.norm for each in numbers)), None,
    )  # fmt: skip
    return Seen(other.shape, joined)


def given(mine: Sequence[Seen], theirs: Sequence[Seen]) -> float:
    """Return what `close` does of what two modules are given, one of which may be given more: all that the other one is, and more."""
    fewer, more = sorted((mine, theirs), key=len)
    kept = [next((each for each in more if _is_same(each, one)), None) for one in fewer]
    return 3.0 if kept and None not in kept else close(mine, theirs)


def _is_same(x: Seen, y: Seen) -> bool:
    digests = [each.numbers.digest for each in (x, y) if each.numbers is not None and each.numbers.is_telling]
    return len(digests) == 2 and digests[0] is not None and digests[0] == digests[1]


def compute_otherwise(a: Outline, i: int, b: Outline, j: int) -> bool:
    """Return True if two modules without weights are given other sizes and return other numbers, as silu(x) · y.

    Where the models themselves are given other sizes, as micro-batches of other sizes are, sizes tell nothing.
    """
    if a.weights[i] or b.weights[j] or a.tree.children[i] or b.tree.children[j]:
        return False
    if given(a.inputs.get(0, ()), b.inputs.get(0, ())) < 0:
        return False
    return given(a.inputs.get(i, ()), b.inputs.get(j, ())) < 0 and close(a.outputs.get(i, ()), b.outputs.get(j, ())) < 2


def _telling(side: Outline, index: int) -> list[Weight]:
    weights = (w for w in side.weights[index] if not w.is_again)
    return [w for w in weights if w.numbers is not None and w.numbers.is_telling and w.size >= _SMALLEST]


def alike(x: Weight, y: Weight) -> bool:
    """Return True if two weights hold the same numbers, up to a cast, in whatever order."""
    return x.numbers is not None and y.numbers is not None and x.size == y.size and _are_equal(x.numbers, y.numbers)


def _by_ends(side: Outline, read: Callable[[float], float], done: Iterable[int]) -> dict[Hashable, list[int]]:
    """Return the modules that are not done by the sizes, the smallest and the largest elements of their weights."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    left_out = set(done)
    for index in range(len(side)):
        weights = _telling(side, index) if index not in left_out else []
        ends = {(w.size, read(n.min), read(n.max)) for w in weights if (n := w.numbers) is not None}
        if ends:
            found[frozenset(ends)].append(index)
    return found
