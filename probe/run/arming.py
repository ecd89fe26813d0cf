"""`arm`: recordings of a model that begin and end while the program runs, when a signal or a file asks for them."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack

from probe import session, targets
from probe.adapters.base import adapter_for
from probe.config import RecordOptions
from probe.errors import ConfigError, ExistsError, warn
from probe.run.signals import Signal

_MOST_NAMES = 10_000
"""numbers behind a name that are tried"""


class Armed:
    """A model that waits to be recorded; `arm` makes it."""

    def __init__(
        self, models: Sequence[Any], path: Path | None, options: dict[str, Any], signal: Signal | None, file: Path | None,
        when: Callable[..., object] | None, forwards: int | None,
    ) -> None:  # fmt: skip
        self._models = [weakref.ref(model) for model in models]
        self._path, self._options, self._signal, self._file = path, options, signal, file
        self._when, self._forwards = when, forwards
        self._lock = threading.Lock()
        self._target: Path | None = None
        """the file of the last recording"""
        self._begun = 0
        """recordings"""
        self._seen = self._left = 0
        self._spent = False
        """whether the file that is there, or ``when``, has had its recording"""
        self._stepped = self._trains = False
        """whether the program calls ``probe.step()``; whether it has an optimizer"""
        self._is_border = True
        """whether no step is under way, as far as optimizers tell"""
        adapter = adapter_for(models[0])
        self._context = adapter.context
        self._removals = [adapter.on_entry(model, self._enter) for model in models]
        self._removals += [adapter.on_update(None, _nothing, self._updated), session.on_step(self._step)]

    def remove(self) -> None:
        """Wait no longer; a recording that began here ends."""
        while self._removals:
            self._removals.pop()()
        if self._signal is not None:
            self._signal.remove()
        self._end()

    # What is called where the program comes by

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look whether to begin or to end, before a model runs."""
        with self._looking():
            wanted = self._when is None or bool(self._when(*args, **kwargs))
            has_steps = self._stepped or self._trains
            if self._is_border or not has_steps:
                self._look(wanted)
            if self._is_border and has_steps and self._context().grad_enabled:
                self._is_border = False
            if self._when is not None and self._is_on():
                session.pause(not wanted)

    def _step(self) -> None:
        """Look behind ``probe.step()``."""
        self._stepped = self._is_border = True
        with self._looking():
            self._end_if_over()
            self._look(self._when is None)

    def _updated(self, groups: object) -> None:
        self._trains = True
        self._is_border |= not self._stepped

    def _forwarded(self) -> None:
        """Count a forward that was recorded, behind it."""
        if self._left and self._is_on() and not session.is_paused():
            self._left -= 1
            if not self._left:
                self._end()

    def _end_if_over(self) -> None:
        if self._is_on() and session.is_over():
            self._end()

    # What it leads to

    @contextlib.contextmanager
    def _looking(self) -> Any:
        """Look in one thread at a time, and let nothing out into the program."""
        if not self._lock.acquire(blocking=False):
            return (yield)
        try:
            yield
        except Exception as error:  # noqa: BLE001  the program goes on
            with contextlib.suppress(Exception):  # it has made warnings errors
                warn(f"probe.arm(): {error}")
        finally:
            self._lock.release()

    def _look(self, wanted: bool) -> None:
        count = 0 if self._signal is None else self._signal.count
        asked, self._seen = (count - self._seen) % 2 == 1, count
        there = self._file is not None and self._file.exists()
        if self._is_on():
            if asked or (self._spent and self._file is not None and not there):
                self._end()
        elif asked or (not self._spent and (there or (self._signal is None and self._file is None and wanted))):
            self._spent = not asked
            self._begin()
        if self._file is not None and not there:
            self._spent = False

    def _begin(self) -> None:
        models = [model for each in self._models if (model := each()) is not None]
        given: Any = models[0] if len(models) == 1 else models
        for _ in range(_MOST_NAMES):
            self._begun += 1
            try:
                target = session.start_by_itself(given, self._name(), **self._options)
                break
            except ExistsError:  # of an earlier run, or of another process
                if self._path is None:
                    raise
        if target is None:  # this rank does not record
            session.stop()
            return
        self._target, self._left = target, self._forwards or 0
        session.follow(self._end_if_over, self._forwarded)
        if self._path is not None:  # else it has been said
            session.tell(f"recording to {target}")

    def _name(self) -> Path | None:
        if self._path is None or self._begun == 1:
            return self._path
        return self._path.with_name(f"{self._path.stem}-{self._begun}{self._path.suffix}")

    def _end(self) -> None:
        if self._is_on():
            session.stop()

    def _is_on(self) -> bool:
        """Return True if a recording is under way that began here: the program may have ended it, and begun another one."""
        return self._target is not None and session.recording_to() == self._target


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

    It looks for a signal or a file between two steps: behind `step`, or where the program never calls it, behind an optimizer's step;
    and before each forward of the model where nothing trains. Until then, no module but the model itself has a hook.

    Parameters
    ----------
    model
        as `start` takes it
    path
        the first recording; the next ones are ``a-2.h5``, ``a-3.h5`` …, and nothing is overwritten
    signal
        begins a recording, and ends the one that it began; its earlier handler is called too. To be set in the main thread
    file
        a recording runs while this file exists
    when
        a function of what the model is given, such as ``lambda input_ids, **_: input_ids[0] == 17``: forwards for which it is False are
        passed over. Without ``signal`` and ``file``, one recording begins at the first for which it is True. PyTorch
    forwards
        forwards of the model, after which a recording ends: in an engine the prefill is one, and each token decoded behind it
    options
        the other options of `start`; after the last of ``steps``, which count from the beginning of each recording, it ends

    Returns
    -------
    Armed
        its ``remove()`` takes all back

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
    targets.check(
        path, **{**{k: v for k, v in options.items() if k not in ("optimizer", "quiet", "parallel")}, "overwrite": True}
    )
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    if not models:
        raise ConfigError("probe.arm() was given an empty list; expected a module, or a list of modules")
    if when is not None and adapter_for(models[0]).framework != "torch":
        raise ConfigError("when= needs PyTorch: elsewhere take signal= or file=")
    counted = signal if signal is None or isinstance(signal, Signal) else Signal(signal)
    place = None if path is None else Path(path).absolute()  # the program may change its folder
    looked_for = None if file is None else Path(file).absolute()
    return Armed(models, place, dict(options), counted, looked_for, when, forwards)


def _nothing(*args: object) -> None:
    return None
