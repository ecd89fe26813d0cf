"""All faults of a small Qwen2 are named by one replay, and nothing else: wrong code forward and backward, wrong weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

import probe
from probe.comparison.answer import Comparison

L = "model.layers"
DTYPES = [torch.float32, torch.bfloat16]


def qwen2(dtype: torch.dtype) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager", use_cache=False, initializer_range=0.1,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).to(dtype).train()


def recorded(model: nn.Module, path: Path) -> Path:
    ids = torch.randint(0, 97, (2, 24), generator=torch.Generator().manual_seed(1))
    with probe.capture(model, path, task="tensor", quiet=True):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        probe.step(loss=loss)
    model.zero_grad()
    return path


@pytest.fixture(scope="module", params=DTYPES, ids=lambda dtype: str(dtype).rpartition(".")[2])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Qwen2ForCausalLM, Path]:
    model = qwen2(request.param)
    return model, recorded(model, tmp_path_factory.mktemp("qwen2") / "a.h5")


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


def named(found: Comparison) -> set[tuple[str, str]]:
    return {(each.phase.label, each.path) for each in found.divergences}


def expected(faults: Iterable[Fault]) -> set[tuple[str, str]]:
    return {(each.phase, each.path) for each in faults}


@pytest.mark.parametrize("faults", [FORWARD, BACKWARD, MIXED], ids=["forward", "backward", "mixed"])
def test_all_faults_are_named_and_nothing_else(pair: tuple[Qwen2ForCausalLM, Path], faults: list[Fault]) -> None:
    model, recording = copy.deepcopy(pair[0]), pair[1]
    for fault in faults:
        fault.put(model)
    found = probe.replay(model, recording)
    assert named(found) == expected(faults)
    assert not found.replayed.left


def test_a_wrong_theta_is_no_weight_of_as(pair: tuple[Qwen2ForCausalLM, Path]) -> None:
    model, recording = copy.deepcopy(pair[0]), pair[1]
    faults = [Fault("init", "model.rotary_emb", _theta), *FORWARD[:2]]
    for fault in faults:
        fault.put(model)
    for weights in ("a", "b"):
        assert named(probe.replay(model, recording, weights=weights)) == expected(faults), weights


def test_wrong_weights_are_named_if_they_are_its_own(pair: tuple[Qwen2ForCausalLM, Path]) -> None:
    model, recording = copy.deepcopy(pair[0]), pair[1]
    paths = [f"{L}.{place}" for place in ("1.mlp.up_proj", "3.input_layernorm", "5.self_attn.q_proj", "2.self_attn.o_proj",
                                          "4.mlp.down_proj")]  # fmt: skip
    with torch.no_grad():
        for path in paths:
            weight = model.get_submodule(path).weight
            weight.view(-1)[:4] *= 1.5
    assert probe.replay(model, recording).verdict == "aligned"
    assert named(probe.replay(model, recording, weights="b")) == {("init", path) for path in paths}


@pytest.mark.parametrize("weights", ["a", "b"])
def test_a_clean_model_is_aligned(pair: tuple[Qwen2ForCausalLM, Path], weights: str) -> None:
    model = copy.deepcopy(pair[0])
    for layer in model.model.layers:
        layer.self_attn.config = copy.deepcopy(layer.self_attn.config)
        layer.self_attn.config._attn_implementation = "sdpa"
    found = probe.replay(model, pair[1], weights=weights)
    assert (found.verdict, found.replayed.left) == ("aligned", ())
