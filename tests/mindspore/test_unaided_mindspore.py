"""Trainings of MindSpore without a line of probe, and by Model.train."""

from __future__ import annotations

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
from mindspore import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from tests.programs import benchmark  # noqa: E402
from tests.unaided import FILE, recorded, roots, watched  # noqa: E402
from tests.unaided import alone as alone  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize("script", ["MindSpore, Model.train", "MindSpore, value_and_grad"])
def test_a_script_is_recorded_and_trains_as_it_does_by_itself(script: str) -> None:
    benchmark("trainings.unaided", script)


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
