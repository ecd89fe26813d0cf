"""Large tensors are measured in PyTorch's own threads, and in one where there are none: after a fork."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from probe.numbers import kernel
from tests.limits import HANGS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not (kernel.AVAILABLE and sys.platform == "linux"), reason="needs the compiled loop and PyTorch for Linux"
)
SCRIPT = """
import os, signal
import torch
from probe.adapters.torch.statistics import SHARES_THREADS, measure

torch.set_num_threads(2)
tensor = torch.randn(1000, 1000)
tensor @ tensor
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
together = measure(tensor)
assert SHARES_THREADS and threads() == before, "a pool of its own"
child = os.fork()
if not child:
    signal.alarm(LIMIT)  # ends it where it waits for threads that it has not
    os._exit(0 if measure(tensor) == together else 1)
assert os.waitpid(child, 0)[1] == 0, "the forked process"
torch.set_num_threads(1)
assert measure(tensor) == together
"""


def test_threads_of_a_training() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("LIMIT", str(HANGS))], capture_output=True, text=True, timeout=HANGS, check=False,
        env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
