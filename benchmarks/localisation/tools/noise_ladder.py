"""What the higher rungs of the noise ladder are given: further runs of A by other kernels, and A in fp32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.localisation.pairs.pair import Pair, Setup
from benchmarks.localisation.tools.random_pairs import ATTENTION, CONVOLUTIONS

RUNGS = ("built-in", "noise", "reference")
RUNS = 2
"""further runs of A"""


def further_runs(pair: Pair) -> list[Setup]:
    """Return legitimate runs of A that compute in other ways than A, and than B where there are enough of them."""
    a, b = pair.a, pair.b
    if a.architecture.startswith("port-"):
        return []
    ways: list[dict[str, Any]] = [{"attention": "eager"}] if a.architecture in ATTENTION else []
    ways += [{"channels_last": True}] if a.architecture in CONVOLUTIONS else []
    ways += [{"doubled": True}] if a.dtype != "autocast" else []
    ways += [{"split": 4}, {"split": 2}, {"threads": 2}]
    setups = [replace(a, **way) for way in ways if any(getattr(a, name) != value for name, value in way.items())]
    like_b = replace(b, planted=())
    return [setup for setup in setups if setup != like_b][:RUNS]


def reference(pair: Pair) -> Setup | None:
    """Return A in fp32 with the same weights and inputs; None where A is in fp32 itself."""
    a = pair.a
    if a.dtype == "fp32" or a.architecture.startswith("port-"):
        return None
    return replace(a, dtype="fp32", rounded_to="" if a.dtype == "autocast" else a.dtype)


def setups_of(pair: Pair, rung: str) -> dict[str, list[Setup]]:
    """Return the setups that a rung needs, by the option of `probe.compare` that takes their recordings."""
    if rung == "noise":
        return {"noise": further_runs(pair)}
    wide = reference(pair) if rung == "reference" else None
    return {} if wide is None else {"reference": [wide]}
