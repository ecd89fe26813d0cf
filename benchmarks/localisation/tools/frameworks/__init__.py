"""Pairs of one model in two frameworks: each side is recorded in a process of its own."""
