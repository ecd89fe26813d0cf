"""Names that are kept in memory to be stored once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from probe.errors import RecordingError

_NAMES_LIMIT = 32 << 20
"""bytes of memory for the names of slots, and for shapes"""


class Names:
    """Names that are stored once and have numbers: ``/slots``, ``/shapes``."""

    def __init__(self, table: str, text: Callable[[Any], str]) -> None:
        self.table = table
        self._text = text
        self._numbers: dict[Any, int] = {}
        self._taken = self._bytes = 0

    @property
    def names(self) -> list[Any]:
        """All of them, by number."""
        return list(self._numbers)

    def index(self, name: Any) -> int:
        """Return the number of a name, the next one for a new name. Raises RecordingError where there is no room for it."""
        number = self._numbers.get(name)
        return self._add(name) if number is None else number

    def _add(self, name: Any) -> int:
        size = len(self._text(name)) + 100
        if self._bytes + size > _NAMES_LIMIT:
            self._bytes = _NAMES_LIMIT  # nor is there room for shorter ones: it is said once
            raise RecordingError(
                f"there are {len(self._numbers):,} different {self.table} already: tensors with further ones are not recorded"
            )
        self._bytes += size
        number = self._numbers[name] = len(self._numbers)
        return number

    def taken(self) -> list[str]:
        """Return the texts that are not in the file yet, to be appended there."""
        count = len(self._numbers) - self._taken
        new = list(itertools.islice(reversed(self._numbers), count))[::-1]
        self._taken += count
        return [self._text(name) for name in new]
