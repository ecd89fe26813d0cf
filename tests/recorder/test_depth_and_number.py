"""Models that call each other very deeply, and arguments and results with very many tensors."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.errors import ProbeWarning
from probe.numbers.slots import DEPTH, flatten
from probe.testing import Recording
from tests.faults import batch, block, ended, hooks, said  # noqa: F401

# ---- depth and number ----------------------------------------------------------------------------------


def recursive(levels: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    inner = block(lambda module, x, left: module(module.layer(x), left - 1) if left else x, layer=nn.Linear(4, 4))
    model = block(lambda module, x, left: module.inner(x, left), inner=inner)
    return model, lambda: model(batch(), levels)


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


def test_a_module_that_calls_itself_900_levels_deep(tmp_path: Path) -> None:
    model, forward = recursive(900)
    with room_for(3000):
        plain = forward().data.tobytes()
        with probe.capture(model, tmp_path / "a.h5"):
            assert forward().data.tobytes() == plain
    run = Recording(tmp_path / "a.h5")
    levels = run.calls[run.calls["module"] == 1]
    assert levels["call"].tolist() == [*range(901)] and (levels["end"][1:] < levels["end"][:-1]).all()
    assert len(run.find(path="inner.layer", role="output")) == 900 and not run.notes


def least_room(forward: Callable[[], Tensor]) -> int:
    """Return how many frames a plain forward needs."""
    low, high = 100, 3000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with room_for(middle):
                forward()
            high = middle
        except RecursionError:
            low = middle
    return high


@pytest.mark.parametrize("room", [8, 10, 12, 14, 17, 20, 25, 30, 40])
def test_without_room_on_the_stack_for_probe_the_training_goes_on(room: int, tmp_path: Path) -> None:
    """A hook needs some frames more than the module: what it could not do is in the notes."""
    levels = 200
    model, forward = recursive(levels)
    least = least_room(forward)
    with room_for(least):
        plain = forward().data.tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe.capture(model, tmp_path / "a.h5"):
            with room_for(least + room):
                assert forward().data.tobytes() == plain
            probe.step()
            assert model(batch(), 3).data.any()
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 2 and hooks(model) == 0
    complete = len(run.find(step=0, path="inner.layer", role="output")) == levels
    assert complete or any("RecursionError" in text or "could not be said" in text for _, _, text in run.notes)
    assert len(run.find(step=1, path="inner.layer", role="output")) == 3


def test_outputs_with_very_many_tensors(tmp_path: Path) -> None:
    model = block(lambda module, x: [x * float(number) for number in range(3000)])
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch())
    outputs = Recording(tmp_path / "a.h5").find(role="output")
    assert [s.slot for s in outputs] == [str(number) for number in range(3000)]


def test_deep_nesting_is_told(tmp_path: Path) -> None:
    def nested(x: Tensor, levels: int) -> object:
        for _ in range(levels):
            x = [x]
        return x

    model = nn.Sequential(block(lambda module, x: nested(x, DEPTH - 1)), block(lambda module, x: nested(x, 10_000)))
    text = (
        f"tensors more than {DEPTH} containers deep are not recorded; the first is output {'.'.join('0' * DEPTH)} of 1"
    )
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5"):
        for _ in range(2):
            model(batch())
    run = Recording(tmp_path / "a.h5")
    assert said(caught) == [note for _, _, note in run.notes] == [text]
    assert [s.slot for s in run.find(path="0", role="output")] == [".".join("0" * (DEPTH - 1))] * 2


def test_tensors_inside_objects_are_told(tmp_path: Path) -> None:
    class Cache:
        def __init__(self, x: Tensor) -> None:
            self.layers = [{"keys": x}]

    class Plain:
        """Has no tensor."""

        size = 3

    def forward(module: nn.Module, x: Tensor, plain: Plain, cache: Cache) -> Tensor:
        return x * 1.0

    model = block(forward)
    text = f"tensors in objects of class {Cache.__qualname__} are not recorded; the first is input cache of the root"
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5"):
        for _ in range(2):
            model(batch(), Plain(), cache=Cache(batch()))
    assert said(caught) == [note for _, _, note in Recording(tmp_path / "a.h5").notes] == [text]


def test_flatten_tells_what_it_did_not_look_into() -> None:
    missed: list[tuple[str, object]] = []
    loop: list[object] = [1, "x", None]
    loop.append(loop)
    other = object()
    assert flatten([loop, {"a": other}, 2.5], lambda value: False, "", missed) == []
    assert missed == [("1.a", other)]
