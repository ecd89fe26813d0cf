"""A blind test set: models, faults and clean pairs that were written without knowing how probe judges.

Nothing here imports the comparison. `python -m benchmarks.blind.confirm` shows without probe that every fault lies where its
truth says, `python -m benchmarks.blind.record --folder build/blind` records all pairs and writes `manifest.json`.
"""
