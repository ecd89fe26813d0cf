"""What recording costs, beside plain training in the same process: `python -m benchmarks.cost`."""
