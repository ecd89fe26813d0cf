"""MindSpore's context and switches that change numerics."""

from __future__ import annotations

import functools

import mindspore

from probe.adapters.shared.environment import told, variables
from probe.numbers import kernel

_CONTEXT = (
    "device_target", "mode", "deterministic", "pynative_synchronize", "enable_graph_kernel", "op_precision_mode",
    "jit_level", "ascend_config",
    "runtime_num_threads",
)  # fmt: skip


def environment() -> dict[str, object]:
    """Return what of the context this version has, the seed and the variables."""
    facts = told({name: functools.partial(mindspore.get_context, name) for name in _CONTEXT})
    facts |= told({"initial_seed": lambda: str(mindspore.get_seed())})
    used = {name: value for name, value in facts.items() if value not in ("", {})}
    return {**used, "statistics_on_cpu": kernel.INSTRUCTIONS or "numpy", "variables": variables()}
