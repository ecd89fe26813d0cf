"""Running a script or module as ``__main__``, as python itself does."""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import probe.messages  # noqa: F401  before the program: what is imported after an interrupt makes Python forget it at its end
from probe.errors import ConfigError


@dataclass(frozen=True)
class Program:
    """What is to be run as ``__main__``."""

    load: Callable[[], tuple[CodeType, dict[str, Any]]]
    """returns its code, and ``__file__`` and the like; called when it begins: what it raises is the program's"""
    argv: list[str]
    folder: str | None = None
    """the first place where modules are looked for; None leaves the current folder"""


def script(words: Sequence[str]) -> Program:
    """Return the program of a file, or of a folder or archive with a ``__main__.py``, with its arguments behind.

    Raises
    ------
    ConfigError
        there is no such program
    """
    name = words[0]
    path = os.path.join(os.getcwd(), name)
    importer = pkgutil.get_importer(path)
    if importer is not None:
        spec = importer.find_spec("__main__")
        if spec is None:
            raise ConfigError(f"cannot run {name}: it has no __main__.py")
        return Program(lambda: _loaded(spec), list(words), path)
    if not Path(name).is_file():
        raise ConfigError(f"cannot run {name}: there is no such file")
    return Program(lambda: _read(path), list(words), os.path.dirname(os.path.realpath(name)))


def module(words: Sequence[str]) -> Program:
    """Return the program of a module, or of a package with a ``__main__``, with its arguments behind."""
    return Program(lambda: _found(words[0]), ["-m", *words[1:]])


def run(program: Program) -> None:
    """Run a program in the real ``__main__``; what it raises ends the process as it would under plain python."""
    sys.argv[:] = program.argv
    if program.folder is not None and not sys.flags.safe_path:
        sys.path[0] = program.folder
    try:
        code, names = program.load()
        if program.folder is None:
            sys.argv[0] = names["__file__"]
        main = vars(sys.modules["__main__"])
        main.clear()
        main.update({"__name__": "__main__", "__doc__": None, "__builtins__": builtins, "__annotations__": {}}, **names)
        exec(code, main)
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001  what python does with all that a program raises
        raised = error
    else:
        return
    _report(raised)  # not while it is handled: what the program's hook raises has nothing to do with that
    if isinstance(raised, KeyboardInterrupt):  # python ends by the signal, of which the shell is to know
        sys.excepthook = _printed_already
        raise raised
    sys.exit(1)


def _printed_already(*error: object) -> None:
    return None


def _read(path: str) -> tuple[CodeType, dict[str, Any]]:
    names = {"__file__": path, "__spec__": None, "__package__": None, "__cached__": None}
    with io.open_code(path) as file:
        compiled = pkgutil.read_code(file)
    if compiled is not None:
        return compiled, {**names, "__loader__": importlib.machinery.SourcelessFileLoader("__main__", path)}
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    return code, {**names, "__loader__": importlib.machinery.SourceFileLoader("__main__", path)}


def _found(name: str) -> tuple[CodeType, dict[str, Any]]:
    """Return a module's code; exits as ``python -m`` does where there is none."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    if spec is None or spec.loader is None:
        sys.exit(f"{sys.executable}: No module named {name}")
    return _loaded(spec)


def _loaded(spec: importlib.machinery.ModuleSpec) -> tuple[CodeType, dict[str, Any]]:
    names = {"__file__": spec.origin, "__loader__": spec.loader, "__spec__": spec, "__package__": spec.parent}
    return spec.loader.get_code(spec.name), {**names, "__cached__": spec.cached}


def _report(error: BaseException) -> None:
    """Print an exception by the program's own hook if it has one, without the frames that python does not have."""
    trace = _inside(error.__traceback__)
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as another:  # noqa: BLE001  a hook of the program's
        with contextlib.suppress(OSError):
            print("Error in sys.excepthook:", file=sys.stderr)
        another.__traceback__ = _inside(another.__traceback__)
        sys.__excepthook__(type(another), another, another.__traceback__)
        with contextlib.suppress(OSError):
            print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)


def _inside(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the program's first frame on; none of a program that does not compile."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace
