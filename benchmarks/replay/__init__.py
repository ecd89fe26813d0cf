"""Is a fault named by a replay, with nothing beside it, and is a clean pair passed? On the pairs of `benchmarks.localisation`."""
