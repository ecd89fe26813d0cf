"""Mutated inputs of every kind, and what probe does with them: `python -m benchmarks.fuzz`, or `scripts/fuzz`."""
