"""One step of one recording: its calls, what they were given and returned, and the parameters by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from probe.answer.metrics import PARAMETER_ROLES
from probe.config import RecordConfig
from probe.damage import reading
from probe.matching.result import View
from probe.numbers.layouts import layout_of, state_name
from probe.records import Phase, Role, StepState, Task
from probe.store.reading import validation
from probe.store.reading.reader import Reader
from probe.verdict.tensors import Tensor, added, zeros

GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)
_TIMED = (Phase.FORWARD, Role.PARAM), (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.DELTA)
Place = tuple[int, str]
"""(module, canonical slot) of a parameter, or of what belongs to it"""


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module."""

    module: int
    path: str
    class_name: str
    micro: int
    number: int
    begin: int
    end: int
    caller: Call | None
    autocast: str
    has_gradients: bool
    is_training: bool
    is_operation: bool = False
    inner: list[Call] = field(default_factory=list)
    seen: dict[Role, dict[str, Tensor]] = field(default_factory=dict)
    when: dict[str, int] = field(default_factory=dict)
    """its code logged a tensor first, by slot"""

    def of(self, role: Role) -> dict[str, Tensor]:
        """Return the tensors of a role by slot; of gradients that came in several passes, the sum."""
        return self.seen.get(role, {})

    def callers(self) -> Iterator[Call]:
        """Yield the call that made this one, the one that made that …"""
        call = self.caller
        while call is not None:
            yield call
            call = call.caller


