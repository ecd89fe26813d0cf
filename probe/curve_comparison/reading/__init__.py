"""Curves of a run, whatever its file is."""
