"""Room on the stack for what hooks add to it."""

from __future__ import annotations

import sys
from collections.abc import Callable

_OWN = 100
"""frames that the recorder needs in a hook"""


def with_more_room() -> Callable[[], None]:
    """Raise the limit of recursion while hooks are set; return what sets it back, unless somebody else has changed it meanwhile.

    PyTorch calls a module that has hooks through one more frame, where a call without any takes four: what just fits would not.
    """
    before = sys.getrecursionlimit()
    during = before + before // 4 + _OWN
    sys.setrecursionlimit(during)

    def set_back() -> None:
        if sys.getrecursionlimit() == during:
            sys.setrecursionlimit(before)

    return set_back
