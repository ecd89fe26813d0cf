"""Which module of B each of A is: by the mapping, by equal paths, else by structure and values."""

from __future__ import annotations

from dataclasses import replace

from probe.mapping import LayerMapping
from probe.matching import Direction, Known, Matching, Pair, Reason, match
from probe.matching.automatic import leaves_something, may_be_partial, without_guesses
from probe.matching.automatic.weights.running import match_running
from probe.matching.initial_weights import fingerprints
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree


def paired_modules(
    a: tuple[Reader, Tree], b: tuple[Reader, Tree], mapping: LayerMapping, direction: Direction | None, strict: bool,
    min_confidence: float,
) -> Matching:  # fmt: skip
    """Return which module of B each of A is: by the mapping, by equal paths, else by structure and values.

    Raises MappingError where the mapping cannot be used.
    """
    weights = fingerprints(*a, *b)
    known = (Known(tree, reader.parameters, reader.info.model_config) for reader, tree in (a, b))
    certain = match(*known, mapping, *weights, direction, strict)
    return replace(with_guesses(with_groups(certain, a, b), a, b, min_confidence), dims=mapping.dims)


def with_groups(matching: Matching, a: tuple[Reader, Tree], b: tuple[Reader, Tree]) -> Matching:
    """Return a matching in which no line of the mapping pairs one of several parts with the whole that holds them all."""
    if not may_be_partial(matching, a[1], b[1]):
        return matching
    from probe.matching.automatic.outline import outline_of
    from probe.matching.automatic.partial import with_whole_groups

    return with_whole_groups(matching, outline_of(*a), outline_of(*b))


def with_guesses(matching: Matching, a: tuple[Reader, Tree], b: tuple[Reader, Tree], min_confidence: float) -> Matching:
    """Return a matching with pairs for what it leaves on both sides, those that are sure enough."""
    if min_confidence >= 1:
        return matching
    is_whole = not leaves_something(matching, a[1], b[1])
    if not is_whole or may_have_other_names(matching, a[0], b[0]):
        from probe.matching.automatic.loose import match_loose
        from probe.matching.automatic.outline import outline_of
        from probe.matching.automatic.weights.parameters import match_parameters

        outlines = outline_of(*a), outline_of(*b)
        if not is_whole:
            from probe.matching.automatic.completing import complete

            matching = without_guesses(complete(matching, *outlines), min_confidence)
        matching = match_parameters(matching, *outlines, min_confidence)
        matching = match_loose(matching, *outlines, min_confidence)
    return match_running(matching, a[0], b[0], min_confidence)


def may_have_other_names(matching: Matching, a: Reader, b: Reader) -> bool:
    """Return True if a pair has parameters of which neither the name nor the form says which they are."""
    forms_a, forms_b = _forms(a), _forms(b)
    return any(forms_a.get(pair.a, {}) != forms_b.get(pair.b, {}) for pair in matching.pairs)


def _forms(reader: Reader) -> dict[int, set[tuple[str, tuple[int, ...]]]]:
    """Return canonical name and shape of the parameters of each module."""
    found: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for each in reader.parameters:
        if not each.is_buffer:
            axes = each.axes if len(each.axes) == len(each.shape) else range(len(each.shape))
            found.setdefault(each.module, set()).add((each.canonical_slot, tuple(each.shape[axis] for axis in axes)))
    return found


def with_enclosing(matching: Matching, a: Tree, b: Tree) -> Matching:
    """Return a matching with the modules that hold paired ones, from the inside out; class names do not count.

    Both hold as many parameters, in one module or several, packed or not.
    """
    pairs = {pair.a: pair for pair in matching.pairs}
    taken, found = {pair.b for pair in matching.pairs}, dict[int, int]()
    for module in sorted(matching.only_a, key=lambda index: -a.path(index).count(".")):
        inner = [pairs[child] for child in a.children[module].values() if child in pairs]
        holders = {b.modules[pair.b].parent for pair in inner}
        holder = holders.pop() if len(holders) == 1 else -1
        if holder < 0 or holder in taken or a.modules[module].n_params != b.modules[holder].n_params:
            continue
        pairs[module] = Pair(module, holder, Reason.SAME_STRUCTURE, min(pair.confidence for pair in inner))
        taken.add(holder)
        found[module] = holder
    return replace(
        matching,
        pairs=tuple(sorted(pairs.values(), key=lambda pair: pair.a)),
        only_a=tuple(each for each in matching.only_a if each not in found),
        only_b=tuple(each for each in matching.only_b if each not in found.values()),
    )
