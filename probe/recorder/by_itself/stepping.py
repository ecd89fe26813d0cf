"""Ending the steps of a program that does not call ``probe.step()`` (``python -m probe.run``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probe.adapters.base import Group
from probe.adapters.shared.hooking import nothing
from probe.numbers.packed import unpack
from probe.recorder.by_itself.losses import Losses
from probe.recorder.calls import Calls
from probe.recorder.run import Run, guarded
from probe.recorder.updates import Updates

LOOKED_AT = 8
"""parameters whose gradients tell whether all were dropped"""


class Stepping:
    """Tells by what hooks see where one step ends and the next begins.

    A step ends before the first call of a model that follows an optimizer's step. So it holds the steps of all
    optimizers that use the gradients of one backward pass, and what the program does to the weights behind them. An
    optimizer's step counts if a forward with gradients or a backward pass came before it. Where gradients are dropped
    and no optimizer used them, as a GradScaler does after an overflow, the step ends as well.

    ``end`` ends a step; it is called with the numbers that are known of it: ``lr``, ``loss``. ``see_loss`` is called
    with every loss.
    """

    def __init__(
        self,
        run: Run,
        calls: Calls,
        updates: Updates,
        end: Callable[[dict[str, float]], None],
        see_loss: Callable[[object], None],
    ) -> None:
        self.run = run
        self._calls, self._updates, self._end = calls, updates, end
        self.on = True
        """off as soon as the program calls ``probe.step()`` itself"""
        self.stepped: Callable[[], None] = nothing
        self.forwarded: Callable[[], None] = nothing
        """what is called behind a step that ended here, and behind each call of a model"""
        self._of_models, self._of_functions = Losses(run.adapter, see_loss), Losses(run.adapter, see_loss)
        self._root_was_called = False
        self._is_updating = False
        """inside an optimizer's step, where closures drop gradients and call the model again"""
        self.forget()

    def forget(self) -> None:
        """Begin a step; hold nothing of the one before."""
        self._due = False
        self._ran = self._differentiated = False
        self._arrived: list[tuple[int, int | None]] = []
        """indices of parameters that have got a gradient, with the version of it"""
        self._updated: list[int] = []
        """ids of the optimizers that have used gradients"""
        self._rate: float | None = None

    # What the hooks see, each before the recorder

    def before_call(self, index: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at a module that is about to be called."""
        if not self.on or self._calls.stack:  # inside another call, as most are
            return
        self._look_at_call(index)
        self._end_if_due()
        self._note_call(index, kwargs)

    def before_update(self, groups: Sequence[Group], why_not: str) -> None:
        """Look at an optimizer that begins a step; ``why_not`` is set if it computes gradients inside of it."""
        self._look_at_update(groups, why_not)
        self._end_if_due()
        self._note_rate(groups)

    def gradients_arrived(self, indices: Sequence[int]) -> None:
        """Look at the parameters that a backward pass has given gradients to."""
        self._due = self.on and bool(self._updated) and not self._ran  # no module ran: forward and loss are compiled
        self._end_if_due()
        self._note_gradients(indices)

    # What they see, each behind the recorder

    def after_call(self, output: object, raised: bool) -> None:
        """Look at what a model returned."""
        self._returned(output, raised)
        if not raised and not self._calls.stack:
            self.forwarded()

    @guarded
    def _returned(self, output: object, raised: bool) -> None:
        if self.on and not raised and not self._calls.stack:
            self._of_models.returned(output)

    @guarded
    def after_function(self, output: object, raised: bool) -> None:
        """Look at what a loss function returned."""
        if self.on and not raised:
            self._of_functions.returned(output)

    @guarded
    def after_update(self, groups: Sequence[Group]) -> None:
        """Take note of an optimizer's step."""
        self._is_updating = False
        if self.on and (self._ran or self._differentiated) and self._updates.are_own(groups):
            self._updated += [id(group.optimizer) for group in groups]

    # Steps

    def _end_if_due(self) -> None:
        """End the step; outside of the recorder's lock, since writing may have to wait."""
        if not self._due:
            return
        numbers = self.take_numbers()
        self.forget()
        with contextlib.suppress(Exception):  # the user has made warnings errors; nothing may get out of a hook
            self._end(numbers)
            self.stepped()

    def take_numbers(self) -> dict[str, float]:
        """Return what is known of the open step: ``lr``, ``loss``; a loss function counts where no model returns a loss."""
        numbers = {} if self._rate is None else {"lr": self._rate}
        with contextlib.suppress(Exception):  # a tensor that can't be read, on a device that has failed
            losses = [each for each in (self._of_models.take(), self._of_functions.take()) if each is not None]
            numbers |= {"loss": losses[0]} if losses else {}
        return numbers

    @guarded
    def _look_at_call(self, index: int) -> None:
        if self._is_updating or not (self._updated or self._arrived):
            return
        self._root_was_called |= index in self.run.roots
        is_outermost = index in self.run.roots or not self._root_was_called
        self._due = bool(self._updated) or (is_outermost and self._dropped())

    @guarded
    def _note_call(self, index: int, kwargs: Mapping[str, Any]) -> None:
        if index in self.run.roots:
            self._root_was_called = True
            self._of_models.given(kwargs)
        if not self._ran:
            context = self.run.adapter.context()
            self._ran = context.grad_enabled and not context.recomputing and not context.aside

    @guarded
    def _look_at_update(self, groups: Sequence[Group], why_not: str) -> None:
        if not self.on:
            return
        self._updates.look_at(groups)
        again = bool(why_not) and any(id(group.optimizer) in self._updated for group in groups)
        self._due = again and self._updates.are_own(groups)

    @guarded
    def _note_rate(self, groups: Sequence[Group]) -> None:
        self._is_updating = True
        if self.on and self._rate is None and self._updates.are_own(groups):
            rate = groups[0].hyper.get("lr")
            self._rate = float(rate) if isinstance(rate, (int, float)) else None

    @guarded
    def _note_gradients(self, indices: Sequence[int]) -> None:
        if not self.on:
            return
        self._differentiated = True
        adapter, few = self.run.adapter, indices[:: max(1, len(indices) // LOOKED_AT)][:LOOKED_AT]
        gradients = [(index, adapter.gradient(self.run.tensors[index].tensor)) for index in few]
        self._arrived = [(index, adapter.version_of(found)) for index, found in gradients if found is not None]

    def _dropped(self) -> bool:
        """Return True if gradients that a backward pass left are gone, or zeros."""
        return bool(self._arrived) and all(self._is_gone(*each) for each in self._arrived)

    def _is_gone(self, index: int, version: int | None) -> bool:
        adapter = self.run.adapter
        gradient = adapter.gradient(self.run.tensors[index].tensor)
        if gradient is None:
            return True
        if version is not None and adapter.version_of(gradient) == version:
            return False
        stats = adapter.summarize(gradient)
        if type(stats) is not bytes:
            (stats,) = adapter.settle([stats])
        found = unpack(stats)
        return found.norm == 0 and not (found.nan or found.posinf or found.neginf)
