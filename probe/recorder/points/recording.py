"""Points: values inside the code of modules, recorded as `Recorder.log` records what the user logs.

While a recording runs, the ``forward`` of these modules has the code that `probe.recorder.points.inserting` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, FunctionType
from typing import Any

from probe.config import Point, hint, matches
from probe.errors import ConfigError
from probe.numbers.slots import flatten
from probe.recorder.calls import Call, Calls
from probe.recorder.models import Hookable
from probe.recorder.points.inserting import CALLED, code_with, function_of
from probe.recorder.run import Run, guarded

_own: dict[int, tuple[CodeType, CodeType]] = {}
"""by its id, code with points, and the own code in whose place it is: a forked process may find a function so"""


class Points:
    """Records the values of points while their modules run.

    ``log`` records a tensor under a name at the module that is running.
    """

    def __init__(self, run: Run, calls: Calls, log: Callable[[str, Any], None]) -> None:
        self.run, self._calls, self._log = run, calls, log
        self._points: Sequence[Point] = run.config.points
        self._modules: list[set[int]] = []
        """of each point"""
        self._told: set[int] = set()
        """points that were reached, or of which it is said that they were not"""
        self._placed: list[tuple[FunctionType, CodeType]] = []
        """functions, and their code with points"""

    def put(self, modules: Sequence[Hookable]) -> None:
        """Put every point behind its line.

        Raises ConfigError where the models have no such module, or its code no such line.
        """
        of: dict[FunctionType, dict[int, Point]] = {}
        for number, point in enumerate(self._points):
            names = [(info.path, info.class_name) for info in self.run.modules]
            chosen = [each for each in modules if matches([point.module], *names[each.index])]
            if not chosen:
                raise ConfigError(f"points: the model has no module {point.module!r}{hint(point.module, names)}")
            self._modules.append({each.index for each in chosen})
            for each in chosen:
                function = function_of(getattr(each.module(), self.run.adapter.forward, None))
                if function is None:
                    what = f"{self.run.adapter.forward} of {names[each.index][1]}"
                    raise ConfigError(f"points: {point.module!r}: {what} is no function of Python with a name")
                of.setdefault(function, {})[number] = point
        made = {function: code_with(_code_of(function), points) for function, points in of.items()}
        reached, is_compiling = self.reached, self.run.adapter.is_compiling

        def call(number: int, value: Callable[[], Any]) -> None:  # compilers read it
            if not is_compiling():
                reached(number, value)

        for function, code in made.items():
            _own[id(code)] = code, _code_of(function)
            self._placed.append((function, code))
            function.__globals__[CALLED] = call
            function.__code__ = code

    def take_out(self) -> None:
        """Give every function its own code back, unless it was given other code since."""
        for function, code in self._placed:
            if function.__code__ is code:
                function.__code__ = _code_of(function)
            function.__globals__.pop(CALLED, None)
            _own.pop(id(code), None)
        self._placed = []

    @guarded
    def reached(self, number: int, value: Callable[[], Any]) -> None:
        """Record the value of a point whose line has run."""
        run, stack = self.run, self._calls.stack
        call = stack[-1] if run.active and stack else None
        if call is None or call.step != run.step or call.module not in self._modules[number]:
            return
        self._told.add(number)
        point = self._points[number]
        try:
            with run.adapter.quiet():
                tensors = flatten(value(), run.adapter.is_tensor, _name_at(call, point))
        except Exception as error:  # noqa: BLE001  it is the user's expression, and the training must go on
            run.note(f"the point {point.name!r} is not recorded: {point.value} failed ({error!r})", call.module)
            return
        if not tensors:
            run.note(f"the point {point.name!r} is not recorded: {point.value} holds no tensor", call.module)
        for slot, tensor in tensors:
            self._log(slot, tensor)

    def note_unreached(self) -> None:
        """Say of a step that ends which points it did not reach."""
        for number, point in enumerate(self._points):
            if number not in self._told:
                self._told.add(number)
                why = "its line did not run, or was compiled"
                text = f"step {self.run.step} did not reach the point {point.name!r}: {why}"
                self.run.note(text, min(self._modules[number]))


def _name_at(call: Call, point: Point) -> str:
    """Return the name of a value; another one each time that a call runs its line."""
    key = f"point {point.name}"
    call.operations[key] += 1
    times = call.operations[key]
    return point.name if times == 1 else f"{point.name}~{times}"


def _code_of(function: FunctionType) -> CodeType:
    """Return a function's own code, also of one whose points nobody took out."""
    return _own.get(id(function.__code__), (None, function.__code__))[1]
