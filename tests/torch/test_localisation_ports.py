"""The ports of the fifth held-out set: that each is right, that its mapping fits, that its faults are found and measured."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import probe  # noqa: E402
from benchmarks.localisation.models.building import build  # noqa: E402
from benchmarks.localisation.models.ports.counterparts import COUNTERPARTS, converted, counterparts, nearest  # noqa: E402
from benchmarks.localisation.models.registry import ARCHITECTURES, MAPPINGS  # noqa: E402
from benchmarks.localisation.pairs.pair import Setup  # noqa: E402
from benchmarks.localisation.pairs.registry import PAIRS  # noqa: E402
from benchmarks.localisation.tools import suite  # noqa: E402
from benchmarks.localisation.tools.brute_force import times_noise  # noqa: E402
from benchmarks.localisation.tools.training import run_of  # noqa: E402


@pytest.mark.parametrize("port", COUNTERPARTS)
def test_a_port_computes_what_the_model_does_and_learns_what_it_learns(port):
    runs = [run_of(Setup(name, attention="eager")) for name in (ARCHITECTURES[port].baseline, port)]
    losses = [float(run.backward(0)) for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    given, found = ({name: p.grad for p, name in run.names.items() if p.grad is not None} for run in runs)
    expected = converted(port, given)
    assert set(expected) == set(found)
    assert sum(each.numel() for each in found.values()) == sum(each.numel() for each in given.values())
    for name, gradient in found.items():
        error = float((gradient - expected[name]).norm())
        assert error < 3e-6 * float(expected[name].norm()) + 1e-6 * max(float(g.norm()) for g in found.values()), name


@pytest.mark.parametrize("port", COUNTERPARTS)
def test_a_port_that_is_wider_and_deeper_has_the_models_weights(port):
    wider = {"width": 2, "layers": 3} if "convnext" not in port else {}
    losses = [float(run_of(Setup(name, **wider)).step(0)) for name in (ARCHITECTURES[port].baseline, port)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("port", COUNTERPARTS)
def test_the_mapping_of_a_port_puts_each_weight_where_the_conversion_does(port, tmp_path):
    recording = suite.record(Setup(ARCHITECTURES[port].baseline), "tensor", tmp_path, "x")
    right, model = build(Setup(port)), build(Setup(port, seed=1))
    probe.load_matching(model, recording, mapping=MAPPINGS[port])
    state = model.state_dict()
    assert [name for name, weight in right.state_dict().items() if not torch.equal(weight, state[name])] == []


def test_a_module_without_a_counterpart_belongs_to_the_one_around_it():
    assert counterparts("megatron-qwen2", "decoder.layers.2.self_attention.core_attention") == (
        "model.layers.2.self_attn",
    )
    assert counterparts("vllm-llama", "model.layers.0.mlp.gate_up_proj") == (
        "model.layers.0.mlp.gate_proj",
        "model.layers.0.mlp.up_proj",
    )
    assert counterparts("own-t5", "enc_positions") == ("",)
    assert nearest("own-mamba", "stack.1.ssm.scan") == "stack.1.ssm"


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("hf-llama/meta-llama/fp32/weight/wo/5e-07", 4, 16),  # init
        ("hf-llama/vllm-llama/fp32/scaled/o_proj/3e-06", 3, 30),  # tokens in one row
        ("hf-qwen2/megatron-qwen2/bf16/core_scale/core_attention/0.3", 3, 40),  # sequence first
        ("hf-gpt2/nano-gpt2/fp32/loss_scaled/1e-06", 3, 60),  # loss
        ("hf-bert/flat-bert/fp32/weight_gradient/ff2/3e-06", 3, 40),  # gradient
        ("hf-vit/own-vit/fp32/other_statistics/pixels/1e-05", 100, 1e4),  # input
        ("hf-qwen3/own-qwen3/fp32/lr/weight/0.05", 1e3, 1e9),  # update
    ],
)
def test_a_fault_of_a_port_is_held_against_the_noise_between_both_structures(name, least, most):
    assert least < times_noise(PAIRS[name]) < most
