"""The sealed test set: ports, other precisions and kernels, and faults whose truth was written before any comparison.

Its author read neither the verdict engine nor its tests. `python -m benchmarks.sealed --help` says how to confirm,
record and judge it. `requirements.txt` names the packages that it takes besides those of the tests.
"""
