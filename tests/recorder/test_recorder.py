"""Details of the recorder, by the numpy framework."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.adapter import NumpyAdapter
from probe.adapters.numpy.tensor import Tensor, no_grad
from probe.errors import ExistsError, ProbeWarning, RecordingError
from probe.recorder.run import Run
from probe.testing import Recording, sample


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    nn.manual_seed(0)
    yield
    probe.stop()


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    return type("Block", (nn.Module,), {"forward": forward})(**members)


def batch(seed: int = 0) -> Tensor:
    return Tensor(sample((5, 4), seed))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def train(model: nn.Module, optimizer: nn.Optimizer, seed: int = 0) -> None:
    model(batch(seed)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def hooks(*models: nn.Module) -> int:
    count = len(nn.step_pre_hooks) + len(nn.step_post_hooks)
    return count + sum(len(m.pre_hooks) + len(m.post_hooks) for model in models for _, m in model.modules())


# Beginning and ending


def test_nothing_is_left_behind_when_start_fails(tmp_path: Path) -> None:
    model = mlp()
    with pytest.raises(RecordingError, match="given a builtins.str"):
        probe.start([model, "not a module"], tmp_path / "a.h5")
    assert hooks(model) == 0 and not (tmp_path / "a.h5").exists()
    (tmp_path / "b.h5").write_text("mine")
    with pytest.raises(ExistsError, match="overwrite=True"):
        probe.start(model, tmp_path / "b.h5")
    assert hooks(model) == 0 and (tmp_path / "b.h5").read_text() == "mine"
    probe.start(model, tmp_path / "a.h5")
    with pytest.raises(RecordingError, match="a.h5 is under way"):
        probe.start(model, tmp_path / "c.h5")
    probe.stop()
    probe.stop()
    assert hooks(model) == 0 and not len(Recording(tmp_path / "a.h5").steps)


def test_an_error_while_the_hooks_are_set_takes_them_off_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise ZeroDivisionError

    model = mlp()
    monkeypatch.setattr(NumpyAdapter, "on_parameter_gradients", fails)
    with pytest.raises(ZeroDivisionError):
        probe.start(model, tmp_path / "a.h5")
    assert hooks(model) == 0 and not (tmp_path / "a.h5").exists()
    monkeypatch.undo()
    probe.start(model, tmp_path / "a.h5")


def test_step_without_a_recording_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.session._warned", False)
    with pytest.warns(ProbeWarning, match="no recording is under way"):
        probe.step(loss=1.0)
    probe.step(loss=1.0)


def test_ranks_that_are_not_wanted_record_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    model = mlp()
    assert probe.start(model, tmp_path / "a.h5", ranks=[0]) is None
    assert hooks(model) == 0
    probe.step()
    probe.log("x", 1.0)
    probe.stop()
    assert probe.start(model, tmp_path / "a.h5", ranks=[1]) == tmp_path / "a.rank00001.h5"
    probe.stop()
    info = Recording(tmp_path / "a.rank00001.h5").info
    assert (info.rank, info.world_size, info.framework, info.closed) == (1, 2, "numpy", True)


def test_the_file_says_what_the_model_is(tmp_path: Path) -> None:
    model = mlp()
    model.config = {"heads": 2}
    with probe.capture(model, tmp_path / "a.h5", modules="Linear", steps="0-3"):
        pass
    run = Recording(tmp_path / "a.h5")
    assert run.info.model_config == {"heads": 2}
    assert run.info.config["modules"] == ["Linear"] and run.info.config["steps"] == [[0, 3]]
    assert [(m.path, m.class_name, m.parent, m.n_params) for m in run.modules] == [
        ("", "Sequential", -1, 30), ("0", "Linear", 0, 20), ("1", "ReLU", 0, 0), ("2", "Linear", 0, 10)
    ]  # fmt: skip
    assert run.modules[1].file == nn.__file__
    assert "def forward" in Path(nn.__file__).read_text().splitlines()[run.modules[1].line - 1]


def test_a_recording_holds_nothing_of_the_model(tmp_path: Path) -> None:
    model = mlp()
    optimizer = nn.AdamW(model.parameters())
    references = [weakref.ref(item) for item in (model, model.parameters()[0], optimizer)]
    probe.start(model, tmp_path / "a.h5", task="tensor", optimizer=optimizer)
    for _ in range(2):
        train(model, optimizer)
        probe.step()
    train(model, optimizer)
    probe.stop()
    del model, optimizer
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_what_there_is_no_room_to_say_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stack that is nearly full a hook fails, and so does the message about it."""

    def full(*args: Any) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    model = mlp()
    plain = model(batch()).data.tobytes()
    with probe.capture(model, tmp_path / "a.h5"):
        with monkeypatch.context() as patch:
            patch.setattr(NumpyAdapter, "context", full)
            patch.setattr(Run, "note", full)
            assert model(batch()).data.tobytes() == plain
        probe.step()
        model(batch())
    run = Recording(tmp_path / "a.h5")
    assert run.notes == [(0, -1, "not recorded because of an error inside probe that could not be said")]
    assert len(run.find(step=1, role="output")) == 4


