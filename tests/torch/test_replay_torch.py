"""Replay, inject, A's gradients in B's optimizer, and both models in one call, in PyTorch."""

from __future__ import annotations

import copy
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import probe
from probe.commands.cli import main
from probe.errors import ConfigError, ProbeWarning
from probe.report import text


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 1.1 * gradient


class Block(nn.Module):
    def __init__(self, backward_fault: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.backward_fault = backward_fault

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.relu(self.up(self.norm(x))))
        return x + (Doubled.apply(y) if self.backward_fault else y)


class Net(nn.Module):
    def __init__(self, number: int = 6) -> None:
        super().__init__()
        self.layers, self.bn, self.head = (
            nn.ModuleList(map(lambda _: Block(), range(number))),
            nn.BatchNorm1d(8),
            nn.Linear(8, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.bn(x))


def batch() -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(1))


def recorded(model: nn.Module, path: Path, optimizer: torch.optim.Optimizer | None = None) -> Path:
    with probe.capture(model, path, task="tensor", quiet=True):
        loss = model(batch()).square().mean()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        probe.step(loss=loss)
    model.zero_grad()
    return path


@pytest.fixture
def a() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def recording(a: Net, tmp_path: Path) -> Path:
    return recorded(copy.deepcopy(a), tmp_path / "a.h5")


def faulty(model: Net) -> Net:
    model = copy.deepcopy(model)
    model.layers[1].norm.eps = 1e-2
    model.layers[3].backward_fault = True
    model.layers[5].norm.eps = 1e-3
    return model


def named(found: object) -> list[tuple[str, str]]:
    return [(each.phase.label, each.path) for each in found.divergences]


def test_all_faults_are_named_and_nothing_else(a: Net, recording: Path) -> None:
    expected = {("forward", "layers.1.norm"), ("forward", "layers.5.norm"), ("backward", "layers.3")}
    assert set(named(probe.replay(faulty(a), recording))) == expected


