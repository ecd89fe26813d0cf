"""Tied weights are recorded under the first of their names; where that module has no counterpart, another one of them may."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from probe.matching import Place
from probe.records import ParameterInfo
from probe.store.reading.reader import Reader

Homes = Mapping[Place, Place]
"""by the place that records of a tied weight name: the place where the comparison looks for them"""


def homes_of(reader: Reader, paired: Container[int]) -> dict[Place, Place]:
    """Return which tied weights of a recording stand, under another of their names, in a module that has a counterpart.

    So ``shared.weight`` of T5, of which no module ``shared`` is ever called, is found at ``encoder.embed_tokens``.

    Parameters
    ----------
    reader
        the recording
    paired
        its modules that have a counterpart
    """
    by_path = {module.path: index for index, module in enumerate(reader.modules)}
    found = {}
    for parameter in reader.parameters:
        if len(parameter.names) > 1 and parameter.module not in paired:
            parts = [name.rpartition(".") for name in parameter.names[1:]]
            places = [(by_path[owner], slot) for owner, _, slot in parts if by_path.get(owner) in paired]
            if places:
                found[parameter.module, parameter.slot] = places[0]
    return found


def at_home(parameter: ParameterInfo, homes: Homes) -> ParameterInfo:
    """Return a parameter as one of the module where the comparison looks for it; its names stay."""
    module, slot = homes.get((parameter.module, parameter.slot), (parameter.module, parameter.slot))
    if (module, slot) == (parameter.module, parameter.slot):
        return parameter
    return replace(parameter, module=module, slot=slot, canonical=parameter.canonical_slot)
