"""Twenty faults of a port, over both towers, each planted in MindSpeed-MM's model, and the modules that are really wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.reference_trees.mindspeed import VLMModel, added

Plant = Callable[[VLMModel], None]
VISION, TEXT = "image_encoder.encoder.blocks.layers", "text_decoder.decoder.layers"


@dataclass(frozen=True)
class Fault:
    """What is wrong, and where."""

    name: str
    plant: Plant
    mindspeed: tuple[str, ...]
    """paths below MindSpeed-MM's ``VLMModel`` that name it, the closest first"""
    llamafactory: tuple[str, ...]
    """paths below ``Qwen2_5_VLForConditionalGeneration``"""
    phase: str
    """in which it is to be seen first; a finding in another one is no answer"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """of the optimizer"""


def _nothing(model: VLMModel) -> None:
    pass


def _vision(model: VLMModel, layer: int) -> Any:
    return model.image_encoder.encoder.blocks.layers[layer]


def _text(model: VLMModel, layer: int) -> Any:
    return model.text_decoder.decoder.layers[layer]


def _eps_in_vision(model: VLMModel) -> None:
    _vision(model, 5).input_layernorm.eps = 1e-5


def _final_eps(model: VLMModel) -> None:
    model.text_decoder.decoder.final_layernorm.eps = 1e-5


def _other_heads(model: VLMModel) -> None:
    """Turn and attend as 8 heads of half the size."""
    core, of_heads = _vision(model, 3).self_attention.core_attention, torch.Tensor.unflatten

    def forward(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
        q, k, v = (of_heads(each, 3, (2, -1)).flatten(2, 3) for each in (q, k, v))
        return type(core).forward(core, q, k, v, hidden)

    core.forward = forward
    core.scale *= 2**0.5


def _vision_theta(model: VLMModel) -> None:
    frequencies = model.image_encoder.encoder.rotary_pos_emb.inv_freq
    frequencies.copy_(1e3 ** -(torch.arange(len(frequencies)) / len(frequencies)))


def _text_theta(model: VLMModel) -> None:
    frequencies = model.text_decoder.rotary_pos_emb.inv_freq
    frequencies.copy_(1e4 ** -(torch.arange(len(frequencies)) / len(frequencies)))


def _no_window(model: VLMModel) -> None:
    model.image_encoder.encoder.blocks.full_attention.add(2)


def _merger_order(model: VLMModel) -> None:
    """The patches of a square lie column by column."""
    projector = model.image_encoder.projector
    projector.merged = lambda x: x.unflatten(0, (-1, 2, 2)).transpose(1, 2).reshape(-1, projector.hidden)


def _vision_residual(model: VLMModel) -> None:
    """The residual is taken behind the norm."""
    layer = _vision(model, 9)

    def forward(x: Tensor, hidden: Tensor, turns: Tensor) -> Tensor:
        x = added(layer.self_attention(layer.input_layernorm(x), hidden, turns), x)
        x = layer.cross_attn_bda(True, False)(layer.cross_attention(layer.pre_cross_attn_layernorm(x)), x, 0.0)
        normed = layer.pre_mlp_layernorm(x)
        return added(layer.mlp(normed), normed)

    layer.forward = forward


def _gate_and_up(model: VLMModel) -> None:
    for weight in (_vision(model, 4).mlp.linear_fc1.weight, _vision(model, 4).mlp.linear_fc1.bias):
        weight.data = torch.cat(weight.data.chunk(2)[::-1])


def _order_of_qkv(model: VLMModel) -> None:
    """q, k and v of one layer lie one after the other though the model reads them head by head."""
    attention = _vision(model, 6).self_attention
    for weight in (attention.linear_qkv.weight, attention.linear_qkv.bias):
        weight.data = weight.data.unflatten(0, (attention.heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def _text_order_of_qkv(model: VLMModel) -> None:
    attention = _text(model, 6).self_attention
    counts = [attention.heads // attention.groups, 1, 1]
    for weight in (attention.linear_qkv.weight, attention.linear_qkv.bias):
        parts = weight.data.unflatten(0, (attention.groups, sum(counts), -1)).split(counts, 1)
        weight.data = torch.cat([part.flatten(0, 2) for part in parts])


def _no_projection_bias(model: VLMModel) -> None:
    linear = _vision(model, 7).self_attention.linear_proj
    linear.forward = lambda x: (functional.linear(x, linear.weight), None)


def _no_qkv_bias(model: VLMModel) -> None:
    linear = _text(model, 1).self_attention.linear_qkv
    linear.forward = lambda x: (functional.linear(x, linear.weight), None)


def _scale(model: VLMModel) -> None:
    _vision(model, 10).self_attention.core_attention.scale = 1.0


def _tanh(model: VLMModel) -> None:
    model.image_encoder.projector.encoder.gelu = "tanh"


def _other_layer(model: VLMModel) -> None:
    _vision(model, 11).mlp.linear_fc2.load_state_dict(_vision(model, 12).mlp.linear_fc2.state_dict())


def _sections(model: VLMModel) -> None:
    for layer in model.text_decoder.decoder.layers:
        layer.self_attention.sections = layer.self_attention.sections[::-1]


def _no_norm(model: VLMModel) -> None:
    _text(model, 3).pre_mlp_layernorm.forward = lambda x: x


def _detached(model: VLMModel) -> None:
    """A layer hands its MLP what is cut off from the norm."""
    layer = _text(model, 5)

    def forward(x: Tensor, hidden: Tensor, turns: Tensor) -> Tensor:
        x = added(layer.self_attention(layer.input_layernorm(x), hidden, turns), x)
        x = layer.cross_attn_bda(True, False)(layer.cross_attention(layer.pre_cross_attn_layernorm(x)), x, 0.0)
        return added(layer.mlp(layer.pre_mlp_layernorm(x).detach()), x)

    layer.forward = forward


def _groups(model: VLMModel) -> None:
    """Key and value heads are handed to the queries in turns."""
    core = _text(model, 2).self_attention.core_attention
    core.repeated = lambda q, k, v: tuple(each.repeat(1, 1, q.shape[2] // k.shape[2], 1) for each in (k, v))


def _no_mask(model: VLMModel) -> None:
    core = _text(model, 4).self_attention.core_attention
    core.register_forward_pre_hook(lambda module, args: (*args[:3], torch.zeros_like(args[3])))


def _tied(model: VLMModel) -> None:
    decoder = model.text_decoder
    decoder.output_layer.weight.data = decoder.embedding.word_embeddings.weight.data.clone()


def _attention(of: str, layer: int) -> dict[str, tuple[str, ...]]:
    """Return the paths of an attention of a tower, as a whole: transformers' has no module for its core."""
    if of == "vision":
        there, here = f"visual.blocks.{layer}.attn", f"{VISION}.{layer}.self_attention"
    else:
        there, here = f"model.layers.{layer}.self_attn", f"{TEXT}.{layer}.self_attention"
    return {"mindspeed": (f"{here}.core_attention", here), "llamafactory": (there,)}


