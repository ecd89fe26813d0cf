"""Faults of the forward pass in activations, convolutions, recurrences, experts, embeddings."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.tools import surgery
from benchmarks.localisation.tools.planting import CONSTANT, FORWARD, Fault, at, attribute, called_function, function

_gelu = F.gelu


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _activate_up(module: nn.Module, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        return module.down_proj(module.act_fn(module.up_proj(x)) * module.gate_proj(x))

    surgery.around(module, forward)


# Convolutions and images


def _pad_right(module: nn.Conv2d, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), module.weight, module.bias, module.stride, groups=module.groups)

    surgery.around(module, forward)


def _pad_end(module: nn.Conv1d, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> Tensor:
        return F.conv1d(F.pad(x, (0, module.dilation[0])), module.weight, module.bias, dilation=module.dilation)

    surgery.around(module, forward)


def _align_corners(module: nn.Module, size: float) -> None:
    resize = F.interpolate
    surgery.with_global(module, "interpolate", lambda *a, **k: resize(*a, **{**k, "align_corners": True}), F)


def _column_major(x: Tensor) -> Tensor:
    side = math.isqrt(x.shape[1])
    return x.unflatten(1, (side, side)).transpose(1, 2).flatten(1, 2)


def _shuffled_channels(x: Tensor, groups: float) -> Tensor:
    return x.unflatten(1, (int(groups), -1)).transpose(1, 2).flatten(1, 2)


# Recurrences


def _reset_before_product(module: nn.GRU, size: float) -> None:
    """Let the reset gate act before the matrix product, as some frameworks have it."""

    def forward(original: surgery.Forward, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, outputs = x.new_zeros(x.shape[0], module.hidden_size), []
        weights, biases = module.weight_hh_l0.chunk(3), module.bias_hh_l0.chunk(3)
        for parts in F.linear(x, module.weight_ih_l0, module.bias_ih_l0).unbind(1):
            reset, update, new = parts.chunk(3, -1)
            reset = torch.sigmoid(reset + F.linear(hidden, weights[0], biases[0]))
            update = torch.sigmoid(update + F.linear(hidden, weights[1], biases[1]))
            new = torch.tanh(new + F.linear(reset * hidden, weights[2], biases[2]))
            hidden = update * hidden + (1 - update) * new
            outputs.append(hidden)
        return torch.stack(outputs, 1), hidden[None]

    surgery.around(module, forward)


def _reset_state(module: nn.GRU, size: float) -> None:
    def forward(original: surgery.Forward, x: Tensor) -> tuple[Tensor, Tensor]:
        (before, _), (after, state) = (original(part) for part in x.tensor_split(2, 1))
        return torch.cat([before, after], 1), state

    surgery.around(module, forward)


def _restart_scan(module: nn.Module, size: float) -> None:
    """Let a scan begin again in the middle of the sequence."""

    def forward(original: surgery.Forward, x: Tensor, step: Tensor, decay: Tensor, *ways: Tensor) -> Tensor:
        parts = zip(*(each.tensor_split(2, 1) for each in (x, step, *ways)), strict=True)
        return torch.cat([original(first, second, decay, *rest) for first, second, *rest in parts], 1)

    surgery.around(module, forward)


def _scale_decay(module: nn.Module, size: float) -> None:
    surgery.around(module, lambda forward, x, step, decay, *ways: forward(x, step, decay * (1 + size), *ways))


# Embeddings


def _zero_second_half(module: nn.Embedding, size: float) -> None:
    kept = module.num_embeddings // 2
    surgery.around(module, lambda forward, ids: forward(ids) * (ids < kept)[..., None])


LAYER_FAULTS: dict[str, Fault] = {
    # activations
    "gelu": Fault("GELU in the place of another activation", FORWARD, at(function(F.gelu))),
    "gelu_tanh": Fault("GELU's tanh form", FORWARD, at(function(gelu_tanh))),
    "quick_gelu": Fault("x·sigmoid(1.702 x) for GELU", FORWARD, at(function(lambda x: x * torch.sigmoid(1.702 * x)))),
    "relu": Fault("ReLU in the place of another activation", FORWARD, at(function(F.relu))),
    "relu6": Fault("ReLU that ends at size", FORWARD, at(lambda m, s: surgery.around(m, lambda f, x: x.clamp(0, s)), 2.0)),
    "slope": Fault("LeakyReLU's slope", FORWARD, at(attribute("negative_slope", lambda old, s: s), 0.21)),
    "softplus": Fault("Softplus with another beta", FORWARD, at(attribute("beta", lambda o, s: s), 1.1)),
    "silu": Fault("SiLU in the place of another activation", FORWARD, at(function(F.silu))),
    "hard_swish": Fault("Hardswish for SiLU", FORWARD, at(function(F.hardswish))),
    "hard_sigmoid": Fault("Hardsigmoid for Sigmoid", FORWARD, at(function(F.hardsigmoid))),
    "squared": Fault("ReLU squared in the place of another activation", FORWARD, at(function(lambda x: F.relu(x).square()))),
    "leaky": Fault("LeakyReLU for ReLU", FORWARD, at(function(F.leaky_relu))),
    "gate_swapped": Fault("the activation is on up instead of gate", FORWARD, at(_activate_up)),
    "hard_tanh": Fault("Hardtanh for Tanh", FORWARD, at(function(F.hardtanh))),
    "silu_as_gelu": Fault("GELU for SiLU in a module's own code", FORWARD, called_function("silu", lambda x: _gelu(x))),
    "gelu_as_tanh": Fault("GELU's tanh form in a module's own code", FORWARD, called_function("gelu", lambda x: _gelu(x, approximate="tanh"))),
    "tanh_as_gelu": Fault("GELU for its tanh form in a module's own code", FORWARD, called_function("gelu", lambda x, approximate: _gelu(x))),
    "softplus_as_relu": Fault("ReLU for softplus in a module's own code", FORWARD, called_function("softplus", F.relu)),
    # convolutions and images
    "pool_padding": Fault("average pooling that does not count the padding", FORWARD, at(attribute("count_include_pad", lambda o, s: False))),
    "border": Fault("padding that repeats the border", FORWARD, at(lambda m, s: surgery.around(m, lambda f, x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), m.weight, m.bias, m.stride)))),
    "bilinear": Fault("bilinear upsampling", FORWARD, at(attribute("mode", lambda o, s: "bilinear"))),
    "dilation": Fault("a dilated convolution", FORWARD, at(lambda m, s: (setattr(m, "dilation", (2, 2)), setattr(m, "padding", (2, 2))))),
    "pad_right": Fault("padding at the right and below only, as 'same' has it", FORWARD, at(_pad_right)),
    "circular": Fault("padding that goes round", FORWARD, at(attribute("padding_mode", lambda old, s: "circular"))),
    "undilated": Fault("a convolution without its dilation", FORWARD, at(attribute("dilation", lambda old, s: (1,)))),
    "forward_looking": Fault("a causal convolution that is padded at the other end", FORWARD, at(_pad_end)),
    "align_corners": Fault("upsampling that aligns corners", FORWARD, at(attribute("align_corners", lambda old, s: True))),
    "corners": Fault("interpolation in a module's own code that aligns corners", FORWARD, at(_align_corners)),
    "patch_order": Fault("patches by columns instead of rows", FORWARD, at(lambda m, s: surgery.on_output(m, _column_major))),
    "mean_pool": Fault("the mean of four pixels instead of their maximum", FORWARD, at(function(lambda x: F.avg_pool2d(x, 2)))),
    "padding_counted": Fault("average pooling that counts the padding", FORWARD, at(attribute("count_include_pad", lambda old, s: True))),
    "shuffled": Fault("channels of size groups in turn", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: _shuffled_channels(x, s)), 2)),
    "conv_ahead": Fault("a causal convolution that is cut one place late", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(-1, -1)))),
    # recurrences and graphs
    "reset_first": Fault("GRU's reset gate before the matrix product", FORWARD, at(_reset_before_product)),
    "directions": Fault("both directions of a recurrence exchanged", FORWARD, at(lambda m, s: surgery.on_output(m, lambda x: x.roll(x.shape[-1] // 2, -1)))),
    "state_lost": Fault("a recurrence that begins anew in the middle of the sequence", FORWARD, at(_reset_state)),
    "step_limit": Fault("time steps that end at size", FORWARD, at(attribute("time_step_limit", lambda old, s: (old[0], s)), 0.05)),
    "scan_anew": Fault("a scan that begins again in the middle of the sequence", FORWARD, at(_restart_scan)),
    "scan_decay": Fault("a scan's decay × (1 + size)", FORWARD, at(_scale_decay, 0.01)),
    "softmax_dim": Fault("Softmax over another axis", FORWARD, at(attribute("dim", lambda old, s: -2))),
    "self_loops": Fault("a graph without self-loops", FORWARD, at(attribute("self_loops", lambda old, s: False))),
    # experts
    "top_k": Fault("one expert for each token", FORWARD, at(attribute("top_k", lambda o, s: 1))),
    "router_norm": Fault("experts' weights that sum to one, or do not", FORWARD, at(attribute("norm_topk_prob", lambda old, s: not old))),
    "routed_scale": Fault("experts' weights without their factor", FORWARD, at(attribute("routed_scaling_factor", lambda old, s: 1.0))),
    "swiglu_alpha": Fault("the experts' gate with a plain sigmoid", FORWARD, at(attribute("alpha", lambda old, s: 1.0))),
    "capacity": Fault("experts that take size tokens of a sequence and no more", FORWARD, at(attribute("expert_capacity", lambda old, s: int(s)), 2)),
    "unnormalised": Fault("experts' weights that do not sum to one", FORWARD, at(attribute("sums_to_one", lambda old, s: False))),
    "sigmoid_scores": Fault("experts' scores by sigmoid instead of softmax", FORWARD, at(attribute("softmax_first", lambda old, s: False))),
    "one_expert": Fault("one expert for each token", FORWARD, at(attribute("top", lambda old, s: 1))),
    "next_expert": Fault("tokens go to the expert behind the one chosen", FORWARD, at(attribute("moved", lambda old, s: 1))),
    # embeddings
    "bag_mean": Fault("the mean of a bag instead of its sum", FORWARD, at(attribute("mode", lambda o, s: "mean"))),
    "unscaled_embedding": Fault("an embedding without its scale", FORWARD, at(attribute("embed_scale", lambda old, s: 1.0))),
    "embedding_factor": Fault("the embeddings' factor × (1 + size)", FORWARD, at(attribute("embedding_multiplier", lambda old, s: old * (1 + s)), 1.0)),
    "scale_rounded": Fault("an embedding's scale in bf16", CONSTANT, at(lambda m, s: m.embed_scale.copy_(m.embed_scale.bfloat16()))),
    "half_table": Fault("tokens of the other rank's half of a table are zero", FORWARD, at(_zero_second_half)),
    "factor": Fault("the embeddings' factor × (1 + size)", FORWARD, at(attribute("factor", lambda old, s: old * (1 + s)), 1.0)),
    "padding_pooled": Fault("a mean over the tokens that counts padding", FORWARD, at(attribute("counts_padding", lambda old, s: True))),
}  # fmt: skip
