"""`arm`: recordings of a model that begin and end while the program runs, when a signal or a file asks for them."""

from __future__ import annotations

import contextlib
import functools
import os
import signal as signals
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Unpack

from probe import session, targets
from probe.adapters.base import adapter_for
from probe.adapters.shared.hooking import nothing
from probe.config import RecordOptions
from probe.errors import ConfigError, warn
from probe.recorder import Recorder


class Signal:
    """Counts how often a signal has arrived; its handler does nothing else, and calls the one that was there before."""

    def __init__(self, name: str | int) -> None:
        self.count, text = 0, str(name).upper()
        number = next((each for each in signals.Signals if text in (each.name, each.name[3:], str(each.value))), None)
        if number is None:
            raise ConfigError(f"signal={name!r} is no signal; expected for example 'SIGUSR2'")
        self._number = number
        try:
            self._earlier = signals.signal(number, self._arrived)
        except (OSError, ValueError) as error:  # ValueError: not in the main thread
            raise ConfigError(f"signal={name!r} can't be used ({error}): take another one, or a file") from None

    def remove(self) -> None:
        """Put back an earlier handler; not over one set since or from a thread, and not none: a late signal would kill."""
        if signals.getsignal(self._number) == self._arrived and self._earlier != signals.SIG_DFL:
            with contextlib.suppress(ValueError):
                signals.signal(self._number, self._earlier)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if callable(self._earlier):
            self._earlier(number, frame)


