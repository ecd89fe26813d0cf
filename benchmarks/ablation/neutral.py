"""What a function returns that has nothing to say, by its annotation; and functions with that in the place of their code."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

PACKAGES = ("probe.comparison", "probe.matching")
_EMPTY: dict[str, Callable[[], Any]] = {
    "bool": bool, "str": str, "list": list, "dict": dict, "set": set, "frozenset": frozenset, "None": lambda: None,
    "Sequence": tuple, "Mapping": dict, "Set": set, "Iterator": lambda: iter(()), "Iterable": tuple,
}  # fmt: skip
"""by the annotation's name; what is not here computes something, and has no neutral answer"""


def functions() -> dict[CodeType, tuple[str, FunctionType]]:
    """Return all functions of the comparison that have a neutral answer, by their code: what they are called, and each itself."""
    found = {}
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            for name, function in _functions_in(importlib.import_module(module.name)):
                if has_neutral(function):
                    found[function.__code__] = (f"{module.name.removeprefix('probe.')}:{name}", function)
    return found


def _functions_in(module: Any) -> Iterator[tuple[str, FunctionType]]:
    for name, each in vars(module).items():
        if getattr(each, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(each):
            for inner, member in vars(each).items():
                function = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)  # fmt: skip
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    yield f"{name}.{inner}", function
        else:
            function = inspect.unwrap(each) if callable(each) else None
            if isinstance(function, FunctionType):
                yield name, function


def has_neutral(function: FunctionType) -> bool:
    """Tell whether a function has an answer that says nothing."""
    annotation = function.__annotations__.get("return")
    is_made_by_class = function.__name__.startswith("__")
    return (
        isinstance(annotation, str)
        and not is_made_by_class
        and not function.__code__.co_freevars
        and _made(annotation) is not None
    )


def neutral(function: FunctionType) -> Any:
    """Return a function's answer that says nothing, made anew."""
    made = _made(function.__annotations__["return"])
    assert made is not None
    return made()


def fires(answer: Any) -> bool:
    """Tell whether an answer says something: of a tuple, whether one of its parts does."""
    return any(map(fires, answer)) if type(answer) is tuple else answer is not None and bool(_truth(answer))


def _truth(answer: Any) -> bool:
    try:
        return bool(answer)
    except Exception:  # arrays
        return True


@contextmanager
def left_out(function: FunctionType) -> Iterator[None]:
    """Give a function's neutral answer in the place of what it computes."""
    code, name = function.__code__, f"_neutral_of_{id(function)}"
    space: dict[str, Any] = {}
    exec(f"def stand_in(*args, **kwargs):\n    return {name}()", space)
    function.__globals__[name] = lambda: neutral(function)
    kept = function.__defaults__, function.__kwdefaults__
    function.__code__ = space["stand_in"].__code__
    try:
        yield
    finally:
        function.__code__ = code
        function.__defaults__, function.__kwdefaults__ = kept
        del function.__globals__[name]


def _made(annotation: str) -> Callable[[], Any] | None:
    return _made_of(ast.parse(annotation, mode="eval").body)


def _made_of(node: ast.expr) -> Callable[[], Any] | None:
    if isinstance(node, ast.BinOp):  # X | None
        sides = [ast.unparse(side) for side in (node.left, node.right)]
        return (lambda: None) if "None" in sides else None
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "tuple":
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(parts[-1], ast.Constant) and parts[-1].value is ...:
            return tuple
        made = [_made_of(part) for part in parts]
        return None if None in made else lambda: tuple(each() for each in made if each is not None)
    name = ast.unparse(node.value if isinstance(node, ast.Subscript) else node)
    return _EMPTY.get(name)
