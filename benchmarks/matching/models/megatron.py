"""Qwen2 and Mixtral: transformers' against Megatron's names and fused weights, on one device.

Classes and nesting are those of megatron-core's local layer spec; what they compute is written anew.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedConfig

SIZE = 8


class IdentityOp(nn.Identity):
    pass


class ColumnParallelLinear(nn.Linear):
    pass


class RowParallelLinear(nn.Linear):
    pass


class VocabParallelEmbedding(nn.Embedding):
    pass


class RotaryEmbedding(nn.Module):
    def forward(self, length: int) -> torch.Tensor:
        frequencies = 1.0 / 10000.0 ** (torch.arange(0, SIZE, 2).float() / SIZE)
        angles = torch.outer(torch.arange(length).float(), frequencies)
        return torch.cat([angles, angles], -1)[:, None, None]


class LanguageModelEmbedding(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.word_embeddings = VocabParallelEmbedding(vocabulary, width)
        self.embedding_dropout = nn.Dropout(0.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding_dropout(self.word_embeddings(tokens).transpose(0, 1))


class DotProductAttention(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        length, batch, heads, size = q.shape
        k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        scores = q @ k.transpose(2, 3) / size**0.5 + torch.full((length, length), float("-inf")).triu(1)
        return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).reshape(length, batch, heads * size)


class SelfAttention(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.core_attention = DotProductAttention()
        self.linear_proj = RowParallelLinear(heads * SIZE, width, bias=False)
        self.linear_qkv = ColumnParallelLinear(width, (heads + 2 * groups) * SIZE, bias=bias)
        self.q_layernorm = IdentityOp()
        self.k_layernorm = IdentityOp()

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        length, batch, _ = x.shape
        mixed = self.linear_qkv(x).view(length, batch, self.groups, -1, SIZE)
        q, k, v = mixed.split([self.heads // self.groups, 1, 1], 3)
        q, k = (
            self.q_layernorm(q.reshape(length, batch, -1, SIZE)),
            self.k_layernorm(k.flatten(3).unflatten(3, (SIZE,))),
        )
        return self.linear_proj(self.core_attention(_turned(q, angles), _turned(k, angles), v.flatten(3)))


def _turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * angles.cos() + torch.cat([-x[..., half:], x[..., :half]], -1) * angles.sin()


class MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear_fc1 = ColumnParallelLinear(width, 2 * hidden, bias=False)
        self.linear_fc2 = RowParallelLinear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.linear_fc1(x).chunk(2, -1)
        return self.linear_fc2(nn.functional.silu(gate) * up)


class TopKRouter(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(experts, width))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        probabilities, chosen = nn.functional.linear(x, self.weight).softmax(-1).topk(2, -1)
        return probabilities / probabilities.sum(-1, keepdim=True), chosen


class SequentialMLP(nn.Module):
    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.local_experts = nn.ModuleList(MLP(width, hidden) for _ in range(experts))

    def forward(self, x: torch.Tensor, probabilities: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.local_experts):
            token, place = (chosen == i).nonzero(as_tuple=True)
            if len(token):
                out = out.index_add(0, token, expert(x[token]) * probabilities[token, place, None])
        return out


class MoELayer(nn.Module):
    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.router = TopKRouter(width, experts)
        self.experts = SequentialMLP(width, hidden, experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.transpose(0, 1).flatten(0, 1)
        out = self.experts(flat, *self.router(flat))
        return out.view(x.shape[1], x.shape[0], -1).transpose(0, 1)


class TransformerLayer(nn.Module):
    def __init__(self, config: PreTrainedConfig, bias: bool, experts: int) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.self_attention = SelfAttention(width, config.num_attention_heads, config.num_key_value_heads, bias)
        self.pre_cross_attn_layernorm = IdentityOp()
        self.cross_attention = IdentityOp()
        self.pre_mlp_layernorm = nn.RMSNorm(width, eps)
        hidden = config.intermediate_size
        self.mlp = MoELayer(width, hidden, experts) if experts else MLP(width, hidden)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attention(self.input_layernorm(x), angles)
        x = self.cross_attention(self.pre_cross_attn_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class TransformerBlock(nn.Module):
    def __init__(self, config: PreTrainedConfig, bias: bool, experts: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(config, bias, experts) for _ in range(config.num_hidden_layers))
        self.final_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, angles)
        return self.final_layernorm(x)


class GPTModel(nn.Module):
    def __init__(self, config: PreTrainedConfig, bias: bool = False, experts: int = 0) -> None:
        super().__init__()
        self.embedding = LanguageModelEmbedding(config.vocab_size, config.hidden_size)
        self.rotary_pos_emb = RotaryEmbedding()
        self.decoder = TransformerBlock(config, bias, experts)
        self.output_layer = ColumnParallelLinear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.decoder(self.embedding(tokens), self.rotary_pos_emb(tokens.shape[1]))
        return self.output_layer(x).transpose(0, 1)


def fused(state: dict[str, torch.Tensor], config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Return transformers' weights as Megatron keeps them."""
    made = {
        "embedding.word_embeddings.weight": state["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": state["model.norm.weight"],
        "output_layer.weight": state["lm_head.weight"],
    }
    groups = config.num_key_value_heads
    for i in range(config.num_hidden_layers):
        here, there = f"decoder.layers.{i}", f"model.layers.{i}"
        made[f"{here}.input_layernorm.weight"] = state[f"{there}.input_layernorm.weight"]
        made[f"{here}.pre_mlp_layernorm.weight"] = state[f"{there}.post_attention_layernorm.weight"]
        made[f"{here}.self_attention.linear_proj.weight"] = state[f"{there}.self_attn.o_proj.weight"]
        for slot in ("weight", "bias"):
            parts = [state.get(f"{there}.self_attn.{name}_proj.{slot}") for name in "qkv"]
            if parts[0] is not None:
                split = [part.view(groups, -1, *part.shape[1:]) for part in parts]
                made[f"{here}.self_attention.linear_qkv.{slot}"] = torch.cat(split, 1).flatten(0, 1)
        if f"{there}.mlp.experts.gate_up_proj" in state:
            made[f"{here}.mlp.router.weight"] = state[f"{there}.mlp.gate.weight"]
            for slot, name in (("gate_up_proj", "linear_fc1"), ("down_proj", "linear_fc2")):
                for j, weight in enumerate(state[f"{there}.mlp.experts.{slot}"]):
                    made[f"{here}.mlp.experts.local_experts.{j}.{name}.weight"] = weight
        else:
            gate, up = (state[f"{there}.mlp.{name}_proj.weight"] for name in ("gate", "up"))
            made[f"{here}.mlp.linear_fc1.weight"] = torch.cat([gate, up])
            made[f"{here}.mlp.linear_fc2.weight"] = state[f"{there}.mlp.down_proj.weight"]
    return made
