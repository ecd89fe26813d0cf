"""Details of the recorder that only PyTorch has: recompute, autocast, closures, norms, compiled modules, what passes contribute, shards."""

from __future__ import annotations

import copy
import functools
import math
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import pipelining
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import probe
from probe.adapters.torch.adapter import TorchAdapter
from probe.errors import ProbeWarning, RecordingError
from probe.numbers import kernel
from probe.numbers.packed import unpack
from probe.records import HashKind, Phase, Role
from probe.testing import Recording, sample

# ---- Details of the recorder that only PyTorch has: recompute, autocast, inference mode, closures.

modes = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


def batch(seed: int = 0) -> Tensor:
    return torch.from_numpy(sample((3, 4), seed))


def run(path: Path, model: nn.Module, micros: int = 1, **options: Any) -> Recording:
    probe.start(model, path, task="tensor", **options)
    for micro in range(micros):
        model(batch(micro)).square().sum().backward()
    probe.step()
    probe.stop()
    return Recording(path)


# Recompute


class Block(nn.Module):
    """Has a layer that it calls twice, and a value that the user logs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.act(self.layer(x))
        probe.log("hidden", hidden)
        return self.layer(hidden) + x


class Stack(nn.Module):
    """Blocks between two layers, each of them checkpointed."""

    def __init__(self, reentrant: bool | None, shared: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList([Block()] * 3 if shared else [Block() for _ in range(3)])
        self.around = (
            (lambda f, x: f(x)) if reentrant is None else functools.partial(checkpoint, use_reentrant=reentrant)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = self.around(block, x)
        return self.head(x)


def facts(recording: Recording) -> dict[tuple[Any, ...], np.ndarray]:
    """Values by everything that says what they are."""
    found: dict[tuple[Any, ...], np.ndarray] = {}
    for s in recording.seen:
        key = (s.micro, s.phase, s.role, s.path, s.call, s.slot, s.shape, s.dtype)
        assert key not in found, f"recorded twice: {key}"
        found[key] = s.values
    return found


def assert_same(a: Recording, b: Recording) -> None:
    """Require the same records; parameters' gradients may have been summed in another order."""
    expected = facts(b)
    assert facts(a).keys() == expected.keys()
    for key, values in facts(a).items():
        if key[1] == "gradient":
            assert np.allclose(values, expected[key], rtol=1e-5, atol=1e-6), key
        else:
            assert np.array_equal(values, expected[key]), key


@modes
@pytest.mark.parametrize("shared", [False, True], ids=["own blocks", "one block three times"])
def test_a_checkpointed_run_has_the_records_of_the_plain_one(tmp_path: Path, reentrant: bool, shared: bool) -> None:
    plain = run(tmp_path / "plain.h5", Stack(None, shared), micros=2)
    again = run(tmp_path / "again.h5", Stack(reentrant, shared), micros=2)
    assert_same(again, plain)
    assert not again.notes and not plain.notes


@modes
def test_recomputed_calls_are_marked_and_carry_the_number_of_the_original(tmp_path: Path, reentrant: bool) -> None:
    recording = run(tmp_path / "a.h5", Stack(reentrant, shared=True), micros=2)
    calls = [
        (int(c["micro"]), recording.modules[c["module"]].path, int(c["call"]), bool(c["recomputed"]))
        for c in recording.calls
    ]
    for micro in (0, 1):
        first = [c[1:3] for c in calls if c[0] == micro and not c[3]]
        again = [c[1:3] for c in calls if c[0] == micro and c[3]]
        inner = [c for c in first if c[0].startswith("blocks.0")]
        segments = [inner[i : i + 4] for i in range(0, len(inner), 4)]
        assert [s[0] for s in segments] == [("blocks.0", 0), ("blocks.0", 1), ("blocks.0", 2)]
        done = [call for segment in reversed(segments) for call in segment]
        if reentrant:
            assert again == done
        else:  # it stops as soon as it has what backward needs, so some last calls may be missing
            assert again and set(again) <= set(done) and [c for c in done if c in again] == again
    recomputed = recording.calls[recording.calls["recomputed"] == 1]
    assert (recomputed["grad_enabled"] == 1).all()


