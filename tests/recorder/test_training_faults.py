"""Trainings that fail, run in several threads, nest deeply, change their models, or use probe otherwise than intended, while they are recorded."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ExistsError, ProbeWarning, RecordingError
from probe.numbers.slots import DEPTH, flatten
from probe.testing import Recording, sample
from tests.limits import HANGS
from tests.recorder.faults import batch, block, hooks, room_for, said
from tests.recorder.interrupting import Failing, Planted, finished
from tests.toy import nn
from tests.toy.tensor import Tensor, operation

# ---- Trainings that fail, or that use probe otherwise than intended, while they are recorded.

ENDED = "the recording has stopped, your training goes on, and the complete steps in the file can be read"


# ---- exceptions in the user's program ------------------------------------------------------------------


class Fragile(Failing):
    def __init__(self, where: str) -> None:
        self.where = where
        nn.manual_seed(0)
        self.inner = block(lambda module, x: self.forward(x))
        self.model = nn.Sequential(nn.Linear(4, 4), self.inner, nn.Linear(4, 2))
        self.optimizer = nn.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.optimizer.update = self.update

    def forward(self, x: Tensor) -> Tensor:
        self.fail("forward")
        return operation(x.data * 2.0, (x, self.backward))

    def backward(self, gradient: np.ndarray) -> np.ndarray:
        self.fail("backward")
        return gradient * 2.0

    def update(self, *args: Any) -> None:
        self.fail("optimizer")
        nn.SGD.update(self.optimizer, *args)

    def step(self, number: int) -> None:
        self.failing = number == 1
        output = self.model(batch(number))
        output.node.hooks.add(lambda gradient: self.fail("tensor hook"))
        output.sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> list[bytes]:
        return [p.data.tobytes() for p in self.model.parameters()]


WHERE = ["forward", "backward", "tensor hook", "optimizer"]


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_that_the_training_catches(where: str, tmp_path: Path) -> None:
    plain = Fragile(where).train(None, caught=True)
    recorded = Fragile(where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert recorded.train(tmp_path / "a.h5", caught=True) == plain
    assert hooks(recorded.model) == 0
    run = Recording(tmp_path / "a.h5")
    assert run.steps["step"].tolist() == [0, 1, 2, 3] and run.info.closed and not run.steps["state"].any()
    lost = ["an optimizer's step was not seen to its end: the update of 0.weight and 3 more is not recorded"]
    assert said(caught) == [text for _, _, text in run.notes] == (lost if where == "optimizer" else [])
    for step in (2, 3):
        assert len(run.find(step=step, role="delta")) == 4
    raised = {run.modules[c["module"]].path for c in run.calls if c["raised"]}
    assert raised == ({"", "1"} if where == "forward" else set())


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_that_ends_the_training(where: str, tmp_path: Path) -> None:
    plain, recorded = Fragile(where), Fragile(where)
    with pytest.raises(Planted):
        plain.train(None, caught=False)
    with pytest.raises(Planted, match=where), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded.train(tmp_path / "a.h5", caught=False)
    assert recorded.state() == plain.state() and hooks(recorded.model) == 0
    run = Recording(tmp_path / "a.h5")
    assert run.steps["state"].tolist() == [0, 1] and run.info.closed
    assert len(run.find(step=0, role="delta")) == 4 and not run.find(step=1, role="delta")


# ---- probe's functions in another order ----------------------------------------------------------------


def test_a_second_start_leaves_the_first_recording_alone(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    probe.start(model, tmp_path / "a.h5")
    before = hooks(model)
    with pytest.raises(RecordingError, match="a.h5 is under way; call probe.stop"):
        probe.start(model, tmp_path / "b.h5")
    assert hooks(model) == before and not (tmp_path / "b.h5").exists()
    model(batch()).sum().backward()
    probe.stop()
    probe.stop()
    assert len(Recording(tmp_path / "a.h5").find(phase="gradient")) == 2 and hooks(model) == 0


def test_start_after_starts_that_failed(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    (tmp_path / "mine.h5").write_text("mine")
    for path, error in ((tmp_path / "mine.h5", ExistsError), (tmp_path / "nowhere" / "a.h5", OSError)):
        with pytest.raises(error):
            probe.start(model, path)
    with pytest.raises(RecordingError):
        probe.start(model, tmp_path / "a.h5", optimizer=model)
    assert hooks(model) == 0 and [path.name for path in tmp_path.iterdir()] == ["mine.h5"]
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch())
    assert len(Recording(tmp_path / "a.h5").find(role="output")) == 1


def test_recordings_of_one_model_after_each_other_are_equal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    runs = []
    for name in "ab":
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(batch()).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None
        runs.append([(s.phase, s.role, s.path, s.slot, s.hash) for s in Recording(tmp_path / f"{name}.h5").seen])
    assert runs[0] == runs[1] and len(runs[0]) > 10


def test_a_step_before_the_update_is_told(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = nn.SGD(model.parameters(), 0.1)
    probe.start(model, tmp_path / "a.h5")
    text = "probe.step() comes before the optimizer's step: updates are recorded one step late"
    with pytest.warns(ProbeWarning) as caught:
        for number in range(3):
            model(batch(number)).sum().backward()
            probe.step()
            optimizer.step()
            optimizer.zero_grad()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert said(caught) == [text] and [(step, note) for step, _, note in run.notes] == [(1, text)]
    assert [len(run.find(step=step, role="delta")) for step in range(4)] == [0, 2, 2, 2]


def test_updates_behind_several_steps_of_accumulation_are_not_late(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = nn.SGD(model.parameters(), 0.1)
    with probe.capture(model, tmp_path / "a.h5"):
        for number in range(4):
            model(batch(number)).sum().backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()
            probe.step()
    assert not Recording(tmp_path / "a.h5").notes


def test_an_error_inside_step_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 2), tmp_path / "a.h5"
    probe.start(model, path)
    model(batch())
    probe.step()
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning) as caught:
        patch.setattr("probe.recorder.Recorder._end_step", lambda *args: 1 / 0)
        probe.step()
    why = f"recording to {path} failed in probe.step() (ZeroDivisionError('division by zero'))"
    assert said(caught) == [f"{why}; {ENDED}"]
    finished()
    assert hooks(model) == 0 and len(Recording(path).steps) == 1
    for _ in range(3):
        probe.step(loss=1)
        probe.log("x", 1.0)
    probe.start(model, tmp_path / "b.h5")  # what has ended by itself need not be stopped


def test_an_error_inside_stop_ends_the_recording_and_not_the_training(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 2), tmp_path / "a.h5"
    probe.start(model, path)
    model(batch())
    probe.step()
    model(batch())
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning) as caught:
        patch.setattr("probe.recorder.Recorder._end_step", lambda *args: 1 / 0)
        probe.stop()
    assert said(caught) == [
        f"the last step is not in {path}: probe.stop() failed (ZeroDivisionError('division by zero'))"
    ]
    assert hooks(model) == 0 and len(Recording(path).steps) == 1 and Recording(path).info.closed


def test_what_is_logged_after_the_end_is_not_kept(tmp_path: Path) -> None:
    probe.start(nn.Linear(4, 2), tmp_path / "a.h5")
    recorder = probe.session._current
    with pytest.MonkeyPatch.context() as patch, pytest.warns(ProbeWarning):
        patch.setattr("probe.recorder.Recorder._end_step", lambda *args: 1 / 0)
        probe.step()
    kept = len(recorder._scalars)
    for _ in range(10):
        probe.log("x", 1.0)
    assert len(recorder._scalars) == kept


def test_messages_that_differ_each_time_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.recorder.run._SAID", 20)
    model = nn.Sequential(nn.ReLU())
    probe.start(model, tmp_path / "a.h5")
    recorder = probe.session._current
    with pytest.warns(ProbeWarning) as caught:
        for number in range(50):
            recorder.run.note(f"trouble number {number}", -1)
    assert len(caught) == 20 == len(recorder.run._said)
    assert said(caught)[-1] == "there is more that could not be recorded; it is not said any more"


# ---- Trainings of several threads.

# ---- threads -------------------------------------------------------------------------------------------


def test_a_model_that_runs_while_another_thread_calls_step(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        x = module.before(x)
        if not inside.is_set():
            inside.set()
            go_on.wait(HANGS)
        return module.after(x)

    model = block(forward, before=nn.Linear(4, 4), after=nn.Linear(4, 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probe.start(model, tmp_path / "a.h5")
        thread = threading.Thread(target=lambda: model(batch()))
        thread.start()
        inside.wait(HANGS)
        probe.step()
        go_on.set()
        thread.join()
        model(batch())
        probe.stop()
    run = Recording(tmp_path / "a.h5")
    texts = [
        f"{name} was running when another thread called probe.step(): its outputs are not recorded"
        for name in ("after", "the model")
    ]
    assert said(caught) == [text for _, _, text in run.notes] == texts
    assert [s.path for s in run.find(step=0, role="output")] == ["before"]
    assert [s.path for s in run.find(step=1, role="output")] == ["before", "after", ""]


def test_threads_that_run_a_model_at_the_same_time(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    plain = model(batch()).data.tobytes()
    results: list[bytes] = []

    def work() -> None:
        for _ in range(60):
            results.append(model(batch()).data.tobytes())

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        probe.start(model, tmp_path / "a.h5", task="tensor")
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        probe.step()
        probe.stop()
    finally:
        sys.setswitchinterval(before)
    run = Recording(tmp_path / "a.h5")
    assert set(results) == {plain} and len(results) == 240
    assert len(run.find(path="", role="output")) == 240 and not run.notes
    calls = run.calls
    assert len(calls) == 720 and len({*calls["seq"], *calls["end"]}) == 1440
    inner = calls[calls["caller"] >= 0]
    assert len(inner) == 480 and (calls["module"][inner["caller"]] == 0).all()


# ---- Models whose modules, parameters or buffers are added or replaced while they are recorded.

# ---- models that change --------------------------------------------------------------------------------


def noted(path: Path, change: Callable[[nn.Module], None], model: nn.Module) -> list[str]:
    """Change a model after the first of four steps; return what is said, which must be in the file too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with probe.capture(model, path, task="tensor"):
            for number in range(4):
                model(batch(number)).sum().backward()
                if number == 1:
                    change(model)
                probe.step()
    run = Recording(path)
    texts = [text for _, _, text in run.notes]
    assert said(caught) == texts and {step for step, _, _ in run.notes} <= {1}
    return texts


