"""fair-esm's ESM-2 against transformers: sequence first in one, batch first in the other; a head that is the embedding's weight."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.localisation.tools import surgery
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side

HIDDEN, HEADS, LAYERS, LENGTH = 32, 4, 3, 16
PADDING, END, MASK, SYMBOLS = 1, 2, 32, 33
A, B = "layers", "esm.encoder.layer"


def _esm() -> nn.Module:
    from esm.model.esm2 import ESM2

    return ESM2(num_layers=LAYERS, embed_dim=HIDDEN, attention_heads=HEADS)


def _transformers() -> nn.Module:
    from transformers import EsmConfig, EsmForMaskedLM

    config = EsmConfig(
        vocab_size=SYMBOLS, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * HIDDEN, pad_token_id=PADDING, mask_token_id=MASK, position_embedding_type="rotary",
        token_dropout=True, layer_norm_eps=1e-5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return EsmForMaskedLM(config)


def _batch(index: int) -> Batch:
    """Return proteins with a masked share that is another one in each, one of them shorter."""
    generator = torch.Generator().manual_seed(index)
    residues = torch.randint(4, 24, (4, LENGTH), generator=generator)
    residues[:, 0], residues[:, -1] = 0, END
    residues[2, -6:] = torch.tensor([END, *[PADDING] * 5])
    inner = (residues >= 4) & (torch.rand(residues.shape, generator=generator) < 0.25)
    inner[:, 2] = True
    return {"ids": residues.masked_fill(inner, MASK), "wanted": residues, "scored": inner}


def _masked_error(logits: Tensor, batch: Batch) -> Tensor:
    return F.cross_entropy(logits[batch["scored"]], batch["wanted"][batch["scored"]])


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch["ids"], attention_mask=(batch["ids"] != PADDING).long()).logits


def _every_residue(old: Any, model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(_logits(model, batch).flatten(0, 1), batch["wanted"].flatten(), ignore_index=PADDING)


def _forward_rotation(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
    """Turn queries and keys by halves, queries the other way round: their sines have the wrong sign."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)

    def turned(x: Tensor, sine: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sine

    return turned(query, -sin), turned(key, sin)


def _sines(training: Any) -> None:
    for index in range(LAYERS):
        surgery.with_global(training.module(f"{B}.{index}.attention.self"), "apply_rotary_pos_emb", _forward_rotation)


def _norms(training: Any) -> None:
    for module in training.model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-12


def _padding_attended(forward: Any, *args: Any, **kwargs: Any) -> Any:
    return forward(*args, **{**kwargs, "attention_mask": None})


@torch.no_grad()
def _exchanged(training: Any) -> None:
    query, key = (training.module(f"{B}.1.attention.self.{name}") for name in ("query", "key"))
    for one, other in zip(query.parameters(), key.parameters(), strict=True):
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def _untied(training: Any) -> None:
    """Give the head a copy of the embedding's weight."""
    head = training.module("lm_head.decoder")
    head.weight = nn.Parameter(head.weight.detach().clone())
    decayed = training.optimizer.param_groups[0]
    training.optimizer.add_param_group({**decayed, "params": [head.weight]})


def _tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _plant_tanh(training: Any) -> None:
    head = training.module("lm_head")
    surgery.with_global(head, "gelu", _tanh, sys.modules[type(head).__module__])


_EVERY_NORM = ("", f"{A}.*.self_attn_layer_norm", f"{A}.*.final_layer_norm", "lm_head.layer_norm")
PAIR = Pair(
    name="esm_esm2",
    set="blind",
    a=Side(("fair-esm 2.0.0",), _esm, lambda model, batch: _masked_error(model(batch["ids"])["logits"], batch)),
    b=Side(("transformers 5.23.0",), _transformers, lambda model, batch: _masked_error(_logits(model, batch), batch)),
    batch=_batch,
    faults=(
        Fault("no_token_dropout", plant.attribute("esm.embeddings", token_dropout=False), ("",), ("forward",), places_b=("esm.embeddings",)),
        Fault("scaled_twice", plant.attribute(f"{B}.1.attention.self", scaling=(HIDDEN // HEADS) ** -0.5), (f"{A}.1.self_attn",), ("forward",), places_b=(f"{B}.1.attention.self",)),
        Fault("rotary_sign", _sines, (f"{A}.0.self_attn", f"{A}.0.self_attn.rot_emb"), ("forward",), places_b=(f"{B}.0.attention.self",)),
        Fault("norm_eps_default", _norms, (f"{A}.0.self_attn_layer_norm",), ("forward",)),
        Fault("head_gelu_tanh", _plant_tanh, ("lm_head",), ("forward",)),
        Fault("padding_attended", plant.forward("esm.encoder", _padding_attended), (f"{A}.0.self_attn", ""), ("forward",), places_b=("esm.encoder", f"{B}.0.attention.self")),
        Fault("query_and_key", _exchanged, (f"{A}.1.self_attn.q_proj", f"{A}.1.self_attn.k_proj"), ("init",)),
        Fault("untied", _untied, ("embed_tokens", "lm_head"), ("gradient", "init"), places_b=("lm_head.decoder",)),
        Fault("every_residue", plant.loss_by(_every_residue), ("",), ("loss",)),
        Fault("norms_decay", plant.optimizer("*LayerNorm*", weight_decay=0.1), _EVERY_NORM, ("update",)),
    ),
)  # fmt: skip