FAULTS = (
    Fault("eps of a vision norm", _eps_in_vision, (f"{VISION}.5.input_layernorm",), ("visual.blocks.5.norm1",), "forward"),
    Fault("heads of a vision layer", _other_heads, **_attention("vision", 3), phase="forward"),
    Fault("vision theta", _vision_theta, ("image_encoder.encoder.rotary_pos_emb",), ("visual.rotary_pos_emb",), "forward"),
    Fault("no window", _no_window, **_attention("vision", 2), phase="forward"),
    Fault("order of merged patches", _merger_order, ("image_encoder.projector",), ("visual.merger",), "forward"),
    Fault("vision residual", _vision_residual, (f"{VISION}.9",), ("visual.blocks.9",), "forward"),
    Fault("gate and up swapped", _gate_and_up, (f"{VISION}.4.mlp.linear_fc1",),
          ("visual.blocks.4.mlp.gate_proj", "visual.blocks.4.mlp.up_proj"), "init"),
    Fault("qkv order of a vision layer", _order_of_qkv, (f"{VISION}.6.self_attention.linear_qkv",),
          ("visual.blocks.6.attn.qkv",), "init"),
    Fault("no bias of a projection", _no_projection_bias, (f"{VISION}.7.self_attention.linear_proj",),
          ("visual.blocks.7.attn.proj",), "forward"),
    Fault("scale of scores", _scale, **_attention("vision", 10), phase="forward"),
    Fault("tanh in the merger", _tanh, ("image_encoder.projector.encoder",), ("visual.merger.mlp", "visual.merger.mlp.1"),
          "forward"),
    Fault("another layer's weights", _other_layer, (f"{VISION}.11.mlp.linear_fc2",), ("visual.blocks.11.mlp.down_proj",),
          "init"),
    Fault("eps of the last norm", _final_eps, ("text_decoder.decoder.final_layernorm",), ("model.norm",), "forward"),
    Fault("rotary sections", _sections, **_attention("text", 0), phase="forward"),
    Fault("text theta", _text_theta, ("text_decoder.rotary_pos_emb",), ("model.rotary_emb",), "forward"),
    Fault("no norm", _no_norm, (f"{TEXT}.3.pre_mlp_layernorm",), ("model.layers.3.post_attention_layernorm",), "forward"),
    Fault("detached MLP", _detached, (f"{TEXT}.5",), ("model.layers.5",), "backward"),
    Fault("key heads of queries", _groups, **_attention("text", 2), phase="forward"),
    Fault("output tied to the embedding", _tied, ("text_decoder.output_layer",), ("lm_head",), "init"),
    Fault("norms decay", _nothing, ("",), ("",), "update", {"decays_all": True}),
)  # fmt: skip
FURTHER = (
    Fault("qkv order of a text layer", _text_order_of_qkv, (f"{TEXT}.6.self_attention.linear_qkv",),
          tuple(f"model.layers.6.self_attn.{name}_proj" for name in "qkv"), "init"),
    Fault("no bias of q, k and v", _no_qkv_bias, (f"{TEXT}.1.self_attention.linear_qkv",),
          tuple(f"model.layers.1.self_attn.{name}_proj" for name in "qkv"), "forward"),
    Fault("no causal mask", _no_mask, **_attention("text", 4), phase="forward"),
    Fault("lr of the vision tower", _nothing, ("",), ("",), "update", {"vision_lr": 1.1e-3}),
)  # fmt: skip
"""beyond the twenty"""


def plant(model: nn.Module, fault: Fault) -> None:
    """Put a fault into a model as `mindspeed` returns it, without its list."""
    with torch.no_grad():
        fault.plant(model.module.module)  # type: ignore[arg-type, union-attr]
