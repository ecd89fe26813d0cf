"""Training is bitwise the same with and without probe, and probe leaves nothing behind.

What is trained stands in ``zoo_paddle.py``; here it is run plainly and with probe, and everything is compared.
"""

from __future__ import annotations

import copy
import functools
import gc
import warnings
import weakref
from pathlib import Path
from typing import Any

import h5py
import pytest

paddle = pytest.importorskip("paddle")

import zoo_paddle as zoo  # noqa: E402
from hooks import live_hooks  # noqa: E402
from paddle import Tensor, nn  # noqa: E402
from zoo_paddle import CASES, Result, differences, train  # noqa: E402

import probe  # noqa: E402
from probe.adapters.paddle.adapter import PaddleAdapter  # noqa: E402
from probe.testing import Recording  # noqa: E402
from tests.left_as_it_was import failing  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning", "ignore::UserWarning")


class Watched:
    """Records with probe, and sees to it that hooks do not pile up and are gone at the end."""

    least = zoo.STEPS
    """so many records there must be at least"""

    def __init__(self, path: Path, task: str = "statistics", watched: bool = True) -> None:
        self.path, self.task, self.watched = path, task, watched
        self.sizes: list[int] = []

    def start(self, model: nn.Layer, optimizer: zoo.Optimizer) -> None:
        self.trained = model
        self.before = live_hooks(model)
        found = probe.start(model, self.path, task=self.task, optimizer=optimizer if self.watched else None)
        assert found is not None
        self.path = found

    def step(self, loss: Tensor) -> None:
        probe.step(loss=loss)
        self.sizes.append(live_hooks(self.trained))

    def stop(self) -> None:
        probe.stop()
        assert live_hooks(self.trained) == self.before, "hooks are left"
        assert len(set(self.sizes[1:])) == 1, f"hooks pile up: {self.sizes}"
        del self.trained
        with h5py.File(self.path) as file:  # or there was nothing to compare
            assert len(file["steps"]) == zoo.STEPS and len(file["records"]) > self.least


@functools.cache
def plain(name: str) -> Result:
    return train(CASES[name])


def assert_same(a: Result, b: Result) -> None:
    places = list(differences(a, b))
    assert not places, f"{len(places)} differences, the first are {places[:5]}"


@pytest.mark.parametrize("name", CASES)
def test_a_plain_training_repeats_itself(name: str) -> None:
    result = plain(name)
    assert_same(train(CASES[name]), result)
    assert len(result.losses) >= zoo.STEPS * zoo.ACCUMULATIONS and len(result.gradients) >= zoo.STEPS
    assert all((loss == loss).all() for loss in result.losses)


WAYS = [(name, "statistics", False) for name in CASES] + [(name, "tensor", True) for name in CASES]
WAYS += [(name, "norms", False) for name in ("mlp", "cnn_in_place", "lbfgs", "groups")]


def id_of(value: object) -> str:
    return {True: "optimizer", False: "any_optimizer"}[value] if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("name", "task", "watched"), WAYS, ids=id_of)
def test_a_recorded_training_is_bitwise_the_same(name: str, task: str, watched: bool, tmp_path: Path) -> None:
    assert_same(plain(name), train(CASES[name], Watched(tmp_path / "a.h5", task, watched)))


def data_parallel_worker(folder: str) -> None:
    """Both ranks train plainly and with probe; a difference ends the process with an error."""
    warnings.simplefilter("ignore")
    paddle.distributed.init_parallel_env()
    rank = paddle.distributed.get_rank()

    def run(path: Path | None) -> tuple[list[bytes], list[bytes]]:
        zoo.seed()
        model = paddle.DataParallel(zoo.mlp())
        optimizer = zoo.by_momentum(model)
        if path is not None:
            probe.start(model, path, task="tensor")
        gradients = []
        for step in range(2):
            loss = model(zoo.batch(10 * step + rank, 4, 6)).square().mean()
            loss.backward()
            gradients += [p.grad.numpy().tobytes() for p in model.parameters()]
            optimizer.step()
            optimizer.clear_grad()
            probe.step(loss=loss)
        probe.stop()
        return gradients, [p.numpy().tobytes() for p in model.parameters()]

    expected = run(None)
    assert run(Path(folder, "a.h5")) == expected
    found = Recording(next(Path(folder).glob(f"*rank*{rank}.h5")))
    reduced = [seen.values.tobytes() for seen in found.find(phase="gradient")]
    assert sorted(reduced) == sorted(expected[0])


