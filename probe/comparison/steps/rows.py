"""The records of a step, by what they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from probe.comparison.steps.side import PARAMETER_ROLES, Side
from probe.records import Phase, Role

Key = tuple[int, int, int]
"""(micro, module, call)"""
_LABELS = {int(phase): phase.label for phase in Phase}


@dataclass
class Rows:
    """The rows of one side and step, by what they belong to."""

    by_role: dict[Role, dict[Key, dict[str, list[int]]]]

    @classmethod
    def of(cls, side: Side) -> Rows:
        """Index the records of a step."""
        columns = side.columns
        found: dict[Role, dict[Key, dict[str, list[int]]]] = {role: defaultdict(dict) for role in Role}
        parts = (columns[name] for name in ("micro", "module", "call", "phase", "role"))
        hidden = side.hidden
        for row, (micro, module, call, phase, role) in enumerate(zip(*parts, strict=True)):
            if row in hidden:
                continue
            is_of_parameter = role in PARAMETER_ROLES
            slot = f"{_LABELS[phase]}:{side.slots[row]}" if is_of_parameter else side.slots[row]
            key = (0, module, 0) if is_of_parameter else (micro, module, call)
            found[role][key].setdefault(slot, []).append(row)
        return cls({role: dict(by_key) for role, by_key in found.items()})

    def has(self, phase: Phase, role: Role) -> bool:
        """Tell whether there is any row of a phase and role of parameters."""
        prefix = f"{phase.label}:"
        return any(slot.startswith(prefix) for slots in self.by_role[role].values() for slot in slots)

    def by_module(self, role: Role) -> dict[int, list[int]]:
        """Return the rows of a role of all calls, by module."""
        found: dict[int, list[int]] = {}
        for (_, module, _), slots in self.by_role[role].items():
            found.setdefault(module, []).extend(row for rows in slots.values() for row in rows)
        return found

    def in_order(self) -> Iterator[tuple[Key, Role, dict[str, list[int]]]]:
        """Yield the rows of all calls and parameters, in the order of the first of each."""
        found = [(key, role, slots) for role, by_key in self.by_role.items() for key, slots in by_key.items()]
        yield from sorted(found, key=lambda each: next(iter(each[2].values()))[0])

    def get(self, key: Key, role: Role) -> dict[str, list[int]]:
        """Return rows by slot."""
        return self.by_role[role].get(key, {})
