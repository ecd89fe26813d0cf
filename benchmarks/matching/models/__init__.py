"""Pairs of small models under other names, with the same weights: each module has ``pair() -> (a, b, inputs)``."""