NEWS = "added or replaced after probe.start(), and not recorded: "


def put(module: nn.Module, name: str, value: object) -> None:
    setattr(module, name, value)


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda m: put(m, "3", nn.Linear(2, 2)), "3"),
        (lambda m: put(m, "0", nn.Linear(4, 4)), "0"),
        (lambda m: put(m, "1", nn.Sequential(nn.ReLU(), nn.Linear(4, 4))), "1"),
        (lambda m: [put(m, str(n), nn.ReLU()) for n in range(3, 12)], "3, 4, 5, 6, 7 and 4 more"),
        (lambda m: put(getattr(m, "0"), "weight", nn.Parameter(sample((4, 4)))), "0.weight"),
        (lambda m: put(getattr(m, "1"), "scale", nn.Parameter(sample((4,)))), "1.scale"),
        (lambda m: put(getattr(m, "1"), "seen", nn.Buffer(sample((4,)))), "1.seen"),
        (lambda m: [put(m, "1", nn.Tanh()), put(getattr(m, "0"), "bias", nn.Parameter(sample((4,))))], "1, 0.bias"),
        (lambda m: delattr(m, "1"), ""),
        (lambda m: None, ""),
    ],
)  # fmt: skip
def test_what_is_added_or_replaced_is_told_once(
    change: Callable[[nn.Module], None], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn, "Tanh", nn.SiLU, raising=False)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    assert noted(tmp_path / "a.h5", change, model) == ([NEWS + expected] if expected else [])


