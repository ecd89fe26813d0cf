"""Which loss functions made a number: what autograd calls the functions nearest to it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

_NEAR = 64
"""functions behind a loss that are looked at: weights, sums and means lie before the losses, and the model behind them"""
_LOSS = re.compile(r"loss|ctc|cross_?entropy", re.IGNORECASE)
_ENDING = re.compile(r"Backward\d*$")


def losses_behind(node: Any, below: Callable[[Any], Iterable[Any]]) -> list[str]:
    """Return the names of the losses among the functions behind a number: ``CtcLoss``, ``NllLoss``.

    ``node`` is the function that made it, None where autograd knows of none; ``below`` returns the functions that
    made what a function was given.
    """
    waiting, met, found = deque([node]), {}, {}
    while waiting and len(met) < _NEAR:
        function = waiting.popleft()
        if function is None or id(function) in met:
            continue
        met[id(function)] = function  # while it lives, no other one has its number
        name = _ENDING.sub("", function.name())
        if _LOSS.search(name):
            found[name] = None
        waiting.extend(below(function))
    return list(found)
