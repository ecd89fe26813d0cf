"""Parameters and buffers as a step finds them, and what the optimizer makes of them."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.adapters.base import Group
from probe.recorder.behind import Behind
from probe.recorder.contents import Contents
from probe.recorder.gradients import Gradients
from probe.recorder.masters import Masters
from probe.recorder.measuring import Measuring
from probe.recorder.run import Run, guarded
from probe.records import MASTER, STEPPED_EARLY, OptimizerGroup, Phase, Role, Task

_GROUPS = 20_000
"""of parameters, updated in one step, that are written down; they wait in memory for its end"""


_SPARE = 8 << 20
"""elements of copies that are kept from one step to the next"""


_WRITTEN = -1
"""no tensor's version: fused optimizers write without counting it"""


class _Trained(NamedTuple):
    """A parameter of the models, as an optimizer has it."""

    group: Group
    index: int
    tensor: Any
    """itself, or the copy that is trained in its stead"""


class Updates:
    """The hooks around an optimizer's step."""

    def __init__(self, run: Run, measuring: Measuring, gradients: Gradients, contents: Contents) -> None:
        self.run = run
        self._measuring, self._gradients, self._contents = measuring, gradients, contents
        self._masters, self._behind = Masters(run), Behind(run)
        self.groups: list[OptimizerGroup] = []
        self.count = 0
        """updates in step 0"""
        self.has_own = False
        """whether an optimizer has updated a parameter of the models"""
        self.others = 0
        """optimizer steps until then, of other parameters only"""
        self.init_bytes = 0
        """of this step, that parameters and buffers took at its beginning"""
        self._initialised = False
        self._took_gradients = False
        """an optimizer was seen to use gradients"""
        self._last_recorded: int | None = None
        self._updated: set[int] = set()
        """indices of the parameters that an optimizer has changed in this step"""
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._versions: dict[int, int | None] = {}
        """of parameters, when they were recorded last"""
        self._samples: dict[int, bytes | None] = {}
        """some elements of parameters that no optimizer has changed and no gradient came to, when they were recorded last"""
        self._elements_up_to: list[int] = []
        """by parameter: its elements, and those of all before it"""
        self._used: dict[int, list[int]] = {}
        """by module: the parameters that a call of it may read, its own and its children's"""

    def begin_step(self) -> None:
        """Begin a step."""
        for index in self._updated:  # recorded as the last step left it, or missing there
            self._samples.pop(index, None)
            self._note_version(index)
        self.groups = []
        self.init_bytes = 0
        self._initialised = False
        self._updated = set()
        self.run.kept = {}

    def end(self) -> None:
        """Say what became of the optimizers behind the last step."""
        self._behind.record()
        self._behind.forget()

    def end_step(self) -> None:
        """Say that an optimizer began a step that it did not end."""
        if self.run.kept:
            first, *others = [self.run.parameters[index].names[0] for index in self.run.kept]
            name = f"{first} and {len(others)} more" if others else first
            self.run.note(f"an optimizer's step was not seen to its end: the update of {name} is not recorded", -1)
        if self._took_gradients and self.run.wants[Phase.GRADIENT] and self._gradients.last_step is None:
            text = "no backward pass that runs hooks gave a parameter its gradient (it is compiled, or FSDP does so behind it)"
            self.run.note(f"{text}: gradients are recorded as the optimizer used them, not as backward left them", -1)
        if not self.run.norms:  # they say nothing of the parameters that the step left
            self._last_recorded = self.run.step

    def record_initial(self) -> None:
        """Record parameters and buffers, unless they are those that the step before left."""
        run = self.run
        if self._initialised or run.norms:
            return
        self._initialised = True
        if self._last_recorded is None or self._last_recorded != run.step - 1:
            self._look_for_changes()
            for index, named in enumerate(run.tensors):
                role = Role.BUFFER if named.is_buffer else Role.PARAM
                self._measuring.observe_parameter(Phase.INIT, role, index, named.tensor)
                self._note_version(index)
                if not named.is_buffer:
                    self._note_sample(index)
                    if self._last_recorded is None:
                        self._measuring.observe_axis_sums(index, named.tensor)
            self.init_bytes = run.nbytes

    @guarded
    def record_changed(self, module: int, micro: int) -> None:
        """Record the parameters that a call is about to use and that were written to since they were recorded last."""
        run = self.run
        if not self._initialised or run.config.task is Task.STRUCTURE or not run.wants[Phase.FORWARD]:
            return
        if not self._used:
            self._used = self._parameters_by_module()
        for index in self._used.get(module, ()):
            if index in self._versions and self._is_written(index, module):
                self._measuring.observe_parameter(Phase.FORWARD, Role.PARAM, index, run.tensors[index].tensor, micro)
                self._note_version(index)
                if index in self._samples:
                    self._note_sample(index)

    def _is_written(self, index: int, module: int) -> bool:
        """Return True if a parameter was written to since it was recorded last, which no version may count: its own module then looks."""
        tensor, adapter = self.run.tensors[index].tensor, self.run.adapter
        if adapter.version_of(tensor) != self._versions[index]:
            return True
        if index not in self._samples or self.run.parameters[index].module != module or not adapter.is_tensor(tensor):
            return False
        return adapter.sample_of(tensor) != self._samples[index]

    def _is_changed(self, index: int) -> bool:
        """Tell at a step's end whether a parameter was written to since it was recorded last; one whose memory is freed was not."""
        tensor, adapter = self.run.tensors[index].tensor, self.run.adapter
        if not adapter.is_tensor(tensor):
            return False
        if adapter.version_of(tensor) != self._versions[index]:
            return True
        known = self._samples.get(index)
        now = adapter.sample_of(tensor) if known is not None else None
        return now is not None and now != known

    @guarded
    def _note_sample(self, index: int) -> None:
        tensor = self.run.tensors[index].tensor
        if self.run.adapter.is_tensor(tensor):
            self._samples[index] = self.run.adapter.sample_of(tensor)

    def _parameters_by_module(self) -> dict[int, list[int]]:
        """Return, for every module, its parameters and those of its children, which its own code may read."""
        run, found = self.run, dict[int, list[int]]()
        at = {info.path: index for index, info in enumerate(run.modules)}
        for index, (named, info) in enumerate(zip(run.tensors, run.parameters, strict=True)):
            owners = {at.get(name.rpartition(".")[0], info.module) for name in info.names}
            for module in () if named.is_buffer else owners | {run.modules[owner].parent for owner in owners}:
                found.setdefault(module, []).append(index)
        return found

    @guarded
    def _note_version(self, index: int) -> None:
        tensor = self.run.tensors[index].tensor
        if self.run.adapter.is_tensor(tensor):
            self._versions[index] = self.run.adapter.version_of(tensor)
            if self._versions[index] is None:  # nothing counts writes: some elements tell
                self._samples[index] = self.run.adapter.sample_of(tensor)

    @guarded
    def record_left(self) -> None:
        """Record what the step leaves: buffers, and parameters that an optimizer was seen to change, or that had a gradient."""
        self._look_for_changes()
        trained = self._updated | self._gradients.found
        for index in sorted(trained | self._written_beside(trained)):
            if index in trained:
                self._samples.pop(index, None)
            if self.run.wants[Phase.UPDATE]:  # else the next call that uses it finds it written to
                self._measuring.observe_parameter(Phase.UPDATE, Role.PARAM, index, self.run.tensors[index].tensor)
                self._note_version(index)
                if index in self._samples:
                    self._note_sample(index)
        if self._initialised:
            for index, named in enumerate(self.run.tensors):
                if named.is_buffer:
                    self._measuring.observe_parameter(Phase.UPDATE, Role.BUFFER, index, named.tensor)

    def _written_beside(self, trained: set[int]) -> set[int]:
        """Return the other parameters that were written to since they were recorded last: averages, hand-written updates."""
        run = self.run
        if run.norms or run.config.task is Task.STRUCTURE or not run.wants[Phase.UPDATE]:
            return set()
        mine = (index for index, info in enumerate(run.parameters) if not info.is_buffer and run.keep[info.module])
        return {index for index in mine if index in self._versions and index not in trained and self._is_changed(index)}

    @guarded
    def before_update(self, groups: list[Group], why_not: str) -> None:
        """Record the gradients as they are used; ``why_not`` says why they are not those, or is empty."""
        run = self.run
        if run.passes_over or not run.wants[Phase.UPDATE]:
            self._behind.forget()
            return
        self.look_at(groups)
        trained = self._own(groups)
        self._look_at_order(trained, why_not)
        for each in trained:
            self._record_used(each, why_not)
        if not run.norms and run.config.task is not Task.STRUCTURE:
            with run.adapter.quiet():
                for each in trained:
                    self._keep_for_update(each)

    @guarded
    def after_update(self, groups: list[Group]) -> None:
        """Record by how much the optimizer has changed the parameters, and its own state."""
        run = self.run
        if not run.step or not self.has_own:
            is_own = bool(self._own(groups))
            self.count += is_own and not run.step
            self.has_own |= is_own
            self.others += not is_own
        if run.passes_over or run.norms or not run.wants[Phase.UPDATE]:
            return
        if run.too_many(len(self.groups), _GROUPS, "groups of updated parameters"):
            self.run.kept.clear()
            return
        own = [(group, self._own([group])) for group in groups]
        for group, trained in own:
            if trained:
                indices = tuple(each.index for each in trained)
                number = self._optimizers.setdefault(group.optimizer, len(self._optimizers))
                self.groups.append(OptimizerGroup(number, group.class_name, group.index, group.hyper, indices))
                self._behind.note_settings(number, group)
        for _, trained in own:
            for each in trained:
                self._record_update(each)

    @guarded
    def _look_for_changes(self) -> None:
        news = self._contents.news()
        if news:
            self.run.note(news, -1)

    def _record_used(self, trained: _Trained, why_not: str) -> None:
        run = self.run
        gradient = run.adapter.gradient(trained.tensor)
        if why_not:
            run.note(f"gradients as the optimizer used them are not recorded: {why_not}", -1)
        elif gradient is not None:
            self._measuring.observe_parameter(Phase.UPDATE, Role.PARAM_GRAD, trained.index, gradient)
            self._took_gradients |= not run.norms and run.config.task is not Task.STRUCTURE

    def _look_at_order(self, trained: list[_Trained], why_not: str) -> None:
        """Say that the gradients of the step before are used only now: probe.step() should come behind the update."""
        run, before = self.run, self._gradients.last_step
        unseen = why_not or run.config.task is Task.NORMS  # backward comes later, or nobody listens to it
        if before is None or before >= run.step or unseen:
            return
        if any(run.adapter.gradient(each.tensor) is not None for each in trained):
            run.note(f"{STEPPED_EARLY}: updates are recorded one step late", -1)

    def _keep_for_update(self, trained: _Trained) -> None:
        """Copy a parameter until the optimizer has changed it; where memory is short, say that the update is lost."""
        run, info = self.run, self.run.parameters[trained.index]
        if not run.keep[info.module] or not run.adapter.is_tensor(trained.tensor):
            return
        try:
            run.kept[trained.index] = run.adapter.snapshot(trained.tensor, run.spare.pop(trained.index, None))
        except Exception as error:  # noqa: BLE001  out of memory, mostly
            run.note(f"the update of {info.names[0]} is not recorded: {error!r}", info.module)

    def _record_update(self, trained: _Trained) -> None:
        run, index = self.run, trained.index
        slot = run.parameters[index].slot
        states = run.adapter.optimizer_state(trained.group.optimizer, trained.tensor)
        if trained.tensor is not run.tensors[index].tensor:
            states[MASTER[1:]] = trained.tensor
        for key, state in states.items():
            self._measuring.observe_parameter(Phase.UPDATE, Role.STATE, index, state, slot=f"{slot}.{key}")
            if run.config.task is not Task.STRUCTURE:
                self._behind.note_state(f"{run.parameters[index].names[0]}.{key}", trained.group, trained.tensor, state)
        self._updated.add(index)
        if self._versions.get(index) is not None:
            self._versions[index] = _WRITTEN
        before = self.run.kept.pop(index, None)
        if before is not None:
            self._measuring.observe_update(index, trained.tensor, before)
            if self._keeps_spare(index):
                run.spare[index] = before

    def _keeps_spare(self, index: int) -> bool:
        """Return True if the copy of a parameter is kept for the next step: where all up to it are small."""
        if len(self._elements_up_to) <= index:
            self._elements_up_to = list(itertools.accumulate(math.prod(info.shape) for info in self.run.parameters))
        return self._elements_up_to[index] <= _SPARE

    def look_at(self, groups: Sequence[Group]) -> None:
        """Find out which of an optimizer's tensors stand for parameters of these models; to be called before its step."""
        self._masters.look(tensor for group in groups for tensor in group.parameters)

    def are_own(self, groups: Sequence[Group]) -> bool:
        """Return True if a parameter of these models is among those of the groups."""
        return any(self._masters.index_of(p) is not None for group in groups for p in group.parameters)

    def _own(self, groups: list[Group]) -> list[_Trained]:
        """Return the parameters of these models among those of the groups."""
        found = [(group, self._masters.index_of(p), p) for group in groups for p in group.parameters]
        return [_Trained(group, index, tensor) for group, index, tensor in found if index is not None]
