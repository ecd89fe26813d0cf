"""PyTorch trainings that fail, that use probe otherwise than intended, or whose models change while they are recorded."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from test_neutral import hooks  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning, RecordingError  # noqa: E402
from probe.recorder.measuring import Measuring  # noqa: E402
from probe.records import Phase  # noqa: E402
from probe.testing import Recording, sample  # noqa: E402


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    probe.stop()


class Planted(Exception):
    """What goes wrong in the user's program."""


def batch(seed: int = 0) -> Tensor:
    return torch.from_numpy(sample((5, 4), seed))


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    module = type("Block", (nn.Module,), {"forward": forward})()
    for name, value in members.items():
        setattr(module, name, value)
    return module


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(one.message) for one in caught if issubclass(one.category, ProbeWarning)]
    return [text.removeprefix("probe: ") for text in texts]


# ---- exceptions in the user's program ------------------------------------------------------------------

WHERE = ["forward", "backward", "tensor hook", "parameter hook", "engine callback", "optimizer", "closure"]


class Fragile:
    """A training one part of which fails in the second of four steps."""

    def __init__(self, where: str) -> None:
        self.where, self.failing = where, False
        torch.manual_seed(0)
        fail = self.fail

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 2

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                fail("backward")
                if where == "engine callback":
                    torch.autograd.Variable._execution_engine.queue_callback(lambda: fail(where))
                return gradient * 2

        def forward(module: nn.Module, x: Tensor) -> Tensor:
            fail("forward")
            return Twice.apply(x)

        class SGD(torch.optim.SGD):
            def _init_group(self, *args: Any) -> Any:
                fail("optimizer")
                return super()._init_group(*args)

        self.model = nn.Sequential(nn.Linear(4, 4), block(forward), nn.BatchNorm1d(4), nn.Linear(4, 2))
        self.optimizer = SGD(self.model.parameters(), 0.1, momentum=0.9, foreach=False)

    def fail(self, where: str) -> None:
        if self.failing and self.where == where:
            raise Planted(where)

    def gradients(self, number: int) -> Tensor:
        self.optimizer.zero_grad()
        output = self.model(batch(number))
        output.register_hook(lambda gradient: self.fail("tensor hook"))
        loss = output.square().sum()
        loss.backward()
        self.fail("closure")
        return loss

    def step(self, number: int) -> None:
        self.failing = number == 1
        if self.where == "parameter hook" and not number:
            last = [*self.model.parameters()][-1]
            last.register_post_accumulate_grad_hook(lambda parameter: self.fail("parameter hook"))
        if self.where == "closure":
            self.optimizer.step(lambda: self.gradients(number))
        else:
            self.gradients(number)
            self.optimizer.step()

    def train(self, path: Path | None, caught: bool) -> list[bytes]:
        around = probe.capture(self.model, path, task="tensor") if path else contextlib.nullcontext()
        with around:
            for number in range(4):
                with contextlib.suppress(Planted) if caught else contextlib.nullcontext():
                    self.step(number)
                if path:
                    probe.step(loss=number)
        return self.state()

    def state(self) -> list[bytes]:
        tensors = [*self.model.state_dict().values(), *(p.grad for p in self.model.parameters() if p.grad is not None)]
        return [tensor.detach().numpy().tobytes() for tensor in tensors]


LOST = "an optimizer's step was not seen to its end: the update of 0.weight and 5 more is not recorded"
CLOSURE = "gradients as the optimizer used them are not recorded: the optimizer computes its gradients in a closure"
TOLD = {"optimizer": [LOST], "closure": [CLOSURE, LOST]}


