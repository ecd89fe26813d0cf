"""Training is bitwise the same with and without probe in MindSpore, and probe leaves nothing behind.

What is trained stands in ``zoo_mindspore.py``; here it is run plainly and with probe, and everything is compared.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

mindspore = pytest.importorskip("mindspore")

import zoo_mindspore as zoo  # noqa: E402
from mindspore import Tensor, nn  # noqa: E402
from zoo_mindspore import CASES, Result, train  # noqa: E402

import probe  # noqa: E402
from probe.adapters.mindspore import calls  # noqa: E402
from probe.adapters.mindspore.adapter import MindSporeAdapter  # noqa: E402
from probe.adapters.mindspore.optimizers import CLASSES  # noqa: E402
from tests.left_as_it_was import failing  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")

CELL_HOOKS = ("_forward_pre_hook", "_forward_hook", "_backward_pre_hook", "_backward_hook")


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    probe.stop()


def hooks(model: nn.Cell, optimizer: nn.Cell) -> set[tuple]:
    """Every hook on the cells and parameters of a model and its optimizer, and those of the process."""
    found = {("all", kind.__name__) for kind in CLASSES if "__call__" in vars(kind)}
    found |= {("all", "call")} if calls.is_replaced() else set()
    found |= {("all", "grad")} if "grad" in vars(nn.cell._pynative_executor) else set()
    for root in (model, optimizer):
        for path, cell in root.cells_and_names():
            found |= {(path, id(watch)) for watch in calls.watched.get(id(cell), ())}
            found |= {(path, name, key) for name in CELL_HOOKS for key in getattr(cell, name)}
        for path, parameter in root.parameters_and_names():
            found |= {(path, id(hook)) for hook in parameter.hooks()}
    return found


class Recording:
    """Records with probe, and sees to it that hooks do not pile up and are gone at the end."""

    least = 100
    """so many records there must be at least"""

    def __init__(self, path: Path, task: str = "statistics", watched: bool = True) -> None:
        self.path, self.task, self.watched = path, task, watched
        self.sizes: list[int] = []

    def start(self, model: nn.Cell, optimizer: nn.Cell) -> None:
        self.trained = model, optimizer
        self.before = hooks(*self.trained)
        probe.start(model, self.path, task=self.task, optimizer=optimizer if self.watched else None)

    def step(self, loss: Tensor) -> None:
        probe.step(loss=loss)
        self.sizes.append(len(hooks(*self.trained)))

    def stop(self) -> None:
        probe.stop()
        left = hooks(*self.trained) - self.before
        assert not left, f"hooks are left: {sorted(map(str, left))}"
        assert len(set(self.sizes)) == 1 and self.sizes[0] > len(self.before), f"hooks pile up: {self.sizes}"
        del self.trained
        with h5py.File(self.path) as file:  # or there was nothing to compare
            assert len(file["steps"]) == zoo.STEPS and len(file["records"]) > self.least


@functools.cache
def plain(name: str) -> Result:
    return train(CASES[name])


def assert_same(a: Result, b: Result) -> None:
    for field in dataclasses.fields(Result):
        one, two = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, dict):
            assert [key for key in one | two if one.get(key) != two.get(key)] == [], field.name
        else:
            assert len(one) == len(two), field.name
            assert [i for i, (x, y) in enumerate(zip(one, two, strict=True)) if x != y] == [], field.name


@pytest.mark.parametrize("name", CASES)
def test_a_plain_training_repeats_itself(name: str) -> None:
    assert_same(plain(name), train(CASES[name]))
    assert len(plain(name).losses) >= zoo.STEPS and plain(name).weights


class Failing(nn.Cell):
    """A net of which an operation fails where it is told to: MindSpore finds that out later, and raises it once."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.a, self.b, self.where = nn.Dense(8, 8), nn.Dense(8, 2), where

    def construct(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if self.where == "forward":
            fail(h)
        return self.b(Late()(h) if self.where == "backward" else h)


class Late(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x * 2

    def bprop(self, x: Tensor, output: Tensor, gradient: Tensor) -> tuple[Tensor]:
        fail(x)
        return (gradient * 2,)


def fail(x: Tensor) -> Tensor:
    return mindspore.ops.gather(x, Tensor([0, 99], mindspore.int32), 0)


@pytest.mark.parametrize("where", ["forward", "backward", "gradients", "step", "loss", "log", "stop"])
@pytest.mark.parametrize("task", ["statistics", "norms", "structure"])
def test_an_operation_that_fails_later_still_ends_the_program(
    task: str, where: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    net = Failing(where)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradients = mindspore.value_and_grad(lambda x: (net(x) ** 2).mean(), None, optimizer.parameters)
    x = mindspore.ops.ones((4, 8))
    probe.start(net, tmp_path / "a.h5", task=task, quiet=True)
    with pytest.raises(RuntimeError, match="'input_indices' should be in the range"):
        loss, found = gradients(x)
        if where == "gradients":
            fail(x)
        optimizer(found)
        if where in ("step", "loss", "stop"):
            loss = fail(x)[0, 0]
        if where == "log":
            probe.log("failed", fail(x))
        if where in ("step", "loss"):
            probe.step(**({"loss": loss} if where == "loss" else {}))
        probe.stop()
        pytest.fail("nobody was told")
    probe.stop()
    assert not [each for each in recwarn if "not recorded" in str(each.message) or "could not" in str(each.message)]


WAYS = [(name, "statistics", False) for name in CASES] + [(name, "tensor", True) for name in CASES]
WAYS += [("mlp", "norms", False), ("mlp", "structure", True)]


@pytest.mark.parametrize(("name", "task", "watched"), WAYS)
def test_a_recorded_training_is_bitwise_the_same(name: str, task: str, watched: bool, tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a.h5", task, watched)
    if task == "norms" or name in ("shared_and_tied", "partly_compiled"):
        recording.least = 10
    if name == "compiled_step":
        recording.least = -1
    assert_same(plain(name), train(CASES[name], recording))


VERBS = (
    "is_training", "is_tensor", "facts", "version_of", "measure", "values", "snapshot", "measure_update", "quiet",
    "context", "on_gradient", "graph_edges", "on_call_gradient", "gradient", "optimizer_state", "requires_grad",
    "is_leaf", "members",
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_no_exception_from_a_hook_reaches_the_training(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, calls = failing(Recording, MindSporeAdapter, verb, monkeypatch)

    class Failing(kind):
        def stop(self) -> None:
            monkeypatch.undo()
            super().stop()

    result = train(CASES["mlp"], Failing(tmp_path / "a.h5", "tensor"))
    assert calls, f"{verb} is never called: take it off the list"
    assert_same(plain("mlp"), result)


@pytest.mark.parametrize("place", ["graph.added", "graph.Clock.now", "graph.GRAPH.crossings",
                                   "optimizers._groups", "optimizers.state_of"])  # fmt: skip
@pytest.mark.parametrize("watched", [True, False])
def test_no_exception_from_inside_the_adapter_reaches_the_training(
    place: str, watched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(f"probe.adapters.mindspore.{place}", fail)
    assert_same(plain("mlp"), train(CASES["mlp"], Recording(tmp_path / "a.h5", "tensor", watched)))


# ---- nothing is left behind ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", [False, True], ids=["between", "in_forward"])
@pytest.mark.parametrize("watched", [True, False])
def test_hooks_are_gone_after_an_exception(
    error: type[BaseException], inside: bool, watched: bool, tmp_path: Path
) -> None:
    class Fails(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            if inside:
                raise error("planted")
            return x

    model = nn.SequentialCell(nn.Dense(6, 6), Fails())
    optimizer = zoo.by_momentum(model.trainable_params())
    before = hooks(model, optimizer)
    with (
        pytest.raises(error, match="planted"),
        probe.capture(model, tmp_path / "a.h5", optimizer=optimizer if watched else None),
    ):
        assert hooks(model, optimizer) > before
        model(zoo.batch(0, 4, 6))
        raise error("planted")
    assert hooks(model, optimizer) == before
    with probe.capture(model, tmp_path / "b.h5"):  # and the next recording can begin
        pass


def test_models_and_optimizers_are_freed(tmp_path: Path) -> None:
    watched: list[weakref.ref] = []

    class Watching(Recording):
        def start(self, model: nn.Cell, optimizer: nn.Cell) -> None:
            cells = [cell for _, cell in model.cells_and_names()]
            watched.extend(weakref.ref(x) for x in (model, *cells, *model.get_parameters()))
            super().start(model, optimizer)

    case = dataclasses.replace(CASES["mlp"], optimizer=lambda w: mindspore.mint.optim.SGD(w, lr=0.1))
    # the other optimizers are compiled, and MindSpore keeps what they were compiled for
    train(case)  # nothing that is made once for all is held against probe
    train(case, Watching(tmp_path / "a.h5", "tensor"))
    gc.collect()
    left = [type(reference()).__name__ for reference in watched if reference() is not None]
    assert watched and not left


def test_tensors_are_freed_as_soon_as_the_training_lets_go_of_them(tmp_path: Path) -> None:
    alive: list[weakref.ref] = []
    model = zoo.Mlp()
    for _, cell in model.cells_and_names():
        cell.register_forward_hook(lambda cell, args, out: alive.append(weakref.ref(out)))
    weights = model.trainable_params()
    gc.collect()
    with probe.capture(model, tmp_path / "a.h5"):
        gradients = mindspore.value_and_grad(lambda: model(zoo.batch(0, 4, 6)).sum(), None, weights)()
        del gradients
        gc.collect()
        assert len(alive) > 5 and not [reference() for reference in alive if reference() is not None]


def test_a_copy_of_the_model_is_not_recorded(tmp_path: Path) -> None:
    model = zoo.Mlp()
    with probe.capture(model, tmp_path / "a.h5"):
        model(zoo.batch(0, 4, 6))
        copy.deepcopy(model)(zoo.batch(1, 4, 6))
    with h5py.File(tmp_path / "a.h5") as file:
        assert len(file["calls"]) == 1 + 2 * 4 + 1
