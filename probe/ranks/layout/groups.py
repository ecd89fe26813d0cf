"""The groups that divide the ranks of a run, and the names that they have in each code base."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import xxhash

from probe.errors import ConfigError

_ALIASES = {
    "mp": "tp", "model": "tp", "tensor": "tp", "tensor_parallel": "tp", "model_parallel": "tp",
    "pipe": "pp", "pipeline": "pp", "pipeline_parallel": "pp",
    "data": "dp", "data_parallel": "dp", "ddp": "dp", "dp_replicate": "dp", "replicate": "dp",
    "dp_shard": "fsdp", "shard": "fsdp", "fully_shard": "fsdp",
    "context": "cp", "context_parallel": "cp", "sep": "cp", "sequence": "cp",
    "expert": "ep", "expert_parallel": "ep",
}  # fmt: skip
ORDER = ("tp", "etp", "cp", "ep", "sharding", "fsdp", "dp", "pp")
"""known groups, from the one whose ranks lie closest to each other"""
DATA = frozenset({"dp", "fsdp", "sharding"})
"""groups whose ranks have samples of their own"""
_OF_A_LAUNCH = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT", "PADDLE_MASTER",
    "PADDLE_TRAINER_ENDPOINTS", "MS_SCHED_HOST", "MS_SCHED_PORT",
)  # fmt: skip
"""environment variables that all ranks of one launch have in common"""

Groups = dict[str, list[int]]
"""by name, the ranks of the group that a rank is in, in their order"""


def canonical(name: str) -> str:
    """Return a group's usual name: ``tp``, ``pp``, ``dp``, ``cp``, ``ep``, ``fsdp``, ``sharding``; others as they are."""
    return _ALIASES.get(name.lower(), name.lower())


def launch_id() -> str:
    """Return what the ranks of this launch have in common and those of others do not; empty where the environment does not say."""
    known = [f"{name}={os.environ[name]}" for name in _OF_A_LAUNCH if os.environ.get(name)]
    return xxhash.xxh3_64_hexdigest("\n".join(known).encode()) if known else ""


def groups_given(parallel: Mapping[str, Any], rank: int, world_size: int) -> Groups:
    """Return the groups of a rank from what ``probe.start(parallel=…)`` was given.

    These are by name either sizes, those whose ranks lie closest first (``{"tp": 2, "dp": 4}``: ranks 0 and 1 are a
    tp group), or the ranks of each group (``{"tp": [[0, 1], [2, 3]]}``). Raises ConfigError where sizes do not
    multiply to the world size, or a rank is in no group, or in two.
    """
    if not isinstance(parallel, Mapping) or not all(isinstance(name, str) for name in parallel):
        raise ConfigError(f"parallel={parallel!r}: expected sizes or ranks by name, as in {{'tp': 2, 'dp': 4}}")
    sizes = {name: int(size) for name, size in parallel.items() if _is_number(size)}
    if sizes and math.prod(sizes.values()) != world_size:
        raise ConfigError(
            f"parallel={parallel!r}: the sizes make {math.prod(sizes.values())} ranks, and there are {world_size}; name every group, "
            "the one whose ranks lie closest first"
        )
    found: Groups = {}
    stride = 1
    for name, value in parallel.items():
        if name in sizes:
            first = rank - rank // stride % sizes[name] * stride
            found[canonical(name)] = [first + place * stride for place in range(sizes[name])]
            stride *= sizes[name]
        else:
            found[canonical(name)] = _own(name, value, rank, world_size)
    return found


def _own(name: str, value: object, rank: int, world_size: int) -> list[int]:
    """Return the ranks of the group that a rank is in."""
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    groups: Sequence[Any] = list(value) if is_list else []
    if not groups or not all(isinstance(each, (list, tuple)) and all(map(_is_number, each)) for each in groups):
        raise ConfigError(f"parallel[{name!r}]={value!r}: expected a size, or lists of ranks such as [[0, 1], [2, 3]]")
    ranks = [int(each) for group in groups for each in group]
    if sorted(ranks) != list(range(world_size)):
        raise ConfigError(
            f"parallel[{name!r}]={value!r}: expected each of the ranks 0 to {world_size - 1} in one group"
        )
    return next([int(each) for each in group] for group in groups if rank in group)


def _is_number(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
