"""A blind test set: models, faults and clean pairs that were written without knowing how probe judges.

`python -m benchmarks.blind --confirm` shows without probe that every fault lies where its truth says;
`python -m benchmarks.blind` records all pairs and judges them (`--help`). `benchmarks.sealed` is judged by the same code.
"""
