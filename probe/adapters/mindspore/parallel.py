"""How ranks divide a model: the groups of communication that the program has made, by their names; no collective is issued."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from probe.adapters.shared.parallel import joined, of_modules
from probe.adapters.shared.user_objects import attribute

_HELPER = "mindspore.communication._comm_helper"
_KIND = re.compile(r"(tp|mp|pp|dp|cp|sp|ep|data|tensor|model|pipeline|context|expert)(?![a-z])")
"""how a group's name begins that says what it is for: ``tp-0-1``, ``dp_group_0``"""


def parallel(models: Sequence[tuple[str, Any]]) -> dict[str, object]:
    """Return how ranks divide models: see ``parallel`` in docs/reference/file-format.md."""
    cells = [(joined(prefix, name), cell) for prefix, model in models for name, cell in model.cells_and_names()]
    return {"groups": _groups(), "modules": of_modules(cells), "parameters": []}


def _groups() -> dict[str, list[int]]:
    made = attribute(attribute(sys.modules.get(_HELPER), "_ExistingGroup"), "ITEMS")
    found: dict[str, list[int]] = {}
    for name, ranks in made.items() if isinstance(made, dict) else ():
        kind = _KIND.match(str(name).lower())
        if kind and isinstance(ranks, (list, tuple)):
            found.setdefault(kind[1], [int(rank) for rank in ranks])
    return found
