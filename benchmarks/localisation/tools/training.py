"""The training of a setup, with all faults that it may have."""

from __future__ import annotations

from benchmarks.localisation.faults.registry import FAULTS
from benchmarks.localisation.pairs.pair import Setup
from benchmarks.localisation.tools.run import Game, Run


def run_of(setup: Setup) -> Run:
    """Return the training of a setup."""
    return (Game if setup.architecture == "gan" else Run)(setup, FAULTS)
