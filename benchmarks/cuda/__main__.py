"""`python -m benchmarks.cuda`: recording on a GPU, beside plain training, and beside recording on a CPU. Needs a GPU and transformers."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import click
import torch

import probe
from benchmarks.cuda import kernel
from benchmarks.cuda.model import result_of, timed, training
from benchmarks.cuda.page import page
from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.cuda.launching import Rows
from probe.adapters.torch.cuda.measuring import LAUNCHER
from probe.config import TaskName
from probe.numbers import kernel as cpu_kernel
from probe.store.reading.reader import Reader

STEPS, ROUNDS = 3, 2
SMALL = {"layers": 2, "sequences": 1}
LARGE = {"layers": 2, "hidden": 4096, "sequences": 8, "tokens": 1024}
SYNCS = "called a synchronizing CUDA operation"
FAULTY = "model.layers.2.post_attention_layernorm"


@contextlib.contextmanager
def operations() -> Any:
    """Record as it is done without triton: by PyTorch's operations, each tensor's values waited for."""
    was, begin = LAUNCHER.unusable, TorchAdapter.begin_values
    LAUNCHER.unusable = "switched off to be compared"
    TorchAdapter.begin_values = lambda self, tensor: None  # type: ignore[method-assign]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        LAUNCHER.unusable = was
        TorchAdapter.begin_values = begin  # type: ignore[method-assign]


def waits_of(train: Any, path: Path | None, task: TaskName) -> tuple[int, int]:
    """Return how often a recorded step (the second one) makes the program wait for the device, and how often rows are fetched."""
    fetches: list[Rows] = []
    begin = Rows.begin_fetch
    Rows.begin_fetch = lambda self: fetches.append(self) or begin(self)  # type: ignore[method-assign, func-returns-value]
    with contextlib.nullcontext() if path is None else probe.capture(train.model, path, task=task):
        for step in range(2):
            fetches.clear()
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn" if step else "default")
                loss = train.step()
                if path is not None:
                    probe.step(loss=loss)
                torch.cuda.set_sync_debug_mode("default")
    Rows.begin_fetch = begin  # type: ignore[method-assign]
    return sum(SYNCS in str(each.message) for each in caught), len(fetches)


def cost(task: TaskName, folder: Path, old: bool, steps: int, **model: Any) -> dict[str, Any]:
    """Time plain and recorded steps in turn."""
    around = operations if old else contextlib.nullcontext
    train = training("cuda", **model)
    timed(train, 2, None)
    plain: list[float] = []
    recorded: list[list[float]] = []
    peaks, sizes = [], []
    with around():
        for turn in range(1 if old else ROUNDS + 1):
            path = folder / f"{turn}.h5"
            torch.cuda.reset_peak_memory_stats()
            plain += timed(train, steps, None)
            plain_peak = torch.cuda.max_memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            recorded.append(timed(train, steps, path, task))
            peaks.append(torch.cuda.max_memory_allocated() - plain_peak)
            sizes.append(path.stat().st_size / steps)
            with Reader(path) as reader:
                records = reader.observations // steps
            path.unlink()
        waits, fetches = waits_of(train, folder / "waits.h5", task)
        (folder / "waits.h5").unlink()
    if not old:  # in the first turn, kernels are compiled
        del recorded[0], peaks[0]
    later = [each for times in recorded for each in times[1:]]
    row = {
        "task": task, "by": "operations" if old else "the kernel", "layers": train.model.config.num_hidden_layers,
        "hidden": train.model.config.hidden_size, "tokens": train.batch.numel(), "dtype": str(train.model.dtype)[6:],
        "records": records, "plain_ms": [1e3 * each for each in plain], "recorded_ms": [1e3 * each for each in later],
        "first_ms": [1e3 * times[0] for times in recorded], "ratio": statistics.median(later) / statistics.median(plain),
        "peak_mib": max(peaks) / 2**20, "mib_a_step": max(sizes) / 2**20, "waits": waits, "fetches": fetches,
        "plain_waits": waits_of(train, None, task)[0],
    }  # fmt: skip
    del train
    gc.collect()
    torch.cuda.empty_cache()
    return row


def neutral(task: TaskName, folder: Path) -> dict[str, Any]:
    """Tell whether losses and weights are bitwise the same with and without probe."""
    results = []
    for path in (None, folder / "neutral.h5"):
        around: Callable[[Any], Any] = lambda model: contextlib.nullcontext()  # noqa: E731
        if path is not None:
            around = functools.partial(probe.capture, path=path, task=task)
        results.append(result_of(training("cuda", layers=4), 3, around))
    (folder / "neutral.h5").unlink()
    return {"task": task, "same": all(map(torch.equal, *results)), "tensors": len(results[0])}


def compared(folder: Path) -> list[dict[str, Any]]:
    """Record one model on CPU and GPU, and with a fault on the GPU, and compare them."""
    paths = {}
    for name, device, eps, task in [
        ("cpu", "cpu", None, "statistics"), ("gpu", "cuda", None, "statistics"), ("faulty", "cuda", 1e-4, "statistics"),
        ("cpu-tensor", "cpu", None, "tensor"), ("gpu-tensor", "cuda", None, "tensor"),
    ]:  # fmt: skip
        train = training(device, layers=4, tokens=64, sequences=2, hidden=256)
        if eps is not None:
            train.model.get_submodule(FAULTY).variance_epsilon = eps
        paths[name] = folder / f"{name}.h5"
        result_of(train, 1, functools.partial(probe.capture, path=paths[name], task=task))
    found = []
    for a, b in [("cpu", "gpu"), ("cpu-tensor", "gpu-tensor"), ("gpu", "faulty"), ("cpu", "faulty")]:
        command = [sys.executable, "-c", "from probe.commands.cli import compare_main; compare_main()"]
        result = subprocess.run([*command, paths[a], paths[b]], capture_output=True, text=True)
        found.append({"a": a, "b": b, "status": result.returncode, "text": result.stdout + result.stderr})
    return found


def machine() -> dict[str, Any]:
    """Return where this was measured."""
    found = {"python": platform.python_version(), "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    with contextlib.suppress(ImportError):
        import triton

        found["triton"] = triton.__version__
    return found | {"cpu kernel": cpu_kernel.INSTRUCTIONS or "not built", "cuda": torch.version.cuda}


PARTS: dict[str, Callable[[Path], Any]] = {
    "kernel": lambda folder: kernel.figures(),
    "compared": compared,
    "neutral": lambda folder: [neutral(task, folder) for task in ("statistics", "tensor")],  # type: ignore[arg-type]
    "statistics": lambda folder: cost("statistics", folder, False, STEPS),
    "bfloat16": lambda folder: cost("statistics", folder, False, STEPS, dtype=torch.bfloat16),
    "large": lambda folder: cost("statistics", folder, False, STEPS, dtype=torch.bfloat16, **LARGE),
    "norms": lambda folder: cost("norms", folder, False, STEPS),
    "tensor": lambda folder: cost("tensor", folder, False, STEPS, **SMALL),
    "tensor by operations": lambda folder: cost("tensor", folder, True, 2, **SMALL),
    "norms by operations": lambda folder: cost("norms", folder, True, STEPS),
    "statistics by operations": lambda folder: cost("statistics", folder, True, 2),
    "sizes": lambda folder: kernel.sizes(),
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here after each part.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the page here.")
@click.option("--seconds", type=float, default=1e9, help="Begin no part after this time.")
def main(parts: tuple[str, ...], out: Path | None, markdown: Path | None, seconds: float) -> None:
    """Measure what recording costs on a GPU, and compare what was recorded there and on a CPU."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    began = time.perf_counter()
    results: dict[str, Any] = {"machine": machine()}
    for name in parts or PARTS:
        since = time.perf_counter()
        if since - began > seconds:
            results[name] = {"error": "no time was left"}
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = PARTS[name](Path(folder))
        except Exception:  # noqa: BLE001  the other parts are wanted all the same
            results[name] = {"error": traceback.format_exc()}
        print(f"{name}: {time.perf_counter() - since:.1f} s  {json.dumps(results[name])[:1500]}", flush=True)
        results["unusable"] = LAUNCHER.unusable
        gc.collect()
        torch.cuda.empty_cache()
        if out is not None:
            out.write_text(json.dumps(results, indent=1))
        if markdown is not None:
            markdown.write_text(page(results))


if __name__ == "__main__":
    main()
