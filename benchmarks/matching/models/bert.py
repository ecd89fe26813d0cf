"""BERT: out of torch.nn.TransformerEncoder against transformers'."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

CONFIG = BertConfig(
    vocab_size=48, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    attn_implementation="eager",
)  # fmt: skip


class Embeddings(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(CONFIG.vocab_size, width, padding_idx=CONFIG.pad_token_id)
        self.positions = nn.Embedding(CONFIG.max_position_embeddings, width)
        self.segments = nn.Embedding(CONFIG.type_vocab_size, width)
        self.norm = nn.LayerNorm(width, CONFIG.layer_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])[None]
        return self.norm(self.tokens(x) + self.positions(places) + self.segments(torch.zeros_like(x)))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        width = CONFIG.hidden_size
        self.embed = Embeddings(width)
        layer = nn.TransformerEncoderLayer(
            width, CONFIG.num_attention_heads, CONFIG.intermediate_size, 0.0, "gelu", CONFIG.layer_norm_eps, True
        )
        self.encoder = nn.TransformerEncoder(layer, CONFIG.num_hidden_layers, enable_nested_tensor=False)
        self.pool = nn.Linear(width, width)
        self.head = nn.Linear(width, CONFIG.num_labels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.pool(self.encoder(self.embed(x))[:, 0])))


_TOP = {
    "embed.tokens": "bert.embeddings.word_embeddings", "embed.positions": "bert.embeddings.position_embeddings",
    "embed.segments": "bert.embeddings.token_type_embeddings", "embed.norm": "bert.embeddings.LayerNorm",
    "pool": "bert.pooler.dense", "head": "classifier",
}  # fmt: skip
_NAMES = {
    "self_attn.out_proj": "attention.output.dense", "norm1": "attention.output.LayerNorm",
    "linear1": "intermediate.dense", "linear2": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = Classifier(), BertForSequenceClassification(CONFIG)
    for parameter in b.parameters():
        nn.init.normal_(parameter, std=0.1)
    state, made, names = b.state_dict(), {}, dict(_TOP)
    for i in range(CONFIG.num_hidden_layers):
        here, there = f"encoder.layers.{i}", f"bert.encoder.layer.{i}"
        names |= {f"{here}.{ours}": f"{there}.{theirs}" for ours, theirs in _NAMES.items()}
        for slot in ("weight", "bias"):
            parts = [state[f"{there}.attention.self.{part}.{slot}"] for part in ("query", "key", "value")]
            made[f"{here}.self_attn.in_proj_{slot}"] = torch.cat(parts)
    for ours, theirs in names.items():
        made |= {
            f"{ours}.{slot}": state[f"{theirs}.{slot}"] for slot in ("weight", "bias") if f"{theirs}.{slot}" in state
        }
    a.load_state_dict(made)
    return a, b, (torch.randint(0, CONFIG.vocab_size, (3, 7)),)