@pytest.mark.parametrize("where", WHERE)
def test_an_exception_that_the_training_catches(where: str, tmp_path: Path) -> None:
    plain = Fragile(where).train(None, caught=True)
    recorded = Fragile(where)
    before = hooks(recorded.model, recorded.optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert recorded.train(tmp_path / "a.h5", caught=True) == plain
    added = 1 if where == "parameter hook" else 0
    assert len(hooks(recorded.model, recorded.optimizer) - before) == added
    run = Recording(tmp_path / "a.h5")
    assert run.steps["step"].tolist() == [0, 1, 2, 3] and run.info.closed and not run.steps["state"].any()
    assert said(caught) == [text for _, _, text in run.notes] == TOLD.get(where, [])
    for step in (2, 3):
        assert len(run.find(step=step, role="delta")) == 6
        assert len(run.find(step=step, phase="gradient")) == 6
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
    left = hooks(recorded.model, recorded.optimizer)
    assert recorded.state() == plain.state() and len(left) == (1 if where == "parameter hook" else 0)
    run = Recording(tmp_path / "a.h5")
    assert run.steps["state"].tolist() == [0, 1] and run.info.closed
    assert len(run.find(step=0, role="delta")) == 6 and not run.find(step=1, role="delta")


def test_a_gradient_that_failed_halfway_is_not_taken_for_whole(tmp_path: Path) -> None:
    """What a failed backward left in `.grad` is added to by the next one: the sum is what is recorded then."""
    training = Fragile("backward")
    with probe.capture(training.model, tmp_path / "a.h5", task="tensor"):
        training.failing = True
        with pytest.raises(Planted):
            training.model(batch()).square().sum().backward()
        training.failing = False
        half = {name: p.grad for name, p in training.model.named_parameters()}
        assert half["3.weight"] is not None and half["0.weight"] is None
        training.model(batch()).square().sum().backward()
    run = Recording(tmp_path / "a.h5")
    whole = run.find(phase="gradient")
    assert len(whole) == 6 and {s.micro for s in whole} == {1}
    for s in whole:
        gradient = training.model.get_parameter(f"{s.path}.{s.slot}").grad
        assert np.array_equal(s.values, gradient.numpy())


def test_an_exception_in_a_hook_on_a_tensor_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(path: Path | None) -> bytes:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        if path:
            probe.start(model, path)
        model(batch()).sum().backward()
        probe.stop()
        return model[0].weight.grad.numpy().tobytes()

    def observe(self: Measuring, phase: Phase, *args: Any, **kwargs: Any) -> None:
        if phase is Phase.BACKWARD:
            raise Planted
        whole(self, phase, *args, **kwargs)

    plain, whole = train(None), Measuring.observe
    monkeypatch.setattr(Measuring, "observe", observe)
    with pytest.warns(ProbeWarning) as caught:
        assert train(tmp_path / "a.h5") == plain
    assert said(caught) == ["not recorded because of an error inside probe: Planted()"]
    assert len(Recording(tmp_path / "a.h5").find(phase="gradient")) == 2


# ---- probe's functions in another order ----------------------------------------------------------------


def test_step_without_start_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.session, "_warned", False)
    model = nn.Linear(4, 2)
    with pytest.warns(ProbeWarning) as caught:
        for _ in range(3):
            model(batch()).sum().backward()
            probe.step(loss=torch.tensor(1.0))
            probe.log("x", batch())
    assert said(caught) == ["probe.step() does nothing: no recording is under way"] and not hooks(model)


def test_a_second_recording_at_the_same_time_is_refused(tmp_path: Path) -> None:
    one, other = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], 0.1)
    probe.start(one, tmp_path / "a.h5")
    before = hooks(one, optimizer)
    for model in (one, other):
        with pytest.raises(RecordingError, match=r"a\.h5 is under way; call probe\.stop\(\) first"):
            probe.start(model, tmp_path / "b.h5")
    assert hooks(one, optimizer) == before and hooks(other) == {h for h in before if h[0] == "all"}
    other(one(batch())).sum().backward()
    optimizer.step()
    probe.step()
    probe.stop()
    assert not hooks(one, optimizer) and not (tmp_path / "b.h5").exists()
    run = Recording(tmp_path / "a.h5")
    assert len(run.find(role="delta")) == 2 and not run.notes


