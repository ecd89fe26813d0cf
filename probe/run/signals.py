"""A signal that is counted: whoever is interested looks at the number."""

from __future__ import annotations

import signal as signals
from types import FrameType

from probe.errors import ConfigError


class Signal:
    """Counts how often a signal has arrived. Its handler does nothing else, and calls the one that was there before.

    Parameters
    ----------
    name
        such as ``"SIGUSR2"`` or ``"USR2"``, or a number

    Raises
    ------
    ConfigError
        there is no such signal, it can't be handled, or this isn't the main thread
    """

    def __init__(self, name: str | int) -> None:
        self.count = 0
        text = str(name).upper()
        known = {each.name: each for each in signals.Signals} | {str(each.value): each for each in signals.Signals}
        number = known.get(text) or known.get(f"SIG{text}")
        if number is None:
            raise ConfigError(f"signal={name!r} is no signal; expected for example 'SIGUSR2'")
        self._number = number
        try:
            self._earlier = signals.signal(number, self._arrived)
        except (OSError, ValueError) as error:
            raise ConfigError(f"signal={name!r} can't be used ({error}): take another one, or a file") from None

    def remove(self) -> None:
        """Put the earlier handler back, unless somebody has set one since, which may call this one."""
        if signals.getsignal(self._number) == self._arrived:
            signals.signal(self._number, self._earlier)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if callable(self._earlier):
            self._earlier(number, frame)
