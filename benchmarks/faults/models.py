"""The model, the training step and the faults of the suite.

Weights and data are drawn per name from a fixed seed, so every process has bitwise the same ones and a fault
that adds or removes a module does not shift the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.activations import ACT2FN

from benchmarks.faults.truth import PHASES

LAYERS = 6
VOCABULARY = 320
SEQUENCE = 32
SEED = 20240611
EMBEDDING_STD = 1.0  # residual of unit variance: eps 1e-6 → 1e-5 is an error of only 4e-6


@dataclass(frozen=True)
class Setup:
    """Everything that one side of a pair runs with."""

    attention: str = "sdpa"
    dtype: torch.dtype = torch.float32
    threads: int = 1
    steps: int = 1
    batch: int = 2
    """Samples in a micro-batch."""
    micros: int = 1
    data_seed: int = SEED
    rope_theta: float = 10_000.0
    smoothing: float = 0.0
    lr: float = 1e-3
    beta2: float = 0.95
    norm_decay: float = 0.0
    phases: tuple[str, ...] = PHASES
    """The phases that are recorded."""
    plant: Callable[[Qwen2ForCausalLM], None] | None = None
    """Changes the finished model in place."""


class Run:
    """A model and its optimizer, ready for `step()`."""

    def __init__(self, setup: Setup):
        torch.set_num_threads(setup.threads)
        self.setup = setup
        self.model = build(setup)
        norms = [p for name, p in self.model.named_parameters() if "norm" in name]
        others = [p for name, p in self.model.named_parameters() if "norm" not in name]
        groups = [
            {"params": others, "weight_decay": 0.1},
            {"params": norms, "weight_decay": setup.norm_decay},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=setup.lr, betas=(0.9, setup.beta2))

    def step(self, index: int) -> Tensor:
        """One optimizer step on the `index`-th batch.

        Returns
        -------
        The mean loss, detached; the gradients have been cleared as training code does.
        """
        loss = self.backward(index)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def backward(self, index: int) -> Tensor:
        """Forward and backward of all micro-batches of step `index`; returns their mean loss."""
        setup = self.setup
        torch.manual_seed(SEED + index)
        total = torch.zeros(())
        for ids in batch(setup, index).chunk(setup.micros):
            logits = self.model(input_ids=ids, use_cache=False).logits
            loss = next_token_loss(logits, ids, setup.smoothing) / setup.micros
            loss.backward()
            total += loss.detach()
        return total


def next_token_loss(logits: Tensor, ids: Tensor, smoothing: float) -> Tensor:
    """Mean cross entropy of logits [batch, sequence, vocabulary] against the ids one position on."""
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=smoothing)


def batch(setup: Setup, index: int) -> Tensor:
    """The token ids [micros × batch, sequence] of step `index`."""
    generator = torch.Generator().manual_seed(setup.data_seed + index)
    return torch.randint(VOCABULARY, (setup.micros * setup.batch, SEQUENCE), generator=generator)


def build(setup: Setup) -> Qwen2ForCausalLM:
    """The six-layer Qwen2 of `setup`, with its fault."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        attention_dropout=0.0,
        attn_implementation=setup.attention,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": setup.rope_theta},
    )
    model = Qwen2ForCausalLM(config).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(name, parameter.shape))
    if setup.plant:
        setup.plant(model)
    for parameter in model.parameters():  # not model.to(): rope's frequencies stay in float32
        parameter.data = parameter.data.to(setup.dtype)
    return model


def initial(name: str, shape: torch.Size) -> Tensor:
    """The weight called `name`: biases are not zero, norms not one, matrices keep the variance.

    What is added to the residual stream is scaled down by depth, as GPT-2 and Megatron do.
    """
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(SEED ^ zlib.crc32(name.encode())))
    if "norm" in name:
        return 1 + 0.1 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    if "embed_tokens" in name:
        return EMBEDDING_STD * noise
    depth = (2 * LAYERS) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return depth * shape[-1] ** -0.5 * noise


class _ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient that is 1 % too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 1.01


def _eps(path: str, eps: float) -> Callable[[Qwen2ForCausalLM], None]:
    def plant(model: Qwen2ForCausalLM) -> None:
        model.get_submodule(path).variance_epsilon = eps

    return plant


