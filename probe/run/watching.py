"""Waiting for a program to train something, and then recording it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probe.adapters.base import Adapter, Group
from probe.messages import say
from probe.run.choosing import Choice, is_trainable, named, trained_by
from probe.run.interpreter_start import is_installed
from probe.run.order import Order

_FREE = 16
"""looks through all objects before they have to be rare"""
_SHARE = 20
"""times longer than such a look takes, the program then runs between two of them"""


class Watch:
    """Looks at the modules that are called with gradients, until one of them is what is trained.

    Parameters
    ----------
    adapter
        of the framework
    order
        what is to be recorded
    ended
        called when there is nothing to wait for any more
    """

    def __init__(self, adapter: Adapter, order: Order, ended: Callable[[], None]) -> None:
        self._adapter, self._order, self._ended = adapter, order, ended
        self._lock = threading.Lock()
        self._looks, self._next_look = 0, 0.0
        self._updating: tuple[list[Group], str] | None = None
        """of the optimizer's step under way, inside which a closure may run the first forward"""
        self._missed = 0
        """optimizers' steps behind a forward with gradients that began no recording"""
        self._inside: tuple[int, Any, Callable[[], None]] | None = None
        """the thread and the module that was looked at in vain and is running: what it calls need not be looked at"""
        self.armed: Any = None
        """what waits for a signal or a file"""
        self._signal: Any = None
        if order.on_signal:
            from probe.run.arming import Signal  # which loads what records

            self._signal = Signal(order.on_signal)
        self._removals = [adapter.on_any_call(self._before_call)]
        self._removals.append(adapter.on_update(None, self._before_update, self._after_update))

    def end(self) -> None:
        """Look at nothing any more."""
        self._left()
        self._updating = None
        while self._removals:
            self._removals.pop()()

    def tell_what_was_missed(self) -> None:
        """Say why nothing was recorded; in a process that only has inherited the order, if something was trained."""
        if not self._removals or self._order.quiet or (self._order.is_inherited and not self._missed):
            return
        if self._order.models:
            how = "" if self._order.waits else " with gradients"
            say(f"nothing was recorded: no module named {' or '.join(self._order.models)} ran{how}")
        elif self._missed:
            say(
                "nothing was recorded: what the optimizers train are no parameters of a module that was called; name the model: --model MODULE:ATTRIBUTE"
            )
        else:
            children = (
                "" if is_installed() else "; to record processes that it starts: python -m probe.run --install-hook"
            )
            say(
                f"nothing was recorded: no module ran with gradients in this process whose parameters an optimizer trains{children}"
            )

    # Hooks

    def _before_call(self, module: Any) -> None:
        # another thread is looking, or this one is, and calls a module by it
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._removals:
                self._look_at(module)
        except Exception as error:  # noqa: BLE001  the training must go on
            self._give_up(error)
        finally:
            self._lock.release()

    def _before_update(self, groups: list[Group], why_not: str) -> None:
        self._updating = groups, why_not

    def _after_update(self, groups: list[Group]) -> None:
        self._updating = None
        self._missed += self._looks > 0

    # What they lead to

    def _look_at(self, module: Any) -> None:
        if _is_recorded_otherwise():
            self._ended()
            if not (self._order.quiet or self._order.is_inherited):
                say(f"the program calls probe.start itself: {self._order.path} is not written")
            return
        if self._inside is not None and self._inside[0] == threading.get_ident():
            if self._inside[1] is not module:
                return
            self._left()  # it was left by an interrupt
        context = self._adapter.context()
        if context.recomputing or context.aside:
            return
        may_infer = self._order.waits and self._order.models  # such as an engine, which trains nothing
        if not (may_infer or (context.grad_enabled and is_trainable(self._adapter, module))):
            return
        if self._looks >= _FREE and time.monotonic() < self._next_look:
            return
        began = time.monotonic()
        names = self._order.models
        choice = named(self._adapter, names, module) if names else trained_by(self._adapter, module)
        now = time.monotonic()
        self._looks, self._next_look = self._looks + 1, now + _SHARE * (now - began)
        if choice is not None:
            self._record(choice)
        else:
            self._enter(module)

    def _enter(self, module: Any) -> None:
        """Look at nothing that a module calls."""
        self._left()
        with contextlib.suppress(Exception):  # it takes no hooks
            removal = self._adapter.on_call(module, _ignore, lambda output, raised: self._left())
            self._inside = threading.get_ident(), module, removal

    def _left(self) -> None:
        inside, self._inside = self._inside, None
        if inside is not None:
            inside[2]()

    def _record(self, choice: Choice) -> None:
        from probe import session
        from probe.run.arming import arm  # which loads what records

        order, updating = self._order, self._updating
        self._ended()
        order.claim()
        models = choice.models if len(choice.models) > 1 else choice.models[0]
        if order.waits:
            given = {"signal": self._signal, "file": order.on_file, "forwards": order.forwards, "quiet": order.quiet}
            self.armed = arm(models, order.path, **given, functions=choice.functions, **order.options)
            return None if order.quiet else say(self._words(choice))
        session.start_by_itself(
            models, order.path, functions=choice.functions, overwrite=order.overwrite, quiet=order.quiet, **order.options
        )  # fmt: skip
        if updating is not None:
            session.update_began(*updating)
        session.tell(self._words(choice))

    def _words(self, choice: Choice) -> str:
        names = " and ".join(type(model).__name__ for model in choice.models)
        trainers = f", trained by {' and '.join(choice.optimizers)}" if choice.optimizers else ""
        late = f", from step {self._missed} on" if self._missed else ""
        other = "" if self._order.models else "; if this isn't your model, name it: --model MODULE:ATTRIBUTE"
        asked = [each for each in (self._order.on_signal, self._order.on_file) if each]
        late = f", when {' or '.join(asked)} is there" if asked else late
        return f"recording {names} ({choice.elements:,} parameters{trainers}) to {self._order.path}{late}{other}"

    def _give_up(self, error: Exception) -> None:
        self._ended()
        with contextlib.suppress(Exception):
            print(f"probe: nothing is recorded, the program goes on: {error}", file=sys.stderr)


def _is_recorded_otherwise() -> bool:
    """Return True if the program calls probe.start() itself, now or earlier."""
    session = sys.modules.get("probe.session")
    return session is not None and session.recordings_begun() > 0


def _ignore(*args: object) -> None:
    return None
