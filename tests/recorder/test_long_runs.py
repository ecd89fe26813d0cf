"""Recordings of whole runs: norms, steps in full because of what was seen, memory that stays flat, whether it will fit on the disk."""

from __future__ import annotations

import functools
import gc
import inspect
import math
import os
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ProbeWarning
from probe.numbers.statistics import measure
from probe.recorder.triggers import LEAST, WINDOW, Triggers
from probe.records import HashKind
from probe.store.reading.reader import Reader
from probe.store.writing.growth import shortage, size
from probe.testing import Recording, sample
from tests.recorder.long_runs import Net, Training, recorded
from tests.recorder.long_runs import alone as alone
from tests.resources import handles, resident, settled
from tests.toy import nn
from tests.toy.adapter import NumpyAdapter
from tests.toy.tensor import Tensor, backward_hooks, no_grad

# ---- Recordings of whole runs: norms, and steps that are recorded in full because of what was seen.


def rows(path: str = "a.h5") -> list[SimpleNamespace]:
    """Return every record with all of its columns."""
    with Reader(path) as reader:
        return [
            SimpleNamespace(
                **{name: row[name].item() for name in row.dtype.names},
                path=reader.modules[row["module"]].path,
                name=reader.slots[row["slot"]],
                sketch=np.array(sketch),
            )
            for row, sketch in zip(reader.records, reader.sketches, strict=True)
        ]


FULL = {"init", "forward", "backward", "gradient", "update"}


def in_full(run: Recording) -> list[int]:
    """Return the steps that were recorded in full, and check that the others were not."""
    phases: dict[int, set[str]] = {}
    for seen in run.seen:
        phases.setdefault(seen.step, set()).add(seen.phase)
    assert all(found >= FULL - {"init"} or found == {"forward", "update"} for found in phases.values())
    return [step for step, found in phases.items() if "backward" in found]


# Norms


def test_norms_are_of_gradients_as_used_and_of_the_outputs_of_main_blocks() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms")
    for step in range(3):
        training.step(loss=1.0, lr=0.1 * step)
    probe.stop()
    run = Recording(Path("a.h5"))
    outputs = {("forward", "output", path, "0") for path in ("", "layers.0", "layers.1")}
    gradients = {("update", "param_grad", *name.rsplit(".", 1)) for name in training.gradients}
    assert run.keys() == outputs | gradients and len(run.seen) == 3 * len(run.keys())
    assert run.steps["step"].tolist() == [0, 1, 2]
    assert [scalar for scalar in run.scalars if scalar[0] == 2] == [(2, "loss", 1.0), (2, "lr", 0.2)]
    assert not len(run.optimizer) and run.info.config["task"] == "norms"
    assert run.called() == [(0, path, 0) for path in ("", "layers.0", "layers.1")] * 3
    assert [int(c["caller"]) for c in run.calls] == [-1, 0, 0, -1, 3, 3, -1, 6, 6]


def hooked(net: nn.Module) -> set[str]:
    assert all(len(module.pre_hooks) == len(module.post_hooks) <= 1 for _, module in net.modules())
    return {path for path, module in net.modules() if len(module.pre_hooks)}


def test_only_chosen_modules_have_hooks_but_in_a_step_in_full() -> None:
    training = Training()
    everything = {path for path, _ in training.net.modules()}
    blocks = {"", "layers.0", "layers.1"}
    before = len(backward_hooks)
    probe.start(training.net, "a.h5", task="norms", on_nonfinite=True)
    assert hooked(training.net) == blocks and len(backward_hooks) == before
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        training.step(math.nan)
    assert hooked(training.net) == everything and len(backward_hooks) == before + 1
    training.step(math.nan)
    assert hooked(training.net) == blocks and len(backward_hooks) == before
    probe.stop()
    assert hooked(training.net) == set()
    probe.start(training.net, "b.h5", task="norms", on_nonfinite=True)
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        training.step(math.nan)
    probe.stop()
    assert hooked(training.net) == set() and len(backward_hooks) == before


