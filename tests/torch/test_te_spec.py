"""Megatron with Transformer Engine's layer spec, whose linears hold the norms before them, against transformers' Qwen2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))  # as Python does for a script in that folder

from convert_qwen2 import megatron_from  # noqa: E402
from megatron_gpt import ColumnParallelLinear, RMSNorm, left_to_right  # noqa: E402
from train_hf import fixed_batch, next_token_loss, small_qwen2  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase, Role  # noqa: E402

LAYER = 1
HF, MEGATRON = f"model.layers.{LAYER}", f"decoder.layers.{LAYER}"


class IdentityOp(torch.nn.Module):
    """Stands where the norm would."""

    def forward(self, x: Any) -> Any:
        return x


class TELayerNormColumnParallelLinear(torch.nn.Module):
    """A norm and the linear behind it, as Transformer Engine has them: the names are its own."""

    def __init__(self, linear: ColumnParallelLinear, norm: RMSNorm):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.layer_norm_weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Any) -> Any:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.layer_norm_weight
        return torch.nn.functional.linear(y, self.weight, self.bias), None


def with_norms_inside(model: Any) -> Any:
    for layer in model.decoder.layers:
        attention, mlp = layer.self_attention, layer.mlp
        attention.linear_qkv = TELayerNormColumnParallelLinear(attention.linear_qkv, layer.input_layernorm)
        mlp.linear_fc1 = TELayerNormColumnParallelLinear(mlp.linear_fc1, layer.pre_mlp_layernorm)
        layer.input_layernorm, layer.pre_mlp_layernorm = IdentityOp(), IdentityOp()
    return model


def record(path: Path, model: Any, task: str) -> Path:
    optimizer, tokens = torch.optim.AdamW(model.parameters(), 1e-3), fixed_batch()
    with probe.capture(model, path, task=task):
        for _ in range(2):
            logits = (
                model(input_ids=tokens).logits if hasattr(model, "model") else model(tokens, *left_to_right(tokens))
            )
            loss = next_token_loss(logits, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def recorded(folder: Path, task: str, fault: Callable[[Any], object] = lambda model: None) -> list[Path]:
    hf = small_qwen2()
    megatron = with_norms_inside(megatron_from(hf))
    fault(megatron)
    return [record(folder / "megatron.h5", megatron, task), record(folder / "hf.h5", hf, task)]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("turned", [False, True])
def test_all_weights_are_compared_and_inputs_of_the_norms_with_those_of_the_linears(
    tmp_path: Path, task: str, turned: bool
) -> None:
    files = recorded(tmp_path, task)
    found = probe.compare(*(files[::-1] if turned else files), mapping="megatron-core/qwen2")
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert not any("weights that were not compared" in text for text in found.warnings), found.warnings
    for path, roles in (
        (f"{HF}.self_attn.q_proj", (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT, Role.GRAD_INPUT)), (f"{HF}.self_attn", (Role.INPUT,)),
        (f"{HF}.mlp.gate_proj", (Role.INPUT, Role.OUTPUT, Role.GRAD_INPUT)), (f"{HF}.mlp", (Role.INPUT, Role.OUTPUT)),
    ):  # fmt: skip
        known = [s for s in found[path] if s.metrics.is_known and s.step == 0]
        assert {s.role for s in known} >= set(roles), path
        assert all(s.metrics.rel_l2 < 1e-4 for s in known if s.role in roles)
    (norm,) = (
        s
        for s in found[f"{HF}.self_attn.q_proj"]
        if s.phase is Phase.INIT and "layer_norm_weight" in s.slot_a + s.slot_b
    )
    assert norm.metrics.rel_l2 < 1e-12


def wrong_norm(megatron: Any) -> None:
    megatron.decoder.layers[LAYER].self_attention.linear_qkv.layer_norm_weight.data *= 1.5


def wrong_eps(megatron: Any) -> None:
    megatron.decoder.layers[LAYER].mlp.linear_fc1.eps = 1e-2


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize(("fault", "phase", "path", "slot"), [
    (wrong_norm, "init", f"{MEGATRON}.self_attention.linear_qkv", "layer_norm_weight"),
    (wrong_eps, "forward", f"{MEGATRON}.mlp.linear_fc1", "0"),
])  # fmt: skip
def test_a_norm_that_is_wrong_is_found_in_the_linear(
    tmp_path: Path, task: str, fault: Callable[[Any], object], phase: str, path: str, slot: str
) -> None:
    found = probe.compare(*recorded(tmp_path, task, fault), mapping="megatron-core/qwen2")
    first = found.first_divergence
    assert found.verdict is Verdict.DIVERGED and first is not None, found.warnings
    assert (first.phase.label, [(ref.path, ref.slot) for ref in first.a]) == (phase, [(path, slot)])


def test_weights_are_converted_there_and_back() -> None:
    hf = small_qwen2()
    megatron = with_norms_inside(megatron_from(hf))
    there = probe.convert_weights(hf.state_dict(), "megatron-core/qwen2", to="torch", source=hf, like=megatron)
    wanted = megatron.state_dict()
    assert there.keys() == wanted.keys() and f"{MEGATRON}.mlp.linear_fc1.layer_norm_weight" in there
    assert all((there[name] == wanted[name].numpy()).all() for name in wanted)
    back = probe.convert_weights(there, "megatron-core/qwen2", to="torch", source=megatron, like=hf)
    assert all((back[name] == value.numpy()).all() for name, value in hf.state_dict().items())
