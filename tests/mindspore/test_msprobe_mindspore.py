"""A MindSpore program written for mindstudio-probe: the quick start's order of calls, and dropout that is off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

import probe  # noqa: E402
from probe.adapters.mindspore import seeding  # noqa: E402
from probe.compat.msprobe import PrecisionDebugger, seed_all  # noqa: E402
from probe.testing import Recording, sample  # noqa: E402


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PrecisionDebugger, "_instance", None)
    for name in seeding._DROPOUTS:
        monkeypatch.setattr(getattr(nn, name), "__init__", getattr(nn, name).__init__)
    yield
    probe.stop()
    for name in seeding._DROPOUTS:
        if seeding._ZERO in vars(getattr(nn, name)):
            delattr(getattr(nn, name), seeding._ZERO)


def test_the_calls_of_the_quick_start() -> None:
    Path("config.json").write_text(json.dumps({"dump_path": "./output", "rank": [], "step": ["0-1"], "level": "L0"}))
    seed_all(seed=1234, mode=False, rm_dropout=True)
    debugger = PrecisionDebugger(config_path="config.json")
    net = nn.SequentialCell(nn.Dense(3, 4), nn.Dropout(p=0.9), nn.Dropout2d(), nn.ReLU(), nn.Dense(4, 2))
    net.set_train()
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.01)
    gradients = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    for number in range(3):
        debugger.start(net)
        _, grads = gradients(mindspore.Tensor(sample((5, 3), number).astype(np.float32)))
        optimizer(grads)
        debugger.stop()
        debugger.step()
    probe.stop()
    (path,) = Path("output").glob("*.h5")
    run = Recording(path)
    assert [int(step) for step in run.steps["step"]] == [0, 1]
    assert {s.step for s in run.find(phase="update", role="param_grad")} == {0, 1}
    for place in ("1", "2"):
        before, after = run.find(path=place, role="input", step=0), run.find(path=place, role="output", step=0)
        assert [s.hash for s in before] == [s.hash for s in after] != []
