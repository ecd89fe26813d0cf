"""Trainings of PaddlePaddle without a line of probe; fleet's parallel layers."""

from __future__ import annotations

import pytest

paddle = pytest.importorskip("paddle")

from paddle import nn  # noqa: E402

import probe  # noqa: E402
from tests.programs import benchmark  # noqa: E402
from tests.unaided import FILE, recorded, roots, watched  # noqa: E402
from tests.unaided import alone as alone  # noqa: E402

# ---- Trainings of PaddlePaddle without a line of probe, and by PaddleNLP's Trainer.


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("script", ["PaddlePaddle", "PaddleNLP's Trainer, a stand-in"])
def test_a_script_is_recorded_and_trains_as_it_does_by_itself(script: str) -> None:
    benchmark("trainings.unaided", script)


@pytest.mark.usefixtures("alone")
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


@pytest.mark.usefixtures("alone")
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


@pytest.mark.usefixtures("alone")
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


# ---- fleet's parallel layers on two ranks, in processes of their own, against one process.


def test_a_missing_all_reduce_of_fleet_is_named() -> None:
    benchmark("ranks", "--fault", "fleet-missing-all-reduce")
