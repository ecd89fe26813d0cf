"""How parts lie in one is the same in all layers of a class: the odd one is a fault, not another layout."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from probe.comparison.notes import Note, note
from probe.matching.automatic.outline import Outline
from probe.matching.automatic.state import Found
from probe.matching.result import Bundle, WeightBundle

_Bundles = list[Bundle] | list[WeightBundle]


def agree_on_groups(found: Found) -> list[Note]:
    """Let parts of one kind lie in one number of groups, that of most whose values say it; return what to say of others."""
    return [*agreed(found.a, found.b, found.bundles), *agreed(found.a, found.b, found.weight_bundles)]


def agreed(a: Outline, b: Outline, bundles: _Bundles) -> Iterator[Note]:
    """Do so for a list of bundles of two models."""
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for place, bundle in enumerate(bundles):
        kinds[kind_of_bundle(a, b, bundle)].append(place)
    for places in kinds.values():
        votes = Counter(bundles[place].groups for place in places if bundles[place].is_known)
        if not votes or len(places) == 1:
            continue
        groups, count = votes.most_common(1)[0]
        is_sure = 2 * count > votes.total()
        for place in places:
            bundle = bundles[place]
            if not is_sure:
                bundles[place] = replace(bundle, is_known=False)  # type: ignore[call-overload]
            elif bundle.groups != groups or not bundle.is_known:
                bundles[place] = replace(bundle, groups=groups, is_known=True)  # type: ignore[call-overload]
                if bundle.is_known:
                    yield _said(a, b, bundle, groups, count)


def kind_of_bundle(a: Outline, b: Outline, bundle: Bundle | WeightBundle) -> Hashable:
    """Return what tells the modules of a bundle from those of other kinds: their classes, their names, and what is around them."""
    mine, theirs = (a, b) if bundle.side == "A" else (b, a)
    whole, slot = bundle.whole if isinstance(bundle, WeightBundle) else (bundle.whole, "")
    parent = theirs.tree.modules[whole].parent
    around = theirs.tree.class_name(parent) if parent >= 0 else ""
    parts: Sequence[int] = [k for k, _ in bundle.parts[0]] if isinstance(bundle, WeightBundle) else bundle.parts
    names = tuple(mine.tree.name(part) for part in parts)
    return bundle.side, theirs.tree.class_name(whole), around, theirs.tree.name(whole), slot, names


def _said(a: Outline, b: Outline, bundle: Bundle | WeightBundle, groups: int, count: int) -> Note:
    theirs, letter = (b, "B") if bundle.side == "A" else (a, "A")
    whole, slot = bundle.whole if isinstance(bundle, WeightBundle) else (bundle.whole, "weight")
    name = f"{theirs.tree.path(whole)}.{slot}"
    return note("parts-lie-otherwise", side=letter, name=name, groups=bundle.groups, others=count, of_others=groups)