class Armed:
    """A model that waits to be recorded; `arm` makes it."""

    def __init__(
        self, models: Sequence[Any], path: Path | None, options: RecordOptions, signal: Signal | None,
        file: Path | None, when: Callable[..., object] | None, forwards: int,
    ) -> None:  # fmt: skip
        adapter = adapter_for(models[0])
        self._models, self._grad_enabled = [*map(weakref.ref, models)], lambda: adapter.context().grad_enabled
        self._path, self._options, self.signal, self._file = path, options, signal, file
        self._when, self._forwards = when, forwards
        self._target: Path | None = None
        """the file of the last recording"""
        self._seen = self._left = 0
        self._is_spent = False
        """whether the file that is there, or ``when``, has had its recording"""
        self._steps_itself = self._trains = False
        """whether the program calls ``probe.step()``; whether it has an optimizer"""
        self._is_between = True
        """whether no step is under way, in a program that has steps"""
        # PyTorch lists a module's hooks before it calls them; the others let one that is set in a call take part in it
        self._is_late = adapter.framework == "torch"
        enter = [functools.partial(self._enter, each) for each in self._models]
        if self._is_late:
            self._removals = [adapter.on_call(model, each, nothing) for model, each in zip(models, enter, strict=True)]
        else:
            self._removals = [adapter.on_any_call(functools.partial(_if_called, each)) for each in enter]
        self._removals += [adapter.on_update(None, nothing, self._updated), session.on_step(self._stepped)]

    def remove(self) -> None:
        """Wait no longer; a recording that began here ends."""
        while self._removals:
            self._removals.pop()()
        self._end_if(True)
        if self.signal is not None:
            self.signal.remove()

    def _enter(self, model: weakref.ref[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look whether to begin or to end, before a model runs."""
        before = self._recorder()
        with _harmless():
            is_wanted = self._when is None or bool(self._when(*args, **kwargs))
            if has_steps := self._steps_itself or self._trains:
                is_between, self._is_between = self._is_between, self._is_between and not self._grad_enabled()
            if not has_steps or is_between:
                self._look(is_wanted)
            if self._when is not None and self._recorder() is not None:
                session.pause(not is_wanted)
        recorder = self._recorder()
        if self._is_late and recorder is not None and recorder is not before:
            recorder.enter(model(), args, kwargs)

    def _stepped(self) -> None:
        """Look behind ``probe.step()``."""
        self._steps_itself = self._is_between = True
        with _harmless():
            self._end_if_over()
            self._look(self._when is None)

    def _updated(self, groups: object) -> None:
        self._trains, self._is_between = True, self._is_between or not self._steps_itself

    def _look(self, is_wanted: bool) -> None:
        count = 0 if self.signal is None else self.signal.count
        is_asked, self._seen = count != self._seen, count
        is_there = self._file is not None and self._file.exists()
        if self._recorder() is not None:
            self._end_if(is_asked or (self._is_spent and self._file is not None and not is_there))
        elif is_asked or (not self._is_spent and (is_there or (self.signal is self._file is None and is_wanted))):
            self._is_spent = not is_asked
            self._begin()
        self._is_spent = self._is_spent and (is_there or self._file is None)

    def _begin(self) -> None:
        models = [model for each in self._models if (model := each()) is not None]
        given: Any = models if len(models) > 1 else models[0]
        self._target = session.start_by_itself(given, self._path, is_numbered=True, **self._options)
        if self._target is None:  # this rank does not record
            return session.stop()
        self._left = self._forwards
        if (recorder := self._recorder()) is not None:
            recorder.follow(self._end_if_over, self._forwarded)
        if self._path is not None:  # else it has been said
            session.tell(f"recording to {self._target}")

    def _forwarded(self) -> None:
        """Count a forward that was recorded, behind it."""
        recorder = self._recorder()
        if self._left and recorder is not None and not recorder.run.paused:
            self._left -= 1
            self._end_if(not self._left)

    def _end_if_over(self) -> None:
        recorder = self._recorder()
        self._end_if(recorder is not None and recorder.run.config.is_over(recorder.run.step))

    def _end_if(self, is_over: bool) -> None:
        if is_over and self._recorder() is not None:
            session.stop()

    def _recorder(self) -> Recorder | None:
        """Return what records, if that began here: the program may have ended it, and begun another one."""
        found = session.recorder()
        return found if found is not None and found.path == self._target else None


def _if_called(enter: functools.partial[None], called: object) -> None:
    if called is enter.args[0]():
        enter((), {})


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """Let nothing out into the program."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  the program goes on
        with contextlib.suppress(Exception):  # it has made warnings errors
            warn(f"probe.arm(): {error}")


def arm(
    model: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    signal: str | int | Signal | None = None,
    file: str | os.PathLike[str] | None = None,
    when: Callable[..., object] | None = None,
    forwards: int | None = None,
    **options: Unpack[RecordOptions],
) -> Armed:
    """Record a model while the program runs, whenever it is asked to.

    It looks for a signal or a file between two steps: behind `step`, or where the program never calls it, behind an
    optimizer's step; where nothing trains, before each forward. Until then, only the model itself has a hook.

    Parameters
    ----------
    model
        as `start` takes it
    path
        the first recording; the next ones are ``a-2.h5``, ``a-3.h5`` …, and nothing is overwritten
    signal
        begins a recording, and ends the one that it began; its earlier handler is called too. In the main thread only
    file
        a recording runs while this file exists
    when
        a function of what the model is given, such as ``lambda input_ids, **_: input_ids[0] == 17``: other forwards are
        passed over. Without ``signal`` and ``file``, one recording begins at the first that it wants. PyTorch
    forwards
        forwards of the model, after which a recording ends: in an engine the prefill is one, and each decoded token
    options
        the other options of `start`; a recording ends after the last of ``steps``, which count from its beginning

    Returns
    -------
    Armed
        its ``remove()`` takes all back, but for a handler where there was none: what signals next would end the program

    Raises
    ------
    ConfigError
        an option makes no sense, or nothing would begin a recording
    StoreError
        the folder isn't there
    """
    if signal is None and file is None and when is None:
        raise ConfigError("probe.arm() was told nothing that begins a recording; expected signal=, file= or when=")
    if forwards is not None and (type(forwards) is not int or forwards < 1):
        raise ConfigError(f"forwards={forwards!r}: expected a number from 1")
    checked = {
        key: value for key, value in options.items() if key not in ("optimizer", "quiet", "parallel", "functions")
    }
    targets.check(path, **{**checked, "overwrite": True})
    models = model if isinstance(model, (list, tuple)) else [model]
    if not models:
        raise ConfigError("probe.arm() was given an empty list; expected a module, or a list of modules")
    if when is not None and any(adapter_for(each).framework != "torch" for each in models):
        raise ConfigError("when= needs PyTorch: elsewhere take signal= or file=")
    # the program may change its folder
    places = [None if each is None else Path(each).absolute() for each in (path, file)]
    armed = Armed(models, places[0], options, None, places[1], when, forwards or 0)
    with contextlib.ExitStack() as undo:  # what raises leaves neither hooks nor a handler
        undo.callback(armed.remove)
        armed.signal = signal if signal is None or isinstance(signal, Signal) else Signal(signal)
        undo.pop_all()
    return armed
