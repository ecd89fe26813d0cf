"""Pairs of public packages that implement the same model, right and with planted faults; `python -m benchmarks.public_ports`."""
