"""The records of a step, by what they belong to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from probe.comparison.side import PARAMETER_ROLES, Side
from probe.records import Phase, Role

Key = tuple[int, int, int]
"""(micro, module, call)"""


@dataclass
class Rows:
    """The rows of one side and step, by what they belong to."""

    by_key: dict[tuple[Key, Role], dict[str, list[int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, side: Side) -> Rows:
        """Index the records of a step."""
        columns = side.columns
        found: dict[tuple[Key, Role], dict[str, list[int]]] = defaultdict(dict)
        parts = (columns[name] for name in ("micro", "module", "call", "phase", "role"))
        hidden = side.hidden
        for row, (micro, module, call, phase, role) in enumerate(zip(*parts, strict=True)):
            if row in hidden:
                continue
            kind = Role(role)
            slot = f"{Phase(phase).label}:{side.slots[row]}" if kind in PARAMETER_ROLES else side.slots[row]
            key = (0, module, 0) if kind in PARAMETER_ROLES else (micro, module, call)
            found[key, kind].setdefault(slot, []).append(row)
        return cls(dict(found))

    def has(self, phase: Phase, role: Role) -> bool:
        """Tell whether there is any row of a phase and role of parameters."""
        prefix = f"{phase.label}:"
        return any(kind is role and any(slot.startswith(prefix) for slot in slots)
                   for (_, kind), slots in self.by_key.items())  # fmt: skip

    def by_module(self, role: Role) -> dict[int, list[int]]:
        """Return the rows of a role of all calls, by module."""
        found: dict[int, list[int]] = {}
        for ((_, module, _), kind), slots in self.by_key.items():
            if kind is role:
                found.setdefault(module, []).extend(row for rows in slots.values() for row in rows)
        return found

    def get(self, key: Key, role: Role) -> dict[str, list[int]]:
        """Return rows by slot."""
        return self.by_key.get((key, role), {})
