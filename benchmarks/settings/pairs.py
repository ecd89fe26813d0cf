"""Pairs of configurations that mean the same, and one setting planted into a side at a time.

The files in ``configurations`` were written from the public configurations and scripts of the models (the config.json of
their checkpoints, the examples of Megatron-LM, MindSpeed-LLM and MindFormers, the documentation of vLLM and PaddleNLP),
before there was a table to hold them against. Where the public script of a port differs from the checkpoint (an eps
that is left at its default, an auxiliary loss), the file has the checkpoint's value: such a difference is a planted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "configurations"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two configurations that mean the same."""

    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Plant:
    """One difference: a text of one side's file, and what is in its place."""

    a: str
    b: str
    side: str
    """that is changed: a or b"""
    old: str
    new: str
    setting: str
    """what has to be named; several, with + between them, where one option says several things"""


CLEAN = (
    Pair("qwen2-0.5b.config.json", "qwen2-0.5b.mindspeed.sh"),
    Pair("qwen2-0.5b.config.json", "qwen2-0.5b.transformers-5.config.json"),
    Pair("qwen2-0.5b.transformers-5.config.json", "qwen2-0.5b.mindspeed.sh"),
    Pair("qwen2-0.5b.config.json", "qwen2-0.5b.vllm.sh"),
    Pair("qwen2.5-7b.config.json", "qwen2.5-7b.mindformers.yaml"),
    Pair("qwen2.5-7b.config.json", "qwen2.5-7b.megatron.log"),
    Pair("qwen2.5-7b.megatron.log", "qwen2.5-7b.mindformers.yaml"),
    Pair("qwen2.5-7b.megatron.log", "qwen2.5-7b.megatron.sh"),
    Pair("qwen2.5-7b.megatron.sh", "qwen2.5-7b.mindformers.yaml"),
    Pair("llama-2-7b.config.json", "llama-2-7b.megatron.sh"),
    Pair("llama-2-7b.config.json", "llama-2-7b.mindformers.yaml"),
    Pair("llama-2-7b.config.json", "llama-2-7b.paddlenlp.config.json"),
    Pair("llama-2-7b.megatron.sh", "llama-2-7b.mindformers.yaml"),
    Pair("llama-3-8b.config.json", "llama-3-8b.megatron.sh"),
    Pair("llama-3.1-8b.config.json", "llama-3.1-8b.megatron.sh"),
    Pair("llama-3.1-8b.config.json", "llama-3.1-8b.mindformers.yaml"),
    Pair("mixtral-8x7b.config.json", "mixtral-8x7b.megatron.sh"),
    Pair("mixtral-8x7b.config.json", "mixtral-8x7b.mindformers.yaml"),
    Pair("mixtral-8x7b.megatron.sh", "mixtral-8x7b.mindformers.yaml"),
    Pair("deepseek-v3.config.json", "deepseek-v3.megatron.sh"),
    Pair("deepseek-v3.config.json", "deepseek-v3.mindformers.yaml"),
    Pair("gpt2.config.json", "gpt2.megatron.sh"),
    Pair("qwen3-8b.config.json", "qwen3-8b.megatron.sh"),
    Pair("qwen3-32b.config.json", "qwen3-32b.mindformers.yaml"),
    Pair("qwen3-30b-a3b.config.json", "qwen3-30b-a3b.megatron.sh"),
    Pair("mistral-7b.config.json", "mistral-7b.mindspeed.sh"),
    Pair("mistral-7b.config.json", "mistral-7b.megatron.sh"),
    Pair("sft.training_args.json", "sft.megatron.sh"),
    Pair("sft.training_args.json", "sft.paddlenlp.json"),
)


def _of(a: str, b: str, *plants: tuple[str, str, str, str]) -> tuple[Plant, ...]:
    return tuple(Plant(a, b, *plant) for plant in plants)


