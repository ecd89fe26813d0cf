"""Pairs of modules that neither the mapping nor the path says: what to say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence
from probe.comparison.steps.side import PARAMETER_ROLES
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

    Raises
    ------
    MappingError
        the mapping cannot be used
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
    """Tell whether modules that are a pair have parameters of which neither the name nor the form says which they are."""
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


@dataclass
class Guesses:
    """What was paired without a mapping."""

    matching: Matching
    tree_a: Tree
    tree_b: Tree

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Pair]:
        """By both paths."""
        return {
            (self.tree_a.path(pair.a), self.tree_b.path(pair.b)): pair
            for pair in self.matching.pairs
            if pair.confidence < 1
        }

    def notes(self) -> Iterator[Note]:
        """Say how many pairs were found by structure and values, and which is the least sure; parameters beside modules."""
        yield from self._names()
        found = [pair for pair in self.pairs.values() if self.tree_a.wrapped(pair.a) is None]
        if not found:
            return
        least = min(found, key=lambda pair: pair.confidence)
        by_values = sum(pair.reason is Reason.SAME_VALUES for pair in found)
        yield note(
            "pairs-found-without-mapping", by_values=by_values, by_structure=len(found) - by_values, total=len(self.matching.pairs),
            confidence=least.confidence, a=self.tree_a.path(least.a), b=self.tree_b.path(least.b),
        )  # fmt: skip

    def _names(self) -> Iterator[Note]:
        """Say which parameters are a pair though their names, or how they lie, do not say it."""
        for letter, tree, views in (
            ("A", self.tree_a, self.matching.views_a),
            ("B", self.tree_b, self.matching.views_b),
        ):
            found: dict[tuple[str, str, str, bool], list[float]] = {}
            for (module, slot), view in views.items():
                if view.confidence < 1:
                    key = slot, tree.class_name(module), view.name, bool(view.axes)
                    found.setdefault(key, []).append(view.confidence)
            guesses = tuple((*key, len(sure), min(sure)) for key, sure in found.items())
            if guesses:
                yield note("parameters-paired-by-guess", side=letter, guesses=guesses)

    def weighed(self, finding: Divergence) -> Divergence:
        """Let a finding at modules, or parameters, that may be no pair be no surer than the pair is, and say so."""
        return self._weighed_by_modules(self._weighed_by_parameters(finding))

    def _weighed_by_parameters(self, finding: Divergence) -> Divergence:
        if finding.role not in PARAMETER_ROLES:
            return finding
        sides = (finding.a, self.tree_a, self.matching.views_a), (finding.b, self.tree_b, self.matching.views_b)
        found = [
            (views.get((tree.by_path[ref.path], ref.slot.partition(".")[0])), ref)
            for refs, tree, views in sides for ref in refs[:1] if ref.path in tree.by_path
        ]  # fmt: skip
        guess = min(((view.confidence, ref.slot, view.name) for view, ref in found if view), default=(1.0, "", ""))
        if guess[0] == 1:
            return finding
        sure, slot, name = guess
        fact = note("guessed-parameter", slot=slot.partition(".")[0], name=name, confidence=sure)
        return replace(finding, confidence=finding.confidence * sure, facts=(*finding.facts, fact))

    def _weighed_by_modules(self, finding: Divergence) -> Divergence:
        pair = self.pairs.get((finding.a[0].path, finding.b[0].path)) if finding.a and finding.b else None
        if pair is None:
            return finding
        fact = note("guessed-pair", by=pair.reason.value, confidence=pair.confidence)
        return replace(finding, confidence=finding.confidence * pair.confidence, facts=(*finding.facts, fact))