def test_a_clean_model_is_aligned_and_the_model_is_left_as_it_was(a: Net, recording: Path) -> None:
    model = copy.deepcopy(a)
    model.layers[0].up.eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    with torch.no_grad():
        model.head.bias.add_(1)
    before, modes = copy.deepcopy(model.state_dict()), [each.training for each in model.modules()]
    rng, grads = torch.get_rng_state(), {name: each.grad for name, each in model.named_parameters()}
    assert probe.replay(model, recording).verdict == "aligned"
    with probe.inject(model, recording, at=["layers.1"]):
        state = copy.deepcopy(model.bn.state_dict())
        model(batch())
        model.bn.load_state_dict(state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert modes == [each.training for each in model.modules()]
    assert torch.equal(rng, torch.get_rng_state())
    assert all(each.grad is grads[name] for name, each in model.named_parameters())
    assert not any(each._forward_hooks or each._backward_hooks or "forward" in vars(each) for each in model.modules())


def test_own_weights_are_compared(a: Net, recording: Path) -> None:
    with torch.no_grad():
        a.layers[2].up.weight[0, 0] += 1
    assert probe.replay(a, recording).verdict == "aligned"
    assert ("init", "layers.2.up") in named(probe.replay(a, recording, weights="b"))


def test_behind_an_injected_output_the_next_fault_is_the_first(a: Net, recording: Path, tmp_path: Path) -> None:
    model = faulty(a)
    assert (
        probe.compare(recording, recorded(copy.deepcopy(model), tmp_path / "b.h5")).first_divergence.path
        == "layers.1.norm"
    )
    with probe.inject(model, recording, at=["layers.1.norm"]) as injected:
        recorded(model, tmp_path / "c.h5")
    assert injected.outputs == {"layers.1.norm": 1}
    assert probe.compare(recording, tmp_path / "c.h5").first_divergence.path == "layers.5.norm"


@pytest.mark.parametrize(
    "options",
    [{}, {"foreach": True}, {"lr": 2e-3}, {"weight_decay": 0.1}, {"betas": (0.9, 0.99)}, {"eps": 1e-4}],
    ids=str,
)
def test_an_optimizer_is_told_apart_by_its_update_alone(a: Net, tmp_path: Path, options: dict[str, object]) -> None:
    def adam(model: nn.Module, **more: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            model.parameters(), **{"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.01, **more}
        )

    model = copy.deepcopy(a)
    recording = recorded(model, tmp_path / "a.h5", adam(model))
    found = probe.replay_gradients(a, adam(a, **options), recording)
    assert found.verdict == ("aligned" if not options or "foreach" in options else "diverged")


def test_reports_have_both_errors(a: Net, recording: Path) -> None:
    found = probe.replay(faulty(a), recording)
    behind = next(slot for slot in found.slots if slot.path_a == "layers.2.up" and slot.role.label == "output")
    assert behind.metrics.rel_l2 < 1e-6 < 1e-4 < behind.in_run
    said = text.render(found, 20).plain
    assert "those in a run of B by itself" in said.replace("\n  ", " ") and "Replayed:" in said
    assert json.loads(json.dumps(found.as_json()))["replayed"]["weights"] == "a"


def plain(model: Net) -> None:
    """Change nothing."""


def with_eps(model: Net) -> None:
    model.layers[2].norm.eps = 1e-2


def with_gradient(model: Net) -> None:
    model.layers[2].backward_fault = True


@pytest.mark.parametrize("change, verdict", [(plain, "aligned"), (with_eps, "diverged"), (with_gradient, "diverged")])
@pytest.mark.parametrize("single_step", [False, True])
def test_two_models_in_one_call(a: Net, change: Callable[[Net], None], verdict: str, single_step: bool) -> None:
    b = copy.deepcopy(a)
    change(b)
    with torch.no_grad():
        b.head.weight.add_(1)  # weights are copied
    assert probe.auto_diff(a, b, {"x": batch()}, single_step=single_step).verdict == verdict


def test_an_unknown_option_is_an_error(a: Net) -> None:
    for name, meant in (("loss_func", "loss_fns?"), ("layer_mapping", "layer_map")):
        with pytest.raises(ConfigError, match=f"has no option '{name}'; did you mean {meant}\\?"):
            probe.auto_diff(a, a, {"x": batch()}, **{name: None})
    with pytest.raises(ConfigError, match="steps is given twice"):
        probe.auto_diff(a, a, {"x": batch()}, steps=3, options={"steps": 2})
    with pytest.raises(ConfigError, match=r"loss_fns=function cannot be used; expected two, A's and B's"):
        probe.auto_diff(a, a, {"x": batch()}, loss_fn=lambda output: output.mean())


@pytest.mark.parametrize("is_wrong", [False, True], ids=["clean", "fault"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"auto_weights": True, "options": {"atol": 1e-4, "rtol": 0, "compare_mode": "strict", "single_step": False}}, []),
        ({"diff_phase": "forward", "atol": 1e-4, "steps": 2}, ["steps=2 is taken as 1"]),
        ({"options": {"diff_phase": "backward", "debug": True, "cmd": False, "use_loss": False}},
         ["debug has no effect", "phases='backward' is taken as 'both'"]),
        ({"single_step": True, "options": {"atol": 1e-4, "steps": 3}}, ["atol=0.0001 is not used", "steps=3 is taken as 1"]),
        ({"loss_fn": [lambda output: output.square().mean()] * 2, "steps": 2}, ["steps=2 is taken as 1"]),
        ({"optimizer": [torch.optim.SGD, torch.optim.SGD], "steps": 2}, []),
    ],
)  # fmt: skip
def test_calls_as_padiff_has_them(
    options: dict[str, Any], said: list[str], is_wrong: bool, a: Net, recwarn: pytest.WarningsRecorder
) -> None:
    b = copy.deepcopy(a)
    b.layers[1].norm.eps = 1e-2 if is_wrong else b.layers[1].norm.eps
    if "optimizer" in options:
        options = {
            **options,
            "optimizer": [
                make(each.parameters(), lr=0.1) for make, each in zip(options["optimizer"], (a, b), strict=True)
            ],
        }
    x = {"x": batch()}
    layer_map = type("LayerMap", (), {"map": {b.layers[0]: a.layers[0]}})()
    for inputs in ((x, x), [x, {"x": batch().numpy()}]):
        found = probe.auto_diff(a, b, inputs, layer_map=layer_map, **options)
        assert bool(found) is not is_wrong, str(found)
    texts = [str(each.message) for each in recwarn if isinstance(each.message, ProbeWarning)]
    assert all(any(text in each for each in texts) for text in said)
    assert len(texts) == 2 * len(said)


def test_the_command_names_all_faults_and_writes_what_its_file_asks_for(
    a: Net, recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = types.ModuleType("made_for_replay")
    made.b = lambda: faulty(a)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    out = tmp_path / "report.json"
    arguments = ["replay", str(recording), "--model", "made_for_replay:b"]
    result = CliRunner().invoke(main, [*arguments, "-o", str(out)])
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    answer = json.loads(out.read_text(encoding="utf-8"))
    said = {(each["phase"], each["a"][0]["path"]) for each in answer["divergences"]}
    assert said == {("forward", "layers.1.norm"), ("forward", "layers.5.norm"), ("backward", "layers.3")}
    refused = CliRunner().invoke(main, [*arguments, "-o", "report.docx"])
    assert refused.exit_code != 0 and not Path("report.docx").exists()
