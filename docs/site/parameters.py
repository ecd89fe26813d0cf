"""For griffe, which gives all parameters of one entry of a docstring (``a, b``) the type of the first: an entry for each."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Function

ENTRY = re.compile(r"^(?P<names>[a-z]\w*(?:, [a-z]\w*)+)\n(?P<text>(?: {4}.*(?:\n|\Z))+)", re.MULTILINE)


def alone(match: re.Match[str]) -> str:
    """Return an entry for each name of one."""
    return "\n".join(f"{name}\n{match['text'].rstrip()}" for name in match["names"].split(", ")) + "\n"


class EachParameter(Extension):
    """Splits the entries as the functions are read."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Mend a docstring before it is parsed."""
        if func.docstring:
            before, heading, entries = func.docstring.value.partition("Parameters\n----------\n")
            func.docstring.value = before + heading + ENTRY.sub(alone, entries)
