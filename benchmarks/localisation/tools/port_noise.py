"""What a port and the model that it was made of have in one place, element by element, so that their noise can be measured.

Weights, gradients and updates are brought into the port's order as its weights are made. What modules return lies in
other orders: sequence first, in one row, packed. So both are sorted by what the same two modules return in fp32, where the
two sides agree to a millionth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks.localisation.models.ports.counterparts import converted, counterparts, nearest
from benchmarks.localisation.pairs.pair import Pair

if TYPE_CHECKING:
    from benchmarks.localisation.tools.brute_force import Traced

Three = tuple[list[Tensor], list[Tensor], list[Tensor]]


def of_port(pair: Pair, traces: list[Traced], wide: list[Traced]) -> Three:
    """Return the tensors of A, of B without its fault and of B where the fault is, elements in the same order.

    Parameters
    ----------
    traces
        A, B without its fault, B
    wide
        A and B without its fault in fp32
    """
    (planted,), phase = pair.b.planted, pair.phase
    port, path = pair.b.architecture, planted.path
    a, right, faulty = traces
    if phase == "init":
        names = [name for name in right.start if name.rpartition(".")[0] == path]
        start = converted(port, a.start)
        return [start[name] for name in names], _named(right.start, names), _named(faulty.start, names)
    if phase == "forward" and path in right.given:
        return [right.given[path]], [right.given[path]], [faulty.given[path]]
    if phase == "forward":
        place = nearest(port, path)
        while any(old not in a.outputs for old in counterparts(port, place)):  # a weight that no module's call uses
            place = nearest(port, place.rpartition(".")[0])
        olds = counterparts(port, place)
        orders = [_flat(wide[0], olds).argsort(), _flat(wide[1], (place,)).argsort()]
        found = _flat(a, olds)[orders[0]], _flat(right, (place,))[orders[1]], _flat(faulty, (place,))[orders[1]]
        return [found[0]], [found[1]], [found[2]]
    if phase == "loss":
        matching = [x for x in a.arrived if x.shape == right.arrived[0].shape]
        return [a.loss, *matching[:1]], [right.loss, right.arrived[0]], [faulty.loss, faulty.arrived[0]]
    if phase != "update":
        names = list(right.gradients)
        gradients = converted(port, {name: _or_zero(x) for name, x in a.gradients.items()})
        return [gradients[name] for name in names], _named(right.gradients, names), _named(faulty.gradients, names)
    names = list(right.gradients)
    changes = converted(port, {name: a.end[name] - a.start[name] for name in a.gradients})
    changes |= {f"{name}:{key}": x for key in _kept(a) for name, x in converted(port, _states(a, key)).items()}
    names += [name for name in right.states if name in changes and name in faulty.states]
    return [changes[name] for name in names], _changes(right, names), _changes(faulty, names)


def _flat(traced: Traced, paths: tuple[str, ...]) -> Tensor:
    return torch.cat([traced.outputs[path][0].double().flatten() for path in paths])


def _named(tensors: dict, names: list[str]) -> list[Tensor]:
    return [_or_zero(tensors[name]) for name in names]


def _or_zero(x: Tensor | None) -> Tensor:
    return torch.zeros(()) if x is None else x


def _kept(traced: Traced) -> set[str]:
    return {name.partition(":")[2] for name in traced.states} - {"step"}


def _states(traced: Traced, key: str) -> dict[str, Tensor]:
    return {name.partition(":")[0]: x for name, x in traced.states.items() if name.partition(":")[2] == key}


def _changes(traced: Traced, names: list[str]) -> list[Tensor]:
    changes = {name: traced.end[name] - traced.start[name] for name in traced.gradients} | traced.states
    return _named(changes, names)
