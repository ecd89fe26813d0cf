"""MindSpeed-MM's weights made of LLaMA-Factory's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from benchmarks.reference_trees.llamafactory import DeepSpeedEngine
from benchmarks.reference_trees.mindspeed import DistributedDataParallel, mindspeed
from benchmarks.reference_trees.sizes import Sizes

State = Mapping[str, Tensor]


def mindspeed_of(
    model: DeepSpeedEngine, sizes: Sizes, *, is_interleaved: bool = True, skip_bias_add: bool = False
) -> list[DistributedDataParallel]:
    """Return MindSpeed-MM's model with the weights of LLaMA-Factory's; the options are those of `mindspeed`."""
    made = mindspeed(sizes, is_interleaved=is_interleaved, skip_bias_add=skip_bias_add)
    made[0].module.module.load_state_dict(dict(converted(model.module.state_dict(), sizes, is_interleaved)))
    return made


def converted(state: State, sizes: Sizes, is_interleaved: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield every weight by MindSpeed-MM's name."""
    yield from _vision(state, sizes, is_interleaved)
    for layer in range(sizes.text_layers):
        yield from _text_layer(state, f"model.layers.{layer}", f"text_decoder.decoder.layers.{layer}", sizes.groups)
    yield "text_decoder.embedding.word_embeddings.weight", state["model.embed_tokens.weight"].clone()
    yield "text_decoder.decoder.final_layernorm.weight", state["model.norm.weight"].clone()
    yield "text_decoder.output_layer.weight", state["lm_head.weight"].clone()


def in_groups(parts: list[Tensor], groups: int) -> Tensor:
    """Return q, k and v as one tensor, group by group."""
    split = [part.unflatten(0, (groups, -1)) for part in parts]
    return torch.cat(split, 1).flatten(0, 1)


def _vision(state: State, sizes: Sizes, is_interleaved: bool) -> Iterator[tuple[str, Tensor]]:
    yield "image_encoder.encoder.patch_embed.proj.weight", state["visual.patch_embed.proj.weight"].clone()
    for layer in range(sizes.vision_layers):
        there, here = f"visual.blocks.{layer}", f"image_encoder.encoder.blocks.layers.{layer}"
        yield f"{here}.input_layernorm.weight", state[f"{there}.norm1.weight"].clone()
        yield f"{here}.pre_mlp_layernorm.weight", state[f"{there}.norm2.weight"].clone()
        for slot in ("weight", "bias"):
            qkv = state[f"{there}.attn.qkv.{slot}"]
            yield (
                f"{here}.self_attention.linear_qkv.{slot}",
                in_groups(list(qkv.chunk(3)), sizes.vision_heads) if is_interleaved else qkv.clone(),
            )
            yield f"{here}.self_attention.linear_proj.{slot}", state[f"{there}.attn.proj.{slot}"].clone()
            yield from _mlp(state, there, here, slot)
    yield "image_encoder.projector.layernorm.weight", state["visual.merger.ln_q.weight"].clone()
    for slot in ("weight", "bias"):
        for name, number in (("linear_fc1", 0), ("linear_fc2", 2)):
            yield f"image_encoder.projector.encoder.{name}.{slot}", state[f"visual.merger.mlp.{number}.{slot}"].clone()


def _text_layer(state: State, there: str, here: str, groups: int) -> Iterator[tuple[str, Tensor]]:
    yield f"{here}.input_layernorm.weight", state[f"{there}.input_layernorm.weight"].clone()
    yield f"{here}.pre_mlp_layernorm.weight", state[f"{there}.post_attention_layernorm.weight"].clone()
    yield f"{here}.self_attention.linear_proj.weight", state[f"{there}.self_attn.o_proj.weight"].clone()
    for slot in ("weight", "bias"):
        parts = [state[f"{there}.self_attn.{name}_proj.{slot}"] for name in "qkv"]
        yield f"{here}.self_attention.linear_qkv.{slot}", in_groups(parts, groups)
    yield from _mlp(state, there, here, "weight")


def _mlp(state: State, there: str, here: str, slot: str) -> Iterator[tuple[str, Tensor]]:
    gate, up, down = (state[f"{there}.mlp.{name}_proj.{slot}"] for name in ("gate", "up", "down"))
    yield f"{here}.mlp.linear_fc1.{slot}", torch.cat([gate, up])
    yield f"{here}.mlp.linear_fc2.{slot}", down.clone()
