"""``python -m benchmarks.noise [--layers 24] [--folder DIR]``: clean pairs, and a wrong eps, on each rung."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

import probe
from benchmarks.noise.models import attention_in_float32, qwen2, record, resummed, split, threads, wrong_eps
from probe.answer.comparison import Comparison

TASKS = ("tensor", "statistics")
Way = tuple[Callable[..., Any], Callable[[], AbstractContextManager[object]]]
WAYS: dict[str, Way] = {
    "sdpa": (qwen2, contextlib.nullcontext),
    "eager": (lambda **named: qwen2(attention="eager", **named), contextlib.nullcontext),
    "fp32 attention": (qwen2, attention_in_float32),
    "other batch split": (lambda **named: split(qwen2(**named)), contextlib.nullcontext),
    "other thread count": (qwen2, lambda: threads(2)),
    "tensor-parallel sums": (lambda **named: resummed(qwen2(**named)), contextlib.nullcontext),
    "tensor-parallel sums, eager": (
        lambda **named: resummed(qwen2(attention="eager", **named), 4),
        contextlib.nullcontext,
    ),
}
"""legitimate ways to compute one model; the first is A"""


def recordings(folder: Path, layers: int, steps: int) -> dict[tuple[str, str], Path]:
    """Record every way, and the reference, with each task."""
    found = {}
    for task in TASKS:
        for number, (name, (make, around)) in enumerate(WAYS.items()):
            with around():
                path = folder / f"{number}-{task}.h5"
                found[name, task] = record(path, make(layers=layers), steps=steps, task=task)
        wide = qwen2(layers=layers, dtype=torch.float32)
        found["reference", task] = record(folder / f"reference-{task}.h5", wide, steps=steps, task=task)
    return found


def rungs(files: dict[tuple[str, str], Path], task: str, b: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rungs that can judge B: the noise of every other way, of all of them, and the reference."""
    yield "built-in model", {}
    others = [name for name in WAYS if name not in ("sdpa", b)]
    for name in others:
        yield f"noise: {name}", {"noise": files[name, task]}
    yield "noise: all others", {"noise": [files[name, task] for name in others]}
    yield "reference", {"reference": files["reference", task]}


def _row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _closest(found: Comparison) -> str:
    return "" if found.flip is None else f"{found.flip.factor:.2f}"


def clean_pairs(files: dict[tuple[str, str], Path]) -> None:
    """Print what every rung says of A against every other way."""
    _row("B", "recorded", "rung", "verdict", "largest error / limit", "first")
    _row(*["---"] * 6)
    for b in list(WAYS)[1:]:
        for task in TASKS:
            for name, options in rungs(files, task, b):
                found = probe.compare(files["sdpa", task], files[b, task], **options)
                first = found.first_divergence
                _row(b, task, name, found.verdict.value, _closest(found),
                     "" if first is None else f"{first.phase.label} {first.path} {first.role.label} {first.measure}")  # fmt: skip


def wrong_norms(files: dict[tuple[str, str], Path], folder: Path, layers: int) -> None:
    """Print in how many layers a wrong eps is located, by the kernels of B."""
    _row("B's kernels", "recorded", "rung", "located", "wrong name", "not found")
    _row(*["---"] * 6)
    for attention in ("sdpa", "eager"):
        for task in TASKS:
            paths = {}
            for layer in range(layers):
                for norm in ("input_layernorm", "post_attention_layernorm"):
                    model = wrong_eps(qwen2(layers=layers, attention=attention), layer, norm)
                    paths[f"model.layers.{layer}.{norm}"] = record(
                        folder / f"{attention}-{layer}-{norm}-{task}.h5", model, task=task
                    )
            for rung, options in rungs(files, task, ""):
                names = {name: probe.compare(files["sdpa", task], path, **options) for name, path in paths.items()}
                firsts = {name: found.first_divergence.path for name, found in names.items()
                          if found.first_divergence is not None}  # fmt: skip
                exact = sum(name == path for name, path in firsts.items())
                _row(attention, task, rung, f"{exact} of {len(names)}", len(firsts) - exact, len(names) - len(firsts))
                print(
                    *(f"    {n} -> {p}" for n, p in firsts.items() if n != p),
                    *(f"    {n} missed" for n in names if n not in firsts),
                    sep="\n",
                )


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24, help="of the clean pairs; the wrong eps is in one of twelve")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the recordings there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.folder or Path(scratch)
        (folder / "12").mkdir(parents=True)
        clean_pairs(recordings(folder, chosen.layers, chosen.steps))
        print()
        wrong_norms(recordings(folder / "12", 12, 1), folder / "12", 12)


if __name__ == "__main__":
    main()
