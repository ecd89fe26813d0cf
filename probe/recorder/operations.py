"""Operations: calls of the framework's functions inside the code of modules.

Each is a call of its own below the call that made it: ``self_attn/softmax.0`` is the first softmax of a call of ``self_attn``.
It stands in the file as a module that has arguments. Of the modules around them it is recorded where they are called.
"""

from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from probe.adapters.base import Operation, OperationWatch
from probe.adapters.shared.hooking import nothing
from probe.numbers.slots import flatten
from probe.recorder.calls import CALLS, Call, Calls
from probe.recorder.gradients import Gradients
from probe.recorder.measuring import Measuring
from probe.recorder.run import Run, guarded
from probe.records import ModuleInfo, Phase, Role

_PROBE = str(Path(__file__).parents[1])
_STANDARD = str(Path(threading.__file__).parent)
"""folder of Python's own modules, such as those that run a function in a thread; packages may lie in it"""
_MOST = 100_000
"""different operations of a recording: a loop whose length grows makes more and more"""


class Operations:
    """Records what operations are given and return, and the gradients of what they return."""

    def __init__(self, run: Run, measuring: Measuring, calls: Calls, gradients: Gradients) -> None:
        self.run = run
        self._measuring, self._calls, self._gradients = measuring, calls, gradients
        self._indices: dict[tuple[int, str, int], int] = {}
        """by module, name, and number inside one call of the module"""
        self._written = 0
        """modules and operations that stand in the file"""
        self._closed: set[int] = set()
        """modules whose own code would compute with another kernel"""
        self._threads = threading.local()
        self._inside: dict[int, weakref.ref[Any]] = {}
        """by thread: the outermost module that runs in it"""
        package = getattr(sys.modules.get(run.adapter.framework), "__file__", None)
        self._between = (_PROBE, *([str(Path(package).parent)] if package else []))
        """folders whose code lies between a module and the program that calls it"""
        self._watch = run.adapter.on_operations(self.before, self.after)

    @property
    def is_possible(self) -> bool:
        """Whether the framework shows its operations."""
        return self._watch is not None

    def enter(self, module: Any, index: int) -> None:
        """Look at operations in this thread if the module that it calls is chosen. Doing it twice does no harm."""
        self._inside.setdefault(threading.get_ident(), weakref.ref(module))
        info = self.run.modules[index]
        if index >= self._written and not info.called_from and self.run.keep[index]:
            self.run.modules[index] = replace(info, called_from=self._called_from(module))
        if self._watch is None:
            return
        if not self.run.keep[index]:
            self._watch.leave()
        elif not self._watch.enter(module):
            self._closed.add(index)
            kind = self.run.modules[index].class_name
            self.run.note(
                f"operations of {kind}'s own code are not recorded: it would compute with another kernel", index
            )

    def _called_from(self, module: object) -> str:
        """Return file and line of the program that calls a module right now; empty where no line of it does."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (self._is_between(frame.f_code.co_filename) or _is_own(frame, module)):
            frame = frame.f_back
        return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""

    def _is_between(self, file: str) -> bool:
        is_standard = file.startswith(_STANDARD) and "-packages" not in file
        return is_standard or file.startswith(self._between)

    def write(self) -> None:
        """Enter into the file what was added since the last time, when a step ends: no row of a file is written twice."""
        self.run.writer.add_modules(self.run.modules[self._written :])
        self._written = len(self.run.modules)

    def leave(self, caller: int = -1) -> None:
        """End a call: look at operations further if the module that made it is chosen, −1 for none."""
        if caller < 0:
            self._inside.pop(threading.get_ident(), None)
        if self._watch is None:
            return
        if caller < 0 or not self.run.keep[caller] or caller in self._closed:
            self._watch.leave()
        else:
            self._watch.enter(None)

    def close(self) -> None:
        """Look at operations in no thread any longer; another thread ends it itself, when its module returns."""
        self.leave()
        for thread, module in self._inside.copy().items():
            if (live := module()) is not None and self._watch is not None:
                self._leave_behind(live, thread, self._watch)

    def _leave_behind(self, module: object, thread: int, watch: OperationWatch) -> None:
        def left(output: object, raised: bool) -> None:
            if threading.get_ident() == thread:
                watch.leave()
            if not raised:  # else the framework is looping over the module's hooks
                remove()

        remove = self.run.adapter.on_call(module, nothing, left)

    @property
    def _pending(self) -> list[Call | None]:
        """What runs in this thread: None for an operation that is not recorded."""
        pending = getattr(self._threads, "pending", None)
        if pending is None:
            pending = self._threads.pending = []
        return pending

    @guarded
    def before(self, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin an operation, and record what it is given."""
        pending = self._pending
        pending.append(None)
        run, calls = self.run, self._calls
        around = calls.stack[-1] if calls.stack else None
        if around is None or around.step != run.step or run.passes_over or not run.keep[around.module]:
            return
        if run.norms or run.too_many(len(calls.all), CALLS, "calls of modules and operations"):
            return
        index = self._index_of(around, operation, args, kwargs)
        if index is None:
            return
        pending[-1] = call = calls.begin_inside(around, index)
        if not call.recomputed:
            self._observe(
                Role.INPUT, call, [*flatten(args, run.adapter.is_tensor), *flatten(kwargs, run.adapter.is_tensor)]
            )

    @guarded
    def after(self, output: object, raised: bool) -> None:
        """End an operation, and record what it returns."""
        pending = self._pending
        call = pending.pop() if pending else None
        run = self.run
        if call is None or not run.active or call.step != run.step:
            return
        call.end, call.raised = run.next_seq(), raised
        tensors = flatten(output, run.adapter.is_tensor)
        if not call.recomputed:
            self._observe(Role.OUTPUT, call, tensors)
        if call.is_in_graph:
            self._gradients.watch_outputs(call, tensors)

    def _observe(self, role: Role, call: Call, tensors: list[tuple[str, Any]]) -> None:
        for slot, tensor in tensors:
            self._measuring.observe(Phase.FORWARD, role, slot, tensor, call)

    def _index_of(
        self, around: Call, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> int | None:
        """Return the index of an operation among the modules; enter it into the file the first time."""
        run = self.run
        number = around.operations[operation.name]
        around.operations[operation.name] += 1
        key = around.module, operation.name, number
        if key not in self._indices:
            if len(self._indices) >= _MOST:
                run.note(f"there are more than {_MOST:,} different operations: the others are not recorded", -1)
                return None
            path = f"{run.modules[around.module].path}/{operation.name}.{number}"
            file, line = operation.called_from()
            info = ModuleInfo(
                path, operation.qualified_name, around.module, file, line, arguments=operation.arguments(args, kwargs)
            )
            self._indices[key] = len(run.modules)
            run.add_inside(info, around.module)
        return self._indices[key]


def _is_own(frame: FrameType, module: object) -> bool:
    """Return True if a frame is a ``__call__`` that the module's class has in front of the framework's."""
    own = (vars(kind).get("__call__") for kind in type(module).__mro__)
    return any(getattr(each, "__code__", None) is frame.f_code for each in own)  # f_locals would keep what it holds
