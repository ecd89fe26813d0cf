"""Trainings of several threads."""

from __future__ import annotations

import sys
import threading
import warnings
from pathlib import Path

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.testing import Recording
from tests.faults import batch, block, ended, said  # noqa: F401
from tests.limits import HANGS

# ---- threads -------------------------------------------------------------------------------------------


def test_a_model_that_runs_while_another_thread_calls_step(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        x = module.before(x)
        if not inside.is_set():
            inside.set()
            go_on.wait(HANGS)
        return module.after(x)

    model = block(forward, before=nn.Linear(4, 4), after=nn.Linear(4, 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probe.start(model, tmp_path / "a.h5")
        thread = threading.Thread(target=lambda: model(batch()))
        thread.start()
        inside.wait(HANGS)
        probe.step()
        go_on.set()
        thread.join()
        model(batch())
        probe.stop()
    run = Recording(tmp_path / "a.h5")
    texts = [
        f"{name} was running when another thread called probe.step(): its outputs are not recorded"
        for name in ("after", "the model")
    ]
    assert said(caught) == [text for _, _, text in run.notes] == texts
    assert [s.path for s in run.find(step=0, role="output")] == ["before"]
    assert [s.path for s in run.find(step=1, role="output")] == ["before", "after", ""]


def test_threads_that_run_a_model_at_the_same_time(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain = model(batch()).data.tobytes()
    results: list[bytes] = []

    def work() -> None:
        for _ in range(60):
            results.append(model(batch()).data.tobytes())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        probe.start(model, tmp_path / "a.h5", task="tensor")
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        probe.step()
        probe.stop()
    finally:
        sys.setswitchinterval(before)
    run = Recording(tmp_path / "a.h5")
    assert set(results) == {plain} and len(results) == 240
    assert len(run.find(path="", role="output")) == 240 and not run.notes
    calls = run.calls
    assert len(calls) == 720 and len({*calls["seq"], *calls["end"]}) == 1440
    inner = calls[calls["caller"] >= 0]
    assert len(inner) == 480 and (calls["module"][inner["caller"]] == 0).all()
