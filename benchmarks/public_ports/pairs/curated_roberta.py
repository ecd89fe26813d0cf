"""curated-transformers' RoBERTa against transformers: positions that begin behind the padding's, outputs in a dataclass."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side

HIDDEN, HEADS, LAYERS, VOCABULARY, LENGTH = 32, 4, 3, 96, 14
A, B = "encoder.layer", "layers"


def _config() -> Any:
    from transformers import RobertaConfig

    return RobertaConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=64, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH + 2, type_vocab_size=1, pad_token_id=1, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, layer_norm_eps=1e-5,
    )  # fmt: skip


def _transformers() -> nn.Module:
    from transformers import RobertaModel

    return RobertaModel(_config(), add_pooling_layer=False)


def _curated() -> nn.Module:
    from curated_transformers.models.roberta.encoder import RoBERTaEncoder

    return RoBERTaEncoder.from_hf_config(hf_config=_config().to_dict())


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    ids = torch.randint(3, VOCABULARY, (3, LENGTH), generator=generator)
    ids[1, -4:] = 1
    return {"ids": ids, "mask": ids != 1, "target": torch.randn(3, LENGTH, HIDDEN, generator=generator)}


def _error(hidden: Tensor, batch: Batch) -> Tensor:
    return F.mse_loss(hidden[batch["mask"]], batch["target"][batch["mask"]])


def _loss_a(model: nn.Module, batch: Batch) -> Tensor:
    return _error(model(batch["ids"], attention_mask=batch["mask"].long()).last_hidden_state, batch)


def _loss_b(model: nn.Module, batch: Batch) -> Tensor:
    from curated_transformers.layers import AttentionMask

    return _error(model(batch["ids"], AttentionMask(batch["mask"])).last_hidden_layer_state, batch)


def _unmasked(old: Any, model: nn.Module, batch: Batch) -> Tensor:
    from curated_transformers.layers import AttentionMask

    return _error(model(batch["ids"], AttentionMask(torch.ones_like(batch["mask"]))).last_hidden_layer_state, batch)


def _padding_counted(old: Any, model: nn.Module, batch: Batch) -> Tensor:
    from curated_transformers.layers import AttentionMask

    hidden = model(batch["ids"], AttentionMask(batch["mask"])).last_hidden_layer_state
    return F.mse_loss(hidden, batch["target"])


_EMBEDDED = ("embeddings.position_embeddings", "embeddings")
PAIR = Pair(
    name="curated_roberta",
    a=Side(("transformers 5.23.0",), _transformers, _loss_a),
    b=Side(("curated-transformers 2.0.1",), _curated, _loss_b),
    batch=_batch,
    faults=(
        Fault("norm_eps", plant.attribute(f"{B}.1.attn_residual_layer_norm", eps=1e-3), (f"{A}.1.attention.output.LayerNorm",), ("forward",)),
        Fault("embedding_norm_eps", plant.attribute("embeddings.embed_output_layer_norm", eps=1e-12), ("embeddings.LayerNorm",), ("forward",)),
        Fault("gelu_tanh", plant.forward(f"{B}.2.ffn.activation", lambda forward, x: F.gelu(x, approximate="tanh")), (f"{A}.2.intermediate.intermediate_act_fn",), ("forward",)),
        Fault("position_offset", plant.first_input("embeddings.position_embeddings", lambda x: (x - 2).clamp_min(0)), _EMBEDDED, ("forward",)),
        Fault("no_types", plant.forward("embeddings.type_embeddings", lambda forward, x: 0 * forward(x)), ("embeddings.token_type_embeddings",), ("forward",)),
        Fault("attention_scale", plant.forward(f"{B}.0.mha.attention_scorer", lambda forward, **kwargs: forward(**{**kwargs, "query": kwargs["query"] * 1.2})), (f"{A}.0.attention.self", f"{A}.0.attention", f"{A}.0"), ("forward",)),
        Fault("no_mask", plant.loss_by(_unmasked), (f"{A}.0.attention.self", f"{A}.0.attention", f"{A}.0", ""), ("forward",)),
        Fault("query_and_key", plant.forward(f"{B}.1.mha.attention_scorer", lambda forward, **kwargs: forward(**{**kwargs, "query": kwargs["key"], "key": kwargs["query"]})), (f"{A}.1.attention.self", f"{A}.1.attention", f"{A}.1"), ("forward",)),
        Fault("wrong_layer", plant.weights_of(f"{B}.2.mha.value", f"{B}.1.mha.value"), (f"{A}.2.attention.self.value",), ("init",)),
        Fault("transposed", plant.weight(f"{B}.0.mha.output", lambda x: x.t()), (f"{A}.0.attention.output.dense",), ("init",)),
        Fault("no_bias", plant.weight(f"{B}.1.ffn.output", lambda x: 0 * x, "bias"), (f"{A}.1.output.dense",), ("init",)),
        Fault("dropout", plant.attribute(f"{B}.1.ffn_output_dropout", p=0.1), (f"{A}.1.output.dropout", f"{A}.1.output", f"{A}.1"), ("forward",), places_b=(f"{B}.1.ffn_output_dropout",)),
        Fault("residual", plant.forward(f"{B}.2.ffn", lambda forward, x: forward(x) + x), (f"{A}.2.output.dense", f"{A}.2.output", f"{A}.2"), ("forward",)),
        Fault("detached", plant.detached(f"{B}.1.mha.key"), (f"{A}.1.attention.self.key",), ("backward", "gradient")),
        Fault("padding_counted", plant.loss_by(_padding_counted), ("",), ("loss",)),
        Fault("clipped", plant.clipped(0.05), ("",), ("update", "gradient")),
    ),
)  # fmt: skip
