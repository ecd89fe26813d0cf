"""Schedules of MindSpore, and what its LossMonitor prints."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402
from mindspore.train import LossMonitor  # noqa: E402

import probe  # noqa: E402
from probe.curve_comparison.reading.files import read_curves  # noqa: E402
from probe.errors import ConfigError  # noqa: E402


def test_schedules_round_in_float32_alone() -> None:
    def cosine(step: int) -> float:
        return 0.01 + 0.5 * (0.1 - 0.01) * (1 + math.cos(math.pi * min(step, 20) / 20))

    schedule = nn.CosineDecayLR(0.01, 0.1, 20)
    assert probe.compare_schedules(cosine, schedule, 25).equal
    found = probe.compare_schedules(cosine, nn.CosineDecayLR(0.01, 0.103, 20), 25)
    assert found.first == 0 and not found.equal


def test_lists_and_what_has_a_state() -> None:
    rates = nn.cosine_decay_lr(0.01, 0.1, 20, 1, 20)
    assert probe.compare_schedules(rates, nn.CosineDecayLR(0.01, 0.1, 20)).steps == 20
    optimizer = mindspore.experimental.optim.SGD(nn.Dense(2, 2).trainable_params(), lr=0.1)
    schedule = mindspore.experimental.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(ConfigError, match="StepLR of mindspore.experimental cannot be copied"):
        probe.compare_schedules(schedule, [0.1])


def test_what_the_loss_monitor_prints_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor, batches = LossMonitor(per_print_times=2), 5
    for step in range(1, 13):
        values = {
            "cur_epoch_num": (step - 1) // batches + 1, "cur_step_num": step, "batch_num": batches,
            "net_outputs": mindspore.Tensor(10.0 / step), "dataset_sink_mode": False,
        }  # fmt: skip
        parameters = SimpleNamespace(**values, get=lambda name, default=None, values=values: values.get(name, default))
        monitor.step_end(SimpleNamespace(original_args=lambda parameters=parameters: parameters))
    (tmp_path / "log").write_text(capsys.readouterr().out)
    loss = read_curves(tmp_path / "log").series["loss"]
    assert loss.steps.tolist() == [2, 4, 6, 8, 10, 12]
    assert loss.values.tolist() == pytest.approx([10.0 / step for step in (2, 4, 6, 8, 10, 12)], rel=1e-6)