PLANTED = (
    *_of(
        "qwen2-0.5b.config.json", "qwen2-0.5b.mindspeed.sh",
        ("b", "--norm-epsilon 1e-06", "--norm-epsilon 1e-05", "norm_eps"),
        ("b", "--bf16", "--bf16 --untie-embeddings-and-output-weights", "tie_word_embeddings"),
        ("b", "--add-qkv-bias", "", "qkv_bias"),
        ("b", "--bf16", "--fp16", "compute_dtype"),
        ("a", '"num_hidden_layers": 24', '"num_hidden_layers": 23', "num_layers"),
        ("b", "--init-method-std 0.02", "--init-method-std 0.01", "init_std"),
        ("b", "--rotary-base 1000000", "--rotary-base 1000000 --rotary-interleaved", "rotary_interleaved"),
    ),
    *_of(
        "qwen2.5-7b.config.json", "qwen2.5-7b.mindformers.yaml",
        ("b", "    theta: 1000000.0\n", "", "rope_theta"),
        ("b", "num_heads: 28", "num_heads: 56", "num_attention_heads+head_dim"),
        ("b", "vocab_size: 152064", "vocab_size: 151936", "vocab_size"),
        ("b", "qkv_has_bias: True", "qkv_has_bias: False", "qkv_bias"),
    ),
    *_of(
        "qwen2.5-7b.megatron.log", "qwen2.5-7b.mindformers.yaml",
        ("b", 'softmax_compute_type: "float32"', 'softmax_compute_type: "float16"', "softmax_dtype"),
        ("b", "  use_clip_grad: True\n", "", "clip_grad"),
        ("b", "betas: [0.9, 0.95]", "betas: [0.8, 0.95]", "adam_beta1"),
        ("b", "betas: [0.9, 0.95]", "betas: [0.9, 0.999]", "adam_beta2"),
        ("b", "eps: 1.e-8", "eps: 1.e-6", "adam_eps"),
        ("b", "weight_decay: 0.01", "weight_decay: 0.1", "weight_decay"),
        ("b", "CosineWithWarmUpLR", "LinearWithWarmUpLR", "lr_schedule"),
        ("b", "warmup_ratio: 0.01", "warmup_ratio: 0.03", "warmup_ratio"),
        ("a", "hidden_dropout .................................. 0.0", "hidden_dropout .................................. 0.1", "hidden_dropout"),
        ("b", "lr_end: 1.e-7", "lr_end: 0.0", "min_lr"),
    ),
    *_of(
        "llama-2-7b.config.json", "llama-2-7b.megatron.sh",
        ("b", "    --attention-dropout 0.0\n", "", "attention_dropout"),
        ("b", "    --ffn-hidden-size 11008\n", "", "intermediate_size"),
        ("b", "--normalization RMSNorm", "--normalization LayerNorm", "normalization"),
        ("b", "--normalization RMSNorm", "--normalization RMSNorm --apply-layernorm-1p", "norm_offset"),
        ("b", "    --position-embedding-type rope\n", "", "position_embedding"),
        ("b", "    --disable-bias-linear\n", "", "qkv_bias+attention_out_bias+mlp_bias"),
    ),
    *_of(
        "llama-3-8b.config.json", "llama-3-8b.megatron.sh",
        ("b", "--rotary-base 500000", "--rotary-base 10000", "rope_theta"),
        ("b", "--num-query-groups 8", "--num-query-groups 4", "num_key_value_heads"),
        ("b", "--rotary-percent 1.0", "--rotary-percent 0.5", "rotary_fraction"),
        ("b", "--swiglu", "--squared-relu", "activation+gated_mlp"),
    ),
    *_of(
        "llama-3.1-8b.config.json", "llama-3.1-8b.megatron.sh",
        ("b", "    --use-rope-scaling\n", "", "rope_scaling"),
        ("a", '"factor": 8.0', '"factor": 32.0', "rope_scaling_factor"),
    ),
    *_of(
        "llama-3.1-8b.config.json", "llama-3.1-8b.mindformers.yaml",
        ("b", "high_freq_factor: 4.0", "high_freq_factor: 8.0", "rope_high_freq_factor"),
    ),
    *_of(
        "mixtral-8x7b.config.json", "mixtral-8x7b.megatron.sh",
        ("b", "--moe-router-topk 2", "--moe-router-topk 1", "experts_per_token"),
        ("b", "--moe-aux-loss-coeff 0", "--moe-aux-loss-coeff 1e-2", "aux_loss_coef"),
        ("b", "--moe-router-topk 2", "--moe-router-topk 2 --moe-router-pre-softmax", "router_normalize"),
    ),
    *_of(
        "mixtral-8x7b.megatron.sh", "mixtral-8x7b.mindformers.yaml",
        ("b", "capacity_factor: -1.0 # dropless", "capacity_factor: 1.1", "capacity_factor"),
        ("b", "expert_num: 8", "expert_num: 16", "num_experts"),
        ("b", "learning_rate: 1.e-5", "learning_rate: 2.e-5", "lr"),
    ),
    *_of(
        "deepseek-v3.config.json", "deepseek-v3.megatron.sh",
        ("b", "--moe-router-topk-scaling-factor 2.5", "--moe-router-topk-scaling-factor 1.0", "router_scaling_factor"),
        ("b", "--moe-router-score-function sigmoid", "--moe-router-score-function softmax", "router_score+router_normalize"),
        ("b", "--moe-shared-expert-intermediate-size 2048", "--moe-shared-expert-intermediate-size 4096", "shared_expert_size"),
        ("b", "[0]*3+[1]*58", "[0]*1+[1]*60", "dense_layers_first"),
        ("b", "--mscale 1.0", "--mscale 0.707", "rope_mscale"),
    ),
    *_of(
        "deepseek-v3.config.json", "deepseek-v3.mindformers.yaml",
        ("b", "  n_group: 8\n", "  n_group: 4\n", "router_groups"),
        ("b", "balance_via_topk_bias: True", "balance_via_topk_bias: False", "router_bias"),
    ),
    *_of(
        "gpt2.config.json", "gpt2.megatron.sh",
        ("a", '"gelu_new"', '"gelu"', "activation"),
        ("b", "--fp16", "--fp16 --apply-residual-connection-post-layernorm", "residual_after_norm"),
    ),
    *_of(
        "qwen3-8b.config.json", "qwen3-8b.megatron.sh",
        ("b", "    --norm-epsilon 1e-6 \\\n", "", "norm_eps"),
        ("b", "    --qk-layernorm \\\n", "", "qk_norm"),
    ),
    *_of(
        "qwen3-32b.config.json", "qwen3-32b.mindformers.yaml",
        ("b", "hidden_act: 'swiglu'", "hidden_act: 'gelu'", "activation"),
    ),
    *_of(
        "qwen3-30b-a3b.config.json", "qwen3-30b-a3b.megatron.sh",
        ("b", "    --kv-channels 128 \\\n", "", "head_dim"),
    ),
    *_of(
        "mistral-7b.config.json", "mistral-7b.mindspeed.sh",
        ("b", "    --sliding-window 4096 \\\n", "", "sliding_window"),
    ),
    *_of(
        "sft.training_args.json", "sft.megatron.sh",
        ("a", '"tf32": false', '"tf32": true', "tf32"),
        ("b", "    --deterministic-mode \\\n", "", "deterministic"),
        ("b", "--seed 1234", "--seed 42", "seed"),
        ("a", '"label_smoothing_factor": 0.0', '"label_smoothing_factor": 0.1', "label_smoothing"),
        ("b", "--weight-decay 0.1", "--weight-decay 0.1 --apply-wd-to-qk-layernorm", "weight_decay_groups"),
        ("b", "--optimizer adam", "--optimizer sgd", "optimizer"),
    ),
)  # fmt: skip
