"""The page of the figures."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from typing import Any

_HEAD = """\
# On a GPU

Written by `python -m benchmarks.cuda`. Statistics of CUDA tensors are computed by a kernel in Triton (`probe/adapters/torch/cuda`); beside it
stands what recording costs where triton is missing, by PyTorch's operations (`probe/adapters/torch/device.py`).
"""
_COST = """
## Cost

A Qwen2 with random weights and AdamW. Plain and recorded steps in turn, medians and ranges. *First* is the first recorded step, in which weights are recorded
too; it is not among the others. *Waits* is how often PyTorch says that a recorded step waits for the device
(`torch.cuda.set_sync_debug_mode`), of a plain one in brackets: there, it is the optimizer. *Fetches* is how often rows of statistics come to the CPU. *Peak* is
device memory beyond that of plain steps.

| recorded | model | by | plain | recorded | ratio | first | waits | fetches | peak | a step in the file | tensors |
|---|---|---|---|---|---|---|---|---|---|---|---|
"""
_KERNEL = """
## One tensor

Statistics, sketch and hash of one tensor, on the device; *call* is what Python needs to begin it.

| tensor | elements | kernel | that is | operations | call |
|---|---|---|---|---|---|
"""
_COMPARED = """
## Beside a CPU

The same model (4 layers, hidden 256) recorded on the CPU and on the GPU, and on the GPU with another eps (1e-4 instead of 1e-6) in
`model.layers.2.post_attention_layernorm`. Hashes of the two devices are of different kinds, and are not compared; sketches are.

| A | B | verdict | place |
|---|---|---|---|
"""


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    found = {key: value for key, value in results.items() if not (isinstance(value, dict) and "error" in value)}
    return "".join([_HEAD, *_machine(found["machine"]), *_cost(found), *_kernel(found), *_others(found)])


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    yield f"\n{machine['gpu']}, PyTorch {machine['torch']}, triton {machine.get('triton', 'none')}, Python {machine['python']}; "
    yield f"the CPU's kernel: {machine['cpu kernel']}.\n"


def _cost(found: dict[str, Any]) -> Iterator[str]:
    rows = [row for row in found.values() if isinstance(row, dict) and "plain_ms" in row]
    if rows:
        yield _COST
    for row in rows:
        model = f"hidden {row['hidden']:,}, {row['layers']} layers, {row['tokens']:,} tokens, {row['dtype']}"
        yield f'| `task="{row["task"]}"` | {model} | {row["by"]} | {_range(row["plain_ms"])} | {_range(row["recorded_ms"])} '
        yield f"| {row['ratio']:.2f} | {_range(row['first_ms'])} "
        yield f"| {row['waits']} ({row['plain_waits']}) | {row['fetches']} | {row['peak_mib']:,.0f} MiB "
        yield f"| {row['mib_a_step']:,.1f} MiB | {row['records']:,} |\n"


def _kernel(found: dict[str, Any]) -> Iterator[str]:
    if "kernel" in found:
        yield _KERNEL
        for row in found["kernel"]:
            rate = row["bytes"] / row["kernel_ms"] / 1e6
            yield f"| {row['name']} | {row['elements']:,} | {row['kernel_ms']:.3f} ms | {rate:,.0f} GB/s "
            yield f"| {row['operations_ms']:.2f} ms | {row['call_us']:.0f} µs |\n"


def _others(found: dict[str, Any]) -> Iterator[str]:
    if "neutral" in found:
        yield "\n## The same training\n\nFour layers, three steps, deterministic algorithms: losses and weights with and without probe.\n\n"
    for row in found.get("neutral", ()):
        yield f'- `task="{row["task"]}"`: {row["tensors"]} tensors {"bitwise the same" if row["same"] else "DIFFER"}\n'
    if "compared" in found:
        yield _COMPARED
    for row in found.get("compared", ()):
        verdict = (row["text"].split() or ["nothing"])[0]
        place = re.search(r"First divergence.*\n\s+A (\S+)", row["text"])
        yield f"| {row['a']} | {row['b']} | {verdict} | {place[1] if place else ''} |\n"


def _range(times: list[float]) -> str:
    return f"{statistics.median(times):,.0f} ms ({min(times):,.0f}–{max(times):,.0f})"
