"""How tensors of calls are divided, as the user and their modules' classes say it; and what the user says that is about nothing."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.notes import Note, note
from probe.ranks.dims import defaults
from probe.ranks.dims.language import Dims, parsed
from probe.ranks.layout.groups import ORDER
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member
from probe.ranks.tree import Union
from probe.ranks.weights import Weights, fits, resolved, told_by
from probe.records import Role
from probe.store.reading.reader import Reader

_FIRST = ("0", "input", "x", "input_", "hidden_states", "last_hidden_state")
"""slots of the tensor that a layer works on"""


class Telling:
    """What is said of the tensors of a run; ``layouts`` are what the user says, by globs of module paths."""

    def __init__(
        self, members: Sequence[Member], layout: Layout, union: Union, weights: Weights, layouts: Mapping[str, str]
    ) -> None:
        self._members, self._layout, self._union, self._weights = members, layout, union, weights
        self._user_says = told_by(layouts)
        self._known: dict[tuple[int, Role, str], Dims | None] = {}

    def __call__(self, module: int, role: Role, slot: str, axes: int) -> Dims | None:
        """Return how a tensor of a module is divided; None where nothing says it."""
        key = module, role, slot
        if key not in self._known:
            self._known[key] = self._dims_of(module, role, slot)
        return self._known[key]

    def _dims_of(self, module: int, role: Role, slot: str) -> Dims | None:
        info = self._union.modules[module]
        forward = defaults.FORWARD_OF.get(role, role)
        said = self._user_says(info.path, f"{role.label} {slot}") or self._user_says(
            info.path, f"{forward.label} {slot}"
        )
        if said is None and "tp" in self._layout.groups:
            facts, in_sequence = self._facts_of_module.get(module, {}), module in self._in_sequence
            gated = defaults.is_gated(info.path, self._members[0].reader.info.model_config)
            parts = self._strides.get(module, 2 if gated else 1)
            at = "0" if slot in _FIRST else slot
            said = defaults.of_tensor(info.class_name, facts, role, at, parts=parts, in_sequence=in_sequence)
        return None if said is None else resolved(said, self._layout)

    @functools.cached_property
    def _facts_of_module(self) -> dict[int, Mapping[str, Any]]:
        found: dict[int, Mapping[str, Any]] = {}
        for member in self._members:
            for k, module in enumerate(member.reader.modules):
                if module.path in member.modules:
                    found.setdefault(int(member.module_of[k]), member.modules[module.path])
        return found

    @functools.cached_property
    def _strides(self) -> dict[int, int]:
        """By module, in how many parts its weight says that it is divided."""
        pairs = zip(self._weights.infos, self._weights.facts, strict=True)
        strides = {info.module: facts.get("partition_stride") for info, facts in pairs}
        return {module: stride for module, stride in strides.items() if isinstance(stride, int) and stride > 1}

    @functools.cached_property
    def _in_sequence(self) -> set[int]:
        """Modules whose parameters say that they work on parts of the sequence."""
        pairs = zip(self._weights.infos, self._weights.facts, strict=True)
        return {info.module for info, facts in pairs if facts.get("sequence_parallel") is True}


def unused_dims(sides: Iterable[tuple[Reader, Layout]], layouts: Mapping[str, str]) -> list[Note]:
    """Return what of dims, by globs of module paths and role and slot behind them, says nothing of any side."""
    known = list(sides)
    if not known:
        return []
    found = []
    names = {name for _, layout in known for name in (*layout.groups, *layout.alone)} | {*ORDER, "sp", "embd"}
    for key, text in layouts.items():
        path, _, what = key.partition(" ")
        role, _, slot = what.partition(" ")
        places = [
            (k, reader) for reader, _ in known for k, module in enumerate(reader.modules) if fits(module.path, path)
        ]
        unknown = [name for name in parsed(text).groups if name not in names]
        if not places:
            found.append(note("dims-match-nothing", key=key, what="no module has that path"))
        elif role == Role.PARAM.label and slot and not any(
            info.module == k and info.slot == slot for k, reader in places for info in reader.parameters
        ):  # fmt: skip
            found.append(note("dims-match-nothing", key=key, what="no such module has a parameter of that name"))
        elif unknown:
            found.append(note("dims-match-nothing", key=key, what=f"no run has a group {unknown[0]!r}"))
    return found
