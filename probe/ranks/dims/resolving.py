"""How each tensor of a step is divided: what is said of it, what its class does, and what the bytes on all ranks show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from probe.ranks.dims.defaults import FORWARD_OF
from probe.ranks.dims.held import Held, Signature
from probe.ranks.dims.language import REPLICATED, Dims, Split
from probe.ranks.gathering import OF_PARAMETERS, Gathered, Step
from probe.ranks.layout.groups import DATA
from probe.ranks.layout.places import ALL
from probe.records import Role

_ROUNDS = 4
"""times that what is known of one tensor is passed on to others"""


def _all_alike(gathered: Gathered) -> np.ndarray:
    """Tell of each tensor whether all ranks that have it have the same; what was not measured counts as the same."""
    rows = gathered.rows
    first = np.repeat(gathered.starts, gathered.counts)
    differs = np.zeros(len(rows), bool)
    for name in ("hash_lo", "hash_hi", "hash_kind", "shape"):
        differs |= rows[name] != rows[name][first]
    return ~np.logical_or.reduceat(differs, gathered.starts) if len(rows) else np.zeros(0, bool)


class Resolving:
    """How each tensor of a step is divided that is not the same on all ranks, or that is known to be divided.

    ``signatures`` tell what is known of what the same bytes on the same ranks are divided like.
    """

    def __init__(self, gathered: Gathered, step: Step, signatures: Mapping[Signature, Dims]) -> None:
        self.gathered, self.alike, self.step = gathered, _all_alike(gathered).tolist(), step
        rows = gathered.rows[gathered.starts] if len(gathered.starts) else gathered.rows
        self.columns = {name: rows[name].tolist() for name in ("micro", "module", "call", "role", "order")}
        self.roles = [Role(role) for role in self.columns["role"]]
        self.slots = [step.names.slots[k] for k in rows["slot"].tolist()]
        self.shapes = [step.names.shapes[k] for k in rows["shape"].tolist()]
        self.held = Held(gathered, step.members, step.layout, self.shapes)
        self.counts = gathered.counts.tolist()
        self.found: dict[int, Dims | None] = {}
        self.by_bytes: dict[Signature, Dims] = dict(signatures)
        """like ``signatures``, with what has been found since"""
        self.by_place: dict[tuple[int, int, int, int, str], tuple[Dims, tuple[int, ...]]] = {}
        """by micro-batch, module, call, role and slot: dims, and the shape on a rank"""
        self.shown: dict[int, tuple[Dims, tuple[int, ...]]] = {}
        """by parameter, how it is divided as the other side's shape shows, and its shape on a rank: its states come behind it"""
        self.sizes = {name: step.layout.size(name) for name in step.layout.groups}
        self.results: dict[tuple[int, int], list[int]] = defaultdict(list)
        """by micro-batch and module, what it returns"""
        for tensor, role in enumerate(self.roles):
            if role is Role.OUTPUT:
                self.results[self.columns["micro"][tensor], self.columns["module"][tensor]].append(tensor)

    def result(self) -> dict[int, Dims | None]:
        """Return how tensors are divided, None where nothing tells it; those that are not in it are the same on all of their ranks."""
        left: list[int] = []
        for tensor, role in enumerate(self.roles):
            if OF_PARAMETERS[role]:
                self._of_weight(tensor)
                continue
            dims = self._said(tensor)
            if dims is not None and dims.groups:
                self._settle(tensor, dims)
            elif self.alike[tensor]:
                if self.counts[tensor] > 1:
                    self._remember(tensor, REPLICATED)
            elif dims is not None:
                self.found[tensor] = dims
                self._remember(tensor, dims)
            else:
                left.append(tensor)
        for _ in range(_ROUNDS):
            before = len(left)
            left = [tensor for tensor in left if not self._inferred(tensor)]
            if len(left) == before:
                break
        for tensor in left:
            if not self._fits_other_side(tensor):
                self.found[tensor] = None
        return self.found

    # What is said

    def _of_weight(self, tensor: int) -> None:
        at = self.columns["order"][tensor]
        dims = self.step.weights.dims[at] if 0 <= at < len(self.step.weights.dims) else None
        shape = self.shapes[tensor]
        if dims is not None and dims.groups and self._is_like_weight(shape, self.roles[tensor], at):
            self.found[tensor] = dims
        elif self.roles[tensor] is Role.STATE:
            shown, part = self.shown.get(at, (REPLICATED, ()))
            if shown.groups and shape == part:
                self.found[tensor] = shown
            elif not self.alike[tensor]:
                self.found[tensor] = REPLICATED
        elif not self.alike[tensor]:
            self.found[tensor] = REPLICATED if dims is not None else self._weight_by_shape(tensor)
            if (seen := self.found[tensor]) is not None:
                self.shown.setdefault(at, (seen, shape))

    def _is_like_weight(self, shape: tuple[int, ...], role: Role, at: int) -> bool:
        """Return True if a tensor has the shape of its parameter: an optimizer's state may be one number, or a row."""
        if role is Role.STATE:
            return shape in self.step.weights.held[at]
        return len(shape) == len(self.step.weights.infos[at].shape)

    def _weight_by_shape(self, tensor: int) -> Dims | None:
        """Return how a weight of an unknown class is divided: not at all, or as the other side's shape shows."""
        model = [name for name in self.held.differing(tensor) if name in self._of_the_model()]
        shape, slot = self.shapes[tensor], self.slots[tensor].partition(":")[2]
        wholes = self.step.whole(self.columns["module"][tensor], self.roles[tensor], slot)
        if not model or shape in wholes:
            return REPLICATED
        return self._by_shape(shape, wholes, model) or (None if wholes else REPLICATED)

    def _said(self, tensor: int) -> Dims | None:
        shape, role = self.shapes[tensor], self.roles[tensor]
        dims = self.step.told(self.columns["module"][tensor], role, self.slots[tensor], len(shape))
        if dims is None or not dims.fits(len(shape)):
            return None
        if role in FORWARD_OF and dims.partial:
            return replace(dims, partial=())  # the gradient of a sum is the same for all parts of it
        return dims

    # What bytes show

    def _place(self, tensor: int, role: Role) -> tuple[int, int, int, int, str]:
        micro, module, call = (self.columns[name][tensor] for name in ("micro", "module", "call"))
        return micro, module, call, int(role), self.slots[tensor]

    def _remember(self, tensor: int, dims: Dims) -> None:
        if dims.groups:
            self.by_bytes.setdefault(self.held.signature(tensor), dims)
        self.by_place.setdefault(self._place(tensor, self.roles[tensor]), (dims, self.shapes[tensor]))

    def _settle(self, tensor: int, dims: Dims) -> bool:
        self.found[tensor] = dims
        self._remember(tensor, dims)
        return True

    def _inferred(self, tensor: int) -> bool:
        known = self.by_bytes.get(self.held.signature(tensor))
        if known is not None:
            return self._settle(tensor, known)
        role, shape = self.roles[tensor], self.shapes[tensor]
        forward = self.by_place.get(self._place(tensor, FORWARD_OF[role])) if role in FORWARD_OF else None
        if forward is not None and forward[1] == shape:
            dims = forward[0]
            if not dims.groups:
                dims = Dims(partial=tuple(self.held.apart(tensor)))
            return self._settle(tensor, replace(dims, partial=()) if forward[0].partial else dims)
        if role in (Role.INPUT, Role.OUTPUT):
            return self._like_its_neighbour(tensor, shape)
        return False

    def _like_its_neighbour(self, tensor: int, shape: tuple[int, ...]) -> bool:
        """Take what a module returns to be divided as what it is given of the same shape: what works element by element."""
        micro, module, call, _, _ = self._place(tensor, Role.INPUT)
        other = Role.INPUT if self.roles[tensor] is Role.OUTPUT else Role.OUTPUT
        known = self.by_place.get((micro, module, call, int(other), "0"))
        if known is None or known[1] != shape or not known[0].splits or shape in self._wholes(tensor):
            return False
        return self._settle(tensor, known[0])

    def _of_the_model(self) -> set[str]:
        """Return the groups whose ranks may divide weights: not those of data, whose ranks have copies unless placements say otherwise."""
        return {name for name in self.step.layout.groups if name not in DATA | {"cp", "pp", "embd", ALL}}

    # What the other side shows

    def _wholes(self, tensor: int) -> Sequence[tuple[int, ...]]:
        return self.step.whole(self.columns["module"][tensor], self.roles[tensor], self.slots[tensor])

    def _fits_other_side(self, tensor: int) -> bool:
        shape, wholes = self.shapes[tensor], self._wholes(tensor)
        groups = self.held.apart(tensor)
        dims = self._by_shape(shape, wholes, groups)
        if dims is None and shape in wholes:
            is_given = self.roles[tensor] is Role.INPUT and self.columns["module"][tensor] in self.step.models
            # nobody is given a term of a sum
            dims = REPLICATED if is_given or not groups else self._as_added_up(tensor, groups)
        return dims is not None and self._settle(tensor, dims)

    def _as_added_up(self, tensor: int, groups: Sequence[str]) -> Dims | None:
        """Return how a result is divided that each rank has another one of: terms of a sum where a module around it adds them up.

        Where none does, they are copies, and a collective is missing.
        """
        if self.roles[tensor] is not Role.OUTPUT or not self.held.is_signed(tensor):
            return None
        micro, module = self.columns["micro"][tensor], self.columns["module"][tensor]
        around = self.step.parents[module]
        while around >= 0:
            results = self.results[micro, around]
            if results and not any(self._is_apart(each) for each in results):
                return Dims(partial=tuple(groups))
            around = self.step.parents[around]
        return REPLICATED

    def _is_apart(self, tensor: int) -> bool:
        """Return True if each rank has another result, of the shape that the whole has."""
        is_whole = self.shapes[tensor] in self._wholes(tensor)
        return is_whole and not self.alike[tensor] and bool(self.held.apart(tensor))

    def _by_shape(
        self, shape: tuple[int, ...], wholes: Sequence[tuple[int, ...]], groups: Sequence[str]
    ) -> Dims | None:
        """Return along which axis the parts of one group make the shape of the other side; None where none does, or two do."""
        if len(groups) != 1:
            return None
        size = self.sizes[groups[0]]
        fitting = {
            axis for whole in wholes for axis in range(len(shape))
            if (*shape[:axis], shape[axis] * size, *shape[axis + 1 :]) == tuple(whole)
        }  # fmt: skip
        return Dims((Split(fitting.pop(), groups[0]),)) if len(fitting) == 1 else None
