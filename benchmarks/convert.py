"""`python -m benchmarks.convert`: a checkpoint of 2 GiB in four shards, converted to PaddlePaddle and MindSpore.

Prints how long each took and how much memory beyond what the program held before: it must stay below two shards.
Every weight is square and transposed; in the last row each shard is one tensor, which is the worst case.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np

from probe.checkpoints import Stored, open_checkpoint, write_checkpoint
from probe.conversion import convert_checkpoint
from probe.conversion.structure import Structure, Weight
from probe.numbers.layouts import layout_of
from probe.records import ModuleInfo
from probe.structure.tree import Tree

SHARDS = 4


def model(layers: int, width: int) -> Structure:
    """Return a model of square Linears."""
    names = [("", "Net"), *((str(i), "Linear") for i in range(layers))]
    modules = [ModuleInfo(path, kind, 0 if path else -1) for path, kind in names]
    layout = layout_of("torch", ("Linear",), "weight")
    weights = [Weight((f"{i}.weight",), i + 1, "weight", (width, width), layout) for i in range(layers)]
    return Structure("torch", Tree(modules), [(kind,) for _, kind in names], weights)


def write(folder: Path, layers: int, width: int, suffix: str) -> None:
    """Write the source."""
    folder.mkdir()
    stored = [Stored(f"{i}.weight", np.dtype("f4"), (width, width)) for i in range(layers)]
    per = layers // SHARDS
    rng = np.random.default_rng(0)
    shards = [stored[start : start + per] for start in range(0, layers, per)]
    framework = "paddle" if suffix == ".pdparams" else "torch"
    write_checkpoint(folder, suffix, shards, lambda _: rng.random((width, width), np.float32), framework)


def peak() -> int:
    """Return the largest resident size of this process, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024


def convert(source: str, layers: str, width: str, to: str) -> None:
    """Convert in this process, and print the seconds and the bytes of memory that it took."""
    before, begun = peak(), time.perf_counter()
    known = model(int(layers), int(width))
    framework = "paddle" if to == "torch" else "torch"
    sides = {"model": framework, "like": known} if to == "torch" else {"model": known}
    convert_checkpoint(source, to=to, **sides)
    print(time.perf_counter() - begun, peak() - before)


@click.command()
@click.option("--gib", default=2.0, show_default=True, help="Size of the checkpoint.")
def main(gib: float) -> None:
    """Measure."""
    total = int(gib * 2**30)
    for layers, suffix, to in (
        (64, ".safetensors", "paddle"), (64, ".safetensors", "mindspore"), (64, ".pdparams", "torch"),
        (SHARDS, ".safetensors", "paddle"),
    ):  # fmt: skip
        width = int((total / layers / 4) ** 0.5)
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "net"
            write(source, layers, width, suffix)
            program = f"from benchmarks.convert import convert; convert({str(source)!r}, '{layers}', '{width}', {to!r})"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
            seconds, memory = map(float, done.stdout.split())
            size = sum(path.stat().st_size for path in source.iterdir())
            shard = size / SHARDS
            assert len(open_checkpoint(Path(folder) / f"net-{to}").tensors) == layers
        print(
            f"{size / 2**30:.2f} GiB in {SHARDS} {suffix} shards of {layers // SHARDS} tensors → {to}: {seconds:5.1f} s, "
            f"{memory / 2**20:5.0f} MiB = {memory / shard:.2f} shards{'' if memory < 2 * shard else '  TOO MUCH'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