@modes
def test_a_segment_of_several_modules_without_one_around_them(tmp_path: Path, reentrant: bool) -> None:
    class Flat(nn.Module):
        def __init__(self, around: Callable[..., Tensor]) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.a, self.act, self.b = (nn.Linear(4, 4), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
            self.around = around

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(2):
                x = self.around(lambda y: self.b(self.act(self.a(y))), self.embed(x))
            return x

    plain = run(tmp_path / "plain.h5", Flat(lambda f, x: f(x)))
    again = run(tmp_path / "again.h5", Flat(functools.partial(checkpoint, use_reentrant=reentrant)))
    assert_same(again, plain)
    assert again.calls["recomputed"].any()


# Modes


def test_autocast_is_in_the_calls_and_in_the_dtypes(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    probe.start(model, tmp_path / "a.h5", task="tensor")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch())
    output.float().sum().backward()
    probe.stop()
    recording = Recording(tmp_path / "a.h5")
    assert set(recording.calls["autocast"]) == {b"bfloat16"}
    output = recording.one(path="0", role="output")
    assert output.dtype == output.values.dtype.name == "bfloat16"
    assert recording.one(path="0", role="grad_output").dtype == "bfloat16"
    assert recording.one(path="0", phase="gradient", slot="weight").dtype == "float32"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_between_micro_batches(tmp_path: Path, mode: Callable[[], Any]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    probe.start(model, tmp_path / "a.h5", task="tensor")
    for micro in range(2):
        model(batch(micro)).sum().backward()
        model.eval()
        with mode():
            model(batch(10 + micro))
        model.train()
    probe.step()
    probe.stop()
    recording = Recording(tmp_path / "a.h5")
    inputs = recording.find(path="", role="input")
    assert [s.micro for s in inputs] == [0, -1, 1, -2]
    assert [np.array_equal(s.values, sample((3, 4), seed)) for s, seed in zip(inputs, (0, 10, 1, 11), strict=True)] == [
        True
    ] * 4
    assert {s.micro for s in recording.find(phase="backward")} == {0, 1} and not recording.notes


# Gradients


def test_contributions_of_in_place_and_many_output_modules(tmp_path: Path) -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x.chunk(2, -1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.halves, self.act, self.out = (
                nn.Linear(4, 4),
                Halves(),
                nn.ReLU(inplace=True),
                nn.Linear(2, 1),
            )

        def forward(self, x: Tensor) -> Tensor:
            left, _ = self.halves(self.act(self.first(x)))
            return self.out(left)

    recording = run(tmp_path / "a.h5", Net())
    before = recording.one(path="first", role="output").values
    out = recording.one(path="out", role="grad_input").values
    halves = recording.one(path="halves", role="grad_input").values
    assert np.array_equal(halves, np.concatenate([out, np.zeros_like(out)], -1))
    assert np.array_equal(recording.one(path="act", role="grad_input").values, halves * (before > 0))
    assert [s.slot for s in recording.find(path="halves", role="grad_output")] == ["0"]


def test_one_tensor_as_two_arguments_has_a_total_for_each(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention = nn.Linear(4, 4), nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x.unsqueeze(0))
            return self.attention(x, x, value=x)[0]

    recording = run(tmp_path / "a.h5", Net())
    totals = recording.find(path="attention", role="grad_total")
    assert [s.slot for s in totals] == ["0", "1", "value"] and len({s.hash for s in totals}) == 1
    assert totals[0].hash == recording.one(path="first", role="grad_output").hash
    assert not recording.find(path="attention", role="grad_input")


def test_a_retained_graph_that_runs_twice_is_seen_twice(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    probe.start(model, tmp_path / "a.h5", task="tensor")
    loss = model(batch()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    probe.stop()
    recording = Recording(tmp_path / "a.h5")
    for place in ({"path": "1", "role": "grad_input"}, {"path": "0", "role": "grad_output"}):
        first, second = recording.find(**place)
        assert first.hash == second.hash
    first, second = recording.find(phase="gradient", slot="weight")
    assert np.array_equal(2 * first.values, second.values)


# Optimizers


def test_gradients_in_a_closure_are_said_not_to_be_recorded(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(batch()).square().sum()
        loss.backward()
        return loss

    probe.start(model, tmp_path / "a.h5", task="tensor")
    with pytest.warns(ProbeWarning, match="in a closure"):
        optimizer.step(closure)
    probe.step()
    probe.stop()
    recording = Recording(tmp_path / "a.h5")
    ((_, _, text),) = recording.notes
    assert text.endswith("are not recorded: the optimizer computes its gradients in a closure")
    assert not recording.find(phase="update", role="param_grad")
    assert recording.find(role="delta", slot="weight")
    assert {s.micro for s in recording.find(phase="gradient")} == {0, 1}


def test_state_and_hyper_parameters_of_adamw(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    groups = [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias]}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    probe.start(model, tmp_path / "a.h5", task="tensor", optimizer=optimizer)
    model(batch()).sum().backward()
    optimizer.step()
    probe.step()
    probe.stop()
    recording = Recording(tmp_path / "a.h5")
    states = {s.slot: s.values for s in recording.find(role="state")}
    assert set(states) == {f"{name}.{key}" for name in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}
    assert np.array_equal(states["weight.exp_avg"], optimizer.state[model.weight]["exp_avg"].numpy())
    groups = [g for _, g in recording.optimizer]
    assert [(g.class_name, g.group, g.parameters) for g in groups] == [("AdamW", 0, (0,)), ("AdamW", 1, (1,))]
    assert [g.hyper["weight_decay"] for g in groups] == [0.1, 0.01]
    assert groups[0].hyper["betas"] == [0.9, 0.999]


# ---- `task="norms"` with PyTorch: what it measures, and where its warnings point.


def with_nonfinite() -> Tensor:
    x = torch.randn(30, 20)
    x[1, 2], x[3, 4], x[5, 6], x[7, 8] = math.nan, math.inf, -math.inf, 0
    return x


MAKERS: dict[str, Callable[[], Tensor]] = {
    "float32": lambda: torch.randn(30, 20),
    "non-finite": with_nonfinite,
    "transposed": lambda: torch.randn(30, 20).T,
    "bfloat16": lambda: torch.randn(30, 20).bfloat16(),
    "complex64": lambda: torch.randn(30, 20, dtype=torch.complex64),
    "int64": lambda: torch.arange(-5, 5),
    "float8": lambda: torch.randn(30).to(torch.float8_e4m3fn),
    "empty": lambda: torch.empty(0, 3),
    "scalar": lambda: torch.tensor(2.0),
    "large": lambda: torch.randn(600, 700),
}


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "operations"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_summary_is_what_measure_returns_but_for_the_hash(
    name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and not kernel.AVAILABLE:
        pytest.skip("the compiled loop was not built")
    monkeypatch.setattr(kernel, "AVAILABLE", compiled)
    tensor, adapter = MAKERS[name](), TorchAdapter()
    whole, summary = unpack(adapter.measure(tensor, ())), unpack(adapter.summarize(tensor))
    assert (summary.hash_kind, summary.hash_lo, summary.hash_hi) == (HashKind.NONE, 0, 0)
    for field in ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros"):
        expected = pytest.approx(getattr(whole, field), rel=1e-12, nan_ok=True)
        assert getattr(summary, field) == expected, field


class Blocks(nn.Module):
    def __init__(self, checkpointed: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def record(path: Path, model: nn.Module, losses: list[float], **options: object) -> Recording:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    probe.start(model, path, **options)
    for loss in losses:
        model(torch.from_numpy(sample((5, 4)))).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss)
    probe.stop()
    return Recording(path)


def test_norms_of_a_checkpointed_model_are_those_of_the_plain_one(tmp_path: Path) -> None:
    runs = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        runs.append(record(tmp_path / f"{checkpointed}.h5", Blocks(checkpointed), [1.0] * 2, task="norms"))
    first, second = ([(s.step, s.phase, s.path, s.slot, s.norm) for s in run.seen] for run in runs)
    assert first == second and len(first) == 2 * (4 + 6)
    gradients = [s.norm for s in runs[0].find(step=0, role="param_grad")]
    assert math.hypot(*gradients) == pytest.approx(0.1, rel=1e-4)  # as clipped


def test_a_step_in_full_among_norms(tmp_path: Path) -> None:
    with pytest.warns(ProbeWarning, match="step 1 is recorded in full: loss is inf"):
        run = record(tmp_path / "a.h5", Blocks(False), [math.inf, 1.0, 1.0], task="norms", on_nonfinite=True)
    assert {s.phase for s in run.find(step=1)} == {"init", "forward", "backward", "gradient", "update"}
    assert [len(run.find(step=step)) for step in (0, 2)] == [10, 10]
    assert len(run.find(step=1, phase="gradient")) == 6


def test_a_dtype_that_numpy_has_not_leaves_the_rest_readable(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Identity())
    net[1].register_forward_hook(lambda *_: torch.zeros(3, dtype=torch.complex32))
    with pytest.warns(ProbeWarning, match="complex32"), probe.capture(net, tmp_path / "a.h5"):
        net(torch.ones(2, 4))
        probe.step()
    assert Recording(tmp_path / "a.h5").one(path="0", role="output").shape == (2, 4)


@pytest.mark.parametrize("register", ["register_forward_pre_hook", "register_forward_hook"])
def test_a_hook_of_the_program_may_stop_the_recording(tmp_path: Path, register: str) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    getattr(net[1], register)(lambda *_: probe.stop())  # then PyTorch calls what was taken off without its arguments
    probe.start(net, tmp_path / "a.h5")
    assert net(torch.ones(2, 4)).shape == (2, 4)


def test_what_a_hook_says_points_at_the_line_that_called_the_model(tmp_path: Path) -> None:
    class Evil(dict):
        def items(self) -> None:
            raise ZeroDivisionError("planted")

    class Returns(nn.Module):
        def forward(self, x: Tensor) -> Evil:
            return Evil(x=x)

    model = Returns()
    probe.start(model, tmp_path / "a.h5")
    code = compile("\n\nmodel(x)\n", "users.py", "exec")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(code, {"__name__": "users", "model": model, "x": torch.ones(2)})  # noqa: S102
    assert [(one.filename, one.lineno) for one in caught if one.category is ProbeWarning] == [("users.py", 3)]


@pytest.mark.parametrize("wrong", ["model", "scheduler", "list"])
def test_what_is_no_optimizer_is_named(wrong: str, tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    value = {"model": model, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1), "list": [optimizer]}[wrong]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    with pytest.raises(RecordingError) as caught:
        probe.start(model, tmp_path / "a.h5", optimizer=value)
    assert str(caught.value) == (
        f"probe.start() was given optimizer={kind}; expected an optimizer of torch: leave it out for one of another class, or for updates "
        "by hand; what the weights become is recorded all the same"
    )
    assert not list(tmp_path.iterdir()) and not model._forward_hooks


# ---- Stages of ``torch.distributed.pipelining``, gradients that no backward pass gives to a parameter, backward passes that are compiled.

STEPS, CHUNKS = 2, 3


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
def test_a_forward_for_shapes_alone_is_not_recorded(tmp_path: Path, alone: None, schedule: str) -> None:
    """A stage runs once on memory that nobody has filled: its numbers are others each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    stage = pipelining.PipelineStage(model, 0, 1, torch.device("cpu"))
    plan = getattr(pipelining, schedule)(stage, CHUNKS, loss_fn=lambda out, target: (out - target).square().mean())
    calls: list[object] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    path = tmp_path / "a.h5"
    with pytest.warns(ProbeWarning, match="to learn shapes"), probe.capture(model, path):
        for step in range(STEPS):
            plan.step(torch.full((6, 4), float(step)), target=torch.ones(6, 4))
            probe.step()
    run = Recording(path)
    assert len(calls) == STEPS * CHUNKS + 1, "torch has run it once for the shapes"
    outputs = run.find(path="", role="output")
    assert [(each.step, each.micro) for each in outputs] == [(s, m) for s in range(STEPS) for m in range(CHUNKS)]
    assert len(run.find(path="0", role="grad_output")) == STEPS * CHUNKS


def test_gradients_that_no_backward_pass_gives_are_said_to_be_those_as_used(tmp_path: Path) -> None:
    model, path = nn.Linear(4, 4), tmp_path / "a.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step() -> None:
        loss: Tensor = model(torch.ones(2, 4)).square().mean()
        parameters = list(model.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.grad = gradient
        optimizer.step()
        probe.step()

    with pytest.warns(ProbeWarning) as caught, probe.capture(model, path):
        step()
        step()
    assert ["not as backward left them" in str(each.message) for each in caught] == [True]
    run = probe.open(path)
    assert {each.phase for each in run[""].param_grad} == {Phase.UPDATE}
    assert [each.role for each in run[""].param_grad] == [Role.PARAM_GRAD] * 4


def test_a_backward_pass_that_is_compiled_has_nothing_of_probes_in_it(tmp_path: Path) -> None:
    """Dynamo traces the hooks with it: what they call would be compiled into the user's own code."""
    compiled_autograd = pytest.importorskip("torch._dynamo.compiled_autograd")
    graphs: list[Any] = []

    def backend(graph: Any, inputs: object) -> Any:
        graphs.append([str(node.target) for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def train(path: Path | None) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if path is not None:
            probe.start(model, path)
        loss = model(torch.ones(2, 4)).square().mean()
        with compiled_autograd._enable(lambda graph: torch.compile(graph, backend=backend)):
            loss.backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
        if path is not None:
            probe.step()
            probe.stop()
        return gradients

    plain, operations = train(None), [*graphs]
    graphs.clear()
    with pytest.warns(ProbeWarning, match="it is compiled"):
        recorded = train(tmp_path / "a.h5")
    assert all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True))
    assert graphs == operations, "the same is compiled"
    run = Recording(tmp_path / "a.h5")
    assert ["error inside" in text for _, _, text in run.notes] == [False]


def test_a_usual_training_says_nothing(tmp_path: Path) -> None:
    model: Any = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        with probe.capture(model, tmp_path / "a.h5"):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            probe.step()


# ---- Parameters that are sharded over ranks (DTensor, as FSDP2 makes them): each rank records what it holds, and asks no other one.


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Two ranks, of which this is the first; what they send each other is nothing."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    try:
        yield distributed.device_mesh.init_device_mesh("cpu", (2,))
    finally:
        distributed.destroy_process_group()


class Sharded(nn.Module):
    """Has half of a weight, as its rank does."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.to_local())


@pytest.mark.filterwarnings("error::probe.errors.ProbeWarning")
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_a_rank_holds_is_recorded(tmp_path: Path, mesh: Any, task: str) -> None:
    tensors = pytest.importorskip("torch.distributed.tensor")
    torch.manual_seed(0)
    half = torch.randn(4, 3)
    model = Sharded(tensors.DTensor.from_local(half.clone(), mesh, [tensors.Shard(0)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    path = probe.start(model, tmp_path / "a.h5", task=task)
    loss = model(torch.ones(2, 3)).sum()
    loss.backward()
    optimizer.step()
    probe.step(loss=loss)
    probe.stop()
    assert path is not None
    run = probe.open(path)
    recorded = {(each.phase, each.role): each for each in [*run[""].param, *run[""].param_grad, *run[""].delta]}
    assert {phase for phase, role in recorded if role is Role.PARAM} == {Phase.INIT, Phase.UPDATE}
    assert all(each.shape == (4, 3) for each in recorded.values())
    assert np.isclose(recorded[Phase.INIT, Role.PARAM].norm, float(half.norm()))
    assert np.isclose(recorded[Phase.GRADIENT, Role.PARAM_GRAD].mean, 2.0)
    assert np.isclose(recorded[Phase.UPDATE, Role.DELTA].mean, -1.0)
    if task == "tensor":
        assert (recorded[Phase.INIT, Role.PARAM].values() == half.numpy()).all()
        assert np.allclose(recorded[Phase.UPDATE, Role.PARAM].values(), half.numpy() - 1)


@pytest.mark.filterwarnings("error::probe.errors.ProbeWarning")
def test_what_is_gathered_while_the_model_runs_is_no_other_parameter(tmp_path: Path, mesh: Any) -> None:
    """FSDP2 leaves the outermost parameters whole until backward has ended."""
    tensors = pytest.importorskip("torch.distributed.tensor")
    model = nn.Linear(3, 4, bias=False)
    sharded = nn.Parameter(tensors.DTensor.from_local(torch.randn(2, 3), mesh, [tensors.Shard(0)]))
    whole = nn.Parameter(torch.randn(4, 3))
    model.weight = sharded
    path = probe.start(model, tmp_path / "a.h5")
    model.weight = whole
    model(torch.ones(2, 3))
    model.weight = sharded
    probe.step()
    probe.stop()
    assert path is not None
    assert [each.shape for each in probe.open(path)[""].param] == [(2, 3)]


# ---- Modules that are compiled in place: their hooks are compiled with them, and they are recorded from outside.


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def model_of(compiled: str, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 4), nn.Tanh()))
    with torch.no_grad():
        model[1][0].weight *= scale
    for path in compiled.split():
        (model if path == "root" else model.get_submodule(path)).compile(backend="eager")
    return model


def record_compiled(path: Path, compiled: str, scale: float = 1.0) -> Path:
    model = model_of(compiled, scale)
    with probe.capture(model, path):
        loss = model(torch.ones(3, 4)).square().mean()
        loss.backward()
        probe.step(loss=loss)
    return path


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_a_root_is_recorded_from_outside(tmp_path: Path) -> None:
    run = probe.open(record_compiled(tmp_path / "a.h5", "root"))
    found = {
        (each.phase, each.role) for role in (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT) for each in run[""].of(role)
    }
    assert found == {(Phase.FORWARD, Role.INPUT), (Phase.FORWARD, Role.OUTPUT), (Phase.BACKWARD, Role.GRAD_OUTPUT)}
    assert [each.phase for each in run["0.0"].param] == [Phase.INIT, Phase.INIT, Phase.UPDATE, Phase.UPDATE]


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_another_weight_inside_is_named(tmp_path: Path) -> None:
    first = probe.compare(
        record_compiled(tmp_path / "a.h5", ""), record_compiled(tmp_path / "b.h5", "root", 1.01)
    ).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "1.0")


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_layers_are_compared(tmp_path: Path) -> None:
    found = probe.compare(record_compiled(tmp_path / "a.h5", ""), record_compiled(tmp_path / "b.h5", "0 1"))
    assert {slot.path_a for slot in found.slots if slot.phase is Phase.FORWARD} == {"", "0", "1"}


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = model_of("root 1")
    before = model._compiled_call_impl, model[1]._compiled_call_impl
    probe.start(model, tmp_path / "a.h5")
    model(torch.ones(3, 4))
    assert copy.deepcopy(model)._compiled_call_impl is None
    probe.stop()
    assert (model._compiled_call_impl, model[1]._compiled_call_impl) == before


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_an_exception_passes_through(tmp_path: Path) -> None:
    model = model_of("root")
    with probe.capture(model, tmp_path / "a.h5"):
        with pytest.raises(Exception, match="shape|size"):
            model(torch.ones(3, 5))
        model(torch.ones(3, 4))
        probe.step()
    assert len(probe.open(tmp_path / "a.h5")[""].output) == 1


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_a_model_that_is_compiled_behind_the_start_is_said_not_to_be_seen(tmp_path: Path) -> None:
    model = model_of("")
    said = "gradients came, and no module was seen to run: was the model compiled behind probe.start()"
    with pytest.warns(ProbeWarning, match=re.escape(said)), probe.capture(model, tmp_path / "a.h5"):
        torch.compile(model, backend="eager")(torch.ones(3, 4)).square().mean().backward()
        probe.step()


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
def test_what_is_recorded_as_asked_is_not_said_to_be_unseen(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model = model_of("")
    with probe.capture(model, tmp_path / "a.h5", phases=["gradient"]):
        torch.compile(model, backend="eager")(torch.ones(3, 4)).square().mean().backward()
        probe.step()
    assert not any("no module was seen to run" in str(each.message) for each in recwarn)
