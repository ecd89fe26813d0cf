"""x-transformers' decoder against Llama of transformers: attention and feed-forward are layers of their own, rotation turns neighbours."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.localisation.tools import surgery
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side
from benchmarks.public_ports.training import next_tokens, same

HIDDEN, HEADS, SIZE, LAYERS, VOCABULARY, LENGTH = 32, 4, 8, 3, 96, 20
A, B = "model.layers", "attn_layers.layers"


def _llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=1, intermediate_size=2 * HIDDEN, max_position_embeddings=LENGTH, mlp_bias=True,
        rms_norm_eps=1e-12, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip
    return LlamaForCausalLM(config)


def _x_transformers() -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    decoder = Decoder(
        dim=HIDDEN, depth=LAYERS, heads=HEADS, attn_dim_head=SIZE, attn_kv_heads=1, rotary_pos_emb=True, rotary_emb_dim=SIZE,
        use_rmsnorm=True, norm_add_unit_offset=False, ff_glu=True, ff_swish=True, ff_mult=2,
    )  # fmt: skip
    return TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=LENGTH, use_abs_pos_emb=False, attn_layers=decoder)


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    return {"ids": torch.randint(VOCABULARY, (3, LENGTH), generator=generator)}


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    return next_tokens(model(batch["ids"], use_cache=False).logits, batch["ids"])


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    return next_tokens(model(batch["ids"]), batch["ids"])


def _same_tokens(old: Any, model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["ids"].flatten())


def _neighbours(rows: Tensor) -> Tensor:
    """Return each head's rows, of which i and i + half are turned together, so that these lie side by side."""
    return rows.unflatten(0, (-1, 2, SIZE // 2)).transpose(1, 2).flatten(0, 2)


def _halves(rows: Tensor) -> Tensor:
    return rows.unflatten(0, (-1, SIZE // 2, 2)).transpose(1, 2).flatten(0, 2)


def _joined(up: Tensor, gate: Tensor) -> Tensor:
    return torch.cat((up, gate))


def _rows_not_turned(training: Any) -> None:
    for index in range(LAYERS):
        for name in ("to_q", "to_k"):
            plant.weight(f"{B}.{2 * index}.1.{name}", _halves)(training)


def _gate_first(training: Any) -> None:
    glu = training.module(f"{B}.3.1.ff.0")

    def forward(original: Any, x: Tensor) -> Tensor:
        gate, up = glu.proj(x).chunk(2, dim=-1)
        return up * glu.act(gate)

    surgery.around(glu, forward)


def _scale(training: Any) -> None:
    training.module(f"{B}.2.1.attend").scale = HIDDEN**-0.5


def _not_causal(training: Any) -> None:
    for path in (f"{B}.4.1", f"{B}.4.1.attend"):
        training.module(path).causal = False


def _mean_over_queries(training: Any) -> None:
    """Divide the gradients of what all heads share by their number, as a mean over them would."""
    for name in ("to_k", "to_v"):
        plant.weight_gradient(f"{B}.2.1.{name}", lambda gradient: gradient / HEADS)(training)


def _warmed_up_late(training: Any) -> None:
    """Train the second step with half of the learning rate."""
    updates: list[int] = []

    def change() -> None:
        updates.append(1)
        for group in training.optimizer.param_groups:
            group["lr"] *= 0.5 if len(updates) == 2 else 1.0

    training.before_update.append(change)


def _weights(index: int) -> dict[str, Any]:
    a, attention, feed_forward = f"{A}.{index}", f"{B}.{2 * index}", f"{B}.{2 * index + 1}"
    turned = {f"{attention}.1.to_{x}.weight": (_neighbours, f"{a}.self_attn.{x}_proj.weight") for x in "qk"}
    joined = {
        f"{feed_forward}.1.ff.0.proj.{name}": (_joined, f"{a}.mlp.up_proj.{name}", f"{a}.mlp.gate_proj.{name}")
        for name in ("weight", "bias")
    }
    norms = {
        f"{attention}.0.0.g": (same, f"{a}.input_layernorm.weight"),
        f"{feed_forward}.0.0.g": (same, f"{a}.post_attention_layernorm.weight"),
    }
    return turned | joined | norms


PAIR = Pair(
    name="x_transformers_llama",
    set="blind",
    a=Side(("transformers 5.23.0",), _llama, _loss_a),
    b=Side(("x-transformers 2.31.10",), _x_transformers, _loss_b),
    batch=_batch,
    weights={
        **{key: value for index in range(LAYERS) for key, value in _weights(index).items()},
        "attn_layers.final_norm.g": (same, "model.norm.weight"),
    },
    faults=(
        Fault("rotary_base", plant.weight("attn_layers.rotary_pos_emb", lambda x: x**1.25, "inv_freq"), ("model.rotary_emb", f"{A}.0.self_attn"), ("init", "forward"), places_b=("attn_layers.rotary_pos_emb",)),
        Fault("gate_first", _gate_first, (f"{A}.1.mlp",), ("forward",), places_b=(f"{B}.3.1.ff.0",)),
        Fault("norm_with_offset", plant.attribute(f"{B}.5.0.0", unit_offset=True), (f"{A}.2.post_attention_layernorm",), ("forward",)),
        Fault("scale_of_width", _scale, (f"{A}.1.self_attn",), ("forward",), places_b=(f"{B}.2.1.attend",)),
        Fault("not_causal", _not_causal, (f"{A}.2.self_attn",), ("forward",), places_b=(f"{B}.4.1.attend",)),
        Fault("gelu", plant.replaced(f"{B}.1.1.ff.0.act", lambda old: nn.GELU()), (f"{A}.0.mlp.act_fn",), ("forward",)),
        Fault("rows_not_turned", _rows_not_turned, (f"{A}.*.self_attn.q_proj", f"{A}.*.self_attn.k_proj"), ("init",)),
        Fault("mean_over_queries", _mean_over_queries, (f"{A}.1.self_attn.k_proj", f"{A}.1.self_attn.v_proj"), ("gradient",)),
        Fault("same_tokens", plant.loss_by(_same_tokens), ("",), ("loss",)),
        Fault("warmed_up_late", _warmed_up_late, ("",), ("update",), step=1),
    ),
)  # fmt: skip
