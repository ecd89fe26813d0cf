"""Replay, inject, A's gradients in B's optimizer, both models in one call: all faults of a small Qwen2 are named by one replay, and models are left as they were."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import random
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe
from probe.answer.comparison import Comparison
from probe.commands.cli import main
from probe.errors import ConfigError, ProbeWarning
from probe.report import text
from tests.left_as_it_was import (
    Framework,
    Itself,
    check_inject,
    check_left_inject,
    check_replay,
    net_of,
    seen,
    unchanged,
)
from tests.torch.dialect import TORCH
from tests.two_models import SITUATIONS, check

# ---- Replay, inject, A's gradients in B's optimizer, and both models in one call, in PyTorch.


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
    inputs = (x, x) if is_wrong else [x, {"x": batch().numpy()}]
    found = probe.auto_diff(a, b, inputs, layer_map=layer_map, **options)
    assert bool(found) is not is_wrong, str(found)
    texts = [str(each.message) for each in recwarn if isinstance(each.message, ProbeWarning)]
    assert all(any(text in each for each in texts) for text in said)
    assert len(texts) == len(said)


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


# ---- `replay_gradients` tells optimizers apart by one update of the same gradients, and passes those that compute the same.

Optimizer = torch.optim.Optimizer


class Uncorrected(torch.optim.AdamW):
    """Adam whose moments are used as they are: the correction of bias is that of a late step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = {
                        "step": torch.tensor(1e5),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
        return super().step(closure)


ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def batch_optimizers(step: int) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(step))


def recorded_optimizers(model: nn.Module, optimizer: Optimizer, path: Path, steps: int = 1) -> Path:
    with probe.capture(model, path, task="tensor", quiet=True):
        for step in range(steps):
            loss = model(batch_optimizers(step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def replayed(
    tmp_path: Path, kind_a: type[Optimizer], a: dict[str, Any], kind_b: type[Optimizer], b: dict[str, Any]
) -> Comparison:
    model = net()
    trained = copy.deepcopy(model)
    recording = recorded_optimizers(trained, kind_a(trained.parameters(), **a), tmp_path / "a.h5")
    optimizer = kind_b(model.parameters(), **b)
    before = copy.deepcopy(model.state_dict())
    found = probe.replay_gradients(model, optimizer, recording)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state and all(each.grad is None for each in model.parameters())
    return found


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [
    {}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": False},
], ids=str)  # fmt: skip
def test_the_same_update_however_it_is_computed(tmp_path: Path, kind: type[Optimizer], options: dict[str, Any]) -> None:
    assert replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options}).verdict == "aligned"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [
    {"lr": 1.02e-3}, {"weight_decay": 0.0, "foreach": True}, {"weight_decay": 0.1, "fused": True}, {"betas": (0.8, 0.999)},
    {"betas": (0.9, 0.99), "foreach": True}, {"eps": 1e-5, "fused": True}, {"maximize": True}, {"amsgrad": True},
], ids=str)  # fmt: skip
def test_another_update(tmp_path: Path, kind: type[Optimizer], options: dict[str, Any]) -> None:
    found = replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options})
    assert found.verdict == "diverged"
    assert {each.phase.label for each in found.divergences} == {"update"}


def test_decay_in_the_gradient_is_not_decay_of_the_weight(tmp_path: Path) -> None:
    assert replayed(tmp_path, torch.optim.AdamW, ADAM, torch.optim.Adam, ADAM).verdict == "diverged"


def test_no_correction_of_bias(tmp_path: Path) -> None:
    assert replayed(tmp_path, torch.optim.AdamW, ADAM, Uncorrected, ADAM).verdict == "diverged"


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"foreach": True}, "aligned"), ({"fused": True}, "aligned"), ({"lr": 0.102}, "diverged"),
    ({"momentum": 0.5}, "diverged"), ({"momentum": 0.0}, "diverged"), ({"weight_decay": 0.0}, "diverged"), ({"nesterov": True}, "diverged"),
], ids=str)  # fmt: skip
def test_sgd_with_momentum(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, torch.optim.SGD, SGD, torch.optim.SGD, {**SGD, **options}).verdict == verdict