def test_recordings_of_one_model_after_each_other_are_equal(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    runs = []
    for name in "ab":
        with probe.capture(model, tmp_path / f"{name}.h5"):
            model(batch()).sum().backward()
        model.zero_grad()
        runs.append([(s.phase, s.role, s.path, s.slot, s.hash) for s in Recording(tmp_path / f"{name}.h5").seen])
    assert runs[0] == runs[1] and len(runs[0]) > 10


def test_nothing_is_lost_where_warnings_are_errors(tmp_path: Path) -> None:
    """Of what is said, and of what is recorded behind it."""

    def train(path: Path) -> tuple[list[bytes], Recording]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), block(lambda module, x: x[:, :2]), nn.ReLU(inplace=True))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with probe.capture(model, path, task="tensor"):
            for number in range(4):
                model(batch(number)).sum().backward()
                if number == 1:
                    model[1].scale = nn.Parameter(torch.ones(2))
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=number)
        assert not hooks(model, optimizer)
        return [p.detach().numpy().tobytes() for p in model.parameters()], Recording(path)

    with pytest.warns(ProbeWarning):
        plain, expected = train(tmp_path / "a.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        strict, found = train(tmp_path / "b.h5")
    assert strict == plain and found.notes == expected.notes and len(found.notes) == 3
    assert [(s.step, s.role, s.path, s.slot, s.hash) for s in found.seen] == [
        (s.step, s.role, s.path, s.slot, s.hash) for s in expected.seen
    ]


# ---- models that change --------------------------------------------------------------------------------

NEWS = "added or replaced after probe.start(), and not recorded: "


class Lora(nn.Module):
    """A low-rank addition around a layer, as adapters are injected."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def inject(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model[2] = Lora(model[2])


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "add_module": (lambda m: m.add_module("3", nn.Linear(2, 2)), "3"),
    "another layer": (lambda m: m.__setitem__(0, nn.Linear(4, 4)), "0"),
    "another parameter": (lambda m: setattr(m[0], "weight", nn.Parameter(batch()[:4])), "0.weight"),
    "register_parameter": (lambda m: m[1].register_parameter("scale", nn.Parameter(torch.ones(2))), "1.scale"),
    "register_buffer": (lambda m: m[1].register_buffer("seen", torch.ones(2)), "1.seen"),
    "adapters": (inject, "2"),
    "weight norm": (lambda m: nn.utils.parametrizations.weight_norm(m[0]), "0.parametrizations"),
    "fewer": (lambda m: m.__setitem__(1, nn.Identity()), "1"),
    "gone": (lambda m: m.__delitem__(2), ""),
    "frozen": (lambda m: m[0].weight.requires_grad_(False), ""),
    "as it is": (lambda m: None, ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_added_or_replaced_is_told_once(name: str, tmp_path: Path) -> None:
    change, expected = CHANGES[name]

    def train(path: Path | None) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        if path:
            probe.start(model, path, task="tensor")
        for number in range(4):
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            model(batch(number)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 1:
                change(model)
            if path:
                probe.step(loss=number)
        probe.stop()
        assert not [h for h in hooks(model) if h[1] != "_forward_pre_hooks" or h[0] == "all"]
        return [p.detach().numpy().tobytes() for p in model.parameters()]

    plain = train(None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert train(tmp_path / "a.h5") == plain
    run = Recording(tmp_path / "a.h5")
    wanted = [NEWS + expected] if expected else []
    assert said(caught) == [text for _, _, text in run.notes] == wanted
    assert len(run.steps) == 4 and len(run.find(path="", role="output")) == 4


def test_the_layer_inside_an_injected_adapter_is_recorded_on(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.warns(ProbeWarning, match="not recorded: 2$"), probe.capture(model, tmp_path / "a.h5"):
        for number in range(3):
            if number == 1:
                inject(model)
            model(batch(number)).square().sum().backward()
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert len(run.find(path="2", role="output")) == 3
    assert [len(run.find(step=step, phase="gradient")) for step in range(3)] == [4, 0, 0]


# ---- odd models ----------------------------------------------------------------------------------------


def test_a_model_on_the_meta_device(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.warns(ProbeWarning) as caught, probe.capture(model, tmp_path / "a.h5", task="tensor"):
        for _ in range(2):
            model(torch.ones(5, 4, device="meta")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert (
        said(caught)
        == [text for _, _, text in run.notes]
        == ["tensors on the meta device are not recorded; the first is param weight of 0"]
    )
    assert len(run.calls) == 6 and not run.seen


@pytest.mark.parametrize("task", ["statistics", "tensor", "norms", "structure"])
def test_a_model_without_parameters(task: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.ReLU(), nn.Flatten())
    with probe.capture(model, tmp_path / "a.h5", task=task):
        for _ in range(2):
            x = batch().requires_grad_()
            model(x).sum().backward()
            probe.step()
    run = Recording(tmp_path / "a.h5")
    assert not run.notes and not run.parameters and len(run.steps) == 2
    assert run.find(path="", role="output", step=1)


@pytest.mark.parametrize("task", ["statistics", "tensor", "norms", "structure"])
def test_a_model_that_never_runs(task: str, tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with probe.capture(model, tmp_path / "a.h5", task=task):
        for number in range(2):
            torch.nn.functional.linear(batch(number), model.weight).sum().backward()
            optimizer.step()
            probe.step(loss=number)
    run = Recording(tmp_path / "a.h5")
    assert not len(run.calls) and len(run.steps) == 2 and not run.notes
    if task in ("statistics", "tensor"):
        assert [s.slot for s in run.find(role="delta")] == ["weight", "bias"] * 2


def test_a_training_without_anything(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        pass
    run = Recording(tmp_path / "a.h5")
    assert run.info.closed and not run.seen and not hooks(model)


# ---- depth ---------------------------------------------------------------------------------------------


class Level(nn.Module):
    """A layer, and the next level inside it."""

    def __init__(self, inner: nn.Module | None) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x if self.inner is None else self.inner(x)


def nested(levels: int) -> nn.Module:
    torch.manual_seed(0)
    model = None
    for _ in range(levels):
        model = Level(model)
    return model


@contextlib.contextmanager
def room_for(frames: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def in_a_large_thread(function: Callable[[], None]) -> None:
    """Run something with room on the C stack: PyTorch's own calls are deep."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    before = threading.stack_size(512 << 20)
    thread = threading.Thread(target=work)
    thread.start()
    threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]


