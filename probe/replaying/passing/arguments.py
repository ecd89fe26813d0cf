"""The arguments that a module is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def _function_of(module: Any) -> Callable[..., Any]:
    return getattr(module, "forward", None) or module.construct


def names_of(module: Any) -> list[str]:
    """Return the names of a module's parameters that may be given by position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        return [each.name for each in inspect.signature(_function_of(module)).parameters.values() if each.kind in kinds]
    except (TypeError, ValueError):
        return []


def bound(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
    """Return arguments that a module takes, and the names of those that it lacks.

    What A calls by names that B does not have stands for what B lacks, in its order.
    """
    try:
        known = inspect.signature(_function_of(module)).parameters
    except (TypeError, ValueError):
        return args, {**kwargs, **given}, ()
    several = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values())
    positional = names_of(module)[: len(args)]
    everything = {**kwargs, **given}
    named = {name: value for name, value in everything.items() if name in known and name not in positional}
    lacking = [
        each.name
        for each in known.values()
        if each.default is each.empty and each.kind not in several and each.name not in {*positional, *named}
    ]
    left = [name for name in kwargs if name not in known]
    renamed = dict(zip(lacking, left, strict=False))
    named |= {name: kwargs[there] for name, there in renamed.items()}
    if takes_all:
        named |= {name: everything[name] for name in everything if name not in known and name not in renamed.values()}
    return args, named, tuple(name for name in lacking if name not in renamed)
