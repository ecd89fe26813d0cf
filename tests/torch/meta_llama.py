"""Llama: transformers' against Meta's own names (meta-llama/llama3, llama/model.py), on one device."""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, GROUPS, SIZE = 4, 2, 8
CONFIG = LlamaConfig(
    vocab_size=48, hidden_size=HEADS * SIZE, intermediate_size=56, num_hidden_layers=3, num_attention_heads=HEADS,
    num_key_value_heads=GROUPS, max_position_embeddings=32, tie_word_embeddings=False, attn_implementation="eager", use_cache=False,
)  # fmt: skip


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG.rms_norm_eps) * self.weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Turn pairs of neighbours, as Meta does; x is [batch, position, head, size]."""
    size, length = x.shape[-1], x.shape[1]
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, size, 2).float() / size)
    angles = torch.outer(torch.arange(length).float(), frequencies)[None, :, None]
    even, odd = x[..., ::2], x[..., 1::2]
    parts = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(parts, -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.wq = nn.Linear(dim, HEADS * SIZE, bias=False)
        self.wk = nn.Linear(dim, GROUPS * SIZE, bias=False)
        self.wv = nn.Linear(dim, GROUPS * SIZE, bias=False)
        self.wo = nn.Linear(HEADS * SIZE, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q = rotated(self.wq(x).view(batch, length, HEADS, SIZE)).transpose(1, 2)
        k = rotated(self.wk(x).view(batch, length, GROUPS, SIZE)).repeat_interleave(HEADS // GROUPS, 2).transpose(1, 2)
        v = self.wv(x).view(batch, length, GROUPS, SIZE).repeat_interleave(HEADS // GROUPS, 2).transpose(1, 2)
        scores = q @ k.transpose(2, 3) / SIZE**0.5 + torch.full((length, length), float("-inf")).triu(1)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(dim)
        self.feed_forward = FeedForward(dim, hidden)
        self.attention_norm = RMSNorm(dim)
        self.ffn_norm = RMSNorm(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        dim = CONFIG.hidden_size
        self.tok_embeddings = nn.Embedding(CONFIG.vocab_size, dim)
        self.layers = nn.ModuleList(
            TransformerBlock(dim, CONFIG.intermediate_size) for _ in range(CONFIG.num_hidden_layers)
        )
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, CONFIG.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h)
        return self.output(self.norm(h))


_NAMES = {
    "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv", "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1", "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3",
}  # fmt: skip


def _neighbours(weight: torch.Tensor) -> torch.Tensor:
    """Transformers turns the halves of a head, Meta neighbours: put rows of the halves beside one another."""
    return weight.view(-1, 2, SIZE // 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = Transformer(), LlamaForCausalLM(CONFIG)
    state = b.state_dict()
    made = {"tok_embeddings.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"],
            "output.weight": state["lm_head.weight"]}  # fmt: skip
    for i in range(CONFIG.num_hidden_layers):
        for theirs, ours in _NAMES.items():
            value = state[f"model.layers.{i}.{theirs}.weight"]
            made[f"layers.{i}.{ours}.weight"] = _neighbours(value) if ours[-2:] in ("wq", "wk") else value
    a.load_state_dict(made)
    return a, b, (torch.randint(0, CONFIG.vocab_size, (2, 7)),)
