"""How ranks divide the work, as one of them can tell: what the user says, and what the framework knows of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probe.adapters.base import Adapter
from probe.ranks.layout.groups import canonical, groups_given, launch_id


def parallel_of(
    adapter: Adapter, models: Sequence[tuple[str, Any]], given: Mapping[str, Any] | None, rank: int, world_size: int
) -> dict[str, object]:
    """Return what `probe.start` records of the layout; what was given counts before what is seen.

    No collective is issued. Raises ConfigError where ``given`` does not fit the number of ranks.
    """
    chosen = {} if given is None else groups_given(given, rank, world_size)
    if world_size == 1:
        return {}
    try:
        with adapter.unseen():
            seen: dict[str, Any] = adapter.parallel(models)
        groups = {canonical(name): ranks for name, ranks in seen.get("groups", {}).items()}
    except Exception as error:  # noqa: BLE001  another version of a framework: the training must go on
        seen, groups = {"not_recorded": repr(error)}, {}
    return {**seen, "groups": {**groups, **chosen}, "launch": launch_id()}
