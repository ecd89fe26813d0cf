"""What importing 1.2 GB of values costs, beside reading their bytes and writing as many: `python -m benchmarks.peers.speed`."""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from probe.dumps.importing import import_dump
from tests.dumps.making import torch_file

CALLS, SHAPE, ROUNDS, PIECE = 25, (4, 1024, 1024), 5, 4 << 20


def made(folder: Path) -> None:
    """Write what mindstudio-probe dumps of so many modules."""
    place, rng = folder / "step0" / "rank0", np.random.default_rng(0)
    (place / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for call in range(CALLS):
        name = f"Module.layers.{call}.proj.Linear.forward.0"
        told = {}
        for part in ("input_args", "output", "parameters"):
            file = f"{name}.{part}.pt"
            (place / "dump_tensor_data" / file).write_bytes(torch_file(rng.standard_normal(SHAPE, np.float32)))
            each = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [*SHAPE], "data_name": file}
            told[part] = {"weight": each} if part == "parameters" else [each]
        data[name] = told
    top = {"task": "tensor", "level": "L0", "framework": "pytorch", "data": data}
    (place / "dump.json").write_text(json.dumps(top), encoding="utf-8")
    (place / "construct.json").write_text(json.dumps(dict.fromkeys(data)), encoding="utf-8")


def measured(folder: Path) -> dict[str, object]:
    """Return the medians of rounds in which each was done once; reading begins where the system holds nothing of the files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    nbytes, target = sum(path.stat().st_size for path in files), folder.parent / "a.h5"
    steps: dict[str, Callable[[], object]] = {
        "read": lambda: _read(files),
        "import": lambda: import_dump(folder, target, overwrite=True),
        "write": lambda: _write(folder.parent / "raw", target.stat().st_size),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    memory = 0
    for _ in range(ROUNDS):
        for name, do in steps.items():
            _forget(files)
            began = time.perf_counter()
            do()
            times[name].append(time.perf_counter() - began)
            memory = max(memory, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    medians = {name: float(np.median(each)) for name, each in times.items()}
    return {"bytes": nbytes, "memory": memory, **medians, "all": times}


def _forget(files: list[Path]) -> None:
    os.sync()
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _read(files: list[Path]) -> None:
    room = bytearray(PIECE)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(room):
                pass


def _write(path: Path, nbytes: int) -> None:
    piece = os.urandom(PIECE)
    with path.open("wb", buffering=0) as file:
        for _ in range(nbytes // PIECE):
            file.write(piece)
    path.unlink()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        made(Path(name) / "dump")
        print(json.dumps(measured(Path(name) / "dump")))
