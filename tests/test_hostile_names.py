"""Names that no one expects, and very many of them: nothing breaks, nothing is lost without a word."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.errors import ProbeWarning
from probe.records import Role
from probe.store.reader import Reader
from probe.testing import Recording, sample
from tests.resources import resident

NAMES = {
    "slash": "a/b", "slash first": "/a", "dot": ".", "dots": "..", "dotted": "a..b.", "NUL": "a\0b", "newline": "a\nb",
    "long": "x" * 10_000, "emoji": "🔥", "surrogate": "a\ud800b", "empty": "", "percent": "%2F", "quote": "'\"\\",
    "right to left": "\u202eabc", "bracket": "[bold]a[/bold]", "blank": " ",
}  # fmt: skip
EVERY = pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    nn.manual_seed(0)
    yield
    probe.stop()


def batch(seed: int = 0) -> Tensor:
    return Tensor(sample((5, 4), seed))


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    return type("Block", (nn.Module,), {"forward": forward})(**members)


def stored(name: str) -> str:
    """Return a name as the file has it: what is no text, or ends text in HDF5, is escaped."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def links(group: h5py.Group) -> int:
    """Count the names of tensors below a group."""
    return sum(links(group[name]) if isinstance(group[name], h5py.Group) else 1 for name in group)


