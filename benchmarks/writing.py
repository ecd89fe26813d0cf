"""`python -m benchmarks.writing`: what the file costs, beside plain `os.write` of the same bytes.

Both are run in turns in one process, into the same folder; every file is deleted before the next begins.
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

from probe.numbers.packed import pack
from probe.numbers.sketch import WIDTH
from probe.records import HashKind, ModuleInfo, Phase, Role, RunInfo, StepState, TensorStats
from probe.store.writing import writer as writing
from probe.store.writing.writer import Writer

INFO = RunInfo("benchmark", "none", "0", "0", "2026-01-01T00:00:00+0000", 0, 1)
SKETCH = np.arange(WIDTH, dtype=float)
STEPS = 4
"""Steps that the arrays of a file are spread over."""


@functools.cache
def stats(number: int) -> bytes:
    return pack(TensorStats(-1.5, 1.5, 0.1, 0.7, 30.0, 0, 0, 0, 1, number, 2**63 + number, HashKind.XXH3_128, SKETCH))


def head(shape: int, slot: int, seq: int) -> tuple[object, ...]:
    return (0, 0, seq, seq, Phase.FORWARD, 0, seq // 2, Role.OUTPUT, slot, b"float32", shape, True)


def end_step(writer: Writer, step: int) -> None:
    writer.end_step(step, calls=[], scalars=[], notes=[], groups=[], wall_time=0.1, state=StepState.CLOSED)


def write_plainly(path: Path, arrays: Sequence[np.ndarray]) -> None:
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    for array in arrays:
        view = memoryview(array).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
    os.close(descriptor)


def write_recording(path: Path, arrays: Sequence[np.ndarray]) -> None:
    writer = Writer(path, INFO)
    writer.add_modules([ModuleInfo("net", "Net", -1)])
    for number, array in enumerate(arrays):
        s, shape = stats(number), writer.shape(array.shape)
        tensor = writer.tensor(s, "float32", array.shape, lambda array=array: array)
        writer.add_record(head(shape, writer.slot(str(number % 2)), number), s, tensor)
        if number % (len(arrays) // STEPS) == 0:
            end_step(writer, number)
    end_step(writer, len(arrays))
    writer.close()


def write_nameless(path: Path, arrays: Sequence[np.ndarray]) -> None:
    """As a recording of more than 20,000 tensors is written: without the readable tree."""
    limit, writing._TREE_LIMIT = writing._TREE_LIMIT, 0
    try:
        write_recording(path, arrays)
    finally:
        writing._TREE_LIMIT = limit


WAYS = {"os.write": write_plainly, "recording": write_recording, "without names": write_nameless}


def timed(write: Callable[[Path, Sequence[np.ndarray]], None], folder: Path, arrays: Sequence[np.ndarray]) -> tuple:
    path = folder / "file.h5"
    wall, cpu = time.perf_counter(), time.process_time()
    write(path, arrays)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    assert path.stat().st_size >= sum(array.nbytes for array in arrays)
    path.unlink()
    return taken


def compare(folder: Path, size: int, total: int, rounds: int) -> str:
    arrays = [np.full(size // 4, number, np.float32) for number in range(max(total // size, 2 * STEPS))]
    for write in WAYS.values():
        timed(write, folder, arrays)
    taken = [{name: timed(write, folder, arrays) for name, write in WAYS.items()} for _ in range(rounds)]
    cells = [f"{size >> 10:6d} KiB × {len(arrays):5d}"]
    for name in WAYS:
        wall, cpu = (statistics.median(each[name][part] for each in taken) for part in (0, 1))
        ratios = sorted(100 * each["os.write"][0] / each[name][0] for each in taken)
        ratio = f" {statistics.median(ratios):3.0f} % ({ratios[0]:.0f}–{ratios[-1]:.0f})" if name != "os.write" else ""
        speed = len(arrays) * size / wall / 2**20
        cells.append(f"{name} {speed:5.0f} MiB/s {wall / len(arrays) * 1e6:6.1f} µs each {cpu:.2f} s CPU{ratio}")
    return "  ".join(cells)


def measure_rows(folder: Path, count: int, per_step: int) -> str:
    """Give the cost of a record in the thread that hands it over, and in the writer's."""
    writer = Writer(folder / "rows.h5", INFO)
    s, shape, slot = stats(0), writer.shape((4, 4)), writer.slot("0")
    heads = [head(shape, slot, seq) for seq in range(per_step)]
    clock = time.pthread_getcpuclockid(writer._thread.ident)
    caller, before = 0.0, time.clock_gettime(clock)
    for step in range(count // per_step):
        began = time.thread_time()
        for each in heads:
            writer.add_record(each, s, -1)
        end_step(writer, step)
        caller += time.thread_time() - began
    while writer._queue._items:
        time.sleep(0.01)
    taken = time.clock_gettime(clock) - before
    writer.close()
    (folder / "rows.h5").unlink()
    records = count // per_step * per_step
    return (
        f"{per_step:6d} records a step: {caller / records * 1e6:.2f} µs each in the caller's thread, "
        f"{taken / records * 1e6:.2f} µs in the writer's ({taken / (count // per_step) * 1e3:.2f} ms a step)"
    )


@click.command()
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True), help="Where to write; default: the temporary one."
)
@click.option("--rounds", default=7, show_default=True)
@click.option("--cpu", type=int, help="Stay on this CPU: less noise, nothing overlaps.")
@click.option("--total", default=1024, show_default=True, help="MiB in each file of large arrays.")
def main(folder: Path | None, rounds: int, cpu: int | None, total: int) -> None:
    """Measure the writing of tensors and rows, on the disk and in memory."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    folders = [folder] if folder else [Path(tempfile.gettempdir()), *filter(Path.is_dir, [Path("/dev/shm")])]
    for place in folders:
        scratch = Path(tempfile.mkdtemp(dir=place))
        try:
            print(f"{'given folder' if folder else 'memory' if place.name == 'shm' else 'disk'}:")
            for kib in (1024, 4096, 16384):
                print(compare(scratch, kib << 10, total << 20, rounds))
            for kib in (1, 4, 16, 64):
                print(compare(scratch, kib << 10, 2000 * (kib << 10), rounds))
            for per_step in (20, 1000, 10_000):
                print(measure_rows(scratch, 50 * min(per_step, 2000), per_step))
        finally:
            shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
