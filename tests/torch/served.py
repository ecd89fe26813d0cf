"""Qwen2 as vLLM cuts it (vllm/model_executor/models/qwen2.py), on one device, against transformers'.

All tokens of all requests lie in one row. Linears return ``(output, bias)``. Norms are given the residual, add it, and return the sum
beside what they normalise. The model returns hidden states; a `LogitsProcessor` that the runner calls makes the logits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM

CONFIG = Qwen2Config(
    vocab_size=48, hidden_size=32, intermediate_size=56, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=False, attn_implementation="eager",
    use_cache=False,
)  # fmt: skip
SIZE = CONFIG.hidden_size // CONFIG.num_attention_heads


class _Linear(nn.Module):
    def __init__(self, size_in: int, size_out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in))
        self.bias = nn.Parameter(torch.empty(size_out)) if bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return F.linear(x, self.weight, self.bias), None


class QKVParallelLinear(_Linear):
    """Queries, keys and values, one after the other."""


class MergedColumnParallelLinear(_Linear):
    """Gate and up, one after the other."""


class RowParallelLinear(_Linear):
    """A linear."""


class VocabParallelEmbedding(nn.Module):
    """An embedding."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, size))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class ParallelLMHead(VocabParallelEmbedding):
    """Weights that the `LogitsProcessor` uses; nobody calls it."""


class RMSNorm(nn.Module):
    """RMSNorm that adds the residual first, and returns the sum too."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.variance_epsilon = CONFIG.rms_norm_eps

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        whole = x if residual is None else x + residual
        normed = whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight
        return normed if residual is None else (normed, whole)


class SiluAndMul(nn.Module):
    """The activation of the first half, times the second."""

    def forward(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up


class RotaryEmbedding(nn.Module):
    """Turns queries and keys by their positions."""

    def forward(self, positions: Tensor, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = CONFIG.rope_parameters["rope_theta"] ** (-torch.arange(0, SIZE, 2).float() / SIZE)
        angles = torch.outer(positions.float(), frequencies).repeat(1, 2)[:, None]

        def turned(x: Tensor) -> Tensor:
            heads = x.unflatten(-1, (-1, SIZE))
            first, second = heads.chunk(2, -1)
            return (heads * angles.cos() + torch.cat([-second, first], -1) * angles.sin()).flatten(1)

        return turned(query), turned(key)


class Attention(nn.Module):
    """Causal attention within each of some requests of equal length; of one request also of single tokens behind it."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.requests, self.is_causal = requests, True
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.seen = [*self.seen, (key, value)] if len(query) == 1 else [(key, value)]
        key, value = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        q, k, v = (
            x.unflatten(0, (self.requests, -1)).unflatten(-1, (-1, SIZE)).transpose(1, 2) for x in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(
            q, k, v, is_causal=self.is_causal and len(query) == len(key), enable_gqa=True
        )
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1)


class Qwen2Attention(nn.Module):
    """Attention with queries, keys and values in one linear."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        width = CONFIG.hidden_size
        self.parts = [width, CONFIG.num_key_value_heads * SIZE, CONFIG.num_key_value_heads * SIZE]
        self.qkv_proj = QKVParallelLinear(width, sum(self.parts), bias=True)
        self.o_proj = RowParallelLinear(width, width)
        self.rotary_emb, self.attn = RotaryEmbedding(), Attention(requests)

    def forward(self, positions: Tensor, hidden_states: Tensor) -> Tensor:
        query, key, value = self.qkv_proj(hidden_states)[0].split(self.parts, -1)
        query, key = self.rotary_emb(positions, query, key)
        return self.o_proj(self.attn(query, key, value))[0]


class Qwen2MLP(nn.Module):
    """Gate and up in one linear."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = MergedColumnParallelLinear(CONFIG.hidden_size, 2 * CONFIG.intermediate_size)
        self.down_proj = RowParallelLinear(CONFIG.intermediate_size, CONFIG.hidden_size)
        self.act_fn = SiluAndMul()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_up_proj(x)[0]))[0]


class Qwen2DecoderLayer(nn.Module):
    """A layer that hands on what its MLP made, and the residual beside it."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.self_attn, self.mlp = Qwen2Attention(requests), Qwen2MLP()
        self.input_layernorm, self.post_attention_layernorm = (RMSNorm(CONFIG.hidden_size) for _ in range(2))

    def forward(self, positions: Tensor, hidden_states: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        if residual is None:
            residual = hidden_states
            hidden_states = self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions=positions, hidden_states=hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Qwen2Model(nn.Module):
    """The model without its head."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(CONFIG.vocab_size, CONFIG.hidden_size)
        self.layers = nn.ModuleList(Qwen2DecoderLayer(requests) for _ in range(CONFIG.num_hidden_layers))
        self.norm = RMSNorm(CONFIG.hidden_size)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden_states, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        return self.norm(hidden_states, residual)[0]


class LogitsProcessor(nn.Module):
    """Makes the logits of some tokens."""

    def forward(self, lm_head: nn.Module, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, lm_head.weight)


def qwen2_of_vllm(requests: int) -> nn.Module:
    """Return a model for some requests at a time; its class has the name of vLLM's, which is that of transformers' too."""
    return type("Qwen2ForCausalLM", (_CausalLM,), {})(requests)


class _CausalLM(nn.Module):
    def __init__(self, requests: int) -> None:
        super().__init__()
        self.model = Qwen2Model(requests)
        self.lm_head = ParallelLMHead(CONFIG.vocab_size, CONFIG.hidden_size)
        self.logits_processor = LogitsProcessor()

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.model(input_ids, positions)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Make the logits, as the runner asks for them."""
        return self.logits_processor(self.lm_head, hidden_states)

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take transformers' weights, joined."""
        joined = dict(weights)
        for at in range(CONFIG.num_hidden_layers):
            for block, whole, parts in (("self_attn", "qkv_proj", "qkv"), ("mlp", "gate_up_proj", ("gate", "up"))):
                for kind in ("weight", "bias"):
                    names = [f"model.layers.{at}.{block}.{part}_proj.{kind}" for part in parts]
                    if names[0] in joined:
                        joined[f"model.layers.{at}.{block}.{whole}.{kind}"] = torch.cat(
                            [joined.pop(name) for name in names]
                        )
        self.load_state_dict(joined)


def trained() -> Qwen2ForCausalLM:
    """Return transformers' model."""
    model = Qwen2ForCausalLM(CONFIG)
    for layer in model.model.layers:  # biases begin as zeros, norms as ones: then all are alike
        for part in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            nn.init.normal_(part.bias, std=0.1)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            nn.init.normal_(norm.weight, 1.0, 0.1)
    return model


def served(model: nn.Module, ids: Tensor) -> Tensor:
    """Run one prefill of equally long requests as vLLM's runner does; return the logits of their last tokens."""
    positions = torch.arange(ids.shape[1]).repeat(len(ids))
    with torch.inference_mode():
        hidden = model(input_ids=ids.flatten(), positions=positions)
        return model.compute_logits(hidden.unflatten(0, (len(ids), -1))[:, -1])


def generated(model: nn.Module, ids: Tensor, prompt: int) -> None:
    """Run a prefill of one request's first tokens, and the others one by one."""
    bounds = [0, *range(prompt, len(ids) + 1)]
    with torch.inference_mode():
        for first, last in zip(bounds[:-1], bounds[1:], strict=True):
            model.compute_logits(model(input_ids=ids[first:last], positions=torch.arange(first, last))[-1:])
