"""Pairs of small trainings, faulty and clean, and how well probe names the fault: `python -m benchmarks.localisation`."""
