"""A trainer's forward against an inference engine's: tokens in one row, fused residual norms, merged linears, no gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip("transformers 5 has other names than 4", allow_module_level=True)

import probe  # noqa: E402
from benchmarks.matching.models import vllm  # noqa: E402
from probe.comparison.answer import Comparison  # noqa: E402

MAPPING = "vllm/qwen2"


def compared(folder: Path, spoil: Callable[[torch.nn.Module], object] = bool, *, requests: int = 1, task: str = "statistics") -> Comparison:  # fmt: skip
    """Record both sides of a prefill and compare them."""
    torch.manual_seed(0)
    trained, served = vllm.trained(), vllm.qwen2_of_vllm(requests)
    served.load_weights(trained.state_dict())
    spoil(served)
    ids = torch.randint(0, vllm.CONFIG.vocab_size, (requests, 9))
    with probe.capture(served, folder / "served.h5", task=task):
        vllm.served(served, ids)
        probe.step()
    with probe.capture(trained, folder / "trained.h5", task=task), torch.no_grad():
        trained(input_ids=ids, position_ids=torch.arange(9).repeat(requests, 1))
        probe.step()
    return probe.compare(folder / "served.h5", folder / "trained.h5", MAPPING)


@pytest.mark.parametrize(("requests", "task"), [(1, "statistics"), (1, "tensor"), (3, "tensor"), (3, "statistics")])
def test_a_clean_pair_is_aligned(tmp_path: Path, requests: int, task: str) -> None:
    answer = compared(tmp_path, requests=requests, task=task)
    assert answer.verdict == "aligned", answer
    assert answer.coverage.share == 1.0 and answer.inputs.different == answer.inputs.only_a == ()
    judged = {slot.path_a for slot in answer.slots if slot.verdict in ("equal", "noise")}
    assert {"model.norm", "lm_head", "model.layers.2.mlp.down_proj", "model.layers.1.self_attn.qkv_proj"} <= judged


def eps(model: torch.nn.Module) -> None:
    model.model.layers[1].post_attention_layernorm.variance_epsilon = 1e-3


def residual_lost(model: torch.nn.Module) -> None:
    norm = model.model.layers[2].input_layernorm
    plain = norm.forward
    norm.forward = lambda x, residual: (plain(x), x + residual)


def shifted_positions(model: torch.nn.Module) -> None:
    turn = model.model.layers[1].self_attn.rotary_emb
    plain = turn.forward
    turn.forward = lambda positions, query, key: (plain(positions + 1, query, key)[0], plain(positions, query, key)[1])


def sees_ahead(model: torch.nn.Module) -> None:
    model.model.layers[0].self_attn.attn.is_causal = False


def gelu(model: torch.nn.Module) -> None:
    model.model.layers[1].mlp.act_fn.forward = lambda x: torch.nn.functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]


def halves_swapped(model: torch.nn.Module) -> None:
    weight = model.model.layers[2].mlp.gate_up_proj.weight
    weight.data = weight.data.roll(len(weight) // 2, 0)


def keys_for_values(model: torch.nn.Module) -> None:
    attention = model.model.layers[0].self_attn
    query, key, value = attention.qkv_proj.weight.data.split(attention.parts)
    attention.qkv_proj.weight.data = torch.cat([query, value, key])


def another_head(model: torch.nn.Module) -> None:
    torch.nn.init.normal_(model.lm_head.weight)


FAULTS = {
    eps: "model.layers.1.post_attention_layernorm",
    residual_lost: "model.layers.2.input_layernorm",
    shifted_positions: "model.layers.1.self_attn",
    sees_ahead: "model.layers.0.self_attn",
    gelu: "model.layers.1.mlp",
    halves_swapped: "model.layers.2.mlp.gate_up_proj",
    keys_for_values: "model.layers.0.self_attn.qkv_proj",
    another_head: "lm_head",
}


@pytest.mark.parametrize(("requests", "task"), [(1, "statistics"), (1, "tensor"), (3, "tensor")])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_of_the_engine_is_named_and_nothing_else(
    tmp_path: Path, fault: Callable[[torch.nn.Module], None], requests: int, task: str
) -> None:
    answer = compared(tmp_path, fault, requests=requests, task=task)
    assert {found.a[0].path for found in answer.divergences} == {FAULTS[fault]}, answer


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("fault", [bool, eps, shifted_positions], ids=lambda fault: fault.__name__)
def test_generating_is_compared_with_one_forward(
    tmp_path: Path, fault: Callable[[torch.nn.Module], None], task: str
) -> None:
    torch.manual_seed(0)
    trained, served = vllm.trained(), vllm.qwen2_of_vllm(1)
    served.load_weights(trained.state_dict())
    fault(served)
    ids = torch.randint(0, vllm.CONFIG.vocab_size, (9,))
    with probe.capture(served, tmp_path / "served.h5", task=task):
        vllm.generated(served, ids, 4)
        probe.step()
    with probe.capture(trained, tmp_path / "trained.h5", task=task), torch.no_grad():
        trained(input_ids=ids[None], position_ids=torch.arange(9)[None])
        probe.step()
    answer = probe.compare(tmp_path / "served.h5", tmp_path / "trained.h5", MAPPING)
    assert [found.path for found in answer.divergences[:1]] == ([FAULTS[fault]] if fault in FAULTS else []), answer
    assert answer.verdict == ("diverged" if fault in FAULTS else "aligned")
    assert answer.coverage.share == 1.0
