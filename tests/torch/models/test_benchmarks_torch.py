"""What benchmarks show of PyTorch at length, in small."""

from __future__ import annotations

import pytest

from tests.programs import benchmark

ONCE_WRONG = (
    "gan/fp32/doubled_true/steps3",  # errors of another micro-batch were forgotten
    "llama/llama-fused/fp32/scaled/attention/0.001",  # a module was blamed that ran before what agreed
    "gan/fp32/gradient/conv2/0.01",  # the gradient of a model's output was taken for the loss's
    "vit/fp32/detached/k_proj",  # a leaf that passes nothing back
    "cnn/bf16/lr/0.3/sgd",  # settings that differ for all, and show in some
    "perceptron/fp32/detached/fc2",  # what does not learn was named, and not what passes nothing back
    "segformer/fp32/narrow_loss",  # a loss that one side alone rounds
    "t5/fp32/detached/wi",  # nothing passed back through several modules
    "bert/bf16/loss_scaled/0.05",  # a loss that was averaged in fp32 is no 16-bit number
    "mixer/fp32/detached/0",  # nothing passed back to what was transposed on the way
    "opt/autocast/last_micro/micros2",  # gradients of which many may differ as much behind ReLU, and all others do
    "qwen2/bf16/eps/post_attention_layernorm/0.1",  # a small error in one direction
    "gemma2/fp32/eps/pre_feedforward_layernorm/0.0001",
    "qwen2/autocast/smoothing/0.1",  # the gradient of the loss alone tells
    "bert/bf16/decay/weight/10",  # rounding hides most of a weight decay
    "llama/bf16/theta/rotary_emb",  # angles are rounded as float32 is
)
BY_FURTHER_RUNS = (
    "electra/autocast/other_norm/LayerNorm",  # the built-in model sees none
    "convnext/fp16/doubled_true/sgd/steps2",  # weights that an update moved scale what they make
    "mobilevit/fp32/channels_last_true/steps3",  # B is noisier than the further runs altogether
    "mamba2/bf16/split_4/steps2",  # a few large elements are most of the norm
    "ijepa/fp16/fused_true/sgd/steps3",  # a sum of gradients that the further runs add up as A does
    "hf-mixtral/own-mixtral/bf16/gradient/o_proj/0.3",  # further runs hide only what they show
    "levit/bf16/coupled",  # and a batch norm's statistics, which are rounded channel by channel, are no fault
)
BY_A_REFERENCE = ("electra/autocast/other_norm/LayerNorm", "mamba/bf16/split_4/steps3")


def only(names: tuple[str, ...], *words: str) -> tuple[str, ...]:
    pairs = (word for name in names for word in ("--only", name))
    return ("localisation", "--mode", "statistics", "--jobs", "1", *words, *pairs)


PROGRAMS = {
    "sixty pairs of models and faults": ("gate",),
    "what was wrong once": only(ONCE_WRONG),
    "what further runs decide": only(BY_FURTHER_RUNS, "--rung", "noise"),
    "what a reference decides": only(BY_A_REFERENCE, "--rung", "reference"),
    "faults of each phase, from tensors and from statistics": ("faults",),
    "faults of parallel code": (
        "ranks", *(word for fault in ("missing-all-reduce", "norms-not-reduced", "replica-with-other-seed", "tied-not-reduced",
                                      "other-checkpoint", "layer-offset") for word in ("--fault", fault)),
    ),
    "a sharded training, bitwise the same": ("trainings", "FSDP1, full, original"),
    "scripts without a line of probe, bitwise the same": ("trainings.unaided", "plain torch"),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_benchmark_holds(program: str) -> None:
    benchmark(*PROGRAMS[program])
