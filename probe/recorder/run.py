"""What the parts of a recorder share: the models, the options, how far the run is, and what was said of it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from probe.adapters.base import Adapter, NamedTensor
from probe.config import RecordConfig
from probe.errors import ProbeWarning, warn
from probe.records import ModuleInfo, ParameterInfo, Phase, Task
from probe.store.writing.writer import Writer

_Method = TypeVar("_Method", bound=Callable[..., Any])
_SAID = 1000
"""different messages of a recording"""
_LONG = 1000
"""letters of a message; the file has all of it"""


class Run:
    """The models as they are recorded, the step under way, and what could not be recorded."""

    def __init__(self, adapter: Adapter, writer: Writer, config: RecordConfig) -> None:
        self.adapter, self.writer, self.config = adapter, writer, config
        self.lock = threading.RLock()
        self.inside = 0
        """the thread that a hook of ours is running in, 0 while none is"""
        self.running = self.ended = False
        self.closing = False
        """inside ``probe.step()`` or ``probe.stop()``, which tell themselves what interrupts them"""
        self.modules: list[ModuleInfo] = []
        self.roots: set[int] = set()
        """indices of the models themselves"""
        self.routed: set[int] = set()
        """those of modules that take another recording's choices"""
        self.parameters: list[ParameterInfo] = []
        self.tensors: list[NamedTensor] = []
        self.parameter_index: dict[int, int] = {}
        """by a parameter's id"""
        self.gone: set[int] = set()
        """indices of parameters and buffers that the models do not have any more"""
        self.wants = [config.wants_phase(phase) for phase in Phase]
        self.keep: list[bool] = []
        """by module: whether what is seen at it is recorded"""
        self.kept_calls: list[bool] = []
        """by module: whether what its calls are given and return is"""
        self.in_full: list[bool] = []
        """by module: whether values are"""
        self.kept: dict[int, Any] = {}
        """copies of parameters, by index, until their optimizer has changed them"""
        self.spare: dict[int, Any] = {}
        """such copies that are not in use, as many as are kept: fresh memory costs more than the copy"""
        self.step = 0
        self.recorded = False
        """whether this step is in the file"""
        self.active = False
        """whether hooks record: not in other steps, nor when there was too much in this one"""
        self.paused = False
        """whether calls that begin now are passed over, and with them a step in which none was recorded"""
        self.norms = False
        """whether of this step the norms alone are"""
        self.because = ""
        """why this step is recorded in full whatever the options say"""
        self.seq = 0
        self.nbytes = 0
        """that this step takes in the file"""
        self.notes: list[tuple[int, int, str]] = []
        self._said: set[str] = set()
        self._unsaid = False

    def choose(self) -> None:
        """Apply the options to the modules, which are known now."""
        self.keep = [self.config.wants_module(m.path, m.class_name) for m in self.modules]
        self.kept_calls = [
            keep and (self.config.level != "op" or index in self.roots) for index, keep in enumerate(self.keep)
        ]
        self.in_full = [self.config.wants_values(m.path, m.class_name) for m in self.modules]

    def add_inside(self, operation: ModuleInfo, module: int) -> None:
        """Add an operation inside a module: it is recorded as the module is."""
        self.modules.append(operation)
        self.keep.append(self.keep[module])
        self.kept_calls.append(self.keep[module])
        self.in_full.append(self.in_full[module])

    def begin_step(self, because: str) -> None:
        """Begin a step; ``because`` says why it is to be recorded in full whatever the options say."""
        self.because = because
        self.active = self.recorded = bool(because) or self.config.wants_step(self.step)
        self.norms = self.config.task is Task.NORMS and not because
        self.nbytes = self.seq = 0

    @property
    def passes_over(self) -> bool:
        """Whether there is nothing in this step to which what happens now would belong."""
        return not self.active or (self.paused and not self.seq)

    def end(self) -> None:
        """Hold nothing of the models any longer, and say nothing more."""
        self.running, self.ended = False, True
        self.tensors.clear()
        self.kept.clear()
        self.spare.clear()
        self.parameter_index.clear()

    def too_many(self, count: int, most: int, what: str) -> bool:
        """Record no more of a step that has so many: where no step ever ends they would fill the memory."""
        if count < most:
            return False
        self.active = False
        text = f"step {self.step} has {count:,} {what}: what follows in it is not recorded"
        self.note(f"{text}; call probe.step() at the end of each step", -1)
        return True

    def next_seq(self) -> int:
        """Return the number of what happens now, counted within the step."""
        self.seq += 1
        return self.seq - 1

    def name_of(self, module: int, root: str = "the root") -> str:
        """Return how a module is called in messages."""
        return self.modules[module].path or root

    def note(self, text: str, module: int) -> None:
        """Say once, and put into the file, what could not be recorded."""
        if self.ended:  # a signal handler has stopped the recording in the middle of something
            return
        if len(self._said) >= _SAID - 1:
            text = "there is more that could not be recorded; it is not said any more"
        if text not in self._said:
            self.notes.append((self.step, module, text))
            try:
                self.say(text)
            except ProbeWarning:  # the user has made warnings errors: what is being recorded must not be lost by it
                if not self.running:
                    raise

    def say(self, text: str) -> None:
        """Say something once."""
        if text and text not in self._said:
            self._said.add(text)
            warn(_shown(text))

    def could_not_say(self) -> None:
        """Remember that a message was lost."""
        self._unsaid = True

    def notes_of_step(self) -> list[tuple[int, int, str]]:
        """Return what the file is to say of the step that ends."""
        notes, self.notes = self.notes, []
        if self.because:
            notes.append((self.step, -1, self.because))
        if self._unsaid:
            notes.append((self.step, -1, "not recorded because of an error inside probe that could not be said"))
            self._unsaid = False
        return notes


def _shown(text: str) -> str:
    """Return a message as it is printed, whatever names are in it."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]} … {text[-_LONG // 2 :]}"


class Part(Protocol):
    """Whatever has hooks that belong to a run."""

    run: Run


def set_back(method: _Method) -> _Method:
    """Leave no mode of the framework behind in a method that the program calls and an interrupt (Ctrl-C) may end."""

    @functools.wraps(method)
    def ends(self: Part, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            self.run.adapter.interrupted()
            raise

    return cast(_Method, ends)


def guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Let no exception out of what a hook calls, but for the program's own, nor run it in two threads at once."""

    @functools.wraps(method)
    def safe(self: Part, *args: Any) -> None:
        run = self.run
        if not run.running:
            return
        is_inside = run.inside == threading.get_ident()  # another one of this thread has the lock
        if run.active and not is_inside:
            run.adapter.surface()
        try:
            if is_inside:
                return method(self, *args)
            with run.lock, run.adapter.unseen():
                try:
                    run.inside = threading.get_ident()
                    if run.running:
                        method(self, *args)
                finally:
                    run.inside = 0
        except Exception as error:  # noqa: BLE001  the training must go on whatever happened here
            try:
                run.note(f"not recorded because of an error inside probe: {error!r}", -1)
            except Exception:  # noqa: BLE001  no room on the stack, warnings that are errors
                run.could_not_say()
        except BaseException as error:
            run.inside = 0
            run.adapter.interrupted()
            run.kept.clear()
            if not run.closing:
                with contextlib.suppress(Exception):
                    text = f"{type(error).__name__} interrupted probe: what it was recording then is missing"
                    run.note(text, -1)
            raise

    return safe
