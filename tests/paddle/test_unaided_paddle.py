"""Trainings of PaddlePaddle without a line of probe, and by PaddleNLP's Trainer."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

paddle = pytest.importorskip("paddle")
from paddle import nn  # noqa: E402

import probe  # noqa: E402
from benchmarks.trainings.unaided import RUN, SCRIPTS  # noqa: E402
from tests.unaided import FILE, lacking, named, of_process, recorded, roots, same, trained, trial, watched  # noqa: E402


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder; what other tests have left is not looked at."""
    monkeypatch.chdir(tmp_path)
    everything = gc.get_objects
    old = [each for each in everything() if issubclass(type(each), (nn.Layer, paddle.optimizer.Optimizer))]
    left = {id(each) for each in old}
    monkeypatch.setattr(
        "probe.run.choosing.gc.get_objects", lambda: [each for each in everything() if id(each) not in left]
    )
    yield
    del old


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put what stands in for PaddleNLP where it is imported from."""
    monkeypatch.syspath_prepend(str(SCRIPTS / "standins"))
    for name in [name for name in sys.modules if name.startswith(("paddlenlp", "probe.integrations.paddlenlp"))]:
        monkeypatch.delitem(sys.modules, name)


def test_a_script_is_recorded_and_trains_as_it_does_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = trial("PaddlePaddle")
    plain = trained(loop, tmp_path / "plain", monkeypatch)
    assert same(plain, of_process(loop, tmp_path / "recorded", RUN))
    assert lacking(loop, tmp_path / "recorded" / FILE) == []
    monkeypatch.chdir(tmp_path)
    with watched("paddle"):
        trained(loop, tmp_path / "faulty", monkeypatch, loop.fault)
    assert re.search(loop.place, named(tmp_path / "recorded" / FILE, tmp_path / FILE))


@pytest.mark.usefixtures("standin")
def test_the_callback_for_paddlenlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under what stands in for its Trainer; `python -m benchmarks.trainings.unaided` tries the real one."""
    by_trainer = trial("PaddleNLP's Trainer, a stand-in")
    plain = trained(by_trainer, tmp_path / "plain", monkeypatch)
    assert same(plain, trained(by_trainer, tmp_path / "recorded", monkeypatch, *by_trainer.callback))
    assert lacking(by_trainer, tmp_path / "recorded" / FILE) == []
    monkeypatch.chdir(tmp_path)
    with watched("paddle"):
        trained(by_trainer, tmp_path / "by itself", monkeypatch)
    assert named(tmp_path / "recorded" / FILE, tmp_path / FILE) == "ALIGNED"
    trained(by_trainer, tmp_path / "faulty", monkeypatch, *by_trainer.callback, by_trainer.fault)
    assert re.search(by_trainer.place, named(tmp_path / "recorded" / FILE, tmp_path / "faulty" / FILE))


def test_a_skipped_update_ends_a_step_though_its_gradients_stay_as_zeros() -> None:
    net = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    scaler = paddle.amp.GradScaler(init_loss_scaling=4.0)
    with watched("paddle"):
        for index in range(3):
            for micro in range(2):
                loss = net(paddle.ones([5, 4]) * (index + 1 + micro)).square().mean()
                scaler.scale(loss).backward()
            if index != 1:
                scaler.step(optimizer)
                scaler.update()
            optimizer.clear_grad()
    run = recorded()
    assert len(run.steps) == 3 and {s.step for s in run.find(role="delta")} == {0, 2}
    assert [sorted({s.micro for s in run.find(step=n, path="", role="input")}) for n in range(3)] == [[0, 1]] * 3


def test_what_only_spreads_a_model_over_devices_is_no_part_of_it() -> None:
    net = nn.Linear(4, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=net.parameters())
    spread = paddle.DataParallel(net)
    call = nn.Layer.__call__
    with watched("paddle"):
        assert nn.Layer.__call__ is not call
        spread(paddle.ones([5, 4])).mean().backward()
        assert nn.Layer.__call__ is call
        optimizer.step()
    assert roots() == ["Linear"] and len(probe.open(FILE).modules) == 1 and recorded().find(role="delta")


def test_a_model_of_the_high_level_interface() -> None:
    net = nn.Linear(4, 2)
    model = paddle.Model(net)
    model.prepare(paddle.optimizer.SGD(0.1, parameters=net.parameters()), nn.MSELoss())
    with watched("paddle"):
        for _ in range(2):
            model.train_batch([paddle.ones([5, 4])], [paddle.ones([5, 2])])
        model.eval_batch([paddle.ones([5, 4])], [paddle.ones([5, 2])])
    run = recorded()
    assert len(run.steps) == 3 and {(step, name) for step, name, _ in run.scalars} == {
        (n, m) for n in (0, 1) for m in ("lr", "loss")
    }
