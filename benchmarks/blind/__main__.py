"""The blind test set; `python -m benchmarks.blind --help`."""

from .command import main

main("blind")
