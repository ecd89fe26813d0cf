"""Models whose modules, parameters or buffers are added or replaced while they are recorded."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.errors import ProbeWarning
from probe.testing import Recording, sample
from tests.faults import batch, block, ended, said  # noqa: F401

# ---- models that change --------------------------------------------------------------------------------


def noted(path: Path, change: Callable[[nn.Module], None], model: nn.Module) -> list[str]:
    """Change a model after the first of four steps; return what is said, which must be in the file too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with probe.capture(model, path, task="tensor"):
            for number in range(4):
                model(batch(number)).sum().backward()
                if number == 1:
                    change(model)
                probe.step()
    run = Recording(path)
    texts = [text for _, _, text in run.notes]
    assert said(caught) == texts and {step for step, _, _ in run.notes} <= {1}
    return texts


NEWS = "added or replaced after probe.start(), and not recorded: "


def put(module: nn.Module, name: str, value: object) -> None:
    setattr(module, name, value)


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda m: put(m, "3", nn.Linear(2, 2)), "3"),
        (lambda m: put(m, "0", nn.Linear(4, 4)), "0"),
        (lambda m: put(m, "1", nn.Sequential(nn.ReLU(), nn.Linear(4, 4))), "1"),
        (lambda m: [put(m, str(n), nn.ReLU()) for n in range(3, 12)], "3, 4, 5, 6, 7 and 4 more"),
        (lambda m: put(getattr(m, "0"), "weight", nn.Parameter(sample((4, 4)))), "0.weight"),
        (lambda m: put(getattr(m, "1"), "scale", nn.Parameter(sample((4,)))), "1.scale"),
        (lambda m: put(getattr(m, "1"), "seen", nn.Buffer(sample((4,)))), "1.seen"),
        (lambda m: [put(m, "1", nn.Tanh()), put(getattr(m, "0"), "bias", nn.Parameter(sample((4,))))], "1, 0.bias"),
        (lambda m: delattr(m, "1"), ""),
        (lambda m: None, ""),
    ],
)  # fmt: skip
def test_what_is_added_or_replaced_is_told_once(
    change: Callable[[nn.Module], None], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn, "Tanh", nn.SiLU, raising=False)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert noted(tmp_path / "a.h5", change, model) == ([NEWS + expected] if expected else [])


def test_a_module_that_was_moved_is_not_new(tmp_path: Path) -> None:
    inner = nn.Linear(4, 4)
    model = nn.Sequential(inner, nn.ReLU())
    assert noted(tmp_path / "a.h5", lambda m: put(m, "0", nn.Sequential(inner)), model) == [NEWS + "0"]
    assert len(Recording(tmp_path / "a.h5").find(path="0", role="output")) == 4


def test_a_parameter_that_was_replaced_is_not_recorded_any_more(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with (
        pytest.warns(ProbeWarning, match="not recorded: 0.weight"),
        probe.capture(model, tmp_path / "a.h5", steps=[0, 2]),
    ):
        for number in range(3):
            model(batch()).sum()
            if number == 1:
                getattr(model, "0").weight = nn.Parameter(sample((4, 4)))
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert [s.slot for s in run.find(step=2, phase="init")] == ["bias"]


def test_a_buffer_that_was_replaced_is_recorded(tmp_path: Path) -> None:
    """As `half()` and `to()` do."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        module.seen = nn.Buffer(module.seen.data + 1)
        return x * 1.0

    model = nn.Sequential(nn.ReLU(), block(forward, seen=nn.Buffer(np.zeros(2, np.float32))))
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        for _ in range(3):
            model(batch())
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert [s.values[0] for s in run.find(phase="update", slot="seen")] == [1, 2, 3] and not run.notes


def test_models_of_a_list_are_looked_at_each(tmp_path: Path) -> None:
    first, second = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    with pytest.warns(ProbeWarning) as caught, probe.capture([first, second], tmp_path / "a.h5"):
        second(first(batch()))
        put(second, "1", nn.ReLU())
        getattr(first, "0").weight = nn.Parameter(sample((4, 4)))
        probe.step()
        second(first(batch()))
    assert said(caught) == [NEWS + "1.1, 0.0.weight"]
