"""Memory: tensors that point nowhere, that are used again, or are another one's; nothing is left behind, however long a recording is."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import probe
from probe.adapters.torch import device as torch_device
from probe.adapters.torch import operations as torch_operations
from probe.adapters.torch import statistics as torch_statistics
from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.modes import Quiet
from probe.errors import ProbeWarning
from probe.numbers.packed import unpack
from probe.numbers.sketch import axes_of
from probe.numbers.statistics import measure as reference
from probe.records import HashKind
from probe.testing import Recording, assert_stats_agree, sample
from tests.resources import handles, resident, settled
from tests.torch.training import hooks

# ---- What was once wrong in PyTorch's adapter: memory that is not there, modes, hooks that raise, compiled optimizers.


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


def batch(seed: int = 0) -> Tensor:
    return torch.from_numpy(sample((5, 4), seed))


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message).removeprefix("probe: ") for one in caught if issubclass(one.category, ProbeWarning)]


# ---- memory --------------------------------------------------------------------------------------------


def freed(view: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor whose memory was given back, as FSDP does with unsharded parameters."""
    tensor = view(torch.ones(40, 50))
    tensor.untyped_storage().resize_(0)
    return tensor


def beyond(view: Callable[[Tensor], Tensor]) -> Tensor:
    """A tensor that says it is longer than its memory."""
    tensor = view(torch.ones(40, 50))
    tensor.untyped_storage().resize_(400)
    return tensor


@pytest.mark.parametrize(
    "view", [lambda t: t, lambda t: t.T, lambda t: t[:, 7:]], ids=["as it is", "transposed", "sliced"]
)
@pytest.mark.parametrize("make", [freed, beyond])
def test_memory_that_is_not_there_is_not_read_in_place(
    make: Callable[[Callable[[Tensor], Tensor]], Tensor], view: Callable[[Tensor], Tensor]
) -> None:
    tensor = make(view)
    assert torch_statistics.measure_in_place(tensor, ()) is None
    assert torch_statistics.measure_in_place(tensor, (), None, HashKind.NONE) is None


def test_a_view_up_to_the_last_byte_is_read_in_place() -> None:
    base = torch.arange(2000.0)
    tensor = base[1000:].view(20, 50)
    if (stats := torch_statistics.measure_in_place(tensor, ())) is None:
        pytest.skip("the compiled loop was not built")
    assert_stats_agree(stats, reference(tensor.numpy()))


@pytest.mark.parametrize("view", [lambda t: t.T, lambda t: t[3:, 7:], lambda t: t[::2, 1::3]])
def test_other_orders_are_read_in_place(view: Callable[[Tensor], Tensor]) -> None:
    """Up to the last byte of their storage, without an operation of PyTorch."""
    tensor = view(torch.randn(1000)[200:].view(20, 40))
    with Operations() as seen:
        stats, update = (
            torch_statistics.measure_in_place(tensor, ()),
            torch_statistics.measure_update_in_place(tensor, tensor, ()),
        )
    if stats is None:
        pytest.skip("the compiled loop was not built")
    assert update is not None and update[1] == stats and not seen.names
    assert_stats_agree(stats, reference(tensor.numpy()))


class Operations(TorchDispatchMode):
    """What PyTorch was asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Wrapped(Tensor):
    """A tensor whose values are elsewhere, as those of a DTensor are."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Tensor:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*[a.inner if isinstance(a, Wrapped) else a for a in args], **(kwargs or {}))


def test_subclasses_are_asked_for_their_values() -> None:
    inner = torch.randn(30, 40)
    assert torch_statistics.measure_in_place(Wrapped(inner), ()) is None
    assert_stats_agree(TorchAdapter().measure(Wrapped(inner), ()), reference(inner.numpy()))


