"""Trainings that are killed while they are recorded: what their files then say has to be, bit for bit, what the same training wrote that was left alone."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import probe
from probe.errors import FormatError
from probe.records import CompressionName
from probe.store import journal
from probe.store.reading.reader import Reader
from probe.testing import sample
from tests.toy import nn
from tests.toy.tensor import Tensor

STEPS = 60
"""A training that lives long enough ends here, and waits to be killed."""
_TABLES = ("records", "sketches", "calls")
_LISTS = ("modules", "parameters", "scalars", "notes", "optimizer")
Training = Callable[[Path], None]


def train_numpy(
    path: Path, between: Callable[[int], None] = lambda step: None, compression: CompressionName | None = None
) -> None:
    """Train and record; ``between`` is called in the middle of every step."""
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 120), nn.ReLU(), nn.Linear(120, 120), nn.RMSNorm(120), nn.Linear(120, 3))
    optimizer = nn.AdamW(net.parameters(), 0.001)
    probe.start(net, path, task="tensor", compression=compression)
    for step in range(STEPS):
        output = net(Tensor(sample((40, 16), step)))
        loss = (output * output).sum()
        optimizer.zero_grad()
        loss.backward()
        between(step)
        optimizer.step()
        probe.step(loss=loss)


def in_child(work: Callable[[], None], errors: Path) -> int:
    """Fork a process that does something and then waits; return its number."""
    child = os.fork()
    if not child:
        try:
            work()
            signal.pause()
        except BaseException:  # whatever it was, the parent has to know, and nothing else may run here
            errors.write_text(traceback.format_exc())
        finally:
            os._exit(1)
    return child


@dataclass
class Expected:
    """What a training writes that is left alone."""

    path: Path
    seconds: float

    def __post_init__(self) -> None:
        with Reader(self.path) as reader:
            self.steps = reader.steps.copy()
            self.tables = {name: getattr(reader, name) for name in _TABLES}
            self.lists = {name: getattr(reader, name) for name in _LISTS}
            self.names = reader.slots, reader.shapes
            tensors = {int(tensor) for tensor in reader.records["tensor"] if tensor >= 0}
            self.values = {tensor: reader.values(tensor).tobytes() for tensor in tensors}

    @classmethod
    def of(cls, train: Training, folder: Path) -> Expected:
        """Let a training end in peace, twice: what it takes the second time is what it will take."""
        path, errors, seconds = folder / "whole.h5", folder / "whole.txt", 0.0

        def whole() -> None:
            train(path)
            probe.stop()
            os._exit(0)

        for _ in range(2):
            path.unlink(missing_ok=True)
            began = time.monotonic()
            status = os.waitpid(in_child(whole, errors), 0)[1]
            assert status == 0, errors.read_text() if errors.exists() else status
            seconds = time.monotonic() - began
        return cls(path, seconds)

    def check(self, path: Path) -> int:
        """Compare a file with this; return how many complete steps are in it."""
        with Reader(path) as reader:
            count = len(reader.steps)
            columns = [name for name in self.steps.dtype.names if name != "wall_time"]
            assert all(np.array_equal(reader.steps[name], self.steps[name][:count]) for name in columns), "steps"
            for name, whole in self.tables.items():
                rows = getattr(reader, name)
                assert rows.tobytes() == whole[: len(rows)].tobytes(), name
            last = self.steps[count - 1] if count else np.zeros(1, self.steps.dtype)[0]
            assert len(reader.records) == last["n_records"] and len(reader.calls) == last["n_calls"]
            for name, items in self.lists.items():
                found = getattr(reader, name)
                assert found == items[: len(found)], name
            for known, found in zip(self.names, (reader.slots, reader.shapes), strict=True):
                assert found == known[: len(found)]
            for tensor in {int(tensor) for tensor in reader.records["tensor"] if tensor >= 0}:
                assert reader.values(tensor).tobytes() == self.values[tensor], f"tensor {tensor}"
        return count


@dataclass
class Count:
    """What became of the killed ones."""

    exact: int = 0
    unreadable: int = 0
    """killed before the file was there, or was one: nothing is lost"""
    cut: int = 0
    """a commit was cut off, and completed by its journal"""
    steps: int = 0
    most: int = 0

    def __str__(self) -> str:
        return (
            f"{self.exact} of {self.exact} read back exactly, {self.steps} complete steps, up to {self.most} in one file; "
            f"{self.cut} killed inside a commit; {self.unreadable} more killed before there was a recording"
        )


def kill(train: Training, runs: int, folder: Path, seed: int = 0) -> Count:
    """Kill trainings at random moments until there are so many recordings.

    Raises AssertionError at the first file that is not what it should be.
    """
    expected, found, moments = Expected.of(train, folder), Count(), random.Random(seed)
    for number in itertools.count():
        if found.exact == runs:
            break
        path, errors = folder / f"{number}.h5", folder / f"{number}.txt"
        child = in_child(lambda: train(path), errors)  # noqa: B023  it runs at once
        time.sleep(moments.uniform(0, expected.seconds))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status), errors.read_text()
        if not began(path):
            found.unreadable += 1
            continue
        found.cut += bool(journal.pending(path))
        count = expected.check(path)
        found.exact += 1
        found.steps += count
        found.most = max(found.most, count)
        path.unlink()
    return found


def began(path: Path) -> bool:
    """Tell whether a file was complete enough to be a recording, if an empty one."""
    with contextlib.suppress(FileNotFoundError, FormatError):
        return path.stat().st_size > 0 and not Reader(path).close()
    return False
