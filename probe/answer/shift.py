"""How far B's step numbers are from A's (`--steps A:B`); `coverage/guards.py` finds the steps that both have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from probe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shift:
    """Step ``a`` of A is step ``b`` of B, and so on from there."""

    a: int = 0
    b: int = 0

    @classmethod
    def of(cls, steps: str | tuple[int, int] | None) -> Shift:
        """Return what ``0:1`` or ``(0, 1)`` says; None pairs steps by their numbers.

        Raises
        ------
        ConfigError
            it is not two numbers
        """
        if steps is None:
            return cls()
        text = ":".join(map(str, steps)) if isinstance(steps, (tuple, list)) else str(steps)
        found = re.fullmatch(r"\s*(-?\d+)\s*:\s*(-?\d+)\s*", text)
        if found is None:
            example = "as in 0:1 when step 0 of A is step 1 of B (a log that counts from 1)"
            raise ConfigError(f"--steps {text}: expected A:B, {example}")
        return cls(int(found[1]), int(found[2]))

    @property
    def to_b(self) -> int:
        """What is added to a step of A."""
        return self.b - self.a
