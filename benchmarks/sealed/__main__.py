"""The sealed test set; `python -m benchmarks.sealed --help`."""

from ..blind.command import main

main("sealed")
