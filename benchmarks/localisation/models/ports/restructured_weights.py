"""The weights of the ports in `restructured`, converted from those of their baselines, and the names of their modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from benchmarks.localisation.models.ports.mappings import MAPPINGS

DECODER_NAMES = MAPPINGS["llama-fused"]["LlamaForCausalLM"]
LLAMA_LAYER = MAPPINGS["llama-fused"]["LlamaDecoderLayer"]
PHI3_LAYER = MAPPINGS["phi3-split"]["Phi3DecoderLayer"]
STARCODER2_LAYER = MAPPINGS["starcoder2-packed"]["Starcoder2DecoderLayer"]
OLMO_LAYER = MAPPINGS["olmo-packed"]["OlmoDecoderLayer"]
CNN_LIST = MAPPINGS["cnn-sequence"]["ConvNet"]
PERCEPTRON_LIST = MAPPINGS["perceptron-stacked"]["Perceptron"]
SQUEEZE_LIST = MAPPINGS["squeeze-listed"]["SqueezeNet"]
POINTS_LIST = MAPPINGS["points-listed"]["PointNet"]


def renamed_modules(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return weights whose outermost modules have other names."""
    parts = {name: name.split(".", 1) for name in weights}
    return {f"{names[first]}.{rest}": weights[name] for name, (first, rest) in parts.items()}


def _packed_layers(weights: Mapping[str, Tensor], names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the weights of three layers of a Llama as a decoder has them that packs query, key and value, and gate and up."""
    found = {}
    for layer in range(3):
        old, new = f"model.layers.{layer}", f"blocks.{layer}"
        packed = [weights[f"{old}.self_attn.{part}_proj.weight"] for part in "qkv"]
        gates = [weights[f"{old}.mlp.{part}_proj.weight"] for part in ("gate", "up")]
        found |= {f"{new}.attention.qkv.weight": torch.cat(packed), f"{new}.gate_up.weight": torch.cat(gates)}
        for name, source in names.items():
            found[f"{new}.{name}.weight"] = weights[f"{old}.{source}.weight"]
    return found


def packed_llama(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack Llama's weights as `FusedDecoder` has them."""
    whole = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "final_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    return whole | _packed_layers(weights, {new: old for old, new in LLAMA_LAYER.items() if new != "attention"})


def split_phi3(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Cut Phi-3's weights as `SplitDecoder` has them."""
    found = {
        "embedding.weight": weights["model.embed_tokens.weight"],
        "final_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for layer in range(3):
        old, new = f"model.layers.{layer}", f"blocks.{layer}"
        parts = weights[f"{old}.self_attn.qkv_proj.weight"].split([32, 16, 16])
        parts += weights[f"{old}.mlp.gate_up_proj.weight"].chunk(2)
        names = ("attention.query", "attention.key", "attention.value", "gate", "up")
        found |= {f"{new}.{name}.weight": part for name, part in zip(names, parts, strict=True)}
        for source, name in PHI3_LAYER.items():
            if name != "attention":
                found[f"{new}.{name}.weight"] = weights[f"{old}.{source}.weight"]
    return found


def packed_starcoder2(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack Starcoder2's weights as `PackedDecoder` has them."""
    parts = "weight", "bias"
    found = {f"{DECODER_NAMES[name]}.{part}": weights[f"{name}.{part}"] for name in ("model.norm",) for part in parts}
    found |= {f"{DECODER_NAMES[name]}.weight": weights[f"{name}.weight"] for name in ("model.embed_tokens", "lm_head")}
    for layer in range(3):
        old, new = f"model.layers.{layer}", f"blocks.{layer}"
        for part in parts:
            packed = [weights[f"{old}.self_attn.{each}_proj.{part}"] for each in "qkv"]
            found[f"{new}.attention.qkv.{part}"] = torch.cat(packed)
            for source, name in STARCODER2_LAYER.items():
                if f"{old}.{source}.{part}" in weights:
                    found[f"{new}.{name}.{part}"] = weights[f"{old}.{source}.{part}"]
    return found


def packed_olmo(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pack OLMo's weights as `PlainDecoder` has them."""
    whole = {"embedding.weight": weights["model.embed_tokens.weight"], "output.weight": weights["lm_head.weight"]}
    return whole | _packed_layers(weights, {"attention.proj": "self_attn.o_proj", "down": "mlp.down_proj"})
