"""What the ranks of a run have in common: complete steps, layouts, sizes of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from probe.comparison.notes import Note, note
from probe.ranks.members import Member
from probe.store.reading.reader import Reader
from probe.store.schema import STEPS

_KNOWN_SIZES = {
    "heads": ("num_attention_heads", "n_heads", "num_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "multi_query_group_num", "kv_heads", "n_kv_heads", "num_kv_heads"),
    "groups": ("num_query_groups", "num_key_value_heads"),
}  # fmt: skip
"""factors of axes by name, and keys of the recorded configuration that have them"""


def sizes_in(config: Mapping[str, object]) -> dict[str, int]:
    """Return the whole numbers of a model's configuration by name, and those that count heads and groups by the names of factors too."""
    found = {key: value for key, value in config.items() if type(value) is int}
    for name, keys in _KNOWN_SIZES.items():
        size = next((found[key] for key in keys if key in found), None)
        if size is not None:
            found.setdefault(name, size)
    return found


def common_steps(readers: Sequence[Reader]) -> np.ndarray:
    """Return the steps that are complete on every rank; their counters are over all ranks."""
    tables = [reader.steps for reader in readers]
    common = set.intersection(*(set(table["step"].tolist()) for table in tables)) if tables else set()
    first = tables[0][np.isin(tables[0]["step"], sorted(common))]
    found = np.zeros(len(first), STEPS)
    for name in STEPS.names or ():
        found[name] = first[name]
    for name in ("n_records", "n_calls", "n_scalars", "n_notes", "n_optimizer"):
        found[name] = sum(table[name][np.isin(table["step"], sorted(common))] for table in tables)
    states = [table["state"][np.isin(table["step"], sorted(common))] for table in tables]
    found["state"] = np.max(states, axis=0) if len(first) else found["state"]
    return found


def recorded_layouts(readers: Sequence[Reader]) -> dict[str, str]:
    """Return what ranks recorded of how tensors are divided, by globs of module paths."""
    found: dict[str, str] = {}
    for reader in readers:
        said = reader.info.config.get("layout")
        if isinstance(said, dict):
            found |= {str(key): str(value) for key, value in said.items()}
    return found


def other_settings(members: Sequence[Member]) -> list[Note]:
    """Return what ranks of one stage set their optimizers to otherwise in the first step, each setting once."""
    seen: dict[tuple[object, ...], dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        for step in member.reader.steps["step"][:1].tolist():
            for group in member.reader.groups_of(step):
                for name, value in group.hyper.items():
                    if isinstance(value, (bool, int, float, str)):
                        seen[member.stage, group.optimizer, group.group, name][value].append(member.rank)
    found: dict[str, Note] = {}
    for (_, _, _, name), by_value in seen.items():
        if len(by_value) > 1:
            (value, ranks), (other, others) = sorted(by_value.items(), key=lambda each: -len(each[1]))[:2]
            found.setdefault(str(name), note("optimizer-of-ranks", setting=str(name), value=value, ranks=tuple(ranks),
                                             other=other, others=tuple(others)))  # fmt: skip
    return list(found.values())