# Steps


def test_parameters_are_recorded_at_the_start_of_what_does_not_follow_a_recorded_step(tmp_path: Path) -> None:
    model = mlp()
    optimizer = nn.SGD(model.parameters(), 0.1)
    probe.start(model, tmp_path / "a.h5", steps=[1, 2, 4])
    for seed in range(6):
        train(model, optimizer, seed)
        probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert {s.step for s in run.find(phase="init")} == {1, 4}
    assert run.steps["step"].tolist() == [1, 2, 4]
    place = {"path": "0", "slot": "weight"}
    assert run.one(phase="update", role="param", step=1, **place).hash != run.one(phase="init", step=4, **place).hash


def test_gradients_after_their_step_are_said_to_be_missing(tmp_path: Path) -> None:
    model = mlp()
    probe.start(model, tmp_path / "a.h5")
    loss = model(batch()).sum()
    probe.step()
    with pytest.warns(ProbeWarning, match="gradients arrived after the probe.step"):
        loss.backward()
    probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert not run.find(phase="backward") and "gradients arrived after" in run.notes[0][2]


def test_a_step_that_an_exception_ends_is_kept_and_marked(tmp_path: Path) -> None:
    model = mlp()
    optimizer = nn.SGD(model.parameters(), 0.1)
    with pytest.raises(KeyboardInterrupt), probe.capture(model, tmp_path / "a.h5"):
        train(model, optimizer)
        probe.step(loss=3.0)
        model(batch())
        raise KeyboardInterrupt
    run = Recording(tmp_path / "a.h5")
    assert run.steps["state"].tolist() == [0, 1] and run.info.closed
    assert {s.phase for s in run.find(step=1)} == {"forward"}


@pytest.mark.parametrize("loss", ["high", np.ones(2), Tensor(np.ones(2))])
def test_a_loss_must_be_one_number(tmp_path: Path, loss: object) -> None:
    probe.start(mlp(), tmp_path / "a.h5")
    with pytest.warns(ProbeWarning, match="loss is not recorded: expected a number or a tensor with one element"):
        probe.step(loss=loss)


# Calls


@pytest.mark.parametrize("where", ["root", "child"])
def test_after_an_interrupt_the_next_forward_begins_anew(tmp_path: Path, where: str) -> None:
    def forward(module: nn.Module, x: Tensor) -> Tensor:
        if module.interrupted:
            raise KeyboardInterrupt
        return module.layer(x) if where == "root" else x * 1.0

    layer = nn.Linear(4, 4)
    fragile = block(forward, layer=layer) if where == "root" else block(forward)
    model = fragile if where == "root" else nn.Sequential(fragile, layer)
    probe.start(model, tmp_path / "a.h5")
    for fragile.interrupted in (False, True, False):
        with contextlib.suppress(KeyboardInterrupt):
            model(batch())
    probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    roots = [(int(c["micro"]), int(c["call"]), int(c["caller"])) for c in run.calls if c["module"] == 0]
    assert roots == [(0, 0, -1), (1, 0, -1), (2, 0, -1)]
    last = run.find(micro=2, role="output")
    assert {s.call for s in last} == {0} and len(last) == (2 if where == "root" else 3)


def test_a_model_that_calls_another_of_the_list_counts_it_in_its_own_pass(tmp_path: Path) -> None:
    inner = nn.Linear(4, 4)
    outer = block(lambda module, x: module.after(inner(module.before(x))), before=nn.ReLU(), after=nn.ReLU())
    probe.start([outer, inner], tmp_path / "a.h5")
    for _ in range(2):
        outer(batch()).sum().backward()
    probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert run.called() == [(m, path, 0) for m in (0, 1) for path in ("0", "0.before", "1", "0.after")]
    assert [s.micro for s in run.find(path="0.after", role="output")] == [0, 1]
    assert all(c["end"] > c["seq"] for c in run.calls)


def test_a_module_under_two_names_is_one_module(tmp_path: Path) -> None:
    shared = nn.Linear(4, 4)
    with probe.capture(nn.Sequential(shared, nn.ReLU(), shared), tmp_path / "a.h5") as path:
        nn.Sequential(shared)(batch())
        assert path == tmp_path / "a.h5"
    run = Recording(tmp_path / "a.h5")
    assert [m.path for m in run.modules] == ["", "0", "1"]
    assert {p.names for p in run.parameters} == {("0.weight", "2.weight"), ("0.bias", "2.bias")}
    assert run.called() == [(0, "0", 0)]


