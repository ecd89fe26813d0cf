"""Trainings of MindSpore without a line of probe, and by Model.train."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
from mindspore import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from benchmarks.trainings.unaided import RUN  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from tests.unaided import FILE, lacking, named, of_process, recorded, roots, same, trained, trial, watched  # noqa: E402

MODEL = trial("MindSpore, Model.train")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder; what other tests have left is not looked at."""
    monkeypatch.chdir(tmp_path)
    everything = gc.get_objects
    old = [each for each in everything() if issubclass(type(each), nn.Cell)]
    left = {id(each) for each in old}
    monkeypatch.setattr(
        "probe.run.choosing.gc.get_objects", lambda: [each for each in everything() if id(each) not in left]
    )
    yield
    del old


def test_a_script_is_recorded_and_trains_as_it_does_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trained(MODEL, tmp_path / "plain", monkeypatch)
    assert same(plain, of_process(MODEL, tmp_path / "recorded", RUN))
    assert lacking(MODEL, tmp_path / "recorded" / FILE) == []
    monkeypatch.chdir(tmp_path)
    with watched("mindspore"):
        trained(MODEL, tmp_path / "faulty", monkeypatch, MODEL.fault)
    assert re.search(MODEL.place, named(tmp_path / "recorded" / FILE, tmp_path / FILE))


def test_the_callback_for_model_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trained(MODEL, tmp_path / "plain", monkeypatch)
    assert same(plain, trained(MODEL, tmp_path / "recorded", monkeypatch, *MODEL.callback))
    assert lacking(MODEL, tmp_path / "recorded" / FILE) == []
    monkeypatch.chdir(tmp_path)
    with watched("mindspore"):
        trained(MODEL, tmp_path / "by itself", monkeypatch)
    assert named(tmp_path / "recorded" / FILE, tmp_path / FILE) == "ALIGNED"


def test_the_functional_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = trial("MindSpore, value_and_grad")
    plain = trained(loop, tmp_path / "plain", monkeypatch)
    monkeypatch.chdir(tmp_path)
    with watched("mindspore"):
        assert same(plain, trained(loop, tmp_path / "recorded", monkeypatch))
    assert lacking(loop, tmp_path / FILE) == [] and len(probe.open(tmp_path / FILE).steps) == 3


class WithLoss(nn.Cell):
    """As MindSpore's page on customized training shows it."""

    def __init__(self, backbone: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self._backbone, self._loss = backbone, nn.MSELoss()

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self._loss(self._backbone(x), y)

    @property
    def backbone_network(self) -> nn.Cell:
        return self._backbone


@pytest.mark.parametrize("form", [nn.WithLossCell, WithLoss])
def test_cells_around_the_model_are_no_part_of_it(form: type) -> None:
    net = nn.Dense(4, 2)
    around = WithLoss(net) if form is WithLoss else nn.WithLossCell(net, nn.MSELoss())
    train = nn.TrainOneStepCell(around, nn.SGD(net.trainable_params(), 0.1)).set_train()
    x, y = (Tensor(np.ones((5, width), np.float32)) for width in (4, 2))
    with watched("mindspore"):
        for _ in range(2):
            train(x, y)
    run = recorded()
    assert roots() == ["Dense"] and len(run.steps) == 2 and {s.step for s in run.find(role="delta")} == {0, 1}
    assert {(step, name) for step, name, _ in run.scalars} == {(n, m) for n in (0, 1) for m in ("lr", "loss")}


def test_graph_mode_is_refused_and_the_program_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    from probe.integrations.mindspore import ProbeCallback

    callback = ProbeCallback(FILE)
    context = type(
        "Context",
        (),
        {"original_args": lambda self: type("Known", (), {"network": nn.Dense(4, 2), "cur_step_num": 0})()},
    )()
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        with pytest.warns(ProbeWarning, match="ProbeCallback: probe.start.*: MindSpore is in graph mode"):
            callback.on_train_begin(context)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    callback.on_train_end(context)
    assert not FILE.exists() and not probe.session.is_recording()
