"""Which modules of a program are recorded that has no line of probe, and from when on."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import probe
from probe.testing import sample
from tests.recorder.long_runs import Net, alone  # noqa: F401
from tests.toy import nn
from tests.toy.tensor import Tensor, no_grad
from tests.unaided import FILE, recorded, roots, watched


@pytest.fixture(autouse=True)
def nothing_else_lives(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What other tests have left would be looked at; and what is said is looked at here."""
    all_objects = gc.get_objects
    kinds = (nn.Module, nn.Optimizer)
    old = [each for each in all_objects() if issubclass(type(each), kinds)]
    left = {id(each) for each in old}
    monkeypatch.setattr(
        "probe.run.choosing.gc.get_objects", lambda: [each for each in all_objects() if id(each) not in left]
    )
    monkeypatch.delenv("PROBE_QUIET", raising=False)
    yield
    del old


class Small(nn.Linear):
    """A model of another class."""

    def __init__(self) -> None:
        super().__init__(4, 2)


class Squares(nn.Module):
    """A loss function."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean()


class Holder(nn.Module):
    """What is not called itself, as a LightningModule."""


def x(index: int = 0) -> Tensor:
    return Tensor(sample((5, 4), index))


def step(model: Any, optimizer: nn.Optimizer, index: int = 0) -> None:
    model(x(index)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def norm(index: int) -> Any:
    return pytest.approx(float(np.linalg.norm(x(index).data)))


def first_input() -> float:
    """Return the norm of what the first recorded call of the model with gradients was given."""
    return next(s for s in recorded().find(phase="forward", role="input") if s.micro == 0).norm


def test_the_model_that_an_optimizer_trains_is_recorded_from_its_first_forward_with_gradients(
    capfd: pytest.CaptureFixture[str],
) -> None:
    net, teacher, squares = Net(), Small(), Squares()
    for parameter in teacher.parameters():
        parameter.requires_grad = parameter.node.requires_grad = False
    average, optimizer = copy.deepcopy(net), nn.SGD(net.parameters(), 0.1)
    with watched("numpy"):
        with no_grad():
            net(x(7))
        for index in range(3):
            teacher(x(index))
            with no_grad():
                average(x(index))
            squares(net(x(index))).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = recorded()
    assert roots() == ["Net"] and first_input() == norm(0) and len(run.steps) == 3
    assert {name for _, name, _ in run.scalars} == {"lr", "loss"} and not run.notes
    assert {s.step for s in run.find(phase="update", role="delta")} == {0, 1, 2}
    (line, _) = capfd.readouterr().err.splitlines()
    count = sum(p.data.size for p in net.parameters())
    assert line.startswith(f"probe: recording Net ({count} parameters, trained by SGD) to {FILE.absolute()}; if this")


def test_a_module_that_only_holds_the_model_is_not_taken_for_it() -> None:
    net = Small()
    holder = Holder(net=net, loss=Squares())
    optimizer = nn.SGD(holder.parameters(), 0.1)
    with watched("numpy"):
        step(net, optimizer)
    assert roots() == ["Small"] and holder


@pytest.mark.thorough
def test_a_module_that_holds_several_models_is_what_is_recorded() -> None:
    holder = Holder(first=Small(), second=Net())
    pairs = [(net, nn.SGD(net.parameters(), 0.1)) for net in (holder.first, holder.second)]
    with watched("numpy"):
        for index in range(4):
            step(*pairs[index % 2], index)
    run = recorded()
    assert roots() == ["Holder"] and len(run.steps) == 4
    assert [{s.path.split(".")[0] for s in run.find(step=n, role="delta")} for n in (0, 1)] == [{"first"}, {"second"}]


@pytest.mark.thorough
@pytest.mark.parametrize("at_once", [False, True])
def test_models_beside_each_other_are_recorded_together_the_largest_first(at_once: bool) -> None:
    first, second = Small(), Net()
    optimizers = [nn.SGD([*first.parameters(), *second.parameters()], 0.1)]
    if not at_once:
        optimizers = [nn.SGD(net.parameters(), 0.1) for net in (first, second)]
    with watched("numpy"):
        for index in range(2):
            (first(x(index)) + second(x(index))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    run = recorded()
    assert roots() == ["Net", "Small"] and len(run.steps) == 2
    assert {s.path.split(".")[0] for s in run.find(step=1, role="delta")} == {"0", "1"}


@pytest.mark.thorough
def test_what_was_trained_before_and_is_gone_is_not_recorded() -> None:
    old = Holder(net=Net())
    old.myself = [old, nn.SGD(old.net.parameters(), 0.1)]  # a cycle: it goes when objects are collected
    old = None
    net = Small()
    optimizer = nn.SGD(net.parameters(), 0.1)
    with watched("numpy"):
        step(net, optimizer)
    assert roots() == ["Small"]


@pytest.mark.thorough
def test_parameters_without_a_module_do_not_matter() -> None:
    net, loose = Small(), nn.Parameter(np.ones(4, np.float32))
    optimizer = nn.SGD([*net.parameters(), loose], 0.1)
    with watched("numpy"):
        (net(x()) * loose.data.mean()).sum().backward()
        optimizer.step()
    assert roots() == ["Small"]


def test_a_forward_before_the_optimizer_is_made_is_no_training() -> None:
    net = Small()
    with watched("numpy"):
        net(x(7))
        optimizer = nn.SGD(net.parameters(), 0.1)
        step(net, optimizer, 1)
    assert first_input() == norm(1) and len(recorded().steps) == 1


@pytest.mark.thorough
def test_many_forwards_before_the_optimizer_cost_little_and_a_late_start_is_said(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    looks: list[int] = []
    clock = iter(range(10**6))
    monkeypatch.setattr("probe.run.watching.time.monotonic", lambda: next(clock))
    collect = gc.get_objects
    monkeypatch.setattr("probe.run.choosing.gc.get_objects", lambda: looks.append(1) or collect())
    net = Small()
    with watched("numpy"):
        for _ in range(200):
            net(x())
        assert len(looks) < 30
        optimizer = nn.SGD(net.parameters(), 0.1)
        for _ in range(60):
            step(net, optimizer)
    assert 30 < len(recorded().steps) < 60
    assert f", from step {60 - len(recorded().steps)} on" in capfd.readouterr().err


def test_optimizers_inside_others_are_not_named(capfd: pytest.CaptureFixture[str]) -> None:
    class Wrapper(nn.Optimizer):
        def __init__(self, inner: nn.Optimizer) -> None:
            super().__init__(inner.param_groups)
            self.inner = inner

        def step(self) -> None:
            self.inner.step()

    net = Small()
    optimizer = Wrapper(nn.AdamW(net.parameters()))
    with watched("numpy"):
        step(net, optimizer)
    assert "trained by AdamW)" in capfd.readouterr().err and len(recorded().steps) == 1


# Names


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("its_program")
    monkeypatch.setitem(sys.modules, "its_program", module)
    return module


@pytest.mark.thorough
@pytest.mark.parametrize("attribute", ["trainer.net", "Small", "several"])
def test_a_model_may_be_named(attribute: str, program: ModuleType) -> None:
    first, second = Net(), Small()
    pairs = [(net, nn.SGD(net.parameters(), 0.1)) for net in (first, second)]
    with watched("numpy", models=(f"its_program:{attribute}",)):
        step(*pairs[0])
        step(*pairs[1])
        assert not FILE.exists()  # there is nothing of that name yet
        program.trainer, program.Small, program.several = Holder(net=second), Small, [second]
        for index in range(2):
            for pair in pairs:
                step(*pair, index)
    assert roots() == ["Small"] and len(recorded().steps) == 2


def test_several_models_may_be_named(program: ModuleType) -> None:
    program.first, program.second = Small(), Net()
    with watched("numpy", models=("its_program:first", "its_program:second")):
        program.second(x()).sum().backward()  # no optimizer is needed
        program.first(x()).sum().backward()
    assert roots() == ["Small", "Net"]


# What is not recorded


def test_a_program_that_records_itself_is_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    net = Small()
    optimizer = nn.SGD(net.parameters(), 0.1)
    with watched("numpy"):
        probe.start(net, "mine.h5")
        step(net, optimizer)
        probe.step()
        probe.stop()
        step(net, optimizer)
    assert not FILE.exists() and Path("mine.h5").exists() and not len(nn.call_pre_hooks)
    said = capfd.readouterr().err
    assert "nothing" not in said and said.count("the program calls probe.start itself: ") == 1


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("nothing", "no module ran with gradients in this process whose parameters an optimizer trains; to record processes that it "
                    "starts: python -m probe.run --install-hook"),
        ("copies", "what the optimizers train are no parameters of a module that was called; name the model: --model MODULE:ATTRIBUTE"),
        ("named", "no module named nowhere:model ran with gradients"),
        ("inherited", ""),
    ],
)  # fmt: skip
def test_why_nothing_was_recorded_is_said(
    case: str, said: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.run.watching.is_installed", lambda: False)
    net = Small()
    copies = [nn.Parameter(p.data.copy()) for p in net.parameters()]
    optimizer = nn.SGD(copies if case == "copies" else net.parameters(), 0.1)
    with watched("numpy", models=("nowhere:model",) if case == "named" else (), is_inherited=case == "inherited"):
        if case in ("copies", "named"):
            step(net, optimizer)
        else:
            with no_grad():
                net(x())
    assert capfd.readouterr().err == (f"probe: nothing was recorded: {said}\n" if said else "")
    assert not FILE.exists()


def test_the_program_goes_on_where_nothing_can_be_recorded(capfd: pytest.CaptureFixture[str]) -> None:
    FILE.write_text("something else")
    net = Small()
    optimizer = nn.SGD(net.parameters(), 0.1)
    before = net.weight.data.copy()
    with watched("numpy"):
        for index in range(3):
            step(net, optimizer, index)
    err = capfd.readouterr().err
    assert err.count("nothing is recorded") == 1 and "exists" in err
    assert not np.array_equal(before, net.weight.data) and FILE.read_text() == "something else"
    assert not len(nn.call_pre_hooks) and not len(nn.step_pre_hooks) and not len(net.pre_hooks)
