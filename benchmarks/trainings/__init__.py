"""Trainings over several processes and in others' loops: what each ends with, what is recorded of it, and what two of them say."""
