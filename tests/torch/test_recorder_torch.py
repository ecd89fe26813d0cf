"""Details of the recorder that only PyTorch has: recompute, autocast, inference mode, closures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.testing import Recording, sample  # noqa: E402

modes = pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    probe.stop()


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
            self.embed, self.a, self.act, self.b = (
                nn.Linear(4, 4),
                nn.Linear(4, 4),
                nn.GELU(),
                nn.Linear(4, 4),
            )
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
