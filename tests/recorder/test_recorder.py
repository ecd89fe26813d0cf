"""Details of the recorder, by the numpy framework: records, buffers, slots, the module tree, passes of models that nobody calls."""

from __future__ import annotations

import contextlib
import gc
import os
import time
import warnings
import weakref
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ExistsError, ProbeWarning, RecordingError
from probe.numbers import buffers
from probe.numbers.slots import flatten
from probe.recorder.run import Run
from probe.testing import Recording, sample
from tests.published.trees import printed_tree, tree
from tests.recorder.long_runs import Net
from tests.recorder.long_runs import alone as alone
from tests.toy import nn
from tests.toy.adapter import NumpyAdapter
from tests.toy.tensor import Tensor, no_grad

# ---- Details of the recorder, by the numpy framework.


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


# ---- Blocks are used again when nobody sees them any more, and never before.

LARGE = (1 << 18,)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    buffers.release()
    yield
    buffers.release()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_block_is_used_again() -> None:
    array = buffers.empty(LARGE, np.dtype("f4"))
    first = address(array)
    del array
    assert address(buffers.empty((1 << 17,), np.dtype("f8"))) == first


def test_a_block_that_a_view_still_shows_is_not_used_again() -> None:
    array = buffers.empty((2, *LARGE), np.dtype("f4"))
    array[:] = 1
    row = memoryview(array[1].view(np.uint8))
    first = address(array)
    del array
    other = buffers.empty((2, *LARGE), np.dtype("f4"))
    other[:] = 2
    assert address(other) != first and np.array_equal(np.frombuffer(row, "f4"), np.ones(LARGE))


def test_unused_blocks_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_LIMIT", 3 << 20)
    arrays = [buffers.empty(LARGE, np.dtype("f4")) for _ in range(5)]
    arrays.clear()
    assert sum(map(len, buffers._unused.values())) == 3
    buffers.release()
    assert not buffers._unused


@pytest.mark.parametrize("shape", [(), (0, 5), (3, 4)])
def test_small_arrays_are_plain_ones(shape: tuple[int, ...]) -> None:
    assert buffers.empty(shape, np.dtype("i2")).base is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_write_into_what_its_parent_copied() -> None:
    """Anonymous maps are shared with children unless one asks otherwise."""
    array = buffers.empty(LARGE, np.dtype("f4"))
    array[:] = 1
    child = os.fork()
    if not child:
        array[:] = 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 1).all()


# ---- Names of the tensors in arguments and outputs.

Pair = namedtuple("Pair", "left right")


@dataclass
class Output:
    loss: object = None
    hidden: object = ()
    note: str = "text"


@dataclass
class Node:
    value: object = None
    parent: object = None
    children: list[object] = field(default_factory=list)


class T:
    """Stands for a tensor; what else it may be does not matter."""


class TensorDict(T, UserDict):
    """A tensor that looks like a container."""


a, b, c = T(), T(), T()


def slots(value: object, slot: str = "") -> list[tuple[str, object]]:
    return list(flatten(value, lambda item: isinstance(item, T), slot))


@pytest.mark.parametrize(
    "value, expected",
    [
        (a, [("0", a)]),
        ((a, b), [("0", a), ("1", b)]),
        ([a, None, 3, "x", b], [("0", a), ("4", b)]),
        ({"x": a, "y": [b, {"z": c}]}, [("x", a), ("y.0", b), ("y.1.z", c)]),
        ({1: a, (2, 3): b}, [("1", a), ("(2, 3)", b)]),
        (OrderedDict(z=a, y=b), [("z", a), ("y", b)]),
        (MappingProxyType({"m": a}), [("m", a)]),
        (UserDict(u=a), [("u", a)]),
        (Pair(a, (b,)), [("left", a), ("right.0", b)]),
        (Output(loss=a, hidden=(b, None, c)), [("loss", a), ("hidden.0", b), ("hidden.2", c)]),
        ([TensorDict(x=a)], None),
        ((a, a), [("0", a), ("1", a)]),
        ([[[]], {}, (), None, 5, "abc", b"abc", {a, b}, Output, object()], []),
        (None, []),
        ("text", []),
    ],
)
def test_names(value: object, expected: list[tuple[str, object]] | None) -> None:
    assert slots(value) == ([("0", value[0])] if expected is None else expected)  # type: ignore[index]


def test_a_name_for_the_whole() -> None:
    assert slots(a, "x") == [("x", a)]
    assert slots([a, {"k": b}], "x") == [("x.0", a), ("x.1.k", b)]


