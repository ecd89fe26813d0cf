"""litgpt's Qwen2 against transformers: queries, keys and values in one Linear, one after the other, with shared heads."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import next_tokens, stacked

HIDDEN, HEADS, GROUPS, LAYERS, VOCABULARY, LENGTH = 32, 4, 2, 3, 96, 20
A, B = "model.layers", "transformer.h"


def _transformers() -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
            intermediate_size=64, vocab_size=VOCABULARY, max_position_embeddings=LENGTH, tie_word_embeddings=False,
        )
    )  # fmt: skip


def _litgpt() -> nn.Module:
    from litgpt import GPT, Config

    return GPT(
        Config(
            name="qwen2-test", block_size=LENGTH, n_layer=LAYERS, n_head=HEADS, n_embd=HIDDEN, n_query_groups=GROUPS,
            vocab_size=VOCABULARY, padded_vocab_size=VOCABULARY, rotary_percentage=1.0, parallel_residual=False,
            bias=False, attn_bias=True, norm_class_name="RMSNorm", norm_eps=1e-6, mlp_class_name="LLaMAMLP",
            intermediate_size=64,
        )
    )  # fmt: skip


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    return {"ids": torch.randint(VOCABULARY, (3, LENGTH), generator=generator)}


def _with(config: Any, **values: Any) -> Any:
    """Return a configuration of one module alone."""
    changed = copy.copy(config)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


def _heads_in_turn(attend: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any = None) -> Tensor:
    """Repeat keys and values in turn, where each is for neighbouring queries."""
    order = [0, 2, 1, 3]
    return attend(q, k[:, order], v[:, order], mask)


def _gelu_gate(mlp: Any, x: Tensor) -> Tensor:
    return mlp.proj(F.gelu(mlp.fc_1(x)) * mlp.fc_2(x))


def _swapped(mlp: Any, x: Tensor) -> Tensor:
    return mlp.proj(mlp.fc_1(x) * F.silu(mlp.fc_2(x)))


def _rotary_base(training: Any) -> None:
    from litgpt.model import build_rope_cache

    training.model.cos, training.model.sin = build_rope_cache(LENGTH, HIDDEN // HEADS, base=1000)


_ATTENTION = ("", f"{A}.0.self_attn", "model.rotary_emb")  # litgpt's tables belong to the whole model
PAIR = Pair(
    name="litgpt_qwen2",
    a=Side(("transformers 5.23.0",), _transformers, lambda model, batch: next_tokens(model(batch["ids"], use_cache=False).logits, batch["ids"])),
    b=Side(("litgpt 0.5.13",), _litgpt, lambda model, batch: next_tokens(model(batch["ids"]), batch["ids"])),
    batch=_batch,
    weights={
        f"{B}.{{i}}.attn.qkv.{kind}": (stacked, *(f"{A}.{{i}}.self_attn.{part}_proj.{kind}" for part in "qkv"))
        for kind in ("weight", "bias")
    },
    faults=(
        Fault("norm_eps", plant.attribute(f"{B}.1.norm_1", eps=1e-5), (f"{A}.1.input_layernorm",), ("forward",)),
        Fault("norm_offset", plant.attribute(f"{B}.2.norm_2", add_unit_offset=True), (f"{A}.2.post_attention_layernorm",), ("forward",)),
        Fault("gelu", plant.forward(f"{B}.1.mlp", lambda forward, x: _gelu_gate(forward.__self__, x)), (f"{A}.1.mlp.act_fn", f"{A}.1.mlp"), ("forward",)),
        Fault("gate_and_up", plant.forward(f"{B}.1.mlp", lambda forward, x: _swapped(forward.__self__, x)), (f"{A}.1.mlp.act_fn", f"{A}.1.mlp"), ("forward",)),
        Fault("attention_scale", plant.attribute(f"{B}.1.attn", mscale=1.1), (f"{A}.1.self_attn",), ("forward",)),
        Fault("shared_heads", plant.calls(f"{B}.0.attn", "scaled_dot_product_attention", _heads_in_turn), (f"{A}.0.self_attn",), ("forward",)),
        Fault("no_mask", plant.calls(f"{B}.2.attn", "scaled_dot_product_attention", lambda attend, q, k, v, mask=None: attend(q, k, v, torch.zeros(LENGTH, LENGTH))), (f"{A}.2.self_attn",), ("forward",)),
        Fault("rotary_base", _rotary_base, _ATTENTION, ("forward", "init")),
        Fault("rotary_interleaved", plant.attribute(f"{B}.1.attn", config=lambda c: _with(c, rope_interleave=True)), (f"{A}.1.self_attn",), ("forward",)),
        Fault("scaled_embeddings", plant.attribute("", config=lambda c: _with(c, scale_embeddings=True)), ("model.embed_tokens", "model", ""), ("forward",)),
        Fault("no_bias", plant.weight(f"{B}.2.attn.qkv", lambda x: 0 * x, "bias"), tuple(f"{A}.2.self_attn.{part}_proj" for part in "qkv"), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{B}.2.mlp", f"{B}.1.mlp"), (f"{A}.2.mlp.gate_proj", f"{A}.2.mlp", f"{A}.2.mlp.*_proj"), ("init",)),
        Fault("detached", plant.detached(f"{B}.1.mlp.fc_1"), (f"{A}.1.mlp.gate_proj",), ("backward", "gradient")),
        Fault("residual", plant.forward(f"{B}.1.mlp", lambda forward, x: forward(x) + x), (f"{A}.1.mlp",), ("forward",)),
        Fault("loss_scale", plant.loss_scaled(1.05), ("",), ("loss",)),
        Fault("beta2", plant.optimizer(betas=(0.9, 0.999)), ("",), ("update",)),
        Fault("decay_missing", plant.optimizer("lm_head.weight", weight_decay=0.0), ("lm_head",), ("update",)),
    ),
)  # fmt: skip