# ---- All faults of a small Qwen2 are named by one replay, and nothing else: wrong code forward and backward, wrong weights.

L = "model.layers"
DTYPES = [torch.float32, torch.bfloat16]


def qwen2(dtype: torch.dtype) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager", use_cache=False, initializer_range=0.1,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(dtype).train()


def recorded_qwen2(model: nn.Module, path: Path) -> Path:
    ids = torch.randint(0, 97, (2, 24), generator=torch.Generator().manual_seed(1))
    with probe.capture(model, path, task="tensor", quiet=True):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        probe.step(loss=loss)
    model.zero_grad()
    return path


def id_of(value: Any) -> str | None:
    return str(value).rpartition(".")[2] if isinstance(value, torch.dtype) else None


@pytest.fixture(scope="module", params=DTYPES, ids=id_of)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Qwen2ForCausalLM, Path]:
    model = qwen2(request.param)
    return model, recorded_qwen2(model, tmp_path_factory.mktemp("qwen2") / "a.h5")


class PassedBack(torch.autograd.Function):
    """It returns what it is given, and passes back another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradient), None


def scaled(x: Tensor) -> Tensor:
    """Let a gradient be too long."""
    return PassedBack.apply(x, lambda gradient: 1.1 * gradient)


def partly_lost(x: Tensor) -> Tensor:
    """Let a quarter of a gradient be lost."""
    kept = torch.arange(x.shape[-1]) >= x.shape[-1] // 4
    return PassedBack.apply(x, lambda gradient: gradient * kept)


def returns(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Let the function of a module return something else."""
    plain = module.forward
    module.forward = lambda *args, **kwargs: change(plain(*args, **kwargs))


