"""Statistics of one tensor, in passes over its memory: `python -m benchmarks.cost.passes COUNT SCALE OUT`.

A pass is the CPU time of ``x.sum()`` of the same tensor on one thread, measured in turn with the statistics. Before each of
the two an element is changed: probe knows equal bytes again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.cost.pairs import ratios, spread, timed


@dataclass(frozen=True)
class Case:
    """A tensor, and how many passes its statistics may take."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    view: str = ""
    limit: float | None = None

    @property
    def title(self) -> str:
        """For example ``bfloat16 [4096, 4096] transposed``."""
        return f"{self.dtype} {list(self.shape)}{self.view and ' '}{self.view}"


CASES = [
    Case((4096, 4096), limit=3),
    Case((16, 64, 64, 64), limit=8),
    Case((4096, 4096), "bfloat16", limit=5),
    Case((4096, 4096), "float16"),
    Case((4096, 4096), view="transposed", limit=6),
    Case((4096, 4096), "bfloat16", view="transposed"),
    Case((4096, 4096), view="sliced"),
    Case((2, 256, 512)),
    Case((2, 14, 256, 256)),
    Case((1, 151936)),
    Case((512, 2)),
    Case((512,), limit=3),
]
_VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "sliced": lambda x: x[:, : x.shape[1] * 3 // 4],
}
_TARGET_SECONDS = 0.002


def measured(case: Case, measure: Callable[[torch.Tensor], object], count: int, scale: int) -> dict[str, object]:
    """Time ``measure`` against ``x.sum()``; small tensors are taken many times at once."""
    shape = (max(1, case.shape[0] // scale), *case.shape[1:])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(getattr(torch, case.dtype))
    raw = x.view(-1).view(torch.int32).numpy()
    x = _VIEWS[case.view](x)

    def seconds(work: Callable[[], object], repeats: int) -> float:
        def repeat() -> None:
            for _ in range(repeats):
                raw[0] += 1
                work()

        return timed(repeat)[1] / repeats

    works = (x.sum, lambda: measure(x))
    repeats = [max(1, int(_TARGET_SECONDS / [seconds(work, 1), seconds(work, 1)][1])) for work in works]
    sums, statistics = [], []
    for _ in range(count):
        sums.append(seconds(works[0], repeats[0]))
        statistics.append(seconds(works[1], repeats[1]))
    return {
        "case": case.title,
        "limit": case.limit,
        "passes": ratios(sums, statistics),
        "seconds": spread(statistics),
        "sum_seconds": spread(sums),
        "nanoseconds_per_element": 1e9 * spread(statistics)["median"] / x.numel(),
    }


def main(count: str, scale: str, out: str) -> None:
    """Measure all cases and write their JSON."""
    from probe.adapters.torch.adapter import TorchAdapter

    torch.set_num_threads(1)
    adapter = TorchAdapter()
    with torch.no_grad():
        rows = [measured(case, lambda x: adapter.measure(x, ()), int(count), int(scale)) for case in CASES]
    Path(out).write_text(json.dumps(rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
