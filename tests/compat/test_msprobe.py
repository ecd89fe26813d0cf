"""`probe.compat.msprobe`: mindstudio-probe's calls in a training of the numpy framework."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe import session
from probe.compat import msprobe
from probe.compat.msprobe import PrecisionDebugger
from probe.errors import ConfigError, ProbeWarning
from probe.testing import Recording, sample
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In an empty folder, with neither a debugger nor a recording, and nothing said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PrecisionDebugger, "_instance", None)
    monkeypatch.setattr(msprobe, "_said", set())
    yield
    probe.stop()


class Training:
    """A linear layer, its optimizer, and what a training program does with both."""

    def __init__(self) -> None:
        nn.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = nn.SGD(self.model.parameters(), 0.1)

    def backward(self, number: int) -> None:
        (self.model(Tensor(sample((4, 3), number))) * 2).sum().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def evaluate(self) -> None:
        with no_grad():
            self.model(Tensor(sample((4, 3), 99)))


def debugger(**fields: Any) -> PrecisionDebugger:
    Path("config.json").write_text(json.dumps({"task": "tensor", "dump_path": "dump", "level": "L0", **fields}))
    return PrecisionDebugger(config_path="./config.json")


def recorded() -> Recording:
    probe.stop()
    (path,) = Path("dump").glob("*.h5")
    return Recording(path)


def keys(run: Recording) -> list[tuple[int, str, str, str]]:
    return [(s.step, s.phase, s.role, s.slot) for s in run.seen if s.phase != "init"]


def as_probe_records(steps: int) -> list[tuple[int, str, str, str]]:
    """Return what a program that calls probe itself records."""
    training = Training()
    probe.start(training.model, "plain.h5", task="tensor")
    for number in range(steps):
        training.backward(number)
        training.update()
        probe.step()
    probe.stop()
    return keys(Recording(Path("plain.h5")))


@pytest.mark.parametrize("updates", ["before stop", "between stop and step", "after step"])
def test_an_update_belongs_to_the_step_of_its_gradients(updates: str) -> None:
    expected = as_probe_records(3)
    training, tool = Training(), debugger()
    for number in range(3):
        tool.start(training.model)
        training.backward(number)
        if updates == "before stop":
            training.update()
        tool.stop()
        if updates == "between stop and step":
            training.update()
        tool.step()
        if updates == "after step":
            training.update()
        training.evaluate()  # not between start and stop
    run = recorded()
    assert keys(run) == expected
    assert run.notes == [] and {micro for micro, _, _ in run.called()} == {0}


def test_steps_in_which_nothing_was_started_are_counted_and_left_out() -> None:
    training, tool = Training(), debugger()
    for number in range(6):
        if number in (1, 2, 4):
            PrecisionDebugger.start(model=training.model)
        training.backward(number)
        PrecisionDebugger.stop()
        PrecisionDebugger.step()
        training.update()
    assert tool is PrecisionDebugger("another.json")  # one for each process
    run = recorded()
    assert [int(step) for step in run.steps["step"]] == [1, 2, 4]
    inputs = [s.values for s in run.find(phase="forward", role="input")]
    assert all(np.array_equal(a, sample((4, 3), b)) for a, b in zip(inputs, (1, 2, 4), strict=True))
    assert {s.step for s in run.find(role="param_grad", phase="update")} == {1, 2, 4}
    assert {s.step for s in run.find(role="param", phase="init")} == {1, 4}  # those of 2 are what 1 left


def test_the_steps_of_the_configuration_count_from_the_first_call() -> None:
    training, tool = Training(), debugger(step=[10, "12-13"])
    tool.set_init_step(10)
    for number in range(5):
        tool.start(training.model)
        training.backward(number)
        tool.stop()
        tool.step(loss=float(number))
    run = recorded()
    assert [int(step) for step in run.steps["step"]] == [10, 12, 13]
    assert [(step, name, value) for step, name, value in run.scalars] == [
        (10, "loss", 0.0),
        (12, "loss", 2.0),
        (13, "loss", 3.0),
    ]


def test_without_stop_each_step_ends_at_once() -> None:
    training, tool = Training(), debugger()
    tool.start(training.model)
    for number in range(3):
        training.backward(number)
        training.update()
        tool.step()
    assert keys(recorded()) == as_probe_records(3)


def test_the_part_between_start_and_forward_backward_dump_end() -> None:
    training, tool = Training(), debugger()
    head = nn.Linear(2, 2)
    outer = nn.Sequential(training.model, head)
    tool.start(outer)
    hidden = training.model(Tensor(sample((4, 3))))
    tool.forward_backward_dump_end()
    head(hidden).sum().backward()
    tool.stop()
    tool.step()
    run = recorded()
    assert [path for _, path, _ in run.called()] == ["0"]
    assert run.find(phase="backward", path="0")  # of what ran between both


def test_the_model_in_a_variable_of_the_caller_is_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROBE_QUIET")

    def train(model: nn.Module, criterion: nn.Module) -> None:
        inner, *_ = model
        tool = debugger()
        tool.start()
        criterion(model(Tensor(sample((4, 3)))))
        del inner

    train(nn.Sequential(nn.Linear(3, 2)), nn.ReLU())  # an activation has no parameters
    assert recorded().modules[0].class_name == "Sequential"
    assert (
        "model (Sequential) is recorded: start() was given no model, and train() has this one"
        in capsys.readouterr().err
    )


def test_the_model_of_a_trainer_is_taken() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.model = nn.Linear(3, 2)
            self.model_wrapped = nn.Sequential(self.model)

        def step(self) -> None:
            PrecisionDebugger.start()
            self.model_wrapped(Tensor(sample((4, 3))))

    debugger()
    Trainer().step()
    assert recorded().modules[0].class_name == "Sequential"


def test_no_model_and_several_are_errors() -> None:
    def none() -> None:
        PrecisionDebugger.start()

    def several() -> None:
        student, teacher = nn.Linear(3, 2), nn.Linear(3, 2)
        PrecisionDebugger.start()
        del student, teacher

    debugger()
    with pytest.raises(
        ConfigError, match=r"no model, and none\(\) has none: debugger\.start\(model=\.\.\.\) names one"
    ):
        none()
    with pytest.raises(ConfigError, match=r"no model, and several\(\) has student and teacher"):
        several()
    assert not session.is_under_way()


def test_arguments_come_before_the_file_in_either_order() -> None:
    debugger()
    PrecisionDebugger._instance = None
    model = nn.Linear(3, 2)
    tool = PrecisionDebugger("./config.json", "structure", "elsewhere", "L0", model, [0])  # as in earlier versions
    tool.start()
    model(Tensor(sample((4, 3))))
    tool.step()
    probe.stop()
    run = Recording(next(Path("elsewhere").glob("*.h5")))
    assert run.info.config["task"] == "structure" and run.info.config["steps"] == [[0, 0]]


def test_save_records_tensors_and_their_gradients() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.up(x)
            PrecisionDebugger.save({"a": hidden, "b": [x, 3]}, "both")
            return hidden

    PrecisionDebugger(dump_path="dump", level="debug", task="tensor")
    net = Net(up=nn.Linear(3, 2))
    for number in range(2):
        net(Tensor(sample((4, 3), number))).sum().backward()
        PrecisionDebugger.step()
    run = recorded()
    assert {(s.step, s.role, s.slot) for s in run.seen} == {
        (step, role, slot)
        for step in range(2)
        for role, slot in (("value", "both.a"), ("value", "both.b.0"), ("grad_output", "both.a"))
    }


def test_what_is_done_otherwise_is_said_once() -> None:
    tool, models = debugger(), [nn.Linear(3, 2), nn.Linear(3, 2)]
    with pytest.warns(ProbeWarning) as caught:
        for _ in range(2):
            tool.start(models[0], token_range=[1, 3])
            tool.stop()
            tool.start(models[1])
            msprobe.module_dump(models[0], "mine")
            msprobe.module_dump_end()
            tool.register_custom_api(np, "matmul")
    said = [str(each.message).removeprefix("probe: ").partition(":")[0] for each in caught]
    assert said == [
        "token_range",
        "start() was given another model, which is not recorded",
        "module_dump",
        "register_custom_api",
    ]


def test_names_that_are_not_there_say_what_to_do() -> None:
    with pytest.raises(
        ImportError, match=r'has no TrainerMon: record gradient norms with probe\.start\(\.\.\., task="norms"\)'
    ):
        from probe.compat.msprobe import TrainerMon  # noqa: F401
    assert not hasattr(msprobe, "Trainer")
    with pytest.raises(ConfigError, match="no PrecisionDebugger was made"):
        PrecisionDebugger.start()


def test_a_configuration_that_cannot_be_used_is_an_error_at_once() -> None:
    with pytest.raises(ConfigError, match="probe has no such task"):
        PrecisionDebugger(task="acc_check", dump_path="x")
    assert PrecisionDebugger._instance is None


@pytest.mark.thorough
def test_seed_all_as_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(ProbeWarning, match="is_enhanced, the same random numbers at every call, is not done"):
        found = msprobe.seed_all(mode=True, rm_dropout=True, is_enhanced=True)
    assert (found.seed, found.deterministic) == (1234, True)
    assert "dropout off: " in capsys.readouterr().err
    first = np.random.random(3)
    msprobe.seed_all(1234)
    assert np.array_equal(np.random.random(3), first)
