"""Opening a recording costs what its names cost: neither time nor memory grow with what it holds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import probe
from probe.store import schema
from tests.limits import HANGS
from tests.toys import gpt, record

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
REPO = Path(__file__).parents[2]
LOOK = """
import json, re, sys, time
import probe

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) / 1024

with probe.open(sys.argv[1]) as run:  # what is imported, and made once, is no part of it
    run._repr_html_(), run["layers.1.norm2"].output[0].values()
before, began = peak(), time.process_time()
with probe.open(sys.argv[2]) as run:
    run._repr_html_()
    opened = time.process_time() - began, peak() - before
    found = run["layers.1.norm2"]
    found._repr_html_()
    looked = time.process_time() - began, peak() - before
    value = float(found.output[0].values().sum())
    print(json.dumps({"opened": opened, "looked": looked, "read": (time.process_time() - began, peak() - before),
                      "value": value, "records": len(found), "steps": len(run.steps)}))
"""

Cost = tuple[float, float]
"""seconds, MiB"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("lazy") / "small.h5", gpt(), task="tensor")


def look(small: Path, path: Path) -> dict[str, object]:
    """Open a recording in a process of its own, look at it and at one module; return what that cost."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(small), str(path)], capture_output=True, text=True, cwd=REPO, timeout=HANGS
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print({name: found[name] for name in ("opened", "looked", "read")})
    return found


def with_a_huge_tensor(path: Path, gib: int) -> None:
    """Add a tensor that was never written, so that the file has its size and takes no room."""
    with h5py.File(path, "r+") as file:
        form = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        form.set_layout(h5py.h5d.CONTIGUOUS)
        form.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        form.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        space = h5py.h5s.create_simple((gib << 20, 256))
        h5py.h5d.create(file["tensors"].id, b"999999", h5py.h5t.IEEE_F32LE, space, form)
        index, shapes = file["tensor_index"], file["shapes"]
        shapes.resize(len(shapes) + 1, 0)
        shapes[-1] = json.dumps([gib << 20, 256])
        index.resize(len(index) + 1, 0)
        row = (999_999, b"float32", len(shapes) - 1, -1, gib << 30)
        index[-1] = np.array([row], schema.TENSOR_INDEX)[0]


def with_many_records(path: Path, times: int) -> int:
    """Repeat the step of a recording; return how many records there are."""
    with h5py.File(path, "r+") as file:
        counts = {name: len(file[name]) for name in ("records", "sketches", "calls")}
        for name, count in counts.items():
            rows = file[name][:]
            file[name].resize(count * times, 0)
            for at in range(1, times):
                if name != "sketches":
                    rows["step"] = at
                file[name][at * count : (at + 1) * count] = rows
        steps = np.repeat(file["steps"][:1], times)
        steps["step"] = np.arange(times)
        for name, count in (("n_records", counts["records"]), ("n_calls", counts["calls"])):
            steps[name] = count * np.arange(1, times + 1)
        file["steps"].resize(times, 0)
        file["steps"][:] = steps
    return counts["records"] * times


def test_fifty_gigabytes_of_values(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "huge.h5"
    shutil.copy(small, path)
    with_a_huge_tensor(path, 50)
    assert path.stat().st_size > 50 << 30 and path.stat().st_blocks * 512 < 100 << 20
    found = look(small, path)
    with probe.open(small) as run:
        assert found["value"] == float(run["layers.1.norm2"].output[0].values().sum())
        assert found["records"] == len(run["layers.1.norm2"])
    assert found["read"][0] < 1 and found["read"][1] < 16


def test_many_records(small: Path, tmp_path: Path) -> None:
    """What is opened and shown reads none of them; a module's are kept, those of the others are passed by."""
    path = tmp_path / "many.h5"
    shutil.copy(small, path)
    records = with_many_records(path, 1000)
    with probe.open(small) as run:
        once = len(run["layers.1.norm2"])
    size = records * schema.RECORDS.itemsize / 2**20
    assert size > 60
    found = look(small, path)
    assert found["steps"] == 1000 and found["records"] == 1000 * once
    assert found["opened"][0] < 1 and found["opened"][1] < 8
    own = 1000 * once * 2 / 1024  # MiB: about 2 KiB for each object
    assert found["looked"][1] < 40 + own and found["read"][1] < 60 + own
