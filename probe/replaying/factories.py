"""Models by the name of a function that makes them: ``module:function``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from probe.errors import ConfigError


def function_of(text: str) -> Callable[..., Any]:
    """Return the function that ``module:function``, or ``file.py:function``, names; modules of the current directory come first.

    Raises
    ------
    ConfigError
        there is no such function
    """
    name, colon, attribute = text.rpartition(":")
    if not colon or not name or not attribute:
        raise ConfigError(f"{text!r} names no function; expected module:function, such as models:make_b")
    folder = str(Path.cwd())
    if name.endswith(".py"):
        path = Path(name).resolve()
        folder, name = str(path.parent), path.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{text!r} cannot be imported: {error}; expected module:function") from error
    if not callable(found):
        raise ConfigError(f"{text!r} is a {type(found).__name__}; expected a function that returns the model")
    return found  # type: ignore[no-any-return]


def model_of(text: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the model that a function makes, and the arguments that it returns beside it, if any.

    Raises
    ------
    ConfigError
        there is no such function, or what it returns is no model, nor a model and a dict
    """
    made = function_of(text)()
    if isinstance(made, tuple):
        if len(made) == 2 and isinstance(made[1], Mapping):
            return made[0], made[1]
        raise ConfigError(
            f"{text!r} returned a tuple of {len(made)}; expected the model, or the model and a dict of its arguments"
        )
    return made, {}
