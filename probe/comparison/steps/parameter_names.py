"""What the parameters of a recording are called in the layout that all frameworks share."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from probe.matching import Place, View
from probe.numbers.layouts import layout_of
from probe.records import ParameterInfo
from probe.store.reading.reader import Reader


class Names:
    """What the parameters of a recording are called in the canonical layout, and how they lie.

    Parameters
    ----------
    reader
        the recording
    parameters
        its parameters, each at the module where the comparison looks for it
    views
        of parameters of which a mapping says it
    """

    def __init__(self, reader: Reader, parameters: Sequence[ParameterInfo], views: Mapping[Place, View]) -> None:
        self._reader, self._parameters = reader, parameters
        self.axes = {(p.module, p.slot): p.axes for p in parameters if p.axes}
        self.slots = {(p.module, p.slot): p.canonical_slot for p in parameters}
        plain = {place: tuple(range(len(view.axes))) for place, view in views.items()}
        self.turned = {
            place for place, view in views.items() if view.axes and view.axes != self.axes.get(place, plain[place])
        }
        """parameters whose records were made before it was known how they lie"""
        self.axes.update({place: view.axes for place, view in views.items() if view.axes})
        self.slots.update({place: view.name for place, view in views.items()})

    def shape_of(self, place: Place) -> tuple[int, ...]:
        """Return the shape of a parameter in the canonical layout; of a bias that is not there, what it would have."""
        shape = self._shapes.get(place)
        if shape is None:
            weights = [other for other, name in self.slots.items() if other[0] == place[0] and name == "weight"]
            return self.shape_of(weights[0])[:1] if weights else ()
        axes = self.axes.get(place, ())
        return tuple(shape[axis] for axis in axes) if len(axes) == len(shape) else shape

    @functools.cached_property
    def _shapes(self) -> dict[Place, tuple[int, ...]]:
        return {(p.module, p.slot): p.shape for p in self._parameters}

    def of(self, module: int, slot: str) -> str:
        """Return what a parameter is called."""
        name = self.slots.get((module, slot))
        if name is None:  # another name of a tied one: all that is known of it is the class
            names = (self._reader.modules[module].class_name,)
            name = layout_of(self._reader.info.framework, names, slot).name
        return name
