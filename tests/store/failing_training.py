"""A recorded training during which calls may fail, and what has to hold of it then."""

from __future__ import annotations

import contextlib
import re
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py

import probe
from probe.errors import ProbeWarning, StoreError
from probe.records import CompressionName
from probe.store.tree import write_tree
from probe.testing import sample
from tests.store.killing import Expected
from tests.toy import nn
from tests.toy.tensor import Tensor

STEPS = 5
STOPPED = re.compile(
    r"probe: writing (?P<path>.+) failed \(\[Errno \d+\] (?P<why>.+)\); the recording has stopped, "
    r"(your training goes on, and the complete steps in the file|complete steps in it) can be read"
)
NOT_BEGUN = re.compile(
    r"(cannot create (?P<path>.+): (.+); is the folder there and writable\?"
    r"|cannot write (?P<path2>.+): (.+?); make room there, or give another place"
    r"( \(.+ could not be removed: .+; delete it\))?"
    r"|cannot write (?P<path4>.+): can't start new thread; the process needs more threads \(ulimit -u\) or memory"
    r"|cannot replace (?P<path3>.+): (.+); give another name)"
)
STILL_THERE = re.compile(r"probe: what (.+) replaces is still there: (.+) could not be removed: .+; delete it")
Training = Callable[[Path | None, int, bool], bytes]


def train(
    path: Path | None, steps: int = STEPS, overwrite: bool = False, compression: CompressionName | None = None
) -> bytes:
    """Train, recorded or not; return the losses and the trained parameters."""
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 60), nn.ReLU(), nn.Linear(60, 3))
    optimizer = nn.AdamW(net.parameters(), 0.01)
    ends = []
    if path is not None:
        probe.start(net, path, task="tensor", overwrite=overwrite, quiet=True, compression=compression)
    for step in range(steps):
        output = net(Tensor(sample((40, 16), step)))
        loss = (output * output).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ends.append(loss.data.tobytes())
        if path is not None:
            probe.step(loss=loss)
    if path is not None:
        probe.stop()
    return b"".join([*ends, *(p.data.tobytes() for p in net.parameters())])


def train_torch(path: Path | None, steps: int = STEPS, overwrite: bool = False) -> bytes:
    """Train with PyTorch: values that are large enough to be written past the system's cache."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    ends = []
    if path is not None:
        probe.start(net, path, task="tensor", overwrite=overwrite, quiet=True)
    for step in range(steps):
        loss = net(torch.from_numpy(sample((8, 300), step))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ends.append(loss.detach().numpy().tobytes())
        if path is not None:
            probe.step(loss=loss)
    if path is not None:
        probe.stop()
    return b"".join([*ends, *(p.detach().numpy().tobytes() for p in net.parameters())])


def record(
    path: Path, alone: bytes, *, overwrite: bool = False, run: Training = train, steps: int = STEPS
) -> str | None:
    """Train while calls may fail; return what was said of it, None when nothing was.

    Raises AssertionError where the training is another one, a thread is left, or something else is said than may be.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = run(path, steps, overwrite)
        except StoreError as error:
            match = NOT_BEGUN.fullmatch(str(error))
            assert match and str(path) in match.group("path", "path2", "path3", "path4"), error
            assert not caught, caught
            return "\n".join([str(error), *getattr(error, "__notes__", ())])
    assert found == alone, "the training is another one"
    for thread in threading.enumerate():
        if thread is not threading.current_thread():  # what has failed is closed by the writer's thread
            thread.join(10)
    assert threading.active_count() == 1
    said = [str(each.message) for each in caught if each.category is ProbeWarning]
    stopped = [text for text in said if not STILL_THERE.fullmatch(text)]
    assert len(stopped) <= 1 and len(said) <= len(stopped) + 1, said
    for text in stopped:
        match = STOPPED.fullmatch(text)
        assert match and match["path"] == str(path), text
    return "\n".join(said) or None


def check(
    path: Path, expected: Expected, said: str | None, committed: int, earlier: bytes | None = None, *, tree: bool = True
) -> int:
    """Check what is left behind a training; return its complete steps, −1 where there is no recording.

    Parameters
    ----------
    said
        what `record` returned
    committed
        steps that were committed before the first call failed
    earlier
        the bytes of a recording that was to be replaced
    tree
        see whether its readable tree can be made too
    """
    if said is not None and NOT_BEGUN.fullmatch(said.partition("\n")[0]):
        assert committed == 0, f"not begun after {committed} steps"
        there = list(path.parent.glob(f"{path.name}*"))
        left = [each for each in there if each.read_bytes() != earlier]
        assert not left or f"{left[0]} could not be removed" in said, said
        if earlier is not None:
            (kept,) = (each for each in there if each not in left)
            assert kept == path or f"is {kept} now" in said, said
        return -1
    steps = expected.check(path)
    assert steps >= committed, f"{steps} steps, {committed} were committed"
    is_whole = said is None or STILL_THERE.fullmatch(said) is not None
    assert not is_whole or steps == len(expected.steps), "nothing was said of what is missing"
    if not tree:
        return steps
    with contextlib.suppress(StoreError):  # where the disk is full
        write_tree(path)
        with h5py.File(path, "r") as file:
            assert len(file["steps"]) >= steps
    assert expected.check(path) == steps, "the readable tree has changed what is listed"
    return steps
