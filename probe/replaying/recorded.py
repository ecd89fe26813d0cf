"""What a step of A recorded: its calls, what each was given and returned, and the gradients of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from probe.matching import Bundle, Matching
from probe.numbers.fused import Fusion, fuse, split
from probe.records import Phase, Role
from probe.replaying.passing.left import by_place
from probe.store.reading.reader import Reader
from probe.verdict.side import Call, Side
from probe.verdict.steps.step import of_parts
from probe.verdict.tensors import Tensor

_KEPT = 256 << 20
"""bytes of values that are kept in case that they are asked for again: what one call returns another one is given"""
_GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)


@dataclass(frozen=True)
class Cut:
    """Which part of A's tensor a module of B has, where B holds apart what is one module in A."""

    bundle: Bundle
    number: int
    sizes: tuple[int, ...]
    """of all parts, along the last axis; empty where there is one"""

    def of(self, whole: np.ndarray) -> np.ndarray:
        """Return the part of what the whole returned, or of its gradient."""
        bundle = self.bundle
        shapes = [[(*whole.shape[:-1], size) for size in self.sizes or whole.shape[-1:]]]
        fusion = Fusion(-1, max(bundle.groups, 1), rotary=max(bundle.rotary, 0), order=bundle.order)
        return split(whole, shapes, fusion)[0][self.number]


class Recorded:
    """One step of A.

    Parameters
    ----------
    reader
        the recording
    step
        of it
    matching
        says which modules of A stand for one of B
    """

    def __init__(self, reader: Reader, step: int, matching: Matching) -> None:
        self.reader, self.step = reader, step
        self.side = Side(reader, step, matching.views_a, begins=True)
        self._bundles = {bundle.parts[0]: bundle for bundle in matching.bundles if bundle.side == "A"}
        hidden = {part for bundle in self._bundles.values() for part in bundle.parts[1:]}
        self._all = by_place(self.side.calls)
        self.calls = sorted((call for call in self._all.values() if call.module not in hidden), key=lambda c: c.begin)
        self._by_module: dict[tuple[int, int], list[Call]] = {}
        for call in self.calls:
            self._by_module.setdefault((call.micro, call.module), []).append(call)
        self._joined: dict[tuple[Call, Role], dict[str, Tensor]] = {}
        self._read: dict[object, np.ndarray] = {}
        """values that were read last"""
        self._nbytes = 0
        self.has_backward = any(role in call.seen for call in self.side.calls for role in _GRADIENTS)

    def calls_of(self, micro: int, module: int) -> list[Call]:
        """Return the calls of a module in a pass, in their order."""
        return self._by_module.get((micro, module), [])

    def slots(self, call: Call, role: Role) -> Mapping[str, Tensor]:
        """Return what a call was given, or another role of it, by slot; of modules that are one in B, together."""
        bundle = self._bundles.get(call.module)
        if bundle is None:
            return call.of(role)
        if (call, role) not in self._joined:
            parts = [self._all.get((call.micro, part, call.number)) for part in bundle.parts]
            known = tuple(part for part in parts if part is not None)
            self._joined[call, role] = of_parts(bundle, known, role) if len(known) == len(parts) else {}
        return self._joined[call, role]

    def gradient(self, call: Call, role: Role, forward: Tensor | None) -> Tensor | None:
        """Return the gradient, with values, of something that a call was given (`Role.GRAD_INPUT`) or returned; None where there is none."""
        forwards = self.slots(call, Role.INPUT if role is Role.GRAD_INPUT else Role.OUTPUT).items()
        slot = next((slot for slot, mine in forwards if mine is forward), None)
        found = None if slot is None else self.slots(call, role).get(slot)
        return found if found is not None and found.has_values else None

    def is_captured(self, call: Call, tensor: Tensor | None) -> bool:
        """Return True if something that a call returned is returned by a call around its caller too, which got it by a hook."""
        around = call.caller.callers() if tensor is not None and call.caller is not None else ()
        return tensor is not None and any(are_equal(tensor, self.slots(at, Role.OUTPUT).values()) for at in around)

    def values(self, tensor: Tensor) -> np.ndarray:
        """Return the values of a tensor as they lie in A; nobody may write to them."""
        key = tensor if tensor.parts else tensor.stored
        found = self._read.pop(key, None)
        if found is None:
            parts = [[self.reader.values(part.stored) for part in row] for row in tensor.parts]
            found = fuse(parts, tensor.fusion or Fusion()) if parts else self.reader.values(tensor.stored)
            self._nbytes += found.nbytes
        self._read[key] = found
        while self._nbytes > _KEPT and len(self._read) > 1:
            self._nbytes -= self._read.pop(next(iter(self._read))).nbytes
        return found

    def weights(self) -> dict[str, int]:
        """Return the stored tensors of the weights and buffers that the step began with, by the first of their names."""
        return self._of_parameters(Phase.INIT, Role.PARAM) | self._of_parameters(Phase.INIT, Role.BUFFER)

    def gradients(self) -> dict[str, int]:
        """Return the stored gradients as the optimizer used them, or else as backward left them, likewise."""
        used = self._of_parameters(Phase.UPDATE, Role.PARAM_GRAD)
        return used or self._of_parameters(Phase.GRADIENT, Role.PARAM_GRAD)

    def _of_parameters(self, phase: Phase, role: Role) -> dict[str, int]:
        places = zip(self.side.places, self.reader.parameters, strict=True)
        names = {place: parameter.names[0] for place, parameter in places}
        found = self.side.params.get((phase, role), {}).items()
        return {names[place]: each.stored for place, each in found if place in names and each.stored >= 0}


def digest(tensor: Tensor) -> object:
    """Return what tells the values of a tensor from others."""
    return tuple(digest(part) for row in tensor.parts for part in row) if tensor.parts else tensor.hash


def are_equal(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    """Return True if a tensor has the values of one of others."""
    return digest(tensor) in map(digest, others)