def test_a_recorded_data_parallel_training_is_bitwise_the_same(tmp_path: Path) -> None:
    paddle.distributed.spawn(data_parallel_worker, args=(str(tmp_path),), nprocs=2, backend="gloo")


def test_warnings_that_are_errors_do_not_reach_the_training(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", probe.errors.ProbeWarning)
        assert_same(plain("lbfgs"), train(CASES["lbfgs"], Watched(tmp_path / "a.h5")))


VERBS = (
    "is_training", "is_tensor", "facts", "version_of", "measure", "values", "snapshot", "measure_update", "quiet",
    "context", "on_gradient", "gradient", "optimizer_state",
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_no_exception_from_a_hook_reaches_the_training(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, calls = failing(Watched, PaddleAdapter, verb, monkeypatch)
    result = train(CASES["mlp"], kind(tmp_path / "a.h5", "tensor"))
    assert calls, f"{verb} is never called: take it off the list"
    assert_same(plain("mlp"), result)


# ---- nothing is left behind ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", [False, True], ids=["between", "in_forward"])
def test_hooks_are_gone_after_an_exception(error: type[BaseException], inside: bool, tmp_path: Path) -> None:
    class Fails(nn.Layer):
        def forward(self, x: Tensor) -> Tensor:
            raise error("planted")

    model = nn.Sequential(nn.Linear(6, 6), Fails() if inside else nn.Identity())
    before = live_hooks(model)
    with pytest.raises(error, match="planted"), probe.capture(model, tmp_path / "a.h5"):
        assert live_hooks(model) > before
        model(zoo.batch(0, 4, 6))
        raise error("planted")
    assert live_hooks(model) == before
    with probe.capture(model, tmp_path / "b.h5"):  # and the next recording can begin
        pass


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("with_backward", [True, False])
def test_tensors_are_freed_as_soon_as_the_training_lets_go_of_them(
    task: str, with_backward: bool, tmp_path: Path
) -> None:
    alive: list[weakref.ref] = []
    model = zoo.mlp()
    for layer in model.sublayers(include_self=True):
        layer.register_forward_post_hook(lambda m, args, out: alive.append(weakref.ref(out)))
    gc.collect()
    gc.disable()
    try:
        with probe.capture(model, tmp_path / "a.h5", task=task):
            loss = model(zoo.batch(0, 4, 6)).square().mean()
            if with_backward:
                loss.backward()
            del loss
            assert len(alive) == 6 and not any(reference() is not None for reference in alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["mlp", "recompute", "recompute_reentrant", "lbfgs", "cnn_in_place"])
def test_models_and_optimizers_are_freed(name: str, tmp_path: Path) -> None:
    watched: list[weakref.ref] = []

    class Watching(Watched):
        def start(self, model: nn.Layer, optimizer: zoo.Optimizer) -> None:
            watched.extend(weakref.ref(x) for x in (model, optimizer, *model.sublayers(), *model.parameters()))
            super().start(model, optimizer)

    train(CASES[name], Watching(tmp_path / "a.h5"))
    gc.collect()
    assert not [type(reference()) for reference in watched if reference() is not None]


def test_graphs_that_outlive_the_recording_can_still_be_used(tmp_path: Path) -> None:
    def gradients(recorded: bool) -> list[Any]:
        zoo.seed()
        model = zoo.mlp()
        if recorded:
            probe.start(model, tmp_path / "a.h5")
        loss = model(zoo.batch(0, 4, 6)).square().mean()
        if recorded:
            probe.stop()
        loss.backward()
        return [p.grad.numpy() for p in model.parameters()]

    assert all((a == b).all() for a, b in zip(gradients(False), gradients(True), strict=True))


def test_a_copy_of_the_model_is_not_recorded(tmp_path: Path) -> None:
    model = zoo.mlp()
    with probe.capture(model, tmp_path / "a.h5"):
        model(zoo.batch(0, 4, 6)).sum().backward()
        copy.deepcopy(model)(zoo.batch(1, 4, 6)).sum().backward()
    with h5py.File(tmp_path / "a.h5") as file:
        assert len(file["calls"]) == len(model.sublayers(include_self=True))