def test_containers_that_hold_themselves() -> None:
    """A tree whose nodes know their parents would take 5 to the 16 steps."""
    root = Node(a)
    root.children = [Node(b, root) for _ in range(5)]
    for child in root.children:
        child.children = [Node(c, child) for _ in range(5)]  # type: ignore[attr-defined]
    began = time.process_time()
    assert len(slots(root)) == 31
    assert slots(root)[:2] == [("value", a), ("children.0.value", b)]
    assert time.process_time() - began < 3
    holds_itself: list[object] = [a]
    holds_itself.append(holds_itself)
    assert slots(holds_itself) == [("0", a)]


def test_the_same_container_twice_is_not_a_circle() -> None:
    shared = [a]
    assert slots([shared, shared]) == [("0.0", a), ("1.0", a)]


def test_depth_is_bounded() -> None:
    deep: object = a
    for _ in range(12):
        deep = [deep]
    assert slots(deep) == [(".".join("0" * 12), a)]
    for _ in range(50):
        deep = [deep]
    assert slots(deep) == []


def test_many_items() -> None:
    began = time.process_time()
    assert len(slots([a, *range(300_000), b])) == 2
    assert time.process_time() - began < 3


# ---- The module tree: names, paths, wrappers that are looked through.

WRAPPED = [
    ("DistributedDataParallel", "module"),
    ("DataParallel", "module"),
    ("DataParallel", "_layers"),
    ("FullyShardedDataParallel", "_fsdp_wrapped_module"),
    ("DeepSpeedEngine", "module"),
    ("Float16Module", "module"),
    ("OptimizedModule", "_orig_mod"),
    ("CheckpointWrapper", "_checkpoint_wrapped_module"),
    ("PipelineParallel", "_layers"),
    ("TensorParallel", "_layers"),
    ("ShardingParallel", "_layers"),
]

NET = {"": "Net", "layers": "ModuleList", "layers.0": "Block", "layers.0.up": "Linear", "layers.1": "Block",
       "layers.1.up": "Linear", "head": "Linear"}  # fmt: skip


def test_children_names_and_paths() -> None:
    net = tree(NET)
    assert len(net) == 7
    assert net.children[net.root] == {"layers": 1, "head": 6}
    assert net.children[2] == {"up": 3}
    assert [net.name(i) for i in range(7)] == ["", "layers", "0", "up", "1", "up", "head"]
    assert net.steps_to(5) == ["layers", "1", "up"]
    assert net.steps_to(net.root) == []
    assert net.by_path["layers.1.up"] == 5
    assert (net.path(5), net.class_name(5)) == ("layers.1.up", "Linear")


def test_a_name_that_begins_like_its_parent_is_not_cut_short() -> None:
    net = tree({"": "Net", "mlp": "MLP", "mlp.mlp": "Linear", "mlp.mlp_2": "Linear"})
    assert net.children[1] == {"mlp": 2, "mlp_2": 3}


def test_subtree_yields_parents_first_and_nothing_beside() -> None:
    net = tree(NET)
    assert list(net.subtree(1)) == [1, 2, 3, 4, 5]
    assert list(net.subtree(6)) == [6]


@pytest.mark.parametrize(("class_name", "name"), WRAPPED)
def test_a_wrapper_is_looked_through(class_name: str, name: str) -> None:
    net = tree({"": class_name, name: "Net", f"{name}.up": "Linear"})
    assert net.wrapped(0) == name
    assert net.unwrapped(0) == 1
    assert net.child(0, "up") == 2
    assert net.resolve(0, ["up"]) == net.resolve(0, [name, "up"]) == 2


def test_wrappers_inside_wrappers_are_looked_through() -> None:
    net = tree({"": "list", "0": "DistributedDataParallel", "0.module": "Float16Module",
                "0.module.module": "OptimizedModule", "0.module.module._orig_mod": "Net",
                "0.module.module._orig_mod.up": "Linear"})  # fmt: skip
    assert net.path(net.unwrapped(net.root)) == "0.module.module._orig_mod"
    assert net.resolve(0, ["up"]) == 5
    assert net.resolve(0, ["0", "module", "up"]) == 5, "some of the names given, others left out"
    assert net.resolve(0, []) == 0


