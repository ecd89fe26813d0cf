"""How parts lie in one is the same in all layers of a class: the odd one is a fault, not another layout."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from probe.matching.automatic.state import Found
from probe.matching.result import Bundle, WeightBundle

_Bundles = list[Bundle] | list[WeightBundle]


def agree_on_groups(found: Found) -> list[str]:
    """Let parts of one kind lie in one number of groups, that of most whose values say it; return what to say of others."""
    return [*_agreed(found, found.bundles), *_agreed(found, found.weight_bundles)]


def _agreed(found: Found, bundles: _Bundles) -> Iterator[str]:
    kinds: dict[Hashable, list[int]] = defaultdict(list)
    for place, bundle in enumerate(bundles):
        kinds[_kind(found, bundle)].append(place)
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
                    yield _said(found, bundle, groups, count)


def _kind(found: Found, bundle: Bundle | WeightBundle) -> Hashable:
    mine, theirs = (found.a, found.b) if bundle.side == "A" else (found.b, found.a)
    whole, slot = bundle.whole if isinstance(bundle, WeightBundle) else (bundle.whole, "")
    parent = theirs.tree.modules[whole].parent
    around = theirs.tree.class_name(parent) if parent >= 0 else ""
    parts: Sequence[int] = [k for k, _ in bundle.parts[0]] if isinstance(bundle, WeightBundle) else bundle.parts
    names = tuple(mine.tree.name(part) for part in parts)
    return bundle.side, theirs.tree.class_name(whole), around, theirs.tree.name(whole), slot, names


def _said(found: Found, bundle: Bundle | WeightBundle, groups: int, count: int) -> str:
    theirs, letter = (found.b, "B") if bundle.side == "A" else (found.a, "A")
    whole, slot = bundle.whole if isinstance(bundle, WeightBundle) else (bundle.whole, "weight")
    return (
        f"the parts of {letter}'s {theirs.tree.path(whole)}.{slot} lie {_how(bundle.groups)}, those of {count} others of its "
        f"class {_how(groups)}: it is compared as if they lay as in the others"
    )


def _how(groups: int) -> str:
    return "one after the other" if groups == 1 else f"in {groups} groups"