@EVERY
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_name_everywhere(name: str, task: str, tmp_path: Path) -> None:
    """Of modules, parameters, outputs, keywords, what is logged (tensors, numbers), scalars, optimizer states."""

    safe = name if name and "." not in name else "unnamed"  # dots stand between the names of modules

    class Named(nn.SGD):
        def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
            super().update(p, g, group, state)
            state[name] = Tensor(np.ones_like(p))

    def forward(module: nn.Module, x: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        probe.log(name, x)
        return {name: x * vars(module)[safe], "other": kwargs[name] * 1.0}

    def outer(module: nn.Module, x: Tensor) -> Tensor:
        found = vars(module)[safe](x, **{name: x})
        return found[name] + found["other"]

    inner = block(forward, **{safe: nn.Parameter(np.ones(4, np.float32))})
    model = block(outer, **{safe: inner})
    optimizer = Named(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with probe.capture(model, tmp_path / "a.h5", task=task):
            for _ in range(2):
                model(batch()).sum().backward()
                optimizer.step()
                probe.log(name, 2.0)
                probe.step(loss=1.0, **{name: 3.0})
    run = Recording(tmp_path / "a.h5")
    assert not run.notes and [m.path for m in run.modules] == ["", stored(safe)]
    assert [(step, value) for step, of, value in run.scalars if of == stored(name)] == [(0, 2), (0, 3), (1, 2), (1, 3)]
    inside = {(s.role, s.slot) for s in run.seen if s.path == stored(safe) and s.step == 1}
    slot = stored(name)
    assert inside >= {("input", "0"), ("input", slot), ("output", slot), ("output", "other"), ("value", slot)}
    assert inside >= {("param", stored(safe)), ("delta", stored(safe)), ("state", f"{stored(safe)}.{slot}")}
    if task == "tensor":
        value = run.one(path=stored(safe), role="value", step=0)
        assert np.array_equal(value.values, batch().data)
        with h5py.File(tmp_path / "a.h5") as file:
            assert links(file["tree"]) == sum(s.values is not None for s in run.seen)


# ---- very many ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "count", "steps"), [("dict", 10**6, 1), ("list", 10**5, 1), ("dict", 2 * 10**5, 50)])
def test_a_million_slots(kind: str, count: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is room for is recorded; what there is none for is said once, and costs next to nothing."""
    monkeypatch.setattr("probe.store.writer._NAMES_LIMIT", 4 << 20)
    one = Tensor(np.ones(1, np.float32))

    def forward(module: nn.Module, x: Tensor, step: int) -> Any:
        if kind == "list":
            return [one] * count
        return {f"name {step}.{number}": one for number in range(count // steps)}

    model = block(forward)
    began, before = time.process_time(), resident()
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", steps=range(steps)):
        for step in range(steps):
            model(one, step)
            probe.step(loss=step)
    print(f"{kind}: {time.process_time() - began:.1f} s of CPU time, {resident() - before:.0f} MiB more")
    with Reader(tmp_path / "a.h5") as reader:
        kept, recorded = len(reader.slots), int((reader.records["role"] == Role.OUTPUT).sum())
        ((step, _, text),) = reader.notes
        assert len(reader.scalars) == steps
    assert [str(each.message) for each in caught] == [f"probe: {text}"]
    slot = f"{recorded}" if kind == "list" else f"name {step}.{recorded % (count // steps)}"
    expected = f"there are {kept:,} different slots already: tensors with further ones are not recorded"
    assert text == f"{expected}; the first is output {slot} of the root"
    assert recorded == kept - (kind == "dict") and 30_000 < kept < 50_000  # the input's slot is 0
    assert resident() - before < 300


def test_a_million_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.store.writer._NAMES_LIMIT", 10_000)
    model = nn.Sequential(nn.ReLU())
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", task="tensor"):
        for size in range(300):
            model(Tensor(np.zeros((size, 1), np.float32)))
        probe.step()
    run = Recording(tmp_path / "a.h5")
    kept = len({s.shape for s in run.seen})
    expected = f"there are {kept} different shapes already: tensors with further ones are not recorded"
    assert [str(each.message) for each in caught] == [f"probe: {expected}; the first is input 0 of the root"]
    assert [text for _, _, text in run.notes] == [str(caught[0].message).removeprefix("probe: ")]
    assert len(run.calls) == 600 and len(run.seen) == 4 * kept and 50 < kept < 100


def test_long_and_unprintable_names_are_shown_so_that_they_can_be_read(tmp_path: Path) -> None:
    name = "\x1b[31m\n" + "x" * 10_000
    model = block(lambda module, x: x * 1.0)
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5"):
        setattr(model, name, nn.ReLU())
        model(batch())
        probe.step()
    (shown,) = [str(each.message) for each in caught]
    start = "probe: added or replaced after probe.start(), and not recorded: \\x1b[31m\\nxxx"
    assert shown.startswith(start) and " … " in shown and len(shown) < 1100 and shown.isprintable()
    assert Recording(tmp_path / "a.h5").notes[0][2].endswith(name)


# ---- steps that never end ------------------------------------------------------------------------------


def never_ending(path: Path, count: int, work: Callable[[nn.Module, nn.Optimizer], object]) -> tuple[Recording, str]:
    """Do something many times in step 0, and once in step 1; return the recording and what was said."""
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = nn.SGD(model.parameters(), 0.1)
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, path):
        for _ in range(2):
            for _ in range(count):
                work(model, optimizer)
            probe.step(loss=0)
            count = 1
    run = Recording(path)
    assert run.steps["step"].tolist() == [0, 1] and [text for _, _, text in run.notes] == [
        str(one.message).removeprefix("probe: ") for one in caught
    ]
    (text,) = [text for _, _, text in run.notes]
    assert text.endswith("what follows in it is not recorded; call probe.step() at the end of each step")
    return run, text.partition(":")[0]


def test_calls_of_a_step_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.forward.CALLS", 100)

    def work(model: nn.Module, optimizer: nn.Optimizer) -> None:
        model(batch()).sum().backward()
        optimizer.step()

    run, text = never_ending(tmp_path / "a.h5", 200, work)
    assert text == "step 0 has 100 module calls" and len(run.calls) == 102
    assert len(run.find(step=0, role="delta")) == 100 and len(run.find(step=1, role="delta")) == 2
    assert (run.calls["end"] >= 0).all() and not run.calls["raised"].any()


def test_a_module_inside_which_the_room_for_calls_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.forward.CALLS", 5)
    run, text = never_ending(tmp_path / "a.h5", 3, lambda model, optimizer: model(batch()))
    assert text == "step 0 has 5 module calls" and (run.calls["end"] >= 0).all()
    assert [len(run.find(step=step, path="", role="output")) for step in (0, 1)] == [2, 1]
    assert [len(run.find(step=step, path="0", role="output")) for step in (0, 1)] == [2, 1]


def test_updates_of_a_step_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.updates._GROUPS", 10)
    run, text = never_ending(tmp_path / "a.h5", 30, lambda model, optimizer: optimizer.step())
    assert text == "step 0 has 10 groups of updated parameters"
    assert [len(run.find(step=step, role="delta", slot="weight")) for step in (0, 1)] == [10, 1]


def test_numbers_of_a_step_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.recorder._SCALARS", 10)
    run, text = never_ending(tmp_path / "a.h5", 30, lambda model, optimizer: probe.log("x", 1.0))
    assert text == "step 0 has 10 logged numbers"
    assert [name for _, name, _ in run.scalars] == ["x"] * 10 + ["loss", "x", "loss"]
