"""Small bf16 and fp32 transformers, legitimate ways to compute them otherwise, and one wrong eps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional as F

import probe

SEQUENCE, BATCH = 32, 4
Model = Any


def qwen2(layers: int = 12, dtype: torch.dtype = torch.bfloat16, attention: str = "sdpa", hidden: int = 64) -> Model:
    """Make a model; its weights are those of bfloat16 whatever the dtype, and depend on nothing else."""
    config = transformers.Qwen2Config(
        vocab_size=128, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, attn_implementation=attention,
        rms_norm_eps=1e-6,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(config).to(torch.bfloat16).to(dtype)


def llama(layers: int = 12, dtype: torch.dtype = torch.bfloat16, attention: str = "sdpa", hidden: int = 64) -> Model:
    """Make the same of Llama."""
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, max_position_embeddings=64, attn_implementation=attention, rms_norm_eps=1e-6,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).to(dtype)


def wrong_eps(model: Model, layer: int, norm: str = "post_attention_layernorm") -> Model:
    """Let one RMSNorm have eps 1e-5 instead of 1e-6."""
    getattr(model.model.layers[layer], norm).variance_epsilon = 1e-5
    return model


# Legitimate ways to compute the same


def resummed(model: Model, parts: int = 2) -> Model:
    """Add up every row-parallel product in parts, rounded in between, as tensor parallelism does."""
    for name, module in model.named_modules():
        if name.endswith(("o_proj", "down_proj")):
            module.forward = _partial(module, parts)
    return model


def _partial(module: torch.nn.Linear, parts: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        pieces = zip(x.chunk(parts, -1), module.weight.chunk(parts, 1), strict=True)
        first, *others = (F.linear(part, weight) for part, weight in pieces)
        for other in others:
            first = first + other
        return first if module.bias is None else first + module.bias

    return forward


def split(model: Model, parts: int = 2) -> Model:
    """Multiply the batch in parts: other shapes have other kernels."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = _by_batch(module, parts)
    return model


def _by_batch(module: torch.nn.Linear, parts: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.cat([F.linear(part.float(), module.weight.float()).to(x.dtype) if module.bias is None
                                else F.linear(part.float(), module.weight.float(), module.bias.float()).to(x.dtype)
                                for part in x.chunk(parts, 0)])  # fmt: skip


@contextlib.contextmanager
def attention_in_float32() -> Iterator[None]:
    """Let scaled_dot_product_attention compute in float32."""
    plain = F.scaled_dot_product_attention

    def wide(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None, *args: Any, **named: Any
    ) -> torch.Tensor:
        mask = named.pop("attn_mask", mask)
        mask = mask.float() if mask is not None and mask.is_floating_point() else mask
        return plain(q.float(), k.float(), v.float(), mask, *args, **named).to(q.dtype)

    torch.nn.functional.scaled_dot_product_attention = wide
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = plain


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def record(path: Path, model: Model, *, steps: int = 1, seed: int = 1, **options: Any) -> Path:
    """Train a model for some steps while it is recorded."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, **options):
        for _ in range(steps):
            ids = torch.randint(0, 128, (BATCH, SEQUENCE), generator=generator)
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path