def _gelu(model: Qwen2ForCausalLM) -> None:
    model.model.layers[2].mlp.act_fn = ACT2FN["gelu"]


@torch.no_grad()
def _weight(model: Qwen2ForCausalLM) -> None:
    model.model.layers[1].self_attn.k_proj.weight.mul_(1.01)


def _bias(model: Qwen2ForCausalLM) -> None:
    attention = model.model.layers[4].self_attn
    linear = nn.Linear(attention.q_proj.in_features, attention.q_proj.out_features, bias=False)
    linear.weight = attention.q_proj.weight
    attention.q_proj = linear


def _mask(model: Qwen2ForCausalLM) -> None:
    attention = model.model.layers[3].self_attn
    forward = attention.forward  # inside the module, so that its recorded inputs stay what they were

    def unmasked(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **{**kwargs, "attention_mask": None})

    attention.forward = unmasked


def _dropout(model: Qwen2ForCausalLM) -> None:
    model.model.layers[4].self_attn.attention_dropout = 0.1


def _scaled_gradient(path: str) -> Callable[[Qwen2ForCausalLM], None]:
    def plant(model: Qwen2ForCausalLM) -> None:
        linear = model.get_submodule(path)
        linear.forward = lambda x: F.linear(_ScaledGradient.apply(x), linear.weight, linear.bias)

    return plant


def _frozen(model: Qwen2ForCausalLM) -> None:
    model.model.layers[1].mlp.down_proj.weight.requires_grad_(False)


def _without_layer(index: int) -> Callable[[Qwen2ForCausalLM], None]:
    def plant(model: Qwen2ForCausalLM) -> None:
        del model.model.layers[index]  # a ModuleList renumbers what is behind
        model.config.num_hidden_layers = len(model.model.layers)

    return plant


BASE = Setup()
EAGER = Setup(attention="eager")
_NO_UPDATE = {"phases": PHASES[:-1], "batch": 2, "micros": 2}

A: dict[str, Setup] = {
    "base": BASE,
    "two_steps": replace(BASE, steps=2),
    "bf16": replace(BASE, dtype=torch.bfloat16),
    "one_of_four": replace(BASE, **{**_NO_UPDATE, "batch": 4, "micros": 1}),
    "four_of_one": replace(BASE, **{**_NO_UPDATE, "batch": 1, "micros": 4}),
}
"""The recordings of side A by name; the truth table says which one a row is compared with."""

B: dict[str, Setup] = {
    "eps_large": replace(EAGER, plant=_eps("model.layers.3.post_attention_layernorm", 1e-3)),
    "eps_small": replace(EAGER, plant=_eps("model.layers.2.input_layernorm", 1e-5)),
    "gelu": replace(EAGER, plant=_gelu),
    "weight": replace(EAGER, plant=_weight),
    "bias": replace(EAGER, plant=_bias),
    "rope": replace(EAGER, rope_theta=500_000.0),
    "mask": replace(EAGER, plant=_mask),
    "dropout": replace(EAGER, plant=_dropout),
    "backward": replace(EAGER, plant=_scaled_gradient("model.layers.3.self_attn.o_proj")),
    "backward_twin": replace(EAGER, plant=_scaled_gradient("model.layers.2.mlp.up_proj")),
    "frozen": replace(EAGER, plant=_frozen),
    "norm_decay": replace(EAGER, norm_decay=0.1),
    "lr": replace(EAGER, lr=1.1e-3),
    "beta2": replace(EAGER, beta2=0.999, steps=2),
    "smoothing": replace(EAGER, smoothing=0.1),
    "inputs": replace(EAGER, data_seed=SEED + 1000),
    "layer_last": replace(EAGER, plant=_without_layer(5)),
    "layer_middle": replace(EAGER, plant=_without_layer(2)),
    "twice": BASE,
    "attention": EAGER,
    "threads": replace(BASE, threads=2),
    "bf16": replace(EAGER, dtype=torch.bfloat16),
    "accumulate": replace(BASE, **_NO_UPDATE),
    "accumulate_more": replace(BASE, **_NO_UPDATE),
}
"""Side B of every row of the truth table, by the row's name."""
