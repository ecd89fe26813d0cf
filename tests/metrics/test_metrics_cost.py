"""What it costs to compare two tensors: what is read, and the memory."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from probe.comparison.distance.metrics import Side, Status, measure_pair
from probe.numbers.sketch import WIDTH
from probe.records import HashKind, TensorStats
from probe.store.reading.reader import Reader
from tests.files import Tensor, arrays, write_tensors
from tests.metrics.comparing import noise

# Cost


class Counting(Reader):
    """Counts the bytes of values that are read."""

    read = 0

    def parts(self, tensor: int, chunk: int, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
        for part in super().parts(tensor, chunk, into):
            self.read += part.nbytes
            yield part


def test_stored_values_are_read_once_and_equal_ones_not_at_all(tmp_path: Path) -> None:
    x, z = noise((1024, 1024), 0), noise((300, 1000), 1)
    y = x * (1 + 1e-7)
    paths = [
        write_tensors(tmp_path / f"{name}.h5", arrays(*tensors), values=True)
        for name, tensors in (("a", (x, z, x, x[:512])), ("b", (y, z, y, y[:512])))
    ]
    with Counting(paths[0]) as a, Counting(paths[1]) as b:
        here, there = Side(a, 0), Side(b, 0)
        tracemalloc.start()
        found = [measure_pair(here, row, there, row) for row in range(4)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [metrics.status for metrics in found] == [Status.COMPARED, Status.EQUAL, Status.COMPARED, Status.COMPARED]
    assert found[0] == found[2]
    assert a.read == b.read == (1024 + 512) * 1024 * 4, "two of the four pairs need no reading"
    assert peak < 3 << 20, "less than a tensor of 4 MiB"


def test_a_part_that_is_read_into_a_buffer_is_what_stands_in_the_file(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "a.h5", arrays(noise((3, 5000))), values=True)
    buffer = np.empty(8 * 4096, np.uint8)
    with Reader(path) as reader:
        tensor = int(reader.records["tensor"][0])
        parts = [part.copy() for part in reader.parts(tensor, 4096, buffer)]
        assert [part.size for part in parts] == [4096, 4096, 4096, 15000 - 3 * 4096]
        assert np.array_equal(np.concatenate(parts), reader.values(tensor).reshape(-1))
        assert all(np.shares_memory(part, buffer) for part in reader.parts(tensor, 4096, buffer))


# Memory

_COMPARE = """
import pathlib, re, sys
from probe.comparison.distance.metrics import Side, measure_pair
from probe.store.reading.reader import Reader

with Reader(sys.argv[1]) as a, Reader(sys.argv[2]) as b:
    found = measure_pair(Side(a, 0), 0, Side(b, 0), 0)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
print(found.rel_l2, found.max_abs, found.max_abs_at, peak[1], sep=";")
"""
"""ru_maxrss would not do: a child begins with its parent's"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    "shapes",
    [((2, 300, 131_072), (2, 300, 131_072)), ((2, 120, 131_072), (120, 2, 131_072))],
    ids=["same layout", "other layout"],
)
def test_large_tensors_are_streamed(tmp_path: Path, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    paths = []
    for shape, place in zip(shapes, ((0, 0, 0), (1, 1, 3)), strict=True):
        empty = tmp_path / "zeros.bin"
        array = np.memmap(empty, np.float32, "w+", shape=shape)
        array[place] = 3.0
        at = f"{len(paths)}.h5"
        rms = 3 / math.sqrt(array.size)
        hashed = TensorStats(0, 3, 0, rms, 3, 0, 0, 0, 0, len(paths), 0, HashKind.WSUM64, np.zeros(WIDTH))
        paths.append(write_tensors(tmp_path / at, [Tensor(array, stats=hashed)], values=True))
        del array
        empty.unlink()
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, *map(str, paths)], capture_output=True, text=True, check=True
    )
    error, largest, at, peak = done.stdout.strip().split(";")
    assert (float(error), float(largest), at) == (pytest.approx(math.sqrt(2)), 3.0, "(0, 0, 0)")
    assert int(peak) / 1024 <= 300, "MiB"
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
