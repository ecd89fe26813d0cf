"""Statistics of one tensor in one thread of PyTorch and in all of them, as a table in Markdown: `python -m benchmarks.cost.threads`.

Before each measurement PyTorch multiplies two matrices, as a training computes before a hook: its threads are awake.
"""

from __future__ import annotations

import statistics
import sys

import torch

from benchmarks.cost.pairs import timed
from benchmarks.cost.passes import Case

CASES = [
    Case((128, 128)), Case((128, 344)), Case((256, 512)), Case((2, 256, 512)), Case((512, 1376)), Case((512, 1376), "bfloat16"),
    Case((512, 8000)), Case((4096, 4096)),
]  # fmt: skip
_TARGET_SECONDS = 0.3


def microseconds(case: Case, threads: int) -> float:
    """Return the median time of one measurement."""
    from probe.adapters.torch.statistics import measure

    torch.set_num_threads(threads)
    x = torch.randn(case.shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, case.dtype))
    matrix = torch.randn(256, 256)
    taken = []
    while sum(taken) < _TARGET_SECONDS:
        torch.mm(matrix, matrix)
        taken.append(timed(lambda: measure(x))[0])
    return 1e6 * statistics.median(taken)


def main() -> None:
    """Measure all cases, one thread and all threads in turn, and print the table."""
    threads = torch.get_num_threads()
    if threads < 2:
        sys.exit("PyTorch has one thread here: unset OMP_NUM_THREADS, or take more cores")
    print(f"| tensor | one thread, µs | {threads} threads, µs | ratio |\n|---|---|---|---|")
    for case in CASES:
        alone, together = zip(*((microseconds(case, 1), microseconds(case, threads)) for _ in range(3)), strict=True)
        one, all_of_them = statistics.median(alone), statistics.median(together)
        print(f"| {case.title} | {one:,.1f} | {all_of_them:,.1f} | {all_of_them / one:.2f} |")


if __name__ == "__main__":
    main()
