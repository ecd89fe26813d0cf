"""The pairs, and what a pair is."""
