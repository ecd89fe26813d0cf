"""Training is bitwise the same with and without probe, and probe leaves nothing behind."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
import warnings
import weakref
from pathlib import Path

import h5py
import pytest
import torch
from torch import Tensor, nn

import probe
from probe.adapters.torch.adapter import TorchAdapter
from tests.left_as_it_was import failing
from tests.torch import zoo
from tests.torch.training import hooks
from tests.torch.zoo import CASES, DDP_CASES, Result, differences, train

pytestmark = pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning", "ignore::DeprecationWarning")


TASKS = ("statistics", "tensor")
WATCHED = {"optimizer": True, "any_optimizer": False}


class Recording:
    """Records with probe, and sees to it that hooks do not pile up and are gone at the end."""

    least = zoo.STEPS
    """so many records there must be at least"""

    def __init__(self, path: Path, task: str = "statistics", watched: bool = True) -> None:
        self.path, self.task, self.watched = path, task, watched
        self.sizes: list[int] = []

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.trained = model, optimizer
        self.before = hooks(*self.trained)
        found = probe.start(model, self.path, task=self.task, optimizer=optimizer if self.watched else None)
        assert found is not None
        self.path = found

    def step(self, loss: Tensor) -> None:
        probe.step(loss=loss)
        self.sizes.append(len(hooks(*self.trained)))

    def stop(self) -> None:
        probe.stop()
        left = hooks(*self.trained) - self.before
        assert not left, f"hooks are left: {sorted(map(str, left))}"
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


# ---- the training is bitwise the same ------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_a_plain_training_repeats_itself(name: str) -> None:
    result = plain(name)
    assert_same(train(CASES[name]), result)
    assert len(result.losses) >= zoo.STEPS * zoo.ACCUMULATIONS and len(result.gradients) >= zoo.STEPS
    assert all(torch.isfinite(loss).all() for loss in result.losses)


# tensors are recorded with optimizer=, statistics and norms without; some cases in all four ways
WAYS = [(name, "statistics", False) for name in CASES] + [(name, "tensor", True) for name in CASES]
FEW = ("mlp", "cnn_in_place", "fused_adamw", "lbfgs", "optimizer_in_backward", "raises")
WAYS += [(name, *way) for name in FEW for way in (("statistics", True), ("tensor", False), ("norms", False))]


def id_of(value: object) -> str:
    return {True: "optimizer", False: "any_optimizer"}[value] if isinstance(value, bool) else str(value)


@pytest.mark.filterwarnings("ignore:Dynamo", "ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("name", "task", "watched"), WAYS, ids=id_of)
def test_a_recorded_training_is_bitwise_the_same(name: str, task: str, watched: bool, tmp_path: Path) -> None:
    assert_same(plain(name), train(CASES[name], Recording(tmp_path / "a.h5", task, watched)))


def ddp_worker(rank: int, folder: str, names: list[str]) -> None:
    """Both ranks train every case plainly and with probe; a difference ends the process with an error."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for name in names:
        expected = train(DDP_CASES[name])
        assert_same(expected, train(DDP_CASES[name]))
        for task, watched in (("statistics", False), ("tensor", True)):
            recording = Recording(Path(folder, f"{name}-{task}.h5"), task, watched)
            assert_same(expected, train(DDP_CASES[name], recording))
    torch.distributed.destroy_process_group()
    os._exit(0)  # torch 2.13 with gloo aborts in one of ten plain interpreter exits


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
def test_recorded_trainings_under_ddp_are_bitwise_the_same(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(ddp_worker, (str(tmp_path), list(DDP_CASES)), nprocs=2)


def test_warnings_that_are_errors_do_not_reach_the_training(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", probe.errors.ProbeWarning)
        assert_same(plain("lbfgs"), train(CASES["lbfgs"], Recording(tmp_path / "a.h5")))


VERBS = (
    "is_training", "is_tensor", "facts", "version_of", "measure", "values", "snapshot", "measure_update", "quiet",
    "context", "on_gradient", "graph_edges", "on_call_gradient", "gradient", "optimizer_state",
)  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_no_exception_from_a_hook_reaches_the_training(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, calls = failing(Recording, TorchAdapter, verb, monkeypatch)
    result = train(CASES["mlp"], kind(tmp_path / "a.h5", "tensor"))
    assert calls, f"{verb} is never called: take it off the list"
    assert_same(plain("mlp"), result)


# ---- nothing is left behind ----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("inside", [False, True], ids=["between", "in_forward"])
@pytest.mark.parametrize("watched", WATCHED.values(), ids=WATCHED)
def test_hooks_are_gone_after_an_exception(
    error: type[BaseException], inside: bool, watched: bool, tmp_path: Path
) -> None:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise error("planted")

    model = nn.Sequential(nn.Linear(6, 6), Fails() if inside else nn.Identity())
    optimizer = zoo.by_sgd(model)
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


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("with_backward", [True, False])
def test_tensors_are_freed_as_soon_as_the_training_lets_go_of_them(
    task: str, with_backward: bool, tmp_path: Path
) -> None:
    alive: list[weakref.ref] = []
    model = zoo.mlp()
    for module in model.modules():
        module.register_forward_hook(lambda m, args, out: alive.append(weakref.ref(out)))
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


@pytest.mark.parametrize(
    ("name", "task"),
    [("mlp", "tensor"), *((n, "statistics") for n in ("mlp", "checkpoint", "lbfgs", "qwen2_sdpa"))],
)
def test_models_and_optimizers_are_freed(name: str, task: str, tmp_path: Path) -> None:
    watched: list[weakref.ref] = []

    class Watching(Recording):
        def start(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            watched.extend(weakref.ref(x) for x in (model, optimizer, *model.modules(), *model.parameters()))
            super().start(model, optimizer)

    train(CASES[name], Watching(tmp_path / "a.h5", task))
    gc.collect()
    assert not [type(reference()) for reference in watched if reference() is not None]


def test_a_model_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    model = zoo.mlp()
    references = [weakref.ref(x) for x in (model, *model.modules(), *model.parameters())]
    gc.collect()
    gc.disable()
    try:
        with probe.capture(model, tmp_path / "a.h5"):
            model(zoo.batch(0, 4, 6)).sum().backward()
        del model
        assert not any(reference() is not None for reference in references)
    finally:
        gc.enable()


def test_a_module_that_is_taken_out_of_the_model_is_freed_at_once(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    taken_out = weakref.ref(model[1])
    gc.collect()
    gc.disable()
    try:
        with probe.capture(model, tmp_path / "a.h5"):
            model(zoo.batch(0, 4, 6)).sum().backward()
            model[1] = nn.Identity()
            assert taken_out() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("task", TASKS)
def test_activations_are_freed_while_a_forward_without_gradients_goes_on(task: str, tmp_path: Path) -> None:
    model = zoo.mlp()
    outputs: list[weakref.ref] = []
    for module in model.modules():
        module.register_forward_hook(lambda m, args, out: outputs.append(weakref.ref(out)))
        module.register_forward_pre_hook(lambda m, args: alive.append([out() is not None for out in outputs]))

    def forward() -> list[list[bool]]:
        outputs.clear(), alive.clear()
        with torch.no_grad():
            model(zoo.batch(0, 4, 6))
        return [*alive]

    alive: list[list[bool]] = []
    plain = forward()
    with probe.capture(model, tmp_path / "a.h5", task=task):
        assert forward() == plain
    assert any(not each for each in plain[-1])


def test_graphs_that_outlive_the_recording_can_still_be_used(tmp_path: Path) -> None:
    def gradients(recorded: bool) -> list[Tensor]:
        zoo.seed()
        model = zoo.mlp()
        if recorded:
            probe.start(model, tmp_path / "a.h5")
        loss = model(zoo.batch(0, 4, 6)).square().mean()
        if recorded:
            probe.stop()
        loss.backward()
        return [p.grad for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(False), gradients(True), strict=True))


# ---- copies --------------------------------------------------------------------------------------------


def test_a_model_can_be_copied_and_pickled_while_it_is_recorded(tmp_path: Path) -> None:
    model = zoo.mlp()
    with probe.capture(model, tmp_path / "a.h5"):
        model(zoo.batch(0, 4, 6)).sum().backward()
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for twin in twins:
        twin.eval(), model.eval()
        assert torch.equal(twin(zoo.batch(1, 4, 6)), model(zoo.batch(1, 4, 6)))


def test_a_copy_of_the_model_is_not_recorded(tmp_path: Path) -> None:
    model = zoo.mlp()
    with probe.capture(model, tmp_path / "a.h5"):
        model(zoo.batch(0, 4, 6)).sum().backward()
        copy.deepcopy(model)(zoo.batch(1, 4, 6)).sum().backward()
    with h5py.File(tmp_path / "a.h5") as file:
        assert len(file["calls"]) == len(list(model.modules()))