def test_a_parameter_whose_memory_is_freed_while_it_is_recorded(tmp_path: Path) -> None:
    """It is said, and everything else is recorded."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", task="tensor"):
        weight = model[1].weight
        memory, size = weight.untyped_storage(), weight.untyped_storage().nbytes()
        values = weight.detach().clone()
        memory.resize_(0)
        model[0](batch())
        probe.log("x", torch.ones(2))
        with torch.no_grad():
            model.register_forward_pre_hook(lambda *_: (memory.resize_(size), weight.data.copy_(values)) and None)
            model(batch())
    run = Recording(tmp_path / "a.h5")
    (text,) = said(caught)
    assert text.startswith(
        "tensors whose memory the program has freed are not recorded; the first is param weight of 1"
    )
    assert [note for _, _, note in run.notes] == [text]
    assert len(run.find(phase="init")) == 3 and len(run.find(path="", role="output")) == 1


def test_settled_statistics_of_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is spread over devices: each is waited for by itself, and the order is kept."""
    tensors = [torch.randn(3, size) for size in (4, 5, 6, 7)]
    pending = [torch_device.measure_on_device(tensor, (), HashKind.WSUM64) for tensor in tensors]
    devices = ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    together: list[int] = []

    class Numbers:
        """Stands for a tensor on a device."""

        def __init__(self, values: Tensor, device: str) -> None:
            self.values, self.device = values, device

        def numel(self) -> int:
            return self.values.numel()

    def cat(parts: list[Any]) -> Tensor:
        assert len({part.device for part in parts}) == 1, "tensors of two devices cannot be joined"
        together.append(len(parts))
        return plain([part.values for part in parts])

    plain = torch.cat
    monkeypatch.setattr(torch, "cat", cat)
    spread = [
        each._replace(numbers=Numbers(each.numbers, device)) for each, device in zip(pending, devices, strict=True)
    ]
    for stats, tensor in zip(torch_device.settle(spread), tensors, strict=True):
        assert_stats_agree(stats, reference(tensor.numpy(), (), HashKind.WSUM64))
    assert together == [2, 2]


# ---- signs and modes -----------------------------------------------------------------------------------


def test_signs_are_kept_but_not_those_of_very_long_axes() -> None:
    """And what is kept is bounded: long axes of every step's own length would fill the memory."""
    torch_operations._signs.cache_clear()
    long = torch_operations._CACHED_SIGNS + 1
    for size in (10, long):
        (axis,) = axes_of((size,))
        values = torch.ones(size, dtype=torch.float64)
        first = torch_operations._folded(values, axis, 0, size)
        assert torch.equal(torch_operations._folded(values, axis, 0, size), first)
    info = torch_operations._signs.cache_info()
    assert (info.hits, info.currsize) == (1, 1) and info.maxsize == 512


def test_signs_that_were_kept_in_inference_mode_can_be_used_outside_of_it() -> None:
    torch_operations._signs.cache_clear()
    tensor = torch.randn(30, 40, dtype=torch.float64)
    with torch.inference_mode(), Quiet():
        inside = torch_statistics._measure_by_operations(tensor, (), HashKind.XXH3_128)
    outside = torch_statistics._measure_by_operations(tensor.requires_grad_().detach(), (), HashKind.XXH3_128)
    assert_stats_agree(outside, unpack(inside))


def modes() -> tuple[Any, ...]:
    cpu = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *cpu


@pytest.mark.parametrize(
    "around",
    [
        torch.enable_grad, torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", enabled=False),
    ],
    ids=["grad", "no_grad", "inference", "autocast", "no autocast"],
)  # fmt: skip
def test_the_users_modes_are_left_and_set_back(around: Callable[[], Any]) -> None:
    with around():
        before = modes()
        for inner in (Quiet(), TorchAdapter().quiet()):
            with inner:
                assert modes()[:3] == (False, False, False)
                assert not (torch.ones(2, requires_grad=True) * 2).requires_grad
                assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
            assert modes() == before
        with pytest.raises(ValueError), Quiet():
            raise ValueError
        assert modes() == before
        inner = Quiet()
        inner.__enter__()  # and an interrupt keeps it from its end
        TorchAdapter().interrupted()
        assert modes() == before
        inner.__exit__()
        assert modes() == before
    assert not Quiet._open.all


