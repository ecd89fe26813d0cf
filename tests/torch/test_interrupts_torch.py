"""PyTorch: interrupts anywhere inside probe, signals, processes that end; the training's result, hooks, the file."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_neutral import hooks  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import probe  # noqa: E402
from probe.records import StepState  # noqa: E402
from probe.testing import Recording, sample  # noqa: E402
from tests.interrupting import PARTS, interrupt_everywhere  # noqa: E402
from tests.limits import HANGS  # noqa: E402

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    probe.stop()


class Residual(nn.Module):
    """Its gradient comes from several places, and the second layer's input is a view."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.inner, self.norm, self.again = nn.Linear(4, 4), nn.BatchNorm1d(4), again

    def forward(self, x: Tensor) -> Tensor:
        inner = functools.partial(checkpoint, self.inner, use_reentrant=False) if self.again else self.inner
        return self.norm(inner(x[:, :]) + x)


class Training:
    """A small real training."""

    def __init__(self, again: bool = False) -> None:
        torch.manual_seed(0)
        self.done = 0
        self.model = nn.Sequential(nn.Linear(4, 4), Residual(again), nn.ReLU(inplace=True), nn.Linear(4, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.1)
        self.buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def attempt(self, step: int) -> None:
        for name, buffer in self.model.named_buffers():  # what a forward that is begun again must not count twice
            buffer.copy_(self.buffers[name])
        self.optimizer.zero_grad()
        self.model(torch.from_numpy(sample((5, 4), step))).square().sum().backward()
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        before = self.weights()
        try:
            self.optimizer.step()
        finally:
            if self.weights() != before:
                self.done, self.buffers = self.done + 1, buffers

    def weights(self) -> list[bytes]:
        return [p.detach().numpy().tobytes() for p in self.model.parameters()]

    def hooks(self) -> int:
        return len(hooks(self.model, self.optimizer))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from within a weak reference
@pytest.mark.parametrize(("part", "again"), [*((part, False) for part in PARTS), ("hooks", True)])
def test_an_interrupt_anywhere_in_probe(part: str, again: bool, tmp_path: Path) -> None:
    """Also where probe has just turned PyTorch's modes off for its own operations."""
    Training(again).attempt(0)
    interrupt_everywhere(functools.partial(Training, again), part, tmp_path)


# ---- processes that end --------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading, time
import torch
import probe
from probe.testing import sample

class Hooked(torch.nn.Module):
    def forward(self, x):
        inside()
        return x * 2.0

signal.signal(signal.SIGINT, signal.default_int_handler)
torch.optim.AdamW([torch.zeros(1)])  # imports much, here for all of them

def train():
    net(torch.from_numpy(sample((4, 3)))).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def weights():
    return b"".join(p.detach().numpy().tobytes() for p in net.parameters()).hex()

def written():
    if probe.session._current:
        done = threading.Event()
        probe.session._current.run.writer._queue.put(done.set)
        done.wait()

for number, (mode, code) in enumerate(CASES):
    if os.fork():
        status = os.waitstatus_to_exitcode(os.wait()[1])
        print(status, flush=True)
        continue
    os.dup2(os.open(f"{number}.out", os.O_CREAT | os.O_WRONLY), 1)
    os.dup2(os.open(f"{number}.err", os.O_CREAT | os.O_WRONLY), 2)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), Hooked())
    inside = lambda: None
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    if mode == "recorded":
        probe.start(net, f"{number}.h5", task="tensor")
    for _ in range(3):
        train()
        if mode == "recorded":
            probe.step(loss=1)
    exec(code)
    print(weights())
    break
"""

CLOSED, ABORTED = StepState.CLOSED, StepState.ABORTED
IN_FORWARD = "inside = lambda: {}\ntrain()"
IN_BACKWARD = "next(net.parameters()).register_hook(lambda gradient: {})\ntrain()"
TERM = "os.kill(os.getpid(), signal.SIGTERM)"
HANDLED = "signal.signal(signal.SIGTERM, lambda *_: {})\n" + IN_FORWARD.format(TERM)
ENDINGS = [
    ("", [CLOSED] * 3),
    ("train()", [CLOSED] * 4),
    ("train(); sys.exit(3)", [CLOSED] * 4),
    ("train(); raise ValueError('planted')", [CLOSED] * 3 + [ABORTED]),
    (IN_FORWARD.format("sys.exit(3)"), [CLOSED] * 3 + [ABORTED]),
    (IN_BACKWARD.format("sys.exit(3)"), [CLOSED] * 4),
    (IN_BACKWARD.format("signal.raise_signal(signal.SIGINT)"), [CLOSED] * 3 + [ABORTED]),
    ("written(); train(); os._exit(5)", [CLOSED] * 3),
    ("written()\n" + IN_BACKWARD.format("os._exit(5)"), [CLOSED] * 3),
    ("written(); " + TERM, [CLOSED] * 3),
    ("written()\n" + IN_BACKWARD.format(TERM), [CLOSED] * 3),
    (HANDLED.format("sys.exit(9)"), [CLOSED] * 3 + [ABORTED]),
    (HANDLED.format("probe.stop()"), [CLOSED] * 4),
    ("probe.session._current and probe.session._current.run.writer._queue.put(lambda: time.sleep(1))\ntrain()", [CLOSED] * 4),
]  # fmt: skip


@pytest.fixture(scope="module")
def ended_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Run every ending without and with probe, in processes forked from one that has imported PyTorch."""
    folder = tmp_path_factory.mktemp("processes")
    cases = [(mode, code) for code, _ in ENDINGS for mode in ("plain", "recorded")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM.replace("CASES", repr(cases))]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=HANGS, check=True, env=environment
    )
    return folder, [*map(int, done.stdout.split())]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", range(len(ENDINGS)), ids=[code.strip()[-40:] or "nothing" for code, _ in ENDINGS])
def test_however_a_process_ends_it_ends_as_without_probe(number: int, ended_processes: tuple[Path, list[int]]) -> None:
    folder, statuses = ended_processes
    plain, recorded = 2 * number, 2 * number + 1
    assert statuses[recorded] == statuses[plain]
    for part in ("out", "err"):
        assert (folder / f"{recorded}.{part}").read_text() == (folder / f"{plain}.{part}").read_text()
    found = Recording(folder / f"{recorded}.h5")
    assert [StepState(state) for state in found.steps["state"]] == ENDINGS[number][1]
    for step in range(3):
        assert len(found.find(step=step, phase="update", role="param")) == 2
