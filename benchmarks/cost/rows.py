"""The rows of the table: which recorder with which options, and how much it may cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
PEER_MIB = 1167
"""what mindstudio-probe 26.2.0 writes for a step at hidden 512, task tensor, level L0"""
PEER_CONTENT = ("forward", "backward", "gradient")
"""inputs, outputs, their gradients and the parameters' gradients: what the peer records at level L0, but for the
parameters themselves, which it writes again at every step"""


@dataclass(frozen=True)
class Row:
    """A way to record."""

    title: str
    tool: str
    options: dict[str, Any]
    wall: dict[str, float] = field(default_factory=dict)
    """the largest ratio to plain training, by size"""
    mib: dict[str, float] = field(default_factory=dict)
    """the most that a step may add to the file, by size"""
    pairs_per_file: int = 10
    """timed pairs before a new file is begun, so that the folder need not hold all of them"""


ROWS = {
    "statistics-modules": Row(
        "statistics, what the peer records",
        "probe",
        {"phases": PEER_CONTENT},
        wall={"512": 1.08, "128": 1.3},
    ),
    "statistics": Row("statistics of everything", "probe", {}, wall={"512": 1.12, "128": 1.5}),
    "tensors-modules": Row(
        "tensors, what the peer records",
        "probe",
        {"task": "tensor", "phases": PEER_CONTENT},
        wall={"512": 1.4, "128": 2.5},
        mib={"512": 0.6 * PEER_MIB},
        pairs_per_file=5,
    ),
    "tensors": Row("tensors of everything", "probe", {"task": "tensor"}, pairs_per_file=2),
    "operations": Row("statistics of modules and operations", "probe", {"level": "mix"}, wall={"512": 1.6, "128": 4.0}),
    "operations-layer": Row(
        "the same of one layer",
        "probe",
        {"level": "mix", "modules": ["model.layers.3*"]},
        wall={"512": 1.15, "128": 1.15},
    ),
    "norms": Row("norms, for whole runs", "probe", {"task": "norms"}, wall={"512": 1.01, "128": 1.03}),
    "structure": Row(
        "calls alone: probe's hooks without statistics", "probe", {"task": "structure", "phases": PEER_CONTENT}
    ),
    "hooks": Row("PyTorch's hooks that do nothing", "hooks", {}),
    "peer-statistics": Row("statistics, L0", "msprobe", {"task": "statistics", "level": "L0"}),
    "peer-tensors": Row("tensors, L0", "msprobe", {"task": "tensor", "level": "L0"}, pairs_per_file=5),
    "peer-statistics-L1": Row("statistics, L1", "msprobe", {"task": "statistics", "level": "L1"}),
    "peer-statistics-mix": Row("statistics, mix", "msprobe", {"task": "statistics", "level": "mix"}),
    "peer-tensors-L1": Row("tensors, L1", "msprobe", {"task": "tensor", "level": "L1"}, pairs_per_file=2),
}
