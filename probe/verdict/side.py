"""One step of one recording: its calls, what they were given and returned, and the parameters by phase."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probe.config import RecordConfig
from probe.matching.result import View
from probe.numbers.layouts import layout_of, state_name
from probe.records import Phase, Role, StepState, Task
from probe.store.reading.reader import Reader
from probe.verdict.tensors import Tensor, zeros

PARAMETER_ROLES = (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE, Role.DELTA)
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
    inner: list[Call] = field(default_factory=list)
    seen: dict[Role, dict[str, list[Tensor]]] = field(default_factory=dict)

    def of(self, role: Role) -> dict[str, Tensor]:
        """Return the tensors of a role by slot; of gradients that came several times, the last."""
        return {slot: found[-1] for slot, found in self.seen.get(role, {}).items()}

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
    values
        what the program logged, by module and slot
    beside
        what it logged outside of all modules, by name, and when
    recomputed
        modules that ran again in backward, but for those that another one called that did
    scalars
        numbers that the program logged, by name
    """

    def __init__(self, reader: Reader, step: int, views: Mapping[Place, View], *, begins: bool = False) -> None:
        self.reader, self.step, self.begins = reader, step, begins
        self.framework = reader.info.framework
        self.groups = reader.groups_of(step)
        self.scalars = reader.scalars_of(step)
        self._names = {(p.module, p.slot): p.canonical_slot for p in reader.parameters}
        self._names |= {place: view.name for place, view in views.items()}
        self._axes = {(p.module, p.slot): p.axes for p in reader.parameters}
        self._axes |= {place: view.axes for place, view in views.items() if view.axes}
        self._optimizers = {
            (reader.parameters[i].module, reader.parameters[i].slot): group.class_name
            for group in self.groups
            for i in group.parameters
        }
        self.places = [(p.module, self.canonical(p.module, p.slot)) for p in reader.parameters]
        recorded = ((p.module, p.slot) for p in reader.parameters)
        self._slots = {place: slot for place, (_, slot) in zip(self.places, recorded, strict=True)}
        self.phases: set[int] = set()
        self._weights: dict[int, list[Place]] = defaultdict(list)
        for place in self.places:
            self._weights[place[0]].append(place)
        self.params: dict[tuple[Phase, Role], dict[Place, Tensor]] = defaultdict(dict)
        self.values: dict[Place, list[Tensor]] = defaultdict(list)
        self.beside: dict[str, tuple[int, Tensor]] = {}
        self.recomputed: dict[int, None] = {}
        self.calls = self._read_calls()
        self._read_records()
        if begins and self.goes_on and not self.params.get((Phase.INIT, Role.PARAM)):
            self._take_what_was_left()

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
        """Return the recorded slot of a parameter with a canonical name."""
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

    def wants(self, phase: Phase) -> bool:
        """Return True if a phase was to be recorded."""
        return RecordConfig.from_recording(self.reader.info.config).wants_phase(phase)

    def weights_of(self, module: int) -> list[Place]:
        """Return the places of a module's own parameters."""
        return self._weights.get(module, [])

    def _read_calls(self) -> list[Call]:
        rows, modules, steps = self.reader.of_step("calls", self.step), self.reader.modules, self.reader.steps
        at = next(i for i, row in enumerate(steps) if row["step"] == self.step)
        first = int(steps["n_calls"][at - 1]) if at else 0
        found: dict[int, Call] = {}
        columns = [
            rows[name].tolist()
            for name in ("module", "micro", "call", "seq", "end", "caller", "grad_enabled", "training")
        ]
        casts = rows["autocast"].tolist()
        again: set[int] = set()
        for number, (module, micro, call, begin, end, caller, learns, training) in enumerate(
            zip(*columns, strict=True)
        ):
            if rows["recomputed"][number]:
                again.add(number)
                if caller - first not in again:
                    self.recomputed.setdefault(module)
                continue
            info, around = modules[module], found.get(caller - first)
            found[number] = made = Call(
                module,
                info.path,
                info.class_name,
                micro,
                call,
                begin,
                end,
                around,
                casts[number].decode(),
                bool(learns),
                bool(training),
            )
            if around is not None:
                around.inner.append(made)
        return list(found.values())

    def _read_records(self) -> None:
        reader = self.reader
        rows, sketches = reader.of_step("records", self.step), reader.of_step("sketches", self.step)
        by_key = {(call.micro, call.module, call.number): call for call in self.calls}
        names = rows.dtype.names or ()
        self.phases.update(rows["phase"].tolist())
        columns = zip(*(rows[name].tolist() for name in names), strict=True)
        has_norms_alone = (
            reader.info.config.get("task") == Task.NORMS and not rows["hash_kind"][rows["role"] != Role.INPUT].any()
        )
        for at, (values, sketch) in enumerate(zip(columns, sketches, strict=True)):
            row = dict(zip(names, values, strict=True))
            if has_norms_alone and row["role"] == Role.INPUT:  # hashes of inputs are for curves
                continue
            role, slot, module = Role(row["role"]), reader.slots[row["slot"]], row["module"]
            is_parameter = role in PARAMETER_ROLES
            tensor = self._tensor_of(row, sketch, at)
            if is_parameter:
                self.params[Phase(row["phase"]), role][module, self.canonical(module, slot)] = tensor
                continue
            call = by_key.get((row["micro"], module, row["call"]))
            if role is Role.VALUE:
                self.values[module, slot].append(tensor)
                if row["phase"] == Phase.LOSS:
                    self.beside.setdefault(slot, (row["seq"], tensor))
            elif call is not None:
                call.seen.setdefault(role, {}).setdefault(slot, []).append(tensor)

    def _tensor_of(self, row: Mapping[str, Any], sketch: np.ndarray, at: int) -> Tensor:
        """Return the tensor of a record."""
        reader, kind, place = self.reader, row["hash_kind"], (row["module"], self.reader.slots[row["slot"]])
        axes = self._axes.get((place[0], place[1].partition(".")[0]), ()) if row["role"] in PARAMETER_ROLES else ()
        return Tensor(
            reader.shapes[row["shape"]],
            row["dtype"].decode(),
            row["norm"],
            row["mean"],
            row["min"],
            row["max"],
            (row["nan"], row["posinf"], row["neginf"]),
            row["zeros"],
            (row["hash_lo"], row["hash_hi"], kind) if kind else None,
            sketch if kind and not np.isnan(sketch[0]) else None,
            bool(row["requires_grad"]),
            axes,
            reader,
            row["tensor"],
            at,
        )

    def _take_what_was_left(self) -> None:
        """Begin with the weights and buffers that the steps before left; of some that learn nothing is known."""
        recorded, step = set(self.reader.steps["step"].tolist()), self.step - 1
        while step in recorded:
            rows, sketches = self.reader.of_step("records", step), self.reader.of_step("sketches", step)
            is_weight = (rows["role"] == Role.PARAM) | (rows["role"] == Role.BUFFER)
            is_known = (rows["phase"] == Phase.UPDATE) | (rows["role"] == Role.BUFFER) | (rows["requires_grad"] == 0)
            for at in np.flatnonzero(is_weight & is_known)[::-1]:
                row = dict(zip(rows.dtype.names or (), rows[at].tolist(), strict=True))
                slot, module = self.reader.slots[row["slot"]], row["module"]
                known = self.params[Phase.INIT, Role(row["role"])]
                known.setdefault((module, self.canonical(module, slot)), self._tensor_of(row, sketches[at], -1))
            step -= 1


def steps_of(reader: Reader) -> list[int]:
    """Return the numbers of the recorded steps."""
    return [int(step) for step in reader.steps["step"]]