@pytest.mark.parametrize(
    "classes",
    [
        {"": "DistributedDataParallel", "net": "Net"},
        {"": "Net", "module": "Net"},
        {"": "list", "0": "Net", "1": "Net"},
        {"": "list"},
        {"": "Net", "chunks": "list", "chunks.0": "Net"},
    ],
    ids=["wrapper without its child", "no wrapper", "two chunks", "empty list", "list that is not the root"],
)
def test_what_is_no_wrapper_stays(classes: dict[str, str]) -> None:
    net = tree(classes)
    assert all(net.wrapped(i) is None and net.unwrapped(i) == i for i in range(len(net)))


def test_a_child_of_the_wrapper_goes_before_one_inside() -> None:
    net = tree({"": "DeepSpeedEngine", "module": "Net", "module.loss": "Linear", "loss": "Loss"})
    assert net.child(0, "loss") == 3


def test_what_is_not_there_is_none() -> None:
    net = tree(NET)
    assert net.child(0, "up") is None
    assert net.resolve(0, ["layers", "2", "up"]) is None
    assert net.resolve(0, ["layers", "0", "up", "down"]) is None


@pytest.mark.parametrize(
    ("file", "count", "last"),
    [
        ("mindspeed-mm-qwen25vl.txt", 433, "0.module.module.text_decoder.output_layer"),
        ("llamafactory-qwen25vl.txt", 307, "module.lm_head"),
    ],
)
def test_printed_trees_are_read_whole(file: str, count: int, last: str) -> None:
    net = printed_tree(file)
    assert len(net) == count
    assert net.path(count - 1) == last
    assert net.class_name(net.unwrapped(net.root)) in ("VLMModel", "Qwen2_5_VLForConditionalGeneration")


def test_a_deep_tree_is_walked() -> None:
    depth = 300
    paths = [".".join(["a"] * n) for n in range(depth)]
    net = tree(dict.fromkeys(paths, "Net"))
    assert len(list(net.subtree(0))) == depth
    assert net.resolve(0, ["a"] * (depth - 1)) == depth - 1


# ---- Passes of models that nobody calls, but only the modules in them: a LightningModule, a namespace of networks.


class Holder(nn.Module):
    """Is never called, or only to evaluate."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Squares(nn.Module):
    """A loss function."""

    def forward(self, x: Tensor) -> Tensor:
        return (x * x).mean()


def x(index: int) -> Tensor:
    return Tensor(sample((5, 4), index))


def calls(path: str) -> list[tuple[int, int, int]]:
    """Return (step, micro, number) of every call of a module."""
    run = Recording(Path("a.h5"))
    return sorted({(s.step, s.micro, s.call) for s in run.find(phase="forward", role="input", path=path)})


@pytest.mark.parametrize("evaluates", ["", "net", "holder"])
def test_micro_batches_and_evaluations_are_told_apart(evaluates: str) -> None:
    holder = Holder(net=Net(), loss=Squares())
    optimizer = nn.SGD(holder.parameters(), 0.1)
    probe.start(holder, "a.h5")
    for step in range(2):
        for micro in range(2):
            holder.loss(holder.net(x(2 * step + micro))).backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step()
        with no_grad():
            for index in range(2):
                if evaluates:
                    {"net": holder.net, "holder": holder}[evaluates](x(7 + index))
    probe.stop()
    trained = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]
    evaluated = {"": [], "net": [(1, -1, 0), (1, -1, 1), (2, -1, 0), (2, -1, 1)],
                 "holder": [(1, -1, 0), (1, -2, 0), (2, -1, 0), (2, -2, 0)]}[evaluates]  # fmt: skip
    assert calls("net") == sorted(trained + evaluated)
    assert calls("loss") == trained  # in the pass that it ends


def test_a_module_that_is_called_again_before_backward_is_in_the_same_pass() -> None:
    """As the cell of a recurrent network is, when the program has the loop over time."""
    holder = Holder(net=nn.Linear(4, 4))
    probe.start(holder, "a.h5")
    for _ in range(2):
        state: Any = x(0)
        for _ in range(3):
            state = holder.net(state)
        state.sum().backward()
    probe.stop()
    assert calls("net") == [(0, micro, number) for micro in range(2) for number in range(3)]


def test_a_model_that_is_trained_by_calling_it_tells_passes_itself() -> None:
    holder = Holder(net=Net())
    probe.start(holder, "a.h5")
    holder(x(0)).sum().backward()
    for index in (1, 2):
        holder.net(x(index)).sum().backward()  # beside it
    holder(x(3)).sum().backward()
    probe.step()
    probe.stop()
    assert calls("net") == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0)]
