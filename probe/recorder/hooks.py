"""Setting hooks on models and optimizers, and taking every one of them off."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from probe.recorder.by_itself.stepping import LOOKED_AT, Stepping
from probe.recorder.forward import Forward
from probe.recorder.gradients import Gradients
from probe.recorder.models import Hookable
from probe.recorder.run import Run
from probe.recorder.updates import Updates
from probe.records import Task
from probe.structure.blocks import main_blocks

Removal = Callable[[], None]


class Hooks:
    """The hooks of a recording.

    For norms only those modules are hooked that they are taken of, the others when a step is to be in full.
    """

    def __init__(
        self, run: Run, forward: Forward, gradients: Gradients, updates: Updates, stepping: Stepping | None = None
    ) -> None:
        self._run = run
        self._forward, self._gradients, self._updates, self._stepping = forward, gradients, updates, stepping
        self._removals: list[Removal] = []
        self._removals_of_step: list[Removal] = []
        self._for_full_steps: list[Hookable] = []
        self._entries: dict[int, Callable[..., None]] = {}
        """what is called before a model, by its id"""

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
            if self._stepping is not None:
                self._watch_few_parameters(self._stepping)
        else:
            chosen = self._chosen()
            self._set([each for each in modules if each.index in chosen], self._removals)
            self._set_on_parameters(self._removals)
        updates, stepping = self._updates, self._stepping
        before = _in_turn(stepping and stepping.before_update, updates.before_update)
        after = _in_turn(updates.after_update, stepping and stepping.after_update)
        self._removals.append(run.adapter.on_update(optimizer, before, after))

    def _chosen(self) -> set[int]:
        """Return whose calls are recorded: of all, or, to look below chosen ones, theirs and of what stands around them."""
        run = self._run
        found = set(range(len(run.modules)) if run.config.level == "module" else run.roots)
        for index in [each for each, keep in enumerate(run.keep) if keep or each in run.routed]:
            while index >= 0 and index not in found:
                found.add(index)
                index = run.modules[index].parent
        return found

    def set_on_functions(self, functions: Sequence[Any]) -> None:
        """Hook loss functions, which are no part of the models, for the numbers that they return."""
        for each in functions:
            with contextlib.suppress(Exception):  # one that takes no hooks is one whose loss is not known
                self._removals.append(self._run.adapter.on_call(each, _ignore, self._stepping.after_function))

    def _watch_few_parameters(self, stepping: Stepping) -> None:
        """Have the ends of backward passes told where no gradient is recorded as backward leaves it."""
        run = self._run
        few = [
            i for i, named in enumerate(run.tensors) if not named.is_buffer and run.adapter.requires_grad(named.tensor)
        ]
        few = few[:: max(1, len(few) // LOOKED_AT)][:LOOKED_AT]
        another = type(run.adapter)()  # the one of the run is asked which passes are under way when steps are in full
        tensors = [run.tensors[index].tensor for index in few]
        ended = lambda indices: stepping.gradients_arrived([few[i] for i in indices])  # noqa: E731
        self._removals.append(another.on_parameter_gradients(tensors, ended))

    def begin_step(self) -> None:
        """Hook what is not hooked for norms, or take these hooks off again."""
        for removal in self._removals_of_step:
            removal()
        self._removals_of_step = []
        if self._run.because and self._run.config.task is Task.NORMS:
            self._set(self._for_full_steps, self._removals_of_step)
            self._set_on_parameters(self._removals_of_step)

    def enter(self, model: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what a hook would before a call of a model that had begun when the hooks were set."""
        self._entries[id(model)](args, kwargs)

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
            if self._stepping is not None:
                before = _in_turn(functools.partial(self._stepping.before_call, each.index), before)
                after = _in_turn(after, self._stepping.after_call if each.index in self._run.roots else None)
            live = each.module()
            try:
                if each.index in self._run.roots:
                    self._entries[id(live)] = before
                if live is not None:
                    removals.append(self._run.adapter.on_call(live, before, after))
            except Exception as error:  # noqa: BLE001  a module that takes no hooks must not end the training
                text = f"{self._run.name_of(each.index)} takes no hooks ({error}): its calls are not recorded"
                self._run.note(text, each.index)

    def _set_on_parameters(self, removals: list[Removal]) -> None:
        parameters = [named.tensor for named in self._run.tensors]
        ended, stepping = self._gradients.backward_ended, self._stepping
        if stepping is not None:
            ended = _in_turn(stepping.gradients_arrived, ended)
        removals.append(self._run.adapter.on_parameter_gradients(parameters, ended))


def _in_turn(*functions: Callable[..., None] | None) -> Callable[..., None]:
    """Return what calls one function after the other with the same arguments; those that are None are left out."""
    called = [each for each in functions if each is not None]
    if len(called) == 1:
        return called[0]

    def call(*args: Any) -> None:
        for each in called:
            each(*args)

    return call


def _ignore(*args: object) -> None:
    return None


_OWN = 100
"""frames that the recorder needs in a hook"""


def with_more_room() -> Callable[[], None]:
    """Raise the limit of recursion while hooks are set; return what sets it back, unless somebody else has changed it meanwhile.

    PyTorch calls a module that has hooks through one more frame, where a call without any takes four: what just fits would not.
    """
    before = sys.getrecursionlimit()
    during = before + before // 4 + _OWN
    sys.setrecursionlimit(during)

    def set_back() -> None:
        if sys.getrecursionlimit() == during:
            sys.setrecursionlimit(before)

    return set_back
