"""Trainings that are divided over ranks, against one process: clean layouts, and faults of parallel code."""
