"""litgpt's Pythia against GPT-NeoX of transformers: queries, keys and values lie by kind in one and by head in the other."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import next_tokens

HIDDEN, HEADS, LAYERS, VOCABULARY, LENGTH = 32, 4, 3, 96, 20
A, B = "gpt_neox.layers", "transformer.h"


def _neox() -> nn.Module:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=4 * HIDDEN,
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, attention_dropout=0.0, hidden_dropout=0.0,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    )  # fmt: skip
    return GPTNeoXForCausalLM(config)


def _litgpt() -> nn.Module:
    from litgpt import GPT, Config

    config = Config(
        name="pythia-test", block_size=LENGTH, n_layer=LAYERS, n_head=HEADS, n_embd=HIDDEN, vocab_size=VOCABULARY,
        padded_vocab_size=VOCABULARY, rotary_percentage=0.25, parallel_residual=True, bias=True,
    )  # fmt: skip
    return GPT(config)


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    return {"ids": torch.randint(VOCABULARY, (3, LENGTH), generator=generator)}


def _by_kind(packed: Tensor) -> Tensor:
    """Return rows that lie head by head (q, k, v of each) as all queries, all keys, all values."""
    return packed.unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten(0, 2)


def _with(config: Any, **values: Any) -> Any:
    """Return a configuration of one module alone."""
    changed = copy.copy(config)
    for name, value in values.items():
        setattr(changed, name, value)
    return changed


def _rotary_share(training: Any) -> None:
    """Turn all of each head, not a quarter."""
    from litgpt.model import build_rope_cache

    model = training.model
    model.config.rope_n_elem = HIDDEN // HEADS
    model.cos, model.sin = build_rope_cache(LENGTH, HIDDEN // HEADS)


PAIR = Pair(
    name="litgpt_pythia",
    a=Side(("transformers 5.23.0",), _neox, lambda model, batch: next_tokens(model(batch["ids"], use_cache=False).logits, batch["ids"])),
    b=Side(("litgpt 0.5.13",), _litgpt, lambda model, batch: next_tokens(model(batch["ids"]), batch["ids"])),
    batch=_batch,
    weights={
        f"{B}.{{i}}.attn.qkv.weight": (_by_kind, f"{A}.{{i}}.attention.query_key_value.weight"),
        f"{B}.{{i}}.attn.qkv.bias": (_by_kind, f"{A}.{{i}}.attention.query_key_value.bias"),
    },
    faults=(
        Fault("norm_eps", plant.attribute(f"{B}.1.norm_2", eps=1e-3), (f"{A}.1.post_attention_layernorm",), ("forward",)),
        Fault("final_norm_eps", plant.attribute("transformer.ln_f", eps=1e-6), ("gpt_neox.final_layer_norm",), ("forward",)),
        Fault("gelu_tanh", plant.attribute(f"{B}.0.mlp", config=lambda c: _with(c, gelu_approximate="tanh")), (f"{A}.0.mlp.act", f"{A}.0.mlp"), ("forward",)),
        Fault("attention_scale", plant.attribute(f"{B}.1.attn", mscale=1.1), (f"{A}.1.attention",), ("forward",)),
        Fault("rotary_share", _rotary_share, (f"{A}.0.attention", "gpt_neox.rotary_emb"), ("forward",)),
        Fault("position_offset", plant.attribute("", cos=lambda x: x.roll(1, 0)), ("", f"{A}.0.attention", "gpt_neox.rotary_emb"), ("forward",)),
        Fault("sequential_residual", plant.attribute(f"{B}.1", config=lambda c: _with(c, parallel_residual=False)), (f"{A}.1", f"{A}.1.post_attention_layernorm"), ("forward",)),
        Fault("no_bias", plant.weight(f"{B}.2.attn.proj", lambda x: 0 * x, "bias"), (f"{A}.2.attention.dense",), ("init",)),
        Fault("wrong_layer", plant.weights_of(f"{B}.2.mlp.fc", f"{B}.1.mlp.fc"), (f"{A}.2.mlp.dense_h_to_4h",), ("init",)),
        Fault("transposed", plant.weight(f"{B}.0.attn.proj", lambda x: x.T), (f"{A}.0.attention.dense",), ("init",)),
        Fault("dropout", plant.output(f"{B}.1.mlp", lambda x: F.dropout(x, 0.1)), (f"{A}.1.mlp", f"{A}.1.post_mlp_dropout", f"{A}.1"), ("forward",)),
        Fault("detached", plant.detached(f"{B}.1.attn.qkv"), (f"{A}.1.attention.query_key_value",), ("backward", "gradient")),
        Fault("loss_scale", plant.loss_scaled(0.5), ("",), ("loss",)),
        Fault("learning_rate", plant.optimizer(lr=2e-3), ("",), ("update",)),
        Fault("decay_all", plant.optimizer(weight_decay=0.1), ("",), ("update",)),
    ),
)  # fmt: skip
