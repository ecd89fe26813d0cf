"""Whether a recording will fit on the disk is told as it begins."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.errors import ProbeWarning
from probe.testing import sample
from tests.long_runs import Training, alone, recorded  # noqa: F401

# Room


def disk(free: int) -> Any:
    return lambda folder: SimpleNamespace(total=free, used=0, free=free)


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, r"a recorded step takes about \d+\.\d KiB, 1,000 more would take \d+\.\d MiB, and 10\.0 KiB are free in \., "
             r"enough for 0: choose fewer by steps=, modules=, phases= or tensors="),
        ({"steps": "1-5"}, r"a recorded step takes about \d+\.\d KiB, the 4 that are still to come would take \d+"),
    ],
)  # fmt: skip
def test_a_recording_that_will_not_fit_is_told_once(
    options: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.recorder.recorder.shutil.disk_usage", disk(10 << 10))
    training = Training()
    probe.start(training.net, "a.h5", task="tensor", **options)
    with pytest.warns(ProbeWarning, match=text) as caught:
        for _ in range(4):
            training.step()
    assert len(caught) == 1


def test_a_recording_that_will_fit_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.recorder.shutil.disk_usage", disk(1 << 30))
    recorded([1.0] * 3, task="tensor")
    Path("a.h5").unlink()
    monkeypatch.setattr("probe.recorder.recorder.shutil.disk_usage", disk(0))
    recorded([1.0] * 3, steps=[0])  # no further step


@pytest.mark.thorough
@pytest.mark.parametrize("steps", ["every 1", "every 2"])
@pytest.mark.parametrize("task", ["norms", "statistics", "tensor"])
def test_what_is_predicted_is_what_the_file_grows_by(task: str, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr("probe.recorder.recorder.shortage", lambda size, *rest: told.append(size) or "")
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = nn.SGD(net.parameters(), 1e-4)
    probe.start(net, "a.h5", task=task, steps=steps)
    sizes: dict[int, int] = {}
    last = 2000 if task == "norms" else 80  # many, where what is written at once is much more than a step
    for step in range(last + 1):
        net(Tensor(sample((2, 64), step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=1.0)
        if step in (0, last):
            written = functools.partial(lambda step: sizes.update({step: Path("a.h5").stat().st_size}), step)
            probe.session._current.run.writer._queue.put(written)
    probe.stop()
    grown = (sizes[last] - sizes[0]) / (last if steps == "every 1" else last / 2)
    assert len(told) == 1 and told[0] == pytest.approx(grown, rel=0.15)