def subnormal(dtype: torch.dtype) -> Tensor:
    tiny = torch.finfo(dtype).smallest_normal
    tensor = (torch.randn(40, 50, dtype=torch.float64) * tiny / 8).to(dtype)
    tensor[0, :3] = torch.tensor([0.0, tiny, -tiny])
    return tensor


@pytest.mark.parametrize("flushed", [False, True])
def test_it_is_said_when_subnormal_numbers_are_flushed(flushed: bool, tmp_path: Path) -> None:
    """Their statistics depend on it then, equality (the hash) does not."""
    tensor = subnormal(torch.float16)
    expected = reference(tensor.numpy())
    assert torch.set_flush_denormal(flushed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with probe.capture(nn.Linear(4, 2), tmp_path / "a.h5", task="tensor"):
            probe.log("tiny", tensor)
    torch.set_flush_denormal(False)
    run = Recording(tmp_path / "a.h5")
    text = "subnormal numbers count as zeros in statistics: torch.set_flush_denormal() is on"
    assert said(caught) == [note for _, _, note in run.notes] == ([text] if flushed else [])
    tiny = run.one(role="value")
    assert tiny.hash == (expected.hash_hi, expected.hash_lo) and np.array_equal(tiny.values, tensor.numpy())
    assert flushed or tiny.norm == expected.norm


def test_no_hook_puts_another_tensor_in_the_place_of_the_users(tmp_path: Path) -> None:
    """Not even an equal one: what a module returned is what its caller gets, and so are arguments and gradients."""
    made: list[Tensor] = []
    given: list[Tensor] = []

    class Layer(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            given.extend((x, scale))
            made.append(x * scale)
            return made[-1]

    model = Layer()
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        x, scale = batch().requires_grad_(), torch.ones(4, requires_grad=True)
        output = model(x, scale=scale)
        gradient = torch.ones_like(output)
        arrived: list[Tensor] = []
        output.register_hook(arrived.append)
        output.backward(gradient)
    assert output is made[0] and given[0] is x and given[1] is scale
    assert type(output.grad_fn).__name__ == "MulBackward0" and arrived[0].data_ptr() == gradient.data_ptr()


# ---- equality, and writes that are not seen ------------------------------------------------------------


@pytest.mark.parametrize("distributed", [False, True])
def test_under_collectives_every_tensor_is_read_again(
    distributed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They write into tensors whose version stays as it was."""

    class Reduce(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.detach().numpy()[:] *= 2  # as all_reduce does: the version does not move
            return x

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: distributed)
    monkeypatch.setattr("probe.session.place_in_the_world", lambda: (0, 1))
    model = nn.Sequential(Reduce())
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch())
    run = Recording(tmp_path / "a.h5")
    before, after = run.one(path="0", role="input"), run.one(path="0", role="output")
    assert (before.hash != after.hash) == distributed


def test_memory_that_is_used_again_is_not_taken_for_the_same_tensor(tmp_path: Path) -> None:
    """Under no_grad a layer's output often lies where the one before it lay."""

    class Chain(nn.Module):
        def forward(self, x: Tensor) -> list[int]:
            places = []
            for number in range(20):
                y = torch.full((64, 64), float(number))
                probe.log(f"y{number}", y)
                places.append(y.data_ptr())
                del y
            self.places = len(set(places))
            return places

    model = Chain()
    with torch.no_grad(), probe.capture(model, tmp_path / "a.h5", task="tensor"):
        model(batch())
    run = Recording(tmp_path / "a.h5")
    assert model.places < 20, "the memory was not used again: the test shows nothing"
    assert [s.values[0, 0] for s in run.find(role="value")] == [*range(20)]


# ---- hooks that fail -----------------------------------------------------------------------------------


def fails(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("planted")


class Unprintable:
    """An option of an optimizer's group that cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("planted")


def test_an_exception_while_contributions_are_added_up_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes up in a hook on a node, which is no method of the recorder."""

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 + x.square()

    def train(path: Path | None) -> bytes:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), Twice())
        if path:
            probe.start(model, path)
        model(batch()).sum().backward()
        probe.stop()
        return model[0].weight.grad.numpy().tobytes()

    plain = train(None)
    monkeypatch.setattr("probe.adapters.torch.graph.GRAPH.added", fails)
    with pytest.warns(ProbeWarning) as caught:
        assert train(tmp_path / "a.h5") == plain
    assert said(caught) == ["not recorded because of an error inside probe: RuntimeError('planted')"]
    run = Recording(tmp_path / "a.h5")
    assert not run.find(path="1", role="grad_input") and len(run.find(phase="gradient")) == 2


def test_an_option_of_the_optimizer_that_cannot_be_printed(tmp_path: Path) -> None:
    """The optimizer's hooks are no methods of the recorder either."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD([{"params": model.parameters(), "mine": Unprintable()}], 0.1)
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch()).sum().backward()
        optimizer.step()
    run = Recording(tmp_path / "a.h5")
    assert len(run.find(role="delta")) == 2 and run.optimizer[0][1].hyper["mine"] == "a Unprintable"


def test_a_compiled_optimizer_step_is_left_alone(tmp_path: Path) -> None:
    """Its hooks would be compiled with it; nothing is recorded there, and nothing breaks."""

    def train(path: Path | None) -> bytes:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
        step = torch.compile(lambda: optimizer.step(), backend="eager")
        if path:
            probe.start(model, path, optimizer=optimizer)
        for number in range(2):
            model(batch(number)).sum().backward()
            step()
            optimizer.zero_grad()
            if path:
                probe.step(loss=number)
        probe.stop()
        return model.weight.detach().numpy().tobytes()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(tmp_path / "a.h5") == train(None)
    assert len(Recording(tmp_path / "a.h5").steps) == 2


# ---- Tensors that point nowhere: results of collectives that are waited for, memory that the program has freed.

TASKS = pytest.mark.parametrize("task", ["statistics", "tensor", "norms"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "complex64"])
def test_the_result_of_a_collective_is_what_it_holds(dtype: str) -> None:
    """Tensor parallel layers return these: their own address is 0."""
    collectives = pytest.importorskip("torch.distributed._functional_collectives")
    held = torch.arange(6).to(getattr(torch, dtype)).reshape(2, 3)
    adapter = TorchAdapter()
    with adapter.unseen():
        found, plain = (adapter.measure(each, ()) for each in (collectives.AsyncCollectiveTensor(held), held))
        values = adapter.values(collectives.AsyncCollectiveTensor(held))
    assert unpack(found)[:-1] == unpack(plain)[:-1] and (unpack(found).sketch == unpack(plain).sketch).all()
    assert (values == adapter.values(held)).all()


class Frees(nn.Module):
    """Returns a tensor of which nobody needs the memory any more, as it says."""

    def forward(self, x: Tensor) -> Tensor:
        out = x.detach() * 2
        out.untyped_storage().resize_(0)
        return out


@TASKS
def test_freed_memory_is_not_read(tmp_path: Path, task: str) -> None:
    """Of outputs, of a parameter between two steps, and of one that is there again."""
    model = nn.Sequential(nn.Linear(4, 4), Frees())
    weight, kept = model[0].weight, model[0].weight.detach().clone()
    storage = weight.untyped_storage()
    size = storage.nbytes()
    with warnings.catch_warnings(record=True) as caught, probe.capture(model, tmp_path / "a.h5", task=task):
        warnings.simplefilter("always", ProbeWarning)
        for _ in range(3):
            model(torch.ones(2, 4))
            model[0](torch.ones(2, 4)).sum().backward()
            storage.resize_(0)
            probe.step()
            storage.resize_(size)
            weight.data.copy_(kept)
    said = [str(each.message) for each in caught if "freed" in str(each.message)]
    assert len(said) == 1 and said[0].startswith("probe: tensors whose memory the program has freed are not recorded")
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 3 and not run.find(path="1", role="output")
    if task != "norms":
        assert len(run.find(path="0", role="output")) == 6
    assert torch.equal(weight, kept)


# ---- Starting and stopping again and again, and recording for long, leave nothing behind. `-s` prints the figures.

CYCLES = 24
STEPS = int(os.environ.get("PROBE_LONG", "1000"))


@pytest.fixture
def frozen() -> Iterator[None]:
    """Keep the collector from looking at all of PyTorch each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Linear(width, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(torch.from_numpy(sample((16, 4), step))).square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize(
    ("task", "watched"), [("statistics", False), ("statistics", True), ("tensor", False), ("norms", False)]
)
def test_cycles_leave_nothing_behind(task: str, watched: bool, tmp_path: Path) -> None:
    """Neither where one model is recorded again and again nor where every recording has its own."""
    lasting = network(256)
    sgd = torch.optim.SGD(lasting.parameters(), 0.001)
    seen, alive = [], []
    for cycle in range(CYCLES):
        model = lasting if cycle % 2 else network(256)
        optimizer = sgd if cycle % 2 else torch.optim.AdamW(model.parameters())
        path = tmp_path / f"{cycle}.h5"
        probe.start(model, path, task=task, optimizer=optimizer if watched else None)
        recorder = probe.session._current
        for step in range(3):
            probe.step(loss=train(model, optimizer, step))
        probe.stop()
        path.unlink()
        assert not hooks(model, optimizer), "hooks are left"
        alive += [weakref.ref(each) for each in (recorder, recorder.run.writer, recorder.run.adapter)]
        if not cycle % 2:
            alive += [weakref.ref(each) for each in (model, optimizer, *model.modules(), *model.parameters())]
        del model, optimizer, recorder
        gc.collect()
        tensors = sum(type(each) is torch.Tensor for each in gc.get_objects())
        seen.append((resident(), handles(), threading.active_count(), tensors))
    assert not [type(reference()) for reference in alive if reference() is not None]
    assert len({each[1:] for each in seen[4::2]}) == 1, "files, threads or tensors are left"
    print(f"{task}: {seen[5][0]:.0f} MiB resident after 6 cycles, {seen[-1][0]:.0f} MiB after {CYCLES}")
    assert seen[-1][0] - seen[5][0] < 12, [each[0] for each in seen]


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_memory_is_flat(task: str, tmp_path: Path) -> None:
    model = network(16)
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    marks = {STEPS // 10, STEPS // 2, STEPS - 1}
    seen = []
    tracemalloc.start()
    try:
        probe.start(model, tmp_path / "a.h5", task=task, steps="every 10" if task == "tensor" else None)
        for step in range(STEPS):
            probe.step(loss=train(model, optimizer, step))
            if step in marks:
                seen.append((settled(), resident(), handles(), threading.active_count(), len(hooks(model, optimizer))))
                print(f"{task} {step}: {seen[-1][0] / 2**20:.2f} MiB traced, {seen[-1][1]:.0f} MiB resident")
    finally:
        tracemalloc.stop()
        probe.stop()
    (first, *traced), (before, *later) = ([each[part] for each in seen] for part in range(2))
    limit = 4 << 20 if task == "tensor" else 1 << 18  # rows of 20,000 tensors are kept for the readable tree
    assert max(traced) - first < limit and max(later) - before < 24
    assert len({each[2:] for each in seen}) == 1
