"""Models in PyTorch that are nested very deeply."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from faults_torch import batch, ended  # noqa: F401, E402
from test_neutral import hooks  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.testing import Recording  # noqa: E402

# ---- depth ---------------------------------------------------------------------------------------------


class Level(nn.Module):
    """A layer, and the next level inside it."""

    def __init__(self, inner: nn.Module | None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if self.inner is None else self.inner(x)


def nested(levels: int) -> nn.Module:
    torch.manual_seed(0)
    model = None
    for _ in range(levels):
        model = Level(model)
    return model


@contextlib.contextmanager
def room_for(frames: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def deepest(forward: Callable[[nn.Module], object]) -> int:
    """Return how many containers deep a model may be nested."""
    low, high = 1, sys.getrecursionlimit()
    while high - low > 1:
        middle = (low + high) // 2
        try:
            forward(contained(middle))
            low = middle
        except RecursionError:
            high = middle
    return low


def contained(levels: int) -> nn.Module:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(levels):
        model = nn.Sequential(model)
    return model


def test_hooks_take_no_depth_from_the_model(tmp_path: Path) -> None:
    """What just fits on the stack without probe fits with it."""

    def forward(model: nn.Module) -> object:
        return model(batch())

    limit, levels = sys.getrecursionlimit(), deepest(forward)
    model = contained(levels)
    with probe.capture(model, tmp_path / "a.h5"):
        forward(model)
        probe.step()
    run = Recording(tmp_path / "a.h5")
    assert not run.notes and len({each.path for each in run.find(role="output")}) == levels + 1
    assert sys.getrecursionlimit() == limit


def in_a_large_thread(function: Callable[[], None]) -> None:
    """Run something with room on the C stack: PyTorch's own calls are deep."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    before = threading.stack_size(512 << 20)
    thread = threading.Thread(target=work)
    thread.start()
    threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]


def test_a_model_nested_900_levels_deep(tmp_path: Path) -> None:
    def work() -> None:
        with room_for(8000):
            model = nested(900)
            plain = model(batch()).detach().numpy().tobytes()
            with probe.capture(model, tmp_path / "a.h5", task="tensor", phases=["forward", "backward"]):
                output = model(batch())
                output.square().sum().backward()
            assert output.detach().numpy().tobytes() == plain and not hooks(model)

    in_a_large_thread(work)
    run = Recording(tmp_path / "a.h5")
    assert len(run.calls) == 1800 and not run.notes
    assert len([s for s in run.find(role="grad_input") if s.path.endswith("layer")]) == 899


@pytest.mark.parametrize("room", [0, 3, 6, 9, 12, 16, 20, 30])
def test_without_room_on_the_stack_for_probe_the_training_goes_on(room: int, tmp_path: Path) -> None:
    """A hook needs some frames more than the module: what it could not do is in the notes."""
    levels = 60
    model = nested(levels)
    marker = [m.register_forward_pre_hook(lambda *_: None) for m in model.modules()]  # so torch takes its slow path

    def forward() -> bytes:
        return model(batch()).detach().numpy().tobytes()

    low, high = 50, 2000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with room_for(middle):
                forward()
            high = middle
        except RecursionError:
            low = middle
    plain = forward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe.capture(model, tmp_path / "a.h5"):
            with room_for(high + room + 2):
                assert forward() == plain
            probe.step()
            assert forward() == plain
    for handle in marker:
        handle.remove()
    assert not hooks(model)
    run = Recording(tmp_path / "a.h5")
    layers = [s for s in run.find(step=0, role="output") if s.path.endswith("layer")]
    told = any("RecursionError" in text or "could not be said" in text for _, _, text in run.notes)
    assert len(layers) == levels or told
    assert len([s for s in run.find(step=1, role="output") if s.path.endswith("layer")]) == levels