class Side:
    """One step of one recording, read once.

    Attributes
    ----------
    calls
        in the order in which they began, without those of a recomputation
    params
        by phase and role: the tensors of parameters by place
    writes
        by role and place: weights as calls found them, gradients and updates, with when
    values
        what the program logged, by module and slot
    alone
        operations without a partner: no calls
    beside
        what it logged outside of all modules, by name, and when
    recomputed
        modules that ran again in backward, but for those that another one called that did
    scalars
        numbers that the program logged, by name
    tied
        all names of each parameter that has several
    given
        the optimizer's group by the parameters that it was given, under all their names
    """

    def __init__(self, reader: Reader, step: int, views: Mapping[Place, View], *, begins: bool = False) -> None:
        self.reader, self.step, self.begins = reader, step, begins
        self.framework, self.groups = reader.info.framework, reader.groups_of(step)
        self.scalars, self._has_summaries = reader.scalars_of(step), "summaries" in reader.info.config
        recorded = [(p.module, p.slot) for p in reader.parameters]
        self._names = dict(zip(recorded, (p.canonical_slot for p in reader.parameters), strict=True))
        self._names |= {place: view.name for place, view in views.items()}
        self._axes = dict(zip(recorded, (p.axes for p in reader.parameters), strict=True))
        said = {place: view.axes for place, view in views.items() if view.axes}
        self._turned = {place for place, axes in said.items() if axes != self._axes.get(place)}
        self._axes |= said
        owned = [(i, group) for group in self.groups for i in group.parameters]
        self._optimizers = {recorded[i]: group.class_name for i, group in owned}
        self.places = [(module, self.canonical(module, slot)) for module, slot in recorded]
        self._slots = {place: slot for place, (_, slot) in zip(self.places, recorded, strict=True)}
        self.tied = self._tied_places()
        self.given = {name: group for i, group in owned for name in self.tied.get(self.places[i], [self.places[i]])}
        self._numbers = {place: number for number, place in enumerate(recorded)}
        self.phases: set[int] = set()
        self.roles: set[int] = set()
        self._weights: dict[int, list[Place]] = defaultdict(list)
        for place in self.places:
            self._weights[place[0]].append(place)
        self.params: dict[tuple[Phase, Role], dict[Place, Tensor]] = defaultdict(dict)
        self.writes: dict[tuple[Role, Place], list[tuple[int, Tensor]]] = defaultdict(list)
        self.values: dict[Place, list[Tensor]] = defaultdict(list)
        self.beside: dict[str, tuple[int, Tensor]] = {}
        self.alone: list[Call] = []
        self.recomputed: dict[int, None] = {}
        with reading(reader.path, f"step {step} of it"):
            validation.of_step(reader.of_step("records", step), reader.of_step("calls", step))
        self.calls = self._read_calls()
        self._read_records()
        if begins and self.goes_on and not self.params.get((Phase.INIT, Role.PARAM)):
            for (role, place), tensor in self.left().items():
                self.params[Phase.INIT, role].setdefault(place, tensor)

    def _tied_places(self) -> dict[Place, list[Place]]:
        """Return all names of each parameter that has several."""
        by_path = {module.path: index for index, module in enumerate(self.reader.modules)}
        found: dict[Place, list[Place]] = {}
        for parameter in self.reader.parameters:
            if len(parameter.names) > 1:
                parts = [name.rpartition(".") for name in parameter.names]
                places = [(by_path[o], self.canonical(by_path[o], slot)) for o, _, slot in parts if o in by_path]
                found.update(dict.fromkeys(places, places))
        return found

    def canonical(self, module: int, slot: str) -> str:
        """Return the name that torch would give to a slot of a parameter, or of what belongs to it."""
        parameter, dot, rest = slot.partition(".")
        name = self._names.get((module, parameter))
        if name is None:
            name = layout_of(self.framework, (self.reader.modules[module].class_name,), parameter).name
        if dot:
            rest = state_name(self.framework, self._optimizers.get((module, parameter), ""), rest)
        return f"{name}{dot}{rest}"

    def recorded_slot(self, module: int, name: str) -> str:
        """Return the recorded slot of a parameter, or of what belongs to it, with a canonical name."""
        return self._slots.get((module, name), name)

    def zeros(self, place: Place) -> Tensor:
        """Return the gradient, or update, of a parameter that has none."""
        module, name = place
        parameter = self.reader.parameters[self.places.index((module, name.partition(".")[0]))]
        return zeros(parameter.shape, parameter.dtype, self._axes.get((module, parameter.slot), ()))

    def has_gradient(self, module: int) -> bool:
        """Return True if a parameter of a module has a gradient."""
        return any(place[0] == module for place in self.params.get((Phase.GRADIENT, Role.PARAM_GRAD), {}))

    @property
    def goes_on(self) -> bool:
        """Whether the step before was recorded too, so that this one did not record what it began with."""
        return bool((self.reader.steps["step"] == self.step - 1).any())

    @property
    def is_aborted(self) -> bool:
        """Whether an exception ended the step."""
        steps = self.reader.steps
        return bool((steps["state"][steps["step"] == self.step] == StepState.ABORTED).any())

    def wants(self, phase: Phase, module: int | None = None) -> bool:
        """Return True if a phase, of a module, was to be recorded."""
        config = RecordConfig.from_recording(self.reader.info.config)
        info = self.reader.modules[module] if module is not None else None
        return config.wants_phase(phase) and (info is None or config.wants_module(info.path, info.class_name))

    @property
    def is_in_part(self) -> bool:
        """Whether what the model itself is given and returns was not to be recorded."""
        return not RecordConfig.from_recording(self.reader.info.config).wants_module("", "")

    def weights_of(self, module: int) -> list[Place]:
        """Return the places of a module's own parameters."""
        return self._weights.get(module, [])

    def _read_calls(self) -> list[Call]:
        rows, modules, steps = self.reader.of_step("calls", self.step), self.reader.modules, self.reader.steps
        at = next(i for i, row in enumerate(steps) if row["step"] == self.step)
        first = int(steps["n_calls"][at - 1]) if at else 0
        found: dict[int, Call] = {}
        again: set[int] = set()
        for number, row in enumerate(_as_dicts(rows)):
            if row["recomputed"]:
                again.add(number)
                if row["caller"] - first not in again:
                    self.recomputed.setdefault(row["module"])
                continue
            info, around = modules[row["module"]], found.get(row["caller"] - first)
            place = row["module"], info.path, info.class_name, row["micro"], row["call"], row["seq"], row["end"]
            modes = row["autocast"].decode(), bool(row["grad_enabled"]), bool(row["training"]), info.is_operation
            found[number] = made = Call(*place, around, *modes)
            if around is not None:
                around.inner.append(made)
        return list(found.values())

    def _read_records(self) -> None:
        reader = self.reader
        rows, sketches = reader.of_step("records", self.step), reader.of_step("sketches", self.step)
        by_key = {(call.micro, call.module, call.number): call for call in self.calls}
        self.phases.update(rows["phase"].tolist())
        self.roles.update(rows["role"].tolist())
        has_norms_alone = (
            reader.info.config.get("task") == Task.NORMS and not rows["hash_kind"][rows["role"] != Role.INPUT].any()
        )
        for at, (row, sketch) in enumerate(zip(_as_dicts(rows), sketches, strict=True)):
            if has_norms_alone and row["role"] == Role.INPUT:  # hashes of inputs are for curves
                continue
            role, slot, module = Role(row["role"]), reader.slots[row["slot"]], row["module"]
            is_parameter = role in PARAMETER_ROLES
            tensor = self._tensor_of(row, sketch, at)
            if is_parameter:
                place = module, self.canonical(module, slot)
                self.params[Phase(row["phase"]), role][place], self._slots[place] = tensor, slot
                if (row["phase"], role) in _TIMED:
                    self.writes[role, place].append((row["seq"], tensor))
                continue
            call = by_key.get((row["micro"], module, row["call"]))
            if role is Role.VALUE:
                self.values[module, slot].append(tensor)
                if row["phase"] == Phase.LOSS:
                    self.beside.setdefault(slot, (row["seq"], tensor))
                elif call is not None and slot not in call.when:
                    call.when[slot] = row["seq"]
                    call.seen.setdefault(role, {})[slot] = tensor
            elif call is not None:
                seen = call.seen.setdefault(role, {})
                seen[slot] = added((seen[slot], tensor)) if slot in seen and role in GRADIENTS else tensor

    def _tensor_of(self, row: Mapping[str, Any], sketch: np.ndarray, at: int) -> Tensor:
        """Return the tensor of a record."""
        reader, kind, place = self.reader, row["hash_kind"], (row["module"], self.reader.slots[row["slot"]])
        owner = (place[0], place[1].partition(".")[0]) if row["role"] in PARAMETER_ROLES else (-1, "")
        axes, shape, sums = self._axes.get(owner, ()), reader.shapes[row["shape"]], None
        is_other_sketch = owner in self._turned and len(set(shape)) < len(shape)  # a sketch tells axes by their sizes
        if row["role"] == Role.PARAM and row["phase"] == Phase.INIT and place in self._numbers:
            sums = partial(reader.axis_sums, self.step, self._numbers[place], axes or range(len(shape)))
        numbers = [row[name] for name in ("norm", "mean", "min", "max")]
        bad = row["nan"], row["posinf"], row["neginf"]
        key = (row["hash_lo"], row["hash_hi"], kind) if kind else None
        known = sketch if kind and not (is_other_sketch or np.isnan(sketch[0])) else None
        rest = bool(row["requires_grad"]), axes, reader, row["tensor"], at, not kind and self._has_summaries
        return Tensor(shape, row["dtype"].decode(), *numbers, bad, row["zeros"], key, known, *rest, sums=sums)

    def left(self) -> dict[tuple[Role, Place], Tensor]:
        """Return the weights and buffers that the steps before left; of some that learn nothing is known."""
        recorded, step = set(self.reader.steps["step"].tolist()), self.step - 1
        found: dict[tuple[Role, Place], Tensor] = {}
        while step in recorded:
            rows, sketches = self.reader.of_step("records", step), self.reader.of_step("sketches", step)
            is_weight = (rows["role"] == Role.PARAM) | (rows["role"] == Role.BUFFER)
            is_known = (rows["phase"] == Phase.UPDATE) | (rows["role"] == Role.BUFFER) | (rows["requires_grad"] == 0)
            for at in np.flatnonzero(is_weight & is_known)[::-1]:
                row = next(_as_dicts(rows[at : at + 1]))
                slot, module = self.reader.slots[row["slot"]], row["module"]
                key = Role(row["role"]), (module, self.canonical(module, slot))
                if key not in found:
                    found[key] = self._tensor_of(row, sketches[at], -1)
            step -= 1
        return found


def _as_dicts(rows: np.ndarray) -> Iterator[dict[str, Any]]:
    return (dict(zip(rows.dtype.names or (), row, strict=True)) for row in rows.tolist())


def steps_of(reader: Reader) -> list[int]:
    """Return the numbers of the recorded steps."""
    return [int(step) for step in reader.steps["step"]]
