"""A port to another framework, replayed with what PyTorch recorded: what holds in each of them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.localisation.pairs.frameworks import framework_port
from benchmarks.localisation.pairs.pair import Planted
from benchmarks.replay.ports import several

FAULTS = {
    ("forward", "layers.0.norm1"): Planted("eps", "layers.0.norm1", 1e-4),
    ("backward", "layers.1.down"): Planted("gradient", "layers.1.down", 1e-2),
    ("forward", "layers.2.value"): Planted("scaled", "layers.2.value", 1e-3),
}
"""by the phase and the module that are to be named"""


def check_port(framework: str, named: set[tuple[str, str]], folder: Path) -> None:
    """Plant faults in a BERT of three layers, and expect that these are named and nothing else."""
    faults = tuple(fault for place, fault in FAULTS.items() if place in named)
    found = several(framework_port(framework, "port-bert"), faults, folder)
    assert {(each.phase.label, each.path) for each in found.divergences} == named
    assert (found.verdict, found.replayed.left) == ("diverged" if named else "aligned", ())
