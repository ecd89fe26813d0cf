"""One to many among weights: which of one model lie in one of the other, as a mapping says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from probe.conversion.structure import Structure, Weight
from probe.errors import ConversionError
from probe.matching import Known, Matching, Place, View, WeightBundle
from probe.numbers.fused import Fusion
from probe.numbers.layouts import Layout
from probe.records import ParameterInfo


@dataclass(frozen=True, slots=True)
class Joined:
    """Weights that lie in one."""

    whole: Weight
    parts: tuple[tuple[Weight, ...], ...]
    """a row for each index of a first axis that only the whole has"""
    fusion: Fusion


def known(structure: Structure) -> Known:
    """Return what matching takes of a structure."""
    parameters = [
        ParameterInfo(
            w.names, w.module, w.slot, w.shape, "", True, False, w.layout.axes, w.layout.name, w.is_persistent
        )
        for w in structure.weights
    ]
    return Known(structure.tree, parameters, structure.config)


def viewed(structure: Structure, views: Mapping[Place, View]) -> Structure:
    """Return a structure with the weights named and turned as a mapping says."""
    weights = []
    for weight in structure.weights:
        view = views.get((weight.module, weight.slot))
        if view is not None:
            layout = Layout(view.name, view.axes or weight.layout.axes, weight.layout.unit)
            weight = replace(weight, layout=layout)  # noqa: PLW2901
        weights.append(weight)
    return replace(structure, weights=weights)


def joined(matching: Matching, source: Structure, target: Structure) -> tuple[list[Joined], list[Joined]]:
    """Return what lies in one weight of the target, and what weights of the target lie in one of the source.

    The source is A of the matching. Raises ConversionError where it is not known in how many groups parts lie.
    """
    sides = {"A": _places(source), "B": _places(target)}
    found: dict[str, list[Joined]] = {"A": [], "B": []}
    for bundle in _bundles(matching, {"A": source, "B": target}):
        parts, wholes = sides[bundle.side], sides["A" if bundle.side == "B" else "B"]
        whole = wholes.get(bundle.whole)
        rows = tuple(tuple(parts[place] for place in row if place in parts) for row in bundle.parts)
        if whole is not None and all(len(row) == len(all_) for row, all_ in zip(rows, bundle.parts, strict=True)):
            what = "" if bundle.groups else "in how many groups its parts lie"
            what = "how many heads there are" if bundle.rotary < 0 else what
            if what:
                why = f"{whole.names[0]}: {what} stands in the model's configuration, which is not known: give recordings of the models, or"
                raise ConversionError(
                    f"{f'{bundle.missing}:' if bundle.missing else why} write the number into the mapping"
                )
            found[bundle.side].append(Joined(whole, rows, bundle.fusion))
    return found["A"], found["B"]


def _places(structure: Structure) -> dict[Place, Weight]:
    return {(weight.module, weight.slot): weight for weight in structure.weights}


def _bundles(matching: Matching, sides: Mapping[str, Structure]) -> Iterator[WeightBundle]:
    """Yield what a mapping says of parameters, and what follows for those of the modules that are one."""
    yield from matching.weight_bundles
    slots = {side: _by_name(structure) for side, structure in sides.items()}
    for bundle in matching.bundles:
        wholes = slots["A" if bundle.side == "B" else "B"].get(bundle.whole, {})
        for name, whole in wholes.items():
            row = [slots[bundle.side].get(part, {}).get(name) for part in bundle.parts]
            parts = tuple((weight.module, weight.slot) for weight in row if weight is not None)
            if len(parts) == len(row):
                yield WeightBundle(
                    bundle.side, (whole.module, whole.slot), (parts,), 0, bundle.groups, rotary=bundle.rotary, order=bundle.order,
                    missing=bundle.missing,
                )  # fmt: skip


def _by_name(structure: Structure) -> dict[int, dict[str, Weight]]:
    """Return the weights of each module by their canonical names."""
    found: dict[int, dict[str, Weight]] = {}
    for weight in structure.weights:
        found.setdefault(weight.module, {})[weight.layout.name] = weight
    return found