def given(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Let the function of a module be given something else."""
    plain = module.forward
    module.forward = lambda x: plain(change(x))


@dataclass(frozen=True)
class Fault:
    phase: str
    path: str
    plant: Callable[[nn.Module], None]

    def put(self, model: nn.Module) -> None:
        self.plant(model.get_submodule(self.path))


def _eps(module: nn.Module) -> None:
    module.variance_epsilon *= 3e4


def _scaling(module: nn.Module) -> None:
    module.scaling = 1.0


def _theta(module: nn.Module) -> None:
    module.inv_freq.copy_(500_000.0 ** -(torch.arange(0, 8, 2) / 8))


def _bias(module: nn.Module) -> None:
    module.forward = lambda x: nn.functional.linear(x, module.weight, 0.5 * module.bias + 0.05)


FORWARD = [
    Fault("forward", f"{L}.1.post_attention_layernorm", _eps),
    Fault("forward", f"{L}.3.self_attn", _scaling),
    Fault("forward", f"{L}.5.mlp", lambda module: returns(module, lambda x: 1.05 * x)),
    Fault("forward", f"{L}.2.self_attn.k_proj", _bias),
    Fault("forward", f"{L}.4.mlp.act_fn", lambda module: returns(module, lambda x: 1.1 * x)),
]
BACKWARD = [
    Fault("backward", f"{L}.0.mlp", lambda module: returns(module, scaled)),
    Fault("backward", f"{L}.2.mlp.up_proj", lambda module: returns(module, partly_lost)),
    Fault("backward", f"{L}.5.input_layernorm", lambda module: given(module, scaled)),
    Fault("backward", f"{L}.1.self_attn.v_proj", lambda module: returns(module, scaled)),
    Fault("backward", f"{L}.3.self_attn.o_proj", lambda module: given(module, scaled)),
]
MIXED = [FORWARD[0], BACKWARD[1], FORWARD[1], FORWARD[4], BACKWARD[2]]


def named_qwen2(found: Comparison) -> set[tuple[str, str]]:
    return {(each.phase.label, each.path) for each in found.divergences}


def expected(faults: Iterable[Fault]) -> set[tuple[str, str]]:
    return {(each.phase, each.path) for each in faults}


@pytest.mark.parametrize(
    ("pair", "faults"),
    [(DTYPES[0], FORWARD), (DTYPES[1], BACKWARD), *((dtype, MIXED) for dtype in DTYPES)],
    indirect=["pair"],
    ids=["float32-forward", "bfloat16-backward", "float32-mixed", "bfloat16-mixed"],
)
def test_all_faults_are_named_and_nothing_else_qwen2(pair: tuple[Qwen2ForCausalLM, Path], faults: list[Fault]) -> None:
    model, recording = copy.deepcopy(pair[0]), pair[1]
    for fault in faults:
        fault.put(model)
    found = probe.replay(model, recording)
    assert named_qwen2(found) == expected(faults)
    assert not found.replayed.left


@pytest.mark.parametrize(("pair", "weights"), [*zip(DTYPES, "ba", strict=True)], indirect=["pair"], ids=id_of)
def test_a_wrong_theta_is_no_weight_of_as(pair: tuple[Qwen2ForCausalLM, Path], weights: str) -> None:
    model, recording = copy.deepcopy(pair[0]), pair[1]
    faults = [Fault("init", "model.rotary_emb", _theta), *FORWARD[:2]]
    for fault in faults:
        fault.put(model)
    assert named_qwen2(probe.replay(model, recording, weights=weights)) == expected(faults)


def test_wrong_weights_are_named_if_they_are_its_own(pair: tuple[Qwen2ForCausalLM, Path]) -> None:
    model, recording = copy.deepcopy(pair[0]), pair[1]
    paths = [f"{L}.{place}" for place in ("1.mlp.up_proj", "3.input_layernorm", "5.self_attn.q_proj", "2.self_attn.o_proj",
                                          "4.mlp.down_proj")]  # fmt: skip
    with torch.no_grad():
        for path in paths:
            weight = model.get_submodule(path).weight
            weight.view(-1)[:4] *= 1.5
    assert probe.replay(model, recording).verdict == "aligned"
    assert named_qwen2(probe.replay(model, recording, weights="b")) == {("init", path) for path in paths}


@pytest.mark.parametrize("weights", ["a", "b"])
def test_a_clean_model_is_aligned(pair: tuple[Qwen2ForCausalLM, Path], weights: str) -> None:
    model = copy.deepcopy(pair[0])
    for layer in model.model.layers:
        layer.self_attn.config = copy.deepcopy(layer.self_attn.config)
        layer.self_attn.config._attn_implementation = "sdpa"
    found = probe.replay(model, pair[1], weights=weights)
    assert (found.verdict, found.replayed.left) == ("aligned", ())


# ---- Replay and inject leave a model of PyTorch exactly as it was: what is compared stands in ``tests/left_as_it_was.py``.

_DEVICE = "cpu"


class Part(nn.Module):
    """It writes to everything that a module may write to, and uses random numbers of all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.25)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.number, self.kept, self.named, self.cache = 0, [], {"first": 0}, torch.zeros(2)
        self.is_rebinding = True
        """its buffer becomes another object at each call"""

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.up(x))) + 0.1 * torch.randn(6)
        with torch.no_grad():
            self.mean.add_(0.1 * x.detach().mean(0))
            self.cache.add_(1)
        if self.is_rebinding:
            self.calls = self.calls + 1
        self.number += 1
        self.kept.append(self.number)
        self.named[f"of {self.number}"] = self.number
        return x * (1 + random.random()) + np.random.rand()


LeftNet = net_of(nn.Module, Part, nn.Linear)


def model(is_raising: bool = False) -> nn.Module:
    """Return a model with modes, gradients, frozen parameters and hooks of its user's."""
    torch.manual_seed(3)
    net = LeftNet(is_raising)
    net.second.eval()
    net.second.norm.train()
    net.head.bias.requires_grad_(False)
    for number, parameter in enumerate(net.parameters()):
        if parameter.requires_grad and number % 2:
            parameter.grad = torch.randn(parameter.shape)
    net.first.register_forward_pre_hook(unchanged)
    net.first.up.register_forward_hook(unchanged)
    net.second.up.register_full_backward_hook(unchanged)
    net.first.up.weight.register_hook(unchanged)
    net.second.up.weight.register_post_accumulate_grad_hook(unchanged)
    net.head.forward = functools.partial(nn.Linear.forward, net.head)
    net.head.note = "behind the function of its own"
    return net


