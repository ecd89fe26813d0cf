"""What one side alone recorded at places that both have, and flags that differ while every number agrees."""

from __future__ import annotations

from collections.abc import Iterator

from probe.notes import Note, note
from probe.records import Phase, Role
from probe.verdict.rows import metrics_of
from probe.verdict.side import Side
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Hash, Tensor

_COUNTER = "num_batches_tracked"
"""a counter of PyTorch's BatchNorm that other frameworks do not have"""
_COUNTS = {"step", "global_step", "state_step", "beta1_pow_acc", "beta2_pow_acc", "beta2_power"}
"""states of optimizers that count steps, or are powers of a beta: other optimizers keep them elsewhere"""
_BUFFER = f"{Role.BUFFER.label} "


class Alone:
    """Names, over all steps, of tensors that one side alone has, or that were of no use for a comparison.

    A tensor that is, by its hash, one that was compared or told of is handed on, and named once.
    """

    def __init__(self) -> None:
        self._alone: dict[str, dict[str, None]] = {"A": {}, "B": {}}
        self._unlike: dict[str, Note | None] = {}
        """why, by name"""

    def add(self, step: Step) -> None:
        """Take in a step."""
        if step.batches.are_same:
            for name, half, other in (("A", step.a, step.b), ("B", step.b, step.a)):
                if other.wants(Phase.FORWARD):
                    self._add_calls(step, name, half)
        for event in (*step.parameters.events(Phase.INIT, Role.BUFFER), *_lone_buffers(step)):
            is_counter = step.is_across_frameworks and _COUNTER in (event.slot_a, event.slot_b)
            if not is_counter:
                self._add(step, event)
        for event in step.parameters.events(Phase.UPDATE, Role.STATE):
            if not _is_counter(event):
                self._add(step, event)
        self._add_values(step)

    def _add_calls(self, step: Step, name: str, half: Side) -> None:
        """Keep what paired calls were given and returned on this side, and nothing was compared with."""
        nodes, other = (step.of_a, step.b) if name == "A" else (step.of_b, step.a)
        events = [event for node in step.nodes for event in (*node.inputs, *node.outputs)]
        known = {_hash(event, name) for event in events if event.is_paired}
        known |= {tensor.hash for call in half.calls if call not in nodes for tensor in call.of(Role.OUTPUT).values()}
        for node in step.nodes:
            if node.parent is None:
                known |= {_hash(event, name) for event in node.inputs}
        for node in step.nodes:
            if not other.wants(Phase.FORWARD, (node.b if name == "A" else node.a).module):
                continue
            for event in (*(node.inputs if node.parent is not None else ()), *node.outputs):
                tensor = event.a if name == "A" else event.b
                key = _hash(event, name)
                is_alone = not event.is_paired and tensor is not None and tensor.size > 0
                if event.is_paired and name == "A":
                    self._add_unlike(step, event)
                if is_alone and (key is None or key not in known):
                    known.add(key)
                    self._alone[name][f"{event.role.label} {_slot(event)} of {_path(step, node, name)}"] = None

    def _add(self, step: Step, event: Event) -> None:
        """Keep a buffer or a state of the optimizer that one side alone has, or that has no form in common."""
        if event.is_paired:
            self._add_unlike(step, event)
        elif any(tensor is not None and tensor.size for tensor in (event.a, event.b)):
            name, module = "A" if event.b is None else "B", event.place[0] if event.place is not None else 0
            other, there = (step.b, step.pair_of[module].b) if event.b is None else (step.a, module)
            if other.wants(event.phase, there):
                self._alone[name][_named(step, event, name)] = None

    def _add_unlike(self, step: Step, event: Event) -> None:
        if step.error(event) is None:
            self._unlike.setdefault(_named(step, event, "A"), metrics_of(event, None).why)

    def _add_values(self, step: Step) -> None:
        """Keep what was logged on one side only, or more often there."""
        for name, half, other in (("A", step.a, step.b), ("B", step.b, step.a)):
            for (module, slot), tensors in half.values.items():
                there = step.pair_of[module].b if name == "A" and module in step.pair_of else step.a_of.get(module, 0)
                if len(tensors) > max(step.batches.joined, 1) * len(other.values.get((there, slot), ())):
                    path = half.reader.modules[module].path or "the root"
                    self._alone[name][f"{Role.VALUE.label} {slot} of {path}"] = None

    @property
    def buffers(self) -> dict[str, list[str]]:
        """By side, the buffers that have no counterpart; under ``""`` those that have another form there."""
        named = {**self._alone, "": self._unlike}
        return {
            side: [name.removeprefix(_BUFFER) for name in names if name.startswith(_BUFFER)]
            for side, names in named.items()
        }

    def notes(self) -> Iterator[Note]:
        """Say what was not compared."""
        a, b = (tuple(self._alone[side]) for side in "AB")
        if a or b:
            have_buffers = all(any(name.startswith(_BUFFER) for name in names) for names in (a, b))
            yield note("recorded-without-counterpart", a=a, b=b, have_buffers=have_buffers)
        if self._unlike:
            yield note("tensors-not-comparable", names=tuple(self._unlike), why=next(iter(self._unlike.values())))


