"""Setting hooks on models and optimizers, and taking every one of them off."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from probe.recorder.forward import Forward
from probe.recorder.gradients import Gradients
from probe.recorder.models import Hookable
from probe.recorder.run import Run
from probe.recorder.stack import with_more_room
from probe.recorder.updates import Updates
from probe.records import Task
from probe.structure.blocks import main_blocks

Removal = Callable[[], None]


class Hooks:
    """The hooks of a recording.

    For norms only those modules are hooked that they are taken of, the others when a step is to be in full.
    """

    def __init__(self, run: Run, forward: Forward, gradients: Gradients, updates: Updates) -> None:
        self._run = run
        self._forward, self._gradients, self._updates = forward, gradients, updates
        self._removals: list[Removal] = []
        self._removals_of_step: list[Removal] = []
        self._for_full_steps: list[Hookable] = []

    def set(self, modules: list[Hookable], optimizer: object | None) -> None:
        """Hook modules and parameters, and ``optimizer``, or all of the process."""
        run = self._run
        self._removals.append(with_more_room())
        if run.config.task is Task.NORMS:
            chosen = main_blocks(run.modules, sorted(run.roots))
            if run.config.modules is not None:
                chosen = run.roots | {index for index, keep in enumerate(run.keep) if keep}
            self._for_full_steps = [each for each in modules if each.index not in chosen]
            self._set([each for each in modules if each.index in chosen], self._removals)
        else:
            self._set(modules, self._removals)
            self._set_on_parameters(self._removals)
        updates = self._updates
        self._removals.append(run.adapter.on_update(optimizer, updates.before_update, updates.after_update))

    def begin_step(self) -> None:
        """Hook what is not hooked for norms, or take these hooks off again."""
        for removal in self._removals_of_step:
            removal()
        self._removals_of_step = []
        if self._run.because and self._run.config.task is Task.NORMS:
            self._set(self._for_full_steps, self._removals_of_step)
            self._set_on_parameters(self._removals_of_step)

    def take_off(self) -> None:
        """Take every hook off."""
        for removal in [*self._removals, *self._removals_of_step]:
            with contextlib.suppress(Exception):  # the others are to be taken off all the same
                removal()
        self._removals, self._removals_of_step, self._for_full_steps = [], [], []

    def _set(self, modules: list[Hookable], removals: list[Removal]) -> None:
        for each in modules:
            before = functools.partial(self._forward.before_call, each.index, each.module, each.is_leaf)
            after = functools.partial(self._forward.after_call, each.index)
            live = each.module()
            try:
                if live is not None:
                    removals.append(self._run.adapter.on_call(live, before, after))
            except Exception as error:  # noqa: BLE001  a module that takes no hooks must not end the training
                text = f"{self._run.name_of(each.index)} takes no hooks ({error}): its calls are not recorded"
                self._run.note(text, each.index)

    def _set_on_parameters(self, removals: list[Removal]) -> None:
        parameters = [named.tensor for named in self._run.tensors]
        removals.append(self._run.adapter.on_parameter_gradients(parameters, self._gradients.backward_ended))
