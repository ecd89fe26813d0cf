"""Planted and clean pairs of configurations for `probe check config`."""
