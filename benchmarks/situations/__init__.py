"""Trainings of every kind, each with and without probe: everything that the program can see must be bitwise the same."""
