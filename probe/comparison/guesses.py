"""Pairs of modules that neither the mapping nor the path says: what to say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from probe.comparison.result import Divergence
from probe.comparison.side import PARAMETER_ROLES
from probe.matching import Matching, Pair, Reason
from probe.matching.automatic import (
    complete,
    leaves_something,
    match_parameters,
    match_running,
    outline_of,
    without_guesses,
)
from probe.store.reader import Reader
from probe.tree import Tree

MIN_CONFIDENCE = 0.6
_MOST_NAMED = 4


def with_guesses(matching: Matching, a: tuple[Reader, Tree], b: tuple[Reader, Tree], min_confidence: float) -> Matching:
    """Return a matching with pairs for what it leaves on both sides, those that are sure enough."""
    if min_confidence >= 1:
        return matching
    is_whole = not leaves_something(matching, a[1], b[1])
    if not is_whole or may_have_other_names(matching, a[0], b[0]):
        outlines = outline_of(*a), outline_of(*b)
        if not is_whole:
            matching = without_guesses(complete(matching, *outlines), min_confidence)
        matching = match_parameters(matching, *outlines, min_confidence)
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

    def notes(self) -> Iterator[str]:
        """Say how many pairs were found by structure and values, and which is the least sure; parameters beside modules."""
        yield from self._names()
        found = [pair for pair in self.pairs.values() if self.tree_a.wrapped(pair.a) is None]
        if not found:
            return
        least = min(found, key=lambda pair: pair.confidence)
        by_values = sum(pair.reason is Reason.SAME_VALUES for pair in found)
        parts = [f"{by_values} by recorded values"] if by_values else []
        parts += [f"{len(found) - by_values} by structure"] if by_values < len(found) else []
        yield (
            f"{len(found)} of {len(self.matching.pairs)} pairs of modules were found without a mapping, "
            f"{' and '.join(parts)}; the least sure ({least.confidence:.2f}) is {self.tree_a.path(least.a)} with "
            f"{self.tree_b.path(least.b)}"
        )

    def _names(self) -> Iterator[str]:
        """Say which parameters are a pair though their names, or how they lie, do not say it."""
        for letter, tree, views in (
            ("A", self.tree_a, self.matching.views_a),
            ("B", self.tree_b, self.matching.views_b),
        ):
            said: dict[str, list[float]] = {}
            for (module, slot), view in views.items():
                if view.confidence < 1:
                    turned = ", turned" if view.axes else ""
                    text = f"{slot} of {tree.class_name(module)} with {view.name}{turned}"
                    said.setdefault(text, []).append(view.confidence)
            if said:
                parts = [f"{text} (×{len(sure)}, {min(sure):.2f})" for text, sure in said.items()]
                more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
                yield f"parameters of {letter} were paired by a guess: {'; '.join(parts[:_MOST_NAMED])}{more}"

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
        fact = f"that {slot.partition('.')[0]} is the other side's {name} is a guess ({sure:.2f})"
        return replace(finding, confidence=finding.confidence * sure, evidence=(*finding.evidence, fact))

    def _weighed_by_modules(self, finding: Divergence) -> Divergence:
        pair = self.pairs.get((finding.a[0].path, finding.b[0].path)) if finding.a and finding.b else None
        if pair is None:
            return finding
        fact = f"that these two are a pair is a guess by {pair.reason.value} ({pair.confidence:.2f})"
        return replace(finding, confidence=finding.confidence * pair.confidence, evidence=(*finding.evidence, fact))
