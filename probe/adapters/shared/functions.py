"""Functions of a framework as operations: what they are called, what they are given beside tensors, who calls them.

A framework that does not show its functions has them replaced, by their names, while a model of this thread runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

_ITEMS = 8
"""of a list that are shown"""
_LETTERS = 80
_PROBE = str(Path(__file__).parents[2])


class Function:
    """A function that is called: how its own code calls it, and the module, or class, that the name belongs to.

    Its signature is asked if it has one. ``between`` are files, and folders, of the framework that lie between a
    function and the program that calls it.
    """

    __slots__ = ("_between", "_names", "name", "qualified_name")

    def __init__(self, function: Callable[..., Any], name: str, where: str, between: tuple[str, ...]) -> None:
        self.name, self.qualified_name, self._between = name.strip("_") or name, f"{where}.{name}", between
        self._names: tuple[str, ...] = ()
        with contextlib.suppress(TypeError, ValueError):
            self._names = tuple(inspect.signature(function).parameters)

    def arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return what is no tensor of the arguments, by name or place, as JSON."""
        return arguments_as_json(self._names, args, kwargs)

    def called_from(self) -> tuple[str, int]:
        """Return file and line of the program that calls it right now."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith((_PROBE, *self._between)):
            frame = frame.f_back
        return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def arguments_as_json(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return arguments by name; those that are tensors, or hold some, are left out.

    Positional ones have ``names`` as far as they are known; the others are called by their place.
    """
    placed = {names[place] if place < len(names) else str(place): value for place, value in enumerate(args)}
    found = {name: _plain(value) for name, value in {**placed, **kwargs}.items()}
    return json.dumps({name: value for name, value in found.items() if value is not None})


def _plain(value: object) -> object:
    """Return a value that JSON has, a text for what is no tensor and no container, else None."""
    if value is None or isinstance(value, (bool, int, str)):
        return value[:_LETTERS] if isinstance(value, str) else value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value[:_ITEMS]]
        return None if None in items else items
    if isinstance(value, slice) or value is Ellipsis or type(value).__name__ in ("dtype", "device", "DataType"):
        return str(value)[:_LETTERS]
    return None


class Patches:
    """Replaces functions by their names, from `enter` to `leave` of a thread; of the others it is told nothing.

    A function that is called inside another one is not seen. ``places`` are owner, attribute and `Function` of each;
    ``before`` and ``after`` are called around a function, as `probe.adapters.base.Adapter.on_operations` says.
    """

    def __init__(
        self, places: Iterable[tuple[Any, str, Function]], before: Callable[..., None], after: Callable[..., Any]
    ) -> None:
        self._places = list(places)
        self._before, self._after = before, after
        self._lock, self._here = threading.Lock(), threading.local()
        self._threads: set[int] = set()
        self._originals: list[tuple[Any, str, Any]] = []

    def enter(self, module: object) -> bool:
        """Look at the functions that this thread calls; doing it twice does no harm."""
        with self._lock:
            self._threads.add(threading.get_ident())
            if not self._originals:
                for owner, name, function in self._places:
                    original = vars(owner).get(name)
                    if callable(original):
                        self._originals.append((owner, name, original))
                        setattr(owner, name, self._watched(original, function))
        return True

    def leave(self) -> None:
        """Do so no longer, and put all back when no thread does."""
        with self._lock:
            self._threads.discard(threading.get_ident())
            if not self._threads:
                while self._originals:
                    setattr(*self._originals.pop())

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """Call functions of the framework without being told of them."""
        here = self._here
        before, here.is_inside = getattr(here, "is_inside", False), True
        try:
            yield
        finally:
            here.is_inside = before

    def _watched(self, original: Callable[..., Any], function: Function) -> Callable[..., Any]:
        here, threads = self._here, self._threads

        @functools.wraps(original, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            if getattr(here, "is_inside", False) or threading.get_ident() not in threads:
                return original(*args, **kwargs)
            here.is_inside = True
            try:
                self._before(function, args, kwargs)
                try:
                    output = original(*args, **kwargs)
                except BaseException:
                    self._after(None, True)
                    raise
                other = self._after(args[0] if function.name == "setitem" else output, False)
                return output if other is None else other
            finally:
                here.is_inside = False

        return call
