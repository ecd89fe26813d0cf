"""Schedules of PyTorch and transformers: simulated from where they stand, on copies that leave everything as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.optim import lr_scheduler as schedules  # noqa: E402

import probe  # noqa: E402
from probe.errors import ConfigError  # noqa: E402


def optimizer(*rates: float) -> Any:
    groups = [{"params": [torch.nn.Parameter(torch.ones(3))], "lr": rate} for rate in rates or (0.1,)]
    return torch.optim.SGD(groups, momentum=0.9)


def sequential(opt: Any) -> Any:
    inner = [schedules.LinearLR(opt, 0.1, total_iters=5), schedules.CosineAnnealingLR(opt, 20)]
    return schedules.SequentialLR(opt, inner, [5])


class Owner:
    """Has a model, and the function of the step: a copy of it would copy both."""

    def __init__(self) -> None:
        self.model = self

    def factor(self, step: int) -> float:
        return 1 / (1 + step)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise AssertionError("the program's own objects were copied")


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "step": lambda opt: schedules.StepLR(opt, 3, 0.5),
    "cosine": lambda opt: schedules.CosineAnnealingLR(opt, 20),
    "one cycle": lambda opt: schedules.OneCycleLR(opt, 0.5, total_steps=40),
    "sequential": sequential,
    "chained": lambda opt: schedules.ChainedScheduler(
        [schedules.ConstantLR(opt, 0.5, 4), schedules.ExponentialLR(opt, 0.9)]
    ),
    "bound method": lambda opt: schedules.LambdaLR(opt, Owner().factor),
    "transformers linear": lambda opt: transformers.get_linear_schedule_with_warmup(opt, 5, 40),
    "transformers cosine": lambda opt: transformers.get_cosine_schedule_with_warmup(opt, 5, 40),
}


def as_trained(schedule: Any, steps: int) -> list[tuple[float, ...]]:
    """Return the rates that a training has."""
    found = []
    for _ in range(steps):
        found.append(tuple(group["lr"] for group in schedule.optimizer.param_groups))
        schedule.optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("already", [0, 7])
@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")
def test_what_is_simulated_is_what_a_training_has(name: str, already: int) -> None:
    opt = optimizer(0.1, 0.2)
    schedule = SCHEDULES[name](opt)
    for parameter in (p for group in opt.param_groups for p in group["params"]):
        parameter.grad = torch.ones(3)
    as_trained(schedule, already)
    state, weights = copy.deepcopy(opt.state_dict()), [group["params"][0].clone() for group in opt.param_groups]
    last = schedule.get_last_lr()
    found = probe.compare_schedules(schedule, schedule, steps=20)
    assert found.equal
    assert str(opt.state_dict()) == str(state) and schedule.get_last_lr() == last
    assert all(torch.equal(group["params"][0], weight) for group, weight in zip(opt.param_groups, weights, strict=True))
    expected = as_trained(schedule, 20)
    rates = list(zip(*found.a.tolist(), strict=True))
    assert [rate * (2 // len(found.a)) for rate in rates] == [pytest.approx(each) for each in expected]


def test_groups_are_held_against_each_other_in_order() -> None:
    mine, theirs = optimizer(0.1, 0.2), optimizer(0.1, 0.3)
    found = probe.compare_schedules(schedules.StepLR(mine, 3), schedules.StepLR(theirs, 3), 5)
    assert (found.first, found.group) == (0, 1) and "part at step 0, group 1:" in str(found)
    with pytest.raises(ConfigError, match="A has 2 parameter groups of different rates, B has 1"):
        probe.compare_schedules(schedules.StepLR(mine, 3), [0.1] * 5)


def test_the_state_of_the_optimizer_is_not_copied() -> None:
    opt = optimizer()
    large = opt.param_groups[0]["params"][0]

    class Held:
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise AssertionError("copied")

    opt.state[large] = {"exp_avg": Held()}
    assert probe.compare_schedules(schedules.StepLR(opt, 2, 0.1), [0.1, 0.1, 0.01]).equal


def test_schedules_that_cannot_be_simulated() -> None:
    with pytest.raises(ConfigError, match="ReduceLROnPlateau depends on a metric"):
        probe.compare_schedules(schedules.ReduceLROnPlateau(optimizer()), [0.1])
    with pytest.raises(ConfigError, match="OneCycleLR has no more than 11 steps"):
        probe.compare_schedules(schedules.OneCycleLR(optimizer(), 0.5, total_steps=10), lambda step: 0.1, 12)


def test_what_the_trainer_of_this_version_prints_is_read(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from types import SimpleNamespace

    from transformers.trainer_callback import PrinterCallback

    for step in range(1, 4):
        logs = {"loss": 10.6123456 / step, "grad_norm": 1.25, "learning_rate": 1e-5, "epoch": step / 10}
        PrinterCallback().on_log(None, SimpleNamespace(is_local_process_zero=True), None, logs=logs)
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text(("# " if name == "b.log" else "") + "\n")
    text = capsys.readouterr().out
    (tmp_path / "a.log").write_text(text)
    (tmp_path / "b.log").write_text(f"starting\n{text}")
    found = probe.curves(tmp_path / "a.log", tmp_path / "b.log")
    assert found.kind_a == "Trainer output" and found["loss"].pair.steps.tolist() == [1, 2, 3]
    assert found["loss"].pair.a.tolist() == [10.61, 5.306, 3.537]
