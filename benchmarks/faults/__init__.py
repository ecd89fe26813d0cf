"""One fault at a time in a small Qwen2, and whether probe names it: `python -m benchmarks.faults`."""
