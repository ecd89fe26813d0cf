"""Recordings written for other tools: what is not in a file is noted."""