def test_what_an_output_raises_when_it_is_looked_at_does_not_reach_the_training(tmp_path: Path) -> None:
    class Evil(dict):
        def items(self) -> Any:
            raise ZeroDivisionError("planted")

    model = nn.Sequential(block(lambda module, x: Evil(x=x)), block(lambda module, given: given["x"] * 2.0))
    probe.start(model, tmp_path / "a.h5")
    with pytest.warns(ProbeWarning, match="error inside probe: ZeroDivisionError"):
        model(batch()).sum()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert run.find(path="1", role="output") and run.find(path="", role="output")
    assert run.calls["caller"].tolist() == [-1, 0, 0] and len(run.notes) == 1


def test_warnings_that_are_errors_do_not_reach_the_training_either(tmp_path: Path) -> None:
    class Evil(dict):
        def items(self) -> Any:
            raise ZeroDivisionError("planted")

    model = block(lambda module, x: Evil(x=x))
    probe.start(model, tmp_path / "a.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(batch())
    probe.stop()
    assert "planted" in Recording(tmp_path / "a.h5").notes[0][2]


# Measuring


def test_a_tensor_that_was_not_written_to_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, measured = NumpyAdapter.measure, []
    monkeypatch.setattr(
        NumpyAdapter,
        "measure",
        lambda self, t, axes: measured.append(t.data.tobytes()) or whole(self, t, axes),
    )
    model = nn.Sequential(nn.Sequential(nn.ReLU(), nn.ReLU(inplace=True)))
    probe.start(model, tmp_path / "a.h5", phases="forward")
    with no_grad():
        model(batch())
    probe.stop()
    assert len(measured) == 3  # the input, the first output, and what is there after the second wrote to it
    assert len(Recording(tmp_path / "a.h5").seen) == 8


def test_parameters_are_always_read(tmp_path: Path) -> None:
    """Optimizers write to parameters without a trace."""
    model = nn.Sequential(nn.Linear(4, 4))
    probe.start(model, tmp_path / "a.h5", phases=["init", "update"])
    optimizer = nn.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    probe.step()
    model(batch()).sum().backward()
    optimizer.step()
    probe.step()
    model(batch()).sum().backward()
    optimizer.step()
    optimizer.step()
    assert {p.version for p in model.parameters()} == {0}
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    place = {"role": "param", "slot": "weight"}
    assert len({s.hash for s in run.find(**place)}) == 4, "at the beginning, and as each step left them"
    assert len(run.find(role="delta", slot="weight")) == 4


def test_gradients_are_always_read(tmp_path: Path) -> None:
    """Clipping by hand writes to them without a trace."""
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = nn.SGD(model.parameters(), 0.1)
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch()).sum().backward()
        for parameter in model.parameters():
            parameter.grad.data[...] *= 0.5
        assert {parameter.grad.version for parameter in model.parameters()} == {0}
        optimizer.step()
    left, used = Recording(tmp_path / "a.h5").find(role="param_grad", slot="weight")
    assert used.hash != left.hash and used.norm == pytest.approx(left.norm / 2)


def test_what_is_logged_is_recorded_whatever_the_module_filter_says(tmp_path: Path) -> None:
    def forward(module: nn.Module, x: Tensor) -> Tensor:
        y = module.layer(x)
        probe.log("inside", y)
        return y * 2.0

    model = block(forward, layer=nn.Linear(4, 4))
    with pytest.warns(ProbeWarning, match=r"modules='nothing\*' matches no module"):
        probe.start(model, tmp_path / "a.h5", modules="nothing*", task="tensor")
    y = model(batch())
    probe.log("outside", y)
    y.sum().backward()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    kept = [(s.phase, s.role, s.slot) for s in run.seen]
    assert kept == [
        ("forward", "value", "inside"), ("loss", "value", "outside"),
        ("backward", "grad_output", "outside"), ("backward", "grad_output", "inside"),
    ]  # fmt: skip
    assert (run.seen[3].values == 2).all() and (run.seen[2].values == 1).all()


@pytest.mark.parametrize("task", ["structure", "statistics", "norms"])
def test_what_own_code_writes_is_recorded_as_the_step_leaves_it(tmp_path: Path, task: str) -> None:
    model, teacher = mlp(), mlp()
    optimizer = nn.SGD(model.parameters(), lr=0.1)
    with probe.capture([model, teacher], tmp_path / "a.h5", task=task):
        for number in range(3):
            train(model, optimizer)
            if number == 1:
                mine, theirs = (next(iter(each.parameters())) for each in (teacher, model))
                with no_grad():
                    mine.become(mine * 0.9 + theirs * 0.1)
            probe.step()
    left = Recording(tmp_path / "a.h5").find(phase="update", role="param")
    found = [(each.step, each.path, each.slot) for each in left if each.path.startswith("1.")]
    assert found == ([(1, "1.0", "weight")] if task == "statistics" else [])