def test_a_module_that_was_moved_is_not_new(tmp_path: Path) -> None:
    inner = nn.Linear(4, 4)
    model = nn.Sequential(inner, nn.ReLU())
    assert noted(tmp_path / "a.h5", lambda m: put(m, "0", nn.Sequential(inner)), model) == [NEWS + "0"]
    assert len(Recording(tmp_path / "a.h5").find(path="0", role="output")) == 4


def test_a_parameter_that_was_replaced_is_not_recorded_any_more(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with (
        pytest.warns(ProbeWarning, match="not recorded: 0.weight"),
        probe.capture(model, tmp_path / "a.h5", steps=[0, 2]),
    ):
        for number in range(3):
            model(batch()).sum()
            if number == 1:
                getattr(model, "0").weight = nn.Parameter(sample((4, 4)))
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert [s.slot for s in run.find(step=2, phase="init")] == ["bias"]


def test_a_buffer_that_was_replaced_is_recorded(tmp_path: Path) -> None:
    """As `half()` and `to()` do."""

    def forward(module: nn.Module, x: Tensor) -> Tensor:
        module.seen = nn.Buffer(module.seen.data + 1)
        return x * 1.0

    model = nn.Sequential(nn.ReLU(), block(forward, seen=nn.Buffer(np.zeros(2, np.float32))))
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        for _ in range(3):
            model(batch())
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert [s.values[0] for s in run.find(phase="update", slot="seen")] == [1, 2, 3] and not run.notes


def test_models_of_a_list_are_looked_at_each(tmp_path: Path) -> None:
    first, second = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    with pytest.warns(ProbeWarning) as caught, probe.capture([first, second], tmp_path / "a.h5"):
        second(first(batch()))
        put(second, "1", nn.ReLU())
        getattr(first, "0").weight = nn.Parameter(sample((4, 4)))
        probe.step()
        second(first(batch()))
    assert said(caught) == [NEWS + "1.1, 0.0.weight"]


# ---- Models that call each other very deeply, and arguments and results with very many tensors.

# ---- depth and number ----------------------------------------------------------------------------------


def recursive(levels: int) -> tuple[nn.Module, Callable[[], Tensor]]:
    inner = block(lambda module, x, left: module(module.layer(x), left - 1) if left else x, layer=nn.Linear(4, 4))
    model = block(lambda module, x, left: module.inner(x, left), inner=inner)
    return model, lambda: model(batch(), levels)


def test_a_module_that_calls_itself_900_levels_deep(tmp_path: Path) -> None:
    model, forward = recursive(900)
    with room_for(3000):
        plain = forward().data.tobytes()
        with probe.capture(model, tmp_path / "a.h5"):
            assert forward().data.tobytes() == plain
    run = Recording(tmp_path / "a.h5")
    levels = run.calls[run.calls["module"] == 1]
    assert levels["call"].tolist() == [*range(901)] and (levels["end"][1:] < levels["end"][:-1]).all()
    assert len(run.find(path="inner.layer", role="output")) == 900 and not run.notes


def least_room(forward: Callable[[], Tensor]) -> int:
    """Return how many frames a plain forward needs."""
    low, high = 100, 3000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with room_for(middle):
                forward()
            high = middle
        except RecursionError:
            low = middle
    return high


@pytest.mark.parametrize("room", [8, 10, 12, 14, 17, 20, 25, 30, 40])
def test_without_room_on_the_stack_for_probe_the_training_goes_on(room: int, tmp_path: Path) -> None:
    """A hook needs some frames more than the module: what it could not do is in the notes."""
    levels = 200
    model, forward = recursive(levels)
    least = least_room(forward)
    with room_for(least):
        plain = forward().data.tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe.capture(model, tmp_path / "a.h5"):
            with room_for(least + room):
                assert forward().data.tobytes() == plain
            probe.step()
            assert model(batch(), 3).data.any()
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 2 and hooks(model) == 0
    complete = len(run.find(step=0, path="inner.layer", role="output")) == levels
    assert complete or any("RecursionError" in text or "could not be said" in text for _, _, text in run.notes)
    assert len(run.find(step=1, path="inner.layer", role="output")) == 3


def test_outputs_with_very_many_tensors(tmp_path: Path) -> None:
    model = block(lambda module, x: [x * float(number) for number in range(3000)])
    with probe.capture(model, tmp_path / "a.h5"):
        model(batch())
    outputs = Recording(tmp_path / "a.h5").find(role="output")
    assert [s.slot for s in outputs] == [str(number) for number in range(3000)]


def test_deep_nesting_is_told(tmp_path: Path) -> None:
    def nested(x: Tensor, levels: int) -> object:
        for _ in range(levels):
            x = [x]
        return x

    model = nn.Sequential(block(lambda module, x: nested(x, DEPTH - 1)), block(lambda module, x: nested(x, 10_000)))
    text = (
        f"tensors more than {DEPTH} containers deep are not recorded; the first is output {'.'.join('0' * DEPTH)} of 1"
    )
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5"):
        for _ in range(2):
            model(batch())
    run = Recording(tmp_path / "a.h5")
    assert said(caught) == [note for _, _, note in run.notes] == [text]
    assert [s.slot for s in run.find(path="0", role="output")] == [".".join("0" * (DEPTH - 1))] * 2


def test_tensors_inside_objects_are_told(tmp_path: Path) -> None:
    class Cache:
        def __init__(self, x: Tensor) -> None:
            self.layers = [{"keys": x}]

    class Plain:
        """Has no tensor."""

        size = 3

    def forward(module: nn.Module, x: Tensor, plain: Plain, cache: Cache) -> Tensor:
        return x * 1.0

    model = block(forward)
    text = f"tensors in objects of class {Cache.__qualname__} are not recorded; the first is input cache of the root"
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5"):
        for _ in range(2):
            model(batch(), Plain(), cache=Cache(batch()))
    assert said(caught) == [note for _, _, note in Recording(tmp_path / "a.h5").notes] == [text]


def test_flatten_tells_what_it_did_not_look_into() -> None:
    missed: list[tuple[str, object]] = []
    loop: list[object] = [1, "x", None]
    loop.append(loop)
    other = object()
    assert flatten([loop, {"a": other}, 2.5], lambda value: False, "", missed) == []
    assert missed == [("1.a", other)]
