"""Mistakes in a GPTModel of megatron-core, and the modules that are right to name for each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

LAYER = 2
_IN_LAYER = f"decoder.layers.{LAYER}"


@dataclass
class Training:
    """What the worker trains with; faults change it."""

    model: Any
    lr: float = 1e-3
    weight_decay: float = 0.01
    shift: int = 1
    """by how many places labels stand further on"""

    @property
    def layer(self) -> Any:
        """The layer in which faults are planted."""
        return self.model.decoder.layers[LAYER]


@dataclass(frozen=True)
class Fault:
    """A mistake, and where it is."""

    plant: Callable[[Training], None]
    places: tuple[str, ...] = ()
    """modules of the GPTModel, or of Qwen2, of which each is right to name"""
    phase: str = ""
    """of which the finding must be, where no module is to be named"""


def _scaled(module: Any, factor: float) -> None:
    """Multiply what a module of Megatron's returns; the second of the pair that it returns is a bias."""
    module.register_forward_hook(lambda _module, _given, made: (made[0] * factor, *made[1:]))


def _norm_eps(training: Training) -> None:
    training.layer.pre_mlp_layernorm.eps = 1e-5


def _final_eps(training: Training) -> None:
    training.model.decoder.final_layernorm.eps = 1e-4


def _gelu(training: Training) -> None:
    mlp = training.layer.mlp
    mlp.config = copy.copy(mlp.config)  # it is one for all layers
    mlp.config.activation_func = mlp.activation_func = F.gelu


def _softmax_scale(training: Training) -> None:
    core = training.layer.self_attention.core_attention
    for name in ("softmax_scale", "norm_factor"):
        if hasattr(core, name):
            setattr(core, name, getattr(core, name) * 1.1)


def _plain_qkv(training: Training) -> None:
    attention = training.layer.self_attention
    groups, head = attention.num_query_groups_per_partition, attention.hidden_size_per_attention_head
    with torch.no_grad():
        for fused in attention.linear_qkv.parameters():
            parts = fused.unflatten(0, (groups, -1, head))
            q, k, v = parts[:, :-2], parts[:, -2], parts[:, -1]
            fused.copy_(torch.cat([part.reshape(-1, *fused.shape[1:]) for part in (q, k, v)]))


def _gate_for_up(training: Training) -> None:
    weight = training.layer.mlp.linear_fc1.weight
    with torch.no_grad():
        weight.copy_(torch.cat(weight.chunk(2)[::-1]))


def _fc1_gradient(training: Training) -> None:
    training.layer.mlp.linear_fc1.weight.register_hook(lambda gradient: 1.5 * gradient)


def _projection(training: Training) -> None:
    _scaled(training.layer.self_attention.linear_proj, 1.01)


def _fc2(training: Training) -> None:
    _scaled(training.layer.mlp.linear_fc2, 1.01)


def _head(training: Training) -> None:
    _scaled(training.model.output_layer, 1.01)


def _labels(training: Training) -> None:
    training.shift = 0


def _rate(training: Training) -> None:
    training.lr = 2e-3


FAULTS = {
    "eps of the norm before the MLP": Fault(_norm_eps, (f"{_IN_LAYER}.pre_mlp_layernorm",)),
    "eps of the final norm": Fault(_final_eps, ("decoder.final_layernorm",)),
    "GELU for SiLU": Fault(_gelu, (f"{_IN_LAYER}.mlp", f"model.layers.{LAYER}.mlp.act_fn")),
    "softmax scale": Fault(
        _softmax_scale, (f"{_IN_LAYER}.self_attention", f"{_IN_LAYER}.self_attention.core_attention")
    ),
    "q, k, v without groups": Fault(_plain_qkv, (f"{_IN_LAYER}.self_attention.linear_qkv",)),
    "up before gate": Fault(_gate_for_up, (f"{_IN_LAYER}.mlp.linear_fc1",)),
    "gradient of gate and up": Fault(_fc1_gradient, (f"{_IN_LAYER}.mlp.linear_fc1",)),
    "output projection": Fault(_projection, (f"{_IN_LAYER}.self_attention.linear_proj",)),
    "down projection": Fault(_fc2, (f"{_IN_LAYER}.mlp.linear_fc2",)),
    "head": Fault(_head, ("output_layer",)),
    "labels not shifted": Fault(_labels, phase="loss"),
    "learning rate": Fault(_rate, phase="update"),
}
