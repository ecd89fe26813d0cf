"""How fast the kernel is by itself: elements a second, beside the operations that compute the same without triton."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from probe.adapters.torch.cuda import launching
from probe.adapters.torch.cuda.measuring import Launcher
from probe.adapters.torch.device import measure_on_device, settle
from probe.records import HashKind

SHAPES: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
    "a hidden state": ((4, 512, 1024), torch.float32),
    "the same in bfloat16": ((4, 512, 1024), torch.bfloat16),
    "a weight": ((4096, 1024), torch.float32),
    "logits": ((2048, 32_000), torch.float32),
    "attention": ((4, 16, 512, 64), torch.float32),
    "a flat buffer": ((100_000_000,), torch.float32),
    "a bias": ((1024,), torch.float32),
}
SIZES = [(8, 4), (4, 4), (16, 8), (4, 2), (2, 1), (4, 1), (8, 2)]
"""groups of lanes and warps of a program"""


def on_device(work: Callable[[], Any], turns: int) -> float:
    """Return the seconds that a device takes for something, without those of the first time."""
    work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(turns):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / turns


def figures() -> list[dict[str, Any]]:
    """Return for each tensor the times of kernel and operations, and of the call alone."""
    found = []
    for name, (shape, dtype) in SHAPES.items():
        tensor = torch.randn(shape, device="cuda").to(dtype)
        kernel = Launcher()
        seconds = on_device(functools.partial(kernel.measure, tensor, (), HashKind.WSUM64), 20)
        kernel.settle([row for row in [kernel.measure(tensor, (), HashKind.WSUM64)] if row])
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(100):
            kernel.measure(tensor, (), HashKind.WSUM64)
        call = (time.perf_counter() - began) / 100
        operations = on_device(functools.partial(measure_on_device, tensor, (), HashKind.WSUM64), 3)
        settle([measure_on_device(tensor, (), HashKind.WSUM64)])
        found.append(
            {
                "name": name, "elements": tensor.numel(), "bytes": tensor.nbytes, "kernel_ms": seconds * 1e3,
                "operations_ms": operations * 1e3, "call_us": call * 1e6, "why_not": kernel.unusable,
            }
        )  # fmt: skip
    return found


def sizes() -> list[dict[str, Any]]:
    """Return how long some tensors take with programs of other sizes."""
    found = []
    was = launching._GROUPS, launching._WARPS, launching._ROUNDS
    for groups, warps in SIZES:
        for rounds in (8, 32):
            launching._GROUPS, launching._WARPS, launching._ROUNDS = groups, warps, rounds
            row: dict[str, Any] = {"groups": groups, "warps": warps, "rounds": rounds}
            for name in ("a hidden state", "the same in bfloat16", "logits"):
                tensor = torch.randn(SHAPES[name][0], device="cuda").to(SHAPES[name][1])
                kernel = Launcher()
                row[name] = on_device(functools.partial(kernel.measure, tensor, (), HashKind.WSUM64), 20) * 1e3
            found.append(row)
    launching._GROUPS, launching._WARPS, launching._ROUNDS = was
    return found