def test_a_model_nested_900_levels_deep(tmp_path: Path) -> None:
    def work() -> None:
        with room_for(8000):
            model = nested(900)
            plain = model(batch()).detach().numpy().tobytes()
            with probe.capture(model, tmp_path / "a.h5", task="tensor", phases=["forward", "backward"]):
                output = model(batch())
                output.square().sum().backward()
            assert output.detach().numpy().tobytes() == plain and not hooks(model)

    in_a_large_thread(work)
    run = Recording(tmp_path / "a.h5")
    assert len(run.calls) == 1800 and not run.notes
    assert len([s for s in run.find(role="grad_input") if s.path.endswith("layer")]) == 899


@pytest.mark.parametrize("room", [0, 3, 6, 9, 12, 16, 20, 30])
def test_without_room_on_the_stack_for_probe_the_training_goes_on(room: int, tmp_path: Path) -> None:
    """A hook needs some frames more than the module: what it could not do is in the notes."""
    levels = 60
    model = nested(levels)
    marker = [m.register_forward_pre_hook(lambda *_: None) for m in model.modules()]  # so torch takes its slow path

    def forward() -> bytes:
        return model(batch()).detach().numpy().tobytes()

    low, high = 50, 2000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            with room_for(middle):
                forward()
            high = middle
        except RecursionError:
            low = middle
    plain = forward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with probe.capture(model, tmp_path / "a.h5"):
            with room_for(high + room + 2):
                assert forward() == plain
            probe.step()
            assert forward() == plain
    for handle in marker:
        handle.remove()
    assert not hooks(model)
    run = Recording(tmp_path / "a.h5")
    layers = [s for s in run.find(step=0, role="output") if s.path.endswith("layer")]
    told = any("RecursionError" in text or "could not be said" in text for _, _, text in run.notes)
    assert len(layers) == levels or told
    assert len([s for s in run.find(step=1, role="output") if s.path.endswith("layer")]) == levels