def other(is_raising: bool = False) -> nn.Module:
    """Return such a model with weights that are not those of the recording."""
    net = model(is_raising)
    with torch.no_grad():
        net.head.weight.add_(1)
    return net


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else repr(tensor).encode()


def facts_of(tensor: Tensor) -> dict[str, object]:
    gradient = tensor.grad
    return {
        "bits": (tensor.dtype, tuple(tensor.shape), bits(tensor)),
        "gradient": Itself(gradient),
        "bits of the gradient": None if gradient is None else bits(gradient),
        "learns": tensor.requires_grad,
        "hooks": [seen(tensor._backward_hooks), seen(tensor._post_accumulate_grad_hooks)],
        "memory": tensor.data_ptr(),
    }


def surroundings() -> dict[str, object]:
    hooks = {name: seen(value) for name, value in vars(nn.modules.module).items() if name.startswith("_global_")}
    return hooks | {
        "random numbers of torch": torch.get_rng_state().tolist(),
        "autocast": (torch.is_autocast_enabled(_DEVICE), torch.get_autocast_dtype(_DEVICE), torch.is_autocast_cache_enabled()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "call": nn.Module.__call__,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def tensors_of(net: LeftNet) -> dict[str, Tensor]:
    """Return parameters, buffers, and tensors that are plain attributes, by name."""
    caches = {"first.cache": net.first.cache, "second.cache": net.second.cache}
    return dict(net.named_parameters()) | dict(net.named_buffers()) | caches


TORCH_LEFT = Framework(lambda net: net.named_modules(), lambda net: tensors_of(net).items(), facts_of, surroundings)


def seed() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def run(net: LeftNet) -> None:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    net(x).square().mean().backward()


@pytest.fixture(scope="module")
def recording_left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, net = tmp_path_factory.mktemp("left") / "a.h5", model()
    seed()
    with probe.capture(net, path, task="tensor", quiet=True):
        run(net)
        probe.step()
    return path


def with_autocast() -> AbstractContextManager[object]:
    return torch.autocast(_DEVICE, torch.bfloat16)


@pytest.mark.parametrize("around", [contextlib.nullcontext, with_autocast, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_raising", [False, True], ids=["whole", "raising"])
def test_a_replay_leaves_a_model_as_it_was(recording_left: Path, around: Any, is_raising: bool) -> None:
    net = other(is_raising)
    with around():
        check_replay(TORCH_LEFT, net, recording_left)


@pytest.mark.parametrize("options", [{"weights": "b"}, {"reference": True}], ids=str)
def test_so_does_every_kind_of_replay(recording_left: Path, options: dict[str, Any]) -> None:
    check_replay(TORCH_LEFT, other(), recording_left, **options)


def test_a_step_under_inject_leaves_what_it_leaves_without(recording_left: Path) -> None:
    net = model()
    weights, gradients = copy.deepcopy(net.state_dict()), [copy.deepcopy(each.grad) for each in net.parameters()]
    for parameter in net.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

    def begin() -> None:
        seed()
        net.load_state_dict(weights)
        for part in (net.first, net.second):
            part.number, part.is_rebinding = 0, False
            part.cache.zero_()
            part.kept.clear()
            part.named.clear()
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(torch.zeros(()) if gradient is None else gradient)

    check_inject(TORCH_LEFT, net, recording_left, begin, functools.partial(run, net))


def test_inject_leaves_a_model_as_it_was(recording_left: Path) -> None:
    check_left_inject(TORCH_LEFT, model(), recording_left)


# ---- Both models in one call, in PyTorch.


@pytest.mark.parametrize("wrong", [False, True], ids=["clean", "fault"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_two_models_of_pytorch(name: str, wrong: bool) -> None:
    torch.manual_seed(0)
    check(SITUATIONS[name], TORCH, TORCH, wrong)