def flags_of(step: Step) -> Iterator[Note]:
    """Yield which weights learn, or are trained, on one side only, and which calls ran under another autocast."""
    learns, trained = ({"A": dict[str, None](), "B": dict[str, None]()} for _ in range(2))
    given = step.a.given, step.b.given
    for event in step.parameters.events(Phase.INIT, Role.PARAM):
        if event.a is None or event.b is None or event.place is None or event.place[0] not in step.pair_of:
            continue
        there = step.pair_of[event.place[0]].b, event.slot_b
        if event.a.learns != event.b.learns:
            name = "A" if event.a.learns else "B"
            learns[name][_weight(step, event, name)] = None
        elif event.a.learns and all(given) and (event.place in given[0]) != (there in given[1]):
            name = "A" if event.place in given[0] else "B"
            trained[name][_weight(step, event, name)] = None
    for alone, code in ((learns, "weights-learn-on-one-side"), (trained, "weights-trained-on-one-side")):
        if any(alone.values()):
            yield note(code, a=tuple(alone["A"]), b=tuple(alone["B"]))
    casts = [node for node in step.nodes if node.a.autocast != node.b.autocast]
    if casts:
        first = casts[0]
        yield note("other-autocast", count=len(casts), path=first.a.path, a=first.a.autocast, b=first.b.autocast)


def other_modes(step: Step) -> dict[int, tuple[bool, bool]]:
    """Return, by module of A, whether A and B ran it in training mode, if they did not both."""
    ran = [(node.a.module, (node.a.is_training, node.b.is_training)) for node in step.nodes]
    return {module: modes for module, modes in ran if modes[0] != modes[1]}


def modes_note(step: Step) -> Iterator[Note]:
    """Yield how many modules one side ran in training mode and the other did not."""
    modes = other_modes(step)
    if modes:
        module, first = next(iter(modes.items()))
        a, b = ("training" if each else "evaluation" for each in first)
        yield note("modes-differ", count=len(modes), path=step.path(module), a=a, b=b)


def _is_counter(event: Event) -> bool:
    """Return True for a state that counts steps: another optimizer counts them elsewhere."""
    return all(slot.partition(".")[2] in _COUNTS for slot in (event.slot_a, event.slot_b) if slot)


def _lone_buffers(step: Step) -> Iterator[Event]:
    """Yield the buffers of paired modules if the other side, which was to record them, has none at all."""
    key = Phase.INIT, Role.BUFFER
    if not step.b.params.get(key) and step.b.wants(Phase.INIT):
        for place, tensor in step.a.params.get(key, {}).items():
            if place[0] in step.pair_of:
                yield Event(*key, None, place, place[1], "", tensor, None, 0)
    if not step.a.params.get(key) and step.a.wants(Phase.INIT):
        for (module, slot), tensor in step.b.params.get(key, {}).items():
            if module in step.a_of:
                yield Event(*key, None, (step.a_of[module], slot), "", slot, None, tensor, 0)


def _hash(event: Event, name: str) -> Hash | None:
    tensor: Tensor | None = event.a if name == "A" else event.b
    return None if tensor is None else tensor.hash


def _slot(event: Event) -> str:
    return event.slot_a or event.slot_b


def _path(step: Step, node: Node, name: str) -> str:
    return (node.a if name == "A" else node.b).path or "the root"


def _named(step: Step, event: Event, name: str) -> str:
    path, slot = _of_side(step, event, name)
    return f"{event.role.label} {slot} of {path or 'the root'}"


def _weight(step: Step, event: Event, name: str) -> str:
    return ".".join(_of_side(step, event, name)).removeprefix(".")


def _of_side(step: Step, event: Event, name: str) -> tuple[str, str]:
    """Return the path and the slot of a tensor on one side."""
    a, b = step.modules_of(event)
    return (step.path(a), event.slot_a) if name == "A" else (step.b.reader.modules[b].path, event.slot_b)