def test_norms_keep_no_copy_of_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Any] = []
    monkeypatch.setattr(NumpyAdapter, "snapshot", lambda self, tensor: copied.append(tensor))
    training = Training()
    probe.start(training.net, "a.h5", task="norms")
    training.step()
    assert not copied


def test_norms_have_statistics_but_neither_hash_nor_sketch() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms")
    training.step()
    probe.stop()
    found = {(row.path, row.name): row for row in rows()}
    expected = {("", "0"): training.output.data}
    expected |= {tuple(name.rsplit(".", 1)): gradient for name, gradient in training.gradients.items()}
    for key, array in expected.items():
        row, stats = found[key], measure(array)
        for name in ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros"):
            assert getattr(row, name) == pytest.approx(getattr(stats, name), rel=1e-12), (key, name)
        assert (row.hash_kind, row.hash_lo, row.hash_hi, row.tensor) == (HashKind.NONE, 0, 0, -1)
        assert not row.sketch.any()


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"modules": ["head"]},
         {("forward", "head")} | {("update", path) for path in ("embed", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head")}),
        ({"modules": "Linear", "phases": "forward"},
         {("forward", path) for path in ("embed", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head")}),
        ({"phases": "update"}, {("update", path) for path in ("embed", "layers.0.0", "layers.0.1", "layers.1.0", "layers.1.1", "head")}),
    ],
)  # fmt: skip
def test_norms_of_chosen_modules(options: dict[str, Any], expected: set[tuple[str, str]]) -> None:
    training = Training()
    with probe.capture(training.net, "a.h5", task="norms", **options):
        training.step()
    assert {(seen.phase, seen.path) for seen in Recording(Path("a.h5")).seen} == expected


def test_norms_count_micro_batches() -> None:
    net = Net()
    probe.start(net, "a.h5", task="norms", modules="layers.1", phases="forward")
    with no_grad():
        net(Tensor(sample((5, 4))))
    for _ in range(2):
        net(Tensor(sample((5, 4))))
    probe.step()
    net(Tensor(sample((5, 4))))
    probe.stop()
    run = Recording(Path("a.h5"))
    assert [(s.step, s.micro, s.call) for s in run.seen] == [(0, -1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 0)]


def test_norms_of_some_steps() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms", steps=[1, "every 3"])
    for _ in range(5):
        training.step()
    probe.stop()
    assert Recording(Path("a.h5")).steps["step"].tolist() == [0, 1, 3]


def test_a_module_that_raises_does_not_disturb_norms() -> None:
    def forward(module: nn.Module, x: Tensor) -> Tensor:
        if module.broken:
            raise KeyError("planted")
        return x * 2.0

    fragile = type("Fragile", (nn.Module,), {"forward": forward})(broken=True)
    net = nn.Sequential(nn.Linear(4, 4), fragile)
    probe.start(net, "a.h5", task="norms")
    with pytest.raises(KeyError):
        net(Tensor(sample((5, 4))))
    fragile.broken = False
    net(Tensor(sample((5, 4))))
    probe.step()
    probe.stop()
    run = Recording(Path("a.h5"))
    assert [(s.micro, s.path) for s in run.find(phase="forward")] == [(0, "0"), (1, "0"), (1, "1"), (1, "")]
    assert run.calls["raised"].tolist() == [True, False, True, False, False, False]


def test_two_norms_recordings_are_not_called_equal() -> None:
    for path in ("a.h5", "b.h5"):
        nn.manual_seed(0)
        training = Training()
        with probe.capture(training.net, path, task="norms"):
            training.step(loss=1.0)
    assert probe.compare("a.h5", "b.h5").verdict == "undecided"


def test_the_step_after_a_jump_is_recorded_in_full() -> None:
    losses = [1.0] * LEAST + [4.0, 1.0, 1.0]
    text = f"step {LEAST + 1} is recorded in full: loss is 4, the median of the {LEAST} before 1"
    with pytest.warns(ProbeWarning) as caught:
        run = recorded(losses, steps=[0], on_loss_jump=True)
    assert [str(one.message) for one in caught] == [f"probe: {text}"]
    assert caught[0].filename == inspect.getfile(Training)
    assert in_full(run) == [0, LEAST + 1] == run.steps["step"].tolist()
    assert {s.phase for s in run.find(step=LEAST + 1)} == FULL
    assert [(int(step), note) for step, _, note in run.notes] == [(LEAST + 1, text)]


@pytest.mark.parametrize("task", ["norms", "statistics", "tensor"])
def test_a_loss_that_is_not_finite(task: str) -> None:
    with pytest.warns(ProbeWarning, match="step 2 is recorded in full: loss is nan"):
        run = recorded([1.0, math.nan, math.nan, math.nan, 1.0], task=task, steps=[0, 4], on_nonfinite=True)
    assert run.steps["step"].tolist() == [0, 2, 4]
    assert in_full(run) == ([2] if task == "norms" else [0, 2, 4])
    assert {s.phase for s in run.find(step=2)} == FULL
    assert all((s.values is not None) == (task == "tensor") for s in run.find(step=2, role="output"))
    assert len(run.find(step=2, phase="forward", role="input")) == 9


def test_norms_before_and_after_a_full_step() -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        run = recorded([math.inf, 1.0, 1.0], task="norms", on_nonfinite=True)
    assert in_full(run) == [1] and {s.phase for s in run.find(step=1)} == FULL
    thin = [{(s.phase, s.role, s.path, s.slot) for s in run.find(step=step)} for step in (0, 2)]
    assert thin[0] == thin[1] and len(thin[0]) == 3 + 12
    full = run.one(step=1, phase="update", role="param_grad", path="head", slot="weight")
    assert full.hash_kind != HashKind.NONE and full.hash != (0, 0)


@pytest.mark.parametrize(
    "options, seen",
    [
        ({"task": "norms"}, "output 0 of layers.0 has NaN"),
        ({"modules": "head"}, "output 0 of head has NaN"),
        ({"phases": "update"}, "the gradient of embed.weight, as the optimizer used it, has NaN or Inf"),
        (
            {"task": "norms", "phases": "update"},
            "the gradient of embed.weight, as the optimizer used it, has NaN or Inf",
        ),
    ],
)
def test_what_is_recorded_is_looked_at(options: dict[str, Any], seen: str) -> None:
    training = Training()
    probe.start(training.net, "a.h5", on_nonfinite=True, **options)
    training.step()
    x = sample((5, 4))
    x[2, 1] = math.nan
    with pytest.warns(ProbeWarning) as caught:
        training.step(x=Tensor(x))
    assert [str(one.message) for one in caught] == [f"probe: step 2 is recorded in full: {seen}"]
    training.step()


def test_masked_outputs_are_fine_and_infinite_gradients_are_not() -> None:
    mask = type(
        "Mask", (nn.Module,), {"forward": lambda self, x: x * Tensor(np.float32([1, -math.inf, math.inf, 1]))}
    )()
    net = nn.Sequential(nn.Linear(4, 4), mask)
    optimizer = nn.SGD(net.parameters(), 0.1)
    probe.start(net, "a.h5", task="norms", on_nonfinite=True)
    with no_grad():
        net(Tensor(np.float32(np.abs(sample((5, 4))) + 1)))
    probe.step()
    for parameter in net.parameters():
        parameter.grad = Tensor(np.full(parameter.shape, math.inf, np.float32))
    optimizer.step()
    with pytest.warns(ProbeWarning, match="the gradient of 0.weight, as the optimizer used it, has NaN or Inf"):
        probe.step()


def test_a_loss_that_is_never_given_is_asked_for_once() -> None:
    training = Training()
    probe.start(training.net, "a.h5", task="norms", on_loss_jump=5)
    with pytest.warns(ProbeWarning) as caught:
        training.step(lr=1.0)
        training.step(lr=1.0)
    assert [str(one.message) for one in caught] == [
        "probe: on_loss_jump looks at the loss, but probe.step() was given none: probe.step(loss=...)"
    ]


def test_a_loss_that_stays_nan_does_not_fill_the_disk() -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        run = recorded([math.nan] * (2 * WINDOW), steps=[0], on_nonfinite=True)
    assert run.steps["step"].tolist() == [0, 1]


def test_a_step_that_never_comes_is_not_in_the_file() -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full"):
        run = recorded([math.nan], on_nonfinite=True)
    assert run.steps["step"].tolist() == [0] and not run.notes


# ---- When the next step is to be recorded in full.


def after(triggers: Triggers, losses: list[float], first: int = 0) -> list[str]:
    """Return what is said after each step."""
    return [triggers.ended(first + i, {"loss": loss}) for i, loss in enumerate(losses)]


def jumps(losses: list[float], factor: float = 3.0) -> list[int]:
    return [i for i, text in enumerate(after(Triggers(on_loss_jump=factor), losses)) if text]


def test_nothing_is_asked_for() -> None:
    triggers = Triggers()
    triggers.saw_nonfinite("output 0 of net")
    assert not triggers.look_at_values and not triggers.needs_loss
    assert after(triggers, [1.0] * 40 + [math.nan, 1e9]) == [""] * 42


# Something is not finite


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_scalar_that_is_not_finite(value: float) -> None:
    triggers = Triggers(on_nonfinite=True)
    assert triggers.ended(0, {"loss": 1.0, "lr": 0.1}) == ""
    assert triggers.ended(1, {"loss": 1.0, "grad_norm": value}) == f"grad_norm is {value}"


def test_a_tensor_that_is_not_finite_counts_for_its_step_only() -> None:
    triggers = Triggers(on_nonfinite=True)
    assert triggers.look_at_values
    triggers.saw_nonfinite("output 0 of net has NaN")
    assert not triggers.look_at_values  # one is enough
    triggers.saw_nonfinite("the gradient of w has NaN")
    assert triggers.ended(0, {}) == "output 0 of net has NaN"
    assert triggers.look_at_values
    assert Triggers(on_nonfinite=True).ended(1, {}) == ""
    assert triggers.ended(WINDOW, {}) == "" and triggers.ended(WINDOW + 1, {"loss": math.nan}) == "loss is nan"


def test_a_loss_that_stays_nan_is_told_once() -> None:
    texts = after(Triggers(on_nonfinite=True), [1.0, *[math.nan] * 200])
    assert texts == ["", "loss is nan", *[""] * 199]


def test_one_that_comes_and_goes_is_told_again_after_a_rest() -> None:
    texts = after(Triggers(on_nonfinite=True), [math.nan if step % 2 else 1.0 for step in range(100)])
    assert [step for step, text in enumerate(texts) if text] == [1, 1 + WINDOW + 2, 1 + 2 * (WINDOW + 2)]


# The loss jumps


def test_a_jump_above_the_median() -> None:
    losses = [2.0] * 10 + [5.9, 6.0, 6.1]
    texts = after(Triggers(on_loss_jump=3.0), losses)
    assert texts == [""] * 12 + ["loss is 6.1, the median of the 12 before 2"]
    assert jumps(losses, factor=2.9) == [10]


def test_a_median_needs_some_losses() -> None:
    assert jumps([1.0] * (LEAST - 1) + [100.0]) == []
    assert jumps([1.0] * LEAST + [100.0]) == [LEAST]


def test_the_window_slides() -> None:
    rising = [1.0] * WINDOW + [2.9] * (WINDOW // 2 + 1) + [8.0, 8.8]
    assert jumps(rising) == [len(rising) - 1]
    texts = after(Triggers(on_loss_jump=3.0), rising)
    assert texts[-1] == f"loss is 8.8, the median of the {WINDOW} before 2.9"


def test_a_loss_that_falls_or_is_not_finite_is_no_jump_and_spoils_no_median() -> None:
    assert jumps([10.0 - 0.1 * step for step in range(90)]) == []
    assert jumps([1.0] * 10 + [math.nan] * 40 + [1.0, 3.1]) == [51]
    assert jumps([1.0] * 10 + [math.inf]) == [10]


def test_negative_losses() -> None:
    assert jumps([-1.0] * 10 + [-0.9, -3.0, 0.0, 0.9]) == []
    assert jumps([-1.0] * 10 + [1.1]) == [10]
    assert jumps([0.0] * 10 + [1.0]) == []


def test_both_reasons_and_steps_without_a_loss() -> None:
    triggers = Triggers(on_nonfinite=True, on_loss_jump=3.0)
    assert triggers.needs_loss
    after(triggers, [1.0] * 10)
    assert triggers.ended(10, {"lr": 1.0}) == ""
    text = triggers.ended(11, {"loss": 4.0, "grad_norm": math.inf})
    assert text == "grad_norm is inf and loss is 4, the median of the 10 before 1"


# ---- Long runs need no more memory, handles or threads than short ones. `PROBE_LONG=20000` prints and checks that many.

STEPS = int(os.environ.get("PROBE_LONG", "200"))
CYCLES = 24


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_memory_is_flat(task: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = nn.AdamW(net.parameters(), 0.001)
    marks = {STEPS // 10, STEPS // 2, STEPS - 1}
    seen = []
    tracemalloc.start()
    try:
        probe.start(net, tmp_path / "a.h5", task=task)
        for step in range(STEPS):
            output = net(Tensor(sample((3, 4), step)))
            loss = (output * output).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
            if step in marks:
                seen.append((settled(), handles(), threading.active_count()))
                print(f"{task} {step}: {seen[-1][0] / 2**20:.2f} MiB traced, {resident():.0f} MiB resident")
    finally:
        tracemalloc.stop()
        probe.stop()
    (first, *others), (_, *files), (_, *threads) = ([each[part] for each in seen] for part in range(3))
    limit = 4 << 20 if task == "tensor" else 1 << 18  # rows of 20,000 tensors are kept for the readable tree
    assert max(others) - first < limit
    assert set(files) == {seen[0][1]} and set(threads) == {seen[0][2]}


@pytest.fixture
def fresh() -> Iterator[None]:
    """What other tests have left is no garbage of this one: looking at it in each cycle would take most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("task", ["statistics", "tensor", "norms"])
def test_cycles_leave_nothing_behind(task: str, tmp_path: Path) -> None:
    """Neither where one model is recorded again and again nor where every recording has its own."""
    lasting = nn.Linear(4, 300)
    seen, alive = [], []
    for cycle in range(CYCLES):
        model = lasting if cycle % 2 else nn.Linear(4, 300)
        optimizer = nn.AdamW(model.parameters(), 0.001)
        path = tmp_path / f"{cycle}.h5"
        probe.start(model, path, task=task)
        recorder = probe.session._current
        for step in range(3):
            model(Tensor(sample((100, 4), step))).sum().backward()
            optimizer.step()
            probe.step(loss=step)
        probe.stop()
        path.unlink()
        assert not (model.pre_hooks or model.post_hooks or nn.step_pre_hooks or nn.step_post_hooks or backward_hooks)
        alive += [weakref.ref(each) for each in (recorder, recorder.run.writer, optimizer)]
        if not cycle % 2:
            alive += [weakref.ref(each) for each in (model, *model.parameters())]
        optimizer.zero_grad()
        del model, optimizer, recorder
        gc.collect()
        seen.append((resident(), handles(), threading.active_count()))
    assert not [type(reference()) for reference in alive if reference() is not None]
    assert len({each[1:] for each in seen[2:]}) == 1, "files or threads are left"
    print(f"{task}: {seen[5][0]:.0f} MiB resident after 6 cycles, {seen[-1][0]:.0f} MiB after {CYCLES}")
    assert seen[-1][0] - seen[5][0] < 8, [each[0] for each in seen]


# ---- Whether a recording will fit on the disk is told as it begins.

# Room


def disk(free: int) -> Any:
    return lambda folder: SimpleNamespace(total=free, used=0, free=free)


@pytest.mark.parametrize(
    "options, text",
    [
        ({}, r"a recorded step takes about \d+\.\d KiB, 1,000 more would take \d+\.\d MiB, and 10\.0 KiB are free in \., "
             r"enough for 0: choose fewer by steps=, modules=, phases= or tensors="),
        ({"steps": "1-5"}, r"a recorded step takes about \d+\.\d KiB, the 4 that are still to come would take \d+"),
    ],
)  # fmt: skip
def test_a_recording_that_will_not_fit_is_told_once(
    options: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probe.recorder.recorder.shutil.disk_usage", disk(10 << 10))
    training = Training()
    probe.start(training.net, "a.h5", task="tensor", **options)
    with pytest.warns(ProbeWarning, match=text) as caught:
        for _ in range(4):
            training.step()
    assert len(caught) == 1


def test_a_recording_that_will_fit_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.recorder.shutil.disk_usage", disk(1 << 30))
    recorded([1.0] * 3, task="tensor")
    Path("a.h5").unlink()
    monkeypatch.setattr("probe.recorder.recorder.shutil.disk_usage", disk(0))
    recorded([1.0] * 3, steps=[0])  # no further step


@pytest.mark.thorough
@pytest.mark.parametrize(("task", "steps"), [("norms", "every 2"), ("statistics", "every 1"), ("tensor", "every 2")])
def test_what_is_predicted_is_what_the_file_grows_by(task: str, steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr("probe.recorder.recorder.shortage", lambda size, *rest: told.append(size) or "")
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = nn.SGD(net.parameters(), 1e-4)
    probe.start(net, "a.h5", task=task, steps=steps)
    sizes: dict[int, int] = {}
    last = 2000 if task == "norms" else 80  # many, where what is written at once is much more than a step
    for step in range(last + 1):
        net(Tensor(sample((2, 64), step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=1.0)
        if step in (0, last):
            written = functools.partial(lambda step: sizes.update({step: Path("a.h5").stat().st_size}), step)
            probe.session._current.run.writer._queue.put(written)
    probe.stop()
    grown = (sizes[last] - sizes[0]) / (last if steps == "every 1" else last / 2)
    assert len(told) == 1 and told[0] == pytest.approx(grown, rel=0.15)


# ---- Whether a recording will fit on its disk.

GIB = 1 << 30


def test_a_known_number_of_steps() -> None:
    assert shortage(GIB, 10, 10 * GIB, "/data") == ""
    assert shortage(GIB, 0, 0, "/data") == ""
    assert shortage(0.7 * GIB, 999, 79 * GIB, "/data") == (
        "a recorded step takes about 716.8 MiB, the 999 that are still to come would take 699.3 GiB, and 79.0 GiB are free "
        "in /data, enough for 112: choose fewer by steps=, modules=, phases= or tensors="
    )
    assert shortage(0.7 * GIB, 999, 79 * GIB, "/data", is_compressed=True).startswith(
        "a recorded step takes about 716.8 MiB before it is compressed, the 999 that are still to come would take 699.3 GiB, "
    )


def test_steps_without_an_end() -> None:
    assert shortage(GIB / 1000, None, GIB, "/data") == ""
    assert shortage(1.024 * GIB, None, 20 * GIB, ".") == (
        "a recorded step takes about 1.0 GiB, 1,000 more would take 1.0 TiB, and 20.0 GiB are free in ., "
        "enough for 19: choose fewer by steps=, modules=, phases= or tensors="
    )


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (GIB, "1.0 GiB"),
        (2**70, "1,048,576.0 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
