"""The hints: `hints.yaml`, read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from probe.diagnosis.hint import ACTIVATIONS, GRADIENTS, LOSSES, WEIGHTS, Hint
from probe.records import Role

_GROUPS = {"activations": ACTIVATIONS, "weights": WEIGHTS, "gradients": GRADIENTS, "losses": LOSSES}


def _function(name: str) -> Callable[..., Any]:
    """Return a function of one of the modules of `causes`."""
    module, _, function = name.partition(".")
    found: Callable[..., Any] = getattr(import_module(f"probe.diagnosis.causes.{module}"), function)
    return found


def _hint(name: str, row: dict[str, Any]) -> Hint:
    words, test = row.pop("for").split(), _function(row.pop("test"))
    roles = [role for word in words for role in _GROUPS.get(word) or (Role[word.upper()],)]
    unless, said = row.pop("unless", ""), str(test.__doc__).partition("\n")[0].rstrip(".")
    looks_like = row.pop("looks like", said[0].lower() + said[1:])
    more = {"unless": _function(unless)} if unless else {}
    return Hint(name, tuple(roles), partial(test, **row), looks_like, **more)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ROWS = yaml.load(Path(__file__).with_name("hints.yaml").read_text(encoding="utf-8"), _LOADER)
HINTS = tuple(_hint(name, row) for name, row in _ROWS.items())
OF_NUMBERS = tuple(hint for hint in HINTS if hint.roles == LOSSES)
"""those for a single number"""
