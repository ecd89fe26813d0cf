"""pytorch-pretrained-bert against its successor transformers: names that stayed, a bias that moved into the decoder."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import benchmarks.public_ports.torchvision_operators  # noqa: F401  before anything imports torchvision
from benchmarks.localisation.tools import surgery
from benchmarks.public_ports import planting as plant
from benchmarks.public_ports.pair import Batch, Fault, Pair, Side

HIDDEN, HEADS, LAYERS, INNER, VOCABULARY, LENGTH = 32, 4, 3, 64, 96, 14
LAYER, HEAD = "bert.encoder.layer", "cls.predictions"


def _old() -> nn.Module:
    from pytorch_pretrained_bert import BertConfig, BertForPreTraining

    config = BertConfig(
        VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=LENGTH + 2,
    )  # fmt: skip
    return BertForPreTraining(config)


def _new() -> nn.Module:
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, intermediate_size=INNER,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=LENGTH + 2,
    )  # fmt: skip
    return BertForPreTraining(config)


def _batch(index: int) -> Batch:
    generator = torch.Generator().manual_seed(index)
    ids = torch.randint(4, VOCABULARY, (3, LENGTH), generator=generator)
    ids[1, -3:] = 0
    types = (torch.arange(LENGTH) > LENGTH // 2).long().expand(3, -1).clone()
    scored = (torch.rand(ids.shape, generator=generator) < 0.3) & (ids > 0)
    scored[:, 1] = True
    follows = torch.randint(2, (3,), generator=generator)
    return {"ids": ids.masked_fill(scored, 3), "types": types, "wanted": ids, "scored": scored, "follows": follows}


def _loss_old(model: nn.Module, batch: Batch) -> Tensor:
    wanted = batch["wanted"].masked_fill(~batch["scored"], -1)
    return model(batch["ids"], batch["types"], (batch["ids"] > 0).long(), wanted, batch["follows"])


def _outputs(model: nn.Module, batch: Batch) -> Any:
    wanted = batch["wanted"].masked_fill(~batch["scored"], -100)
    return model(
        input_ids=batch["ids"], token_type_ids=batch["types"], attention_mask=(batch["ids"] > 0).long(), labels=wanted,
        next_sentence_label=batch["follows"],
    )  # fmt: skip


def _words_alone(old: Any, model: nn.Module, batch: Batch) -> Tensor:
    wanted = batch["wanted"].masked_fill(~batch["scored"], -100)
    return F.cross_entropy(_outputs(model, batch).prediction_logits.flatten(0, 1), wanted.flatten())


def _tanh(training: Any) -> None:
    for index in range(LAYERS):
        training.module(f"{LAYER}.{index}.intermediate").intermediate_act_fn = nn.GELU(approximate="tanh")


def _residual_behind_norm(training: Any) -> None:
    module = training.module(f"{LAYER}.1.attention.output")
    surgery.around(module, lambda forward, x, residual: module.LayerNorm(module.dropout(module.dense(x))) + residual)


def _kept_gradients(training: Any) -> None:
    training.optimizer.zero_grad = lambda set_to_none=True: None


PAIR = Pair(
    name="pretrained_bert",
    set="blind",
    a=Side(("pytorch-pretrained-bert 0.6.2",), _old, _loss_old),
    b=Side(("transformers 5.23.0",), _new, lambda model, batch: _outputs(model, batch).loss),
    batch=_batch,
    faults=(
        Fault("position_offset", plant.first_input("bert.embeddings.position_embeddings", lambda x: x + 2), ("bert.embeddings.position_embeddings", "bert.embeddings"), ("forward",)),
        Fault("no_types", plant.batches(lambda batch: {**batch, "types": 0 * batch["types"]}), ("bert.embeddings.token_type_embeddings", "bert.embeddings", "bert", ""), ("forward",)),
        Fault("gelu_tanh", _tanh, (f"{LAYER}.0.intermediate",), ("forward",), places_b=(f"{LAYER}.0.intermediate.intermediate_act_fn",)),
        Fault("head_norm_eps", plant.attribute(f"{HEAD}.transform.LayerNorm", eps=1e-5), (f"{HEAD}.transform.LayerNorm",), ("forward",)),
        Fault("last_token_pooled", plant.first_input("bert.pooler", lambda x: x[:, -1:]), ("bert.pooler",), ("forward",)),
        Fault("residual_behind_norm", _residual_behind_norm, (f"{LAYER}.1.attention.output",), ("forward",)),
        Fault("wrong_layer", plant.weights_of(f"{LAYER}.2.attention.self.key", f"{LAYER}.1.attention.self.key"), (f"{LAYER}.2.attention.self.key",), ("init",)),
        Fault("pooled_detached", plant.detached("bert.pooler"), ("bert.pooler", "bert.pooler.activation"), ("backward", "gradient")),
        Fault("words_alone", plant.loss_by(_words_alone), ("",), ("loss",)),
        Fault("gradients_kept", _kept_gradients, ("",), ("gradient",), step=1),
    ),
)  # fmt: skip
