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
from probe.store.reader import Reader
from probe.testing import Recording, sample

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
