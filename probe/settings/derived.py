"""Settings that follow from others: one function for each thing that code bases compute from their configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from probe.settings.setting import Dialect, Part
from probe.settings.side import Origin, Settings, Value
from probe.settings.source import Form, Names

_LLAMA3_POSITIONS = 8192
"""Megatron's, which no option changes"""
_MLA_POSITIONS = 4096
_LLAMA3_FACTOR = 8.0
_GATED_MULTIPLE = 64
"""Megatron rounds the width of a gated MLP down to a multiple of this"""


def _is(settings: Settings, *dialects: Dialect) -> bool:
    return settings.source.dialect in dialects


def _window(settings: Settings, names: Names) -> None:
    """A window may be switched off, or be in no layer."""
    layers = names.get("layer_types")
    is_full = isinstance(layers, (list, tuple)) and bool(layers) and set(map(str, layers)) == {"full_attention"}
    if names.get("use_sliding_window") is False or is_full:
        settings.put("sliding_window", "off")


def _heads(settings: Settings, names: Names) -> None:
    """Without groups each head has its own keys and values; a head's width is the model's by the number of heads."""
    heads, width = settings.known("num_attention_heads"), settings.known("hidden_size")
    is_megatron = _is(settings, Dialect.MEGATRON) and settings.source.form is not Form.RECORDING
    has_no_groups = is_megatron and names.get("group_query_attention") is not True and settings.source.is_model
    says_groups = settings.known("num_key_value_heads") is not None and not has_no_groups
    has_all = bool(settings.source.parts) or "num_query_groups" in settings.source.keys
    if heads and not says_groups and has_all:
        settings.put("num_key_value_heads", heads)
    if heads and width and settings.known("head_dim") is None and not _is(settings, Dialect.VLLM):
        settings.put("head_dim", width / heads, like="num_attention_heads")


def _layers(settings: Settings, names: Names) -> None:
    """MindSpeed counts layers that do nothing."""
    idle, layers = names.get("noop_layers"), settings.known("num_layers")
    if _is(settings, Dialect.MEGATRON) and idle is not None and layers:
        settings.put("num_layers", layers - len(re.findall(r"\d+", str(idle))))


def _width_of_mlp(settings: Settings, names: Names) -> None:
    """The width of the MLP has other defaults in every code base."""
    width, is_gated = settings.known("hidden_size"), settings.known("gated_mlp")
    if settings.known("intermediate_size") is not None or not width or not settings.source.is_model:
        return
    derived = 4 * width
    if is_gated and _is(settings, Dialect.MINDFORMERS, Dialect.META):
        multiple = int(names.get("multiple_of") or 256)
        hidden = int((names.get("ffn_dim_multiplier") or 1) * int(2 * 4 * width / 3))
        derived = float(multiple * -(-hidden // multiple))
    elif is_gated and _is(settings, Dialect.MEGATRON):
        derived = float(int(4 * width * 2 / 3 / _GATED_MULTIPLE) * _GATED_MULTIPLE)
    settings.put("intermediate_size", derived, Origin.DEFAULT)


def _vocabulary(settings: Settings, names: Names) -> None:
    """Megatron pads the vocabulary, and may know the padded size alone: then a little less means the same."""
    known = settings.values.get("vocab_size")
    padded = names.get("padded_vocab_size")
    if known is None or not isinstance(padded, (int, float)) or not math.isclose(padded, known.value):
        return
    by = [names.get(name) for name in ("make_vocab_size_divisible_by", "tensor_model_parallel_size")]
    multiple = math.prod(int(each) for each in by if isinstance(each, (int, float))) or 1
    settings.values["vocab_size"] = replace(known, slack=multiple - 1)


def _biases(settings: Settings, names: Names) -> None:
    """Megatron's biases in all products include those of queries, keys and values; other code bases have a key for all."""
    all_of_them = names.get("add_bias_linear")
    if _is(settings, Dialect.MEGATRON) and all_of_them is True:
        settings.put("qkv_bias", True)
    if _is(settings, Dialect.MINDFORMERS) and isinstance(all_of_them, bool):
        settings.put("mlp_bias", all_of_them)


def _gelu(settings: Settings, names: Names) -> None:
    """Megatron's kernel of bias and GELU, which is the default, computes GELU by tanh."""
    is_megatron = _is(settings, Dialect.MEGATRON) and settings.source.form is not Form.RECORDING
    is_fused = names.get("no_bias_gelu_fusion") is not True and names.get("bias_gelu_fusion") is not False
    is_plain = settings.known("activation") == "gelu" and settings.known("gated_mlp") is False
    if is_megatron and is_fused and is_plain and settings.known("mlp_bias"):
        settings.put("activation", "gelu_tanh")


def _rope_of_megatron(settings: Settings, names: Names) -> None:
    """Of Megatron's several scaling factors the one counts that belongs to the kind of scaling."""
    if not _is(settings, Dialect.MEGATRON):
        return
    interpolation = names.get("rotary_seq_len_interpolation_factor")
    compressed = names.get("rotary_scaling_factor")
    is_compressed = bool(settings.known("multi_latent_attention")) and names.get("rope_type") != "rope"
    if settings.known("rope_scaling") == "llama3":
        if settings.values.get("rope_scaling_factor") is None and settings.source.parts:
            settings.put("rope_scaling_factor", _LLAMA3_FACTOR, Origin.DEFAULT)
        settings.put("rope_original_positions", float(_LLAMA3_POSITIONS), Origin.DEFAULT)
    elif is_compressed and compressed not in (None, 1):
        settings.put("rope_scaling", "yarn", like="rope_scaling_factor")
        settings.put("rope_scaling_factor", float(compressed), like="rope_scaling_factor")
        if settings.known("rope_original_positions") is None:
            settings.put("rope_original_positions", float(_MLA_POSITIONS), Origin.DEFAULT)
    elif isinstance(interpolation, (int, float)) and interpolation not in (0, 1):
        settings.put("rope_scaling", "linear")
        settings.put("rope_scaling_factor", float(interpolation))


def _rope_of_mindformers(settings: Settings, names: Names) -> None:
    """Without a way to stretch the factor is 1 and says nothing; position_embedding_type may name the way."""
    kind = str(names.get("position_embedding_type") or "").lower()
    is_plain = settings.known("rope_scaling") in (None, "none")
    if _is(settings, Dialect.MINDFORMERS) and kind in ("yarn", "llama3") and is_plain:
        settings.put("rope_scaling", kind)


def _rope_of_params_json(settings: Settings, names: Names) -> None:
    """Meta's first models have a base of 10000 and no key for it."""
    if _is(settings, Dialect.META) and names.find("multiple_of") and settings.known("rope_theta") is None:
        settings.put("rope_theta", 10000.0, Origin.DEFAULT)


def _experts(settings: Settings, names: Names) -> None:
    """What conditions ask about experts; the width of one where it has no key of its own; how wide the shared ones are."""
    experts, facts = settings.known("num_experts"), settings.facts
    if experts is None:
        return
    facts["is_moe"] = experts > 1
    if not facts["is_moe"]:
        return
    if settings.known("moe_intermediate_size") is None and settings.known("intermediate_size") is not None:
        settings.put("moe_intermediate_size", settings.known("intermediate_size"), like="intermediate_size")
    width, known = settings.known("moe_intermediate_size"), settings.values.get("shared_expert_size")
    shared = next((names.get(name) for name in ("n_shared_experts", "shared_expert_num") if names.find(name)), None)
    is_number = isinstance(shared, (int, float)) and not isinstance(shared, bool)
    if is_number and width and (known is None or known.origin is not Origin.GIVEN):
        settings.put("shared_expert_size", shared * width)
    facts["has_shared_expert"] = bool(settings.known("shared_expert_size"))
    facts["has_several_experts"] = (settings.known("experts_per_token") or 2) > 1
    facts["is_grouped"] = (settings.known("router_groups") or 1) > 1
    facts["has_capacity"] = settings.known("capacity_factor") not in (None, "off")


def _router(settings: Settings, names: Names) -> None:
    """With sigmoid scores Megatron always normalises; a balancing loss that is not asked for has no weight."""
    if not settings.facts.get("is_moe"):
        return
    if _is(settings, Dialect.MEGATRON):
        if settings.known("router_score") == "sigmoid":
            settings.put("router_normalize", True)
        is_off = str(names.get("moe_router_load_balancing_type")).lower() in ("none", "noaux_tc")
    else:
        is_hugging_face = _is(settings, Dialect.TRANSFORMERS, Dialect.VLLM, Dialect.PADDLENLP)
        is_off = is_hugging_face and settings.source.is_model and not names.find("output_router_logits")
    if (is_off or names.get("output_router_logits") is False) and settings.known("aux_loss_coef"):
        settings.put("aux_loss_coef", 0.0)
    settings.facts["has_aux_loss"] = bool(settings.known("aux_loss_coef"))


def _mtp(settings: Settings, names: Names) -> None:
    """Whether further tokens are predicted."""
    layers = settings.known("num_mtp_layers")
    if layers is not None:
        settings.facts["has_mtp"] = layers > 0


def _residuals(settings: Settings, names: Names) -> None:
    """Residuals have the dtype of the products, where nothing else is asked for."""
    if settings.source.is_model and settings.known("residual_dtype") is None and settings.known("compute_dtype"):
        taken = settings.values["compute_dtype"]
        settings.values["residual_dtype"] = replace(taken, origin=Origin.DERIVED, slack=0.0, of="compute_dtype")


def _clipping(settings: Settings, names: Names) -> None:
    """MindFormers clips where it is told to."""
    is_trained = _is(settings, Dialect.MINDFORMERS) and Part.TRAINING in settings.source.parts
    if is_trained and names.get("runner_wrapper.use_clip_grad") is not True:
        settings.put("clip_grad", 0.0)


def _optimizer(settings: Settings, names: Names) -> None:
    """Adam without decay, or with decay beside the gradient, is AdamW."""
    is_beside = settings.source.recorded.get("group.decoupled_weight_decay") is True
    if settings.known("optimizer") == "adam" and (is_beside or settings.known("weight_decay") == 0):
        settings.values["optimizer"] = replace(settings.values["optimizer"], value="adamw")


def _tf32(settings: Settings, names: Names) -> None:
    """What the variable says overrides what the program asks for."""
    variable = settings.source.variables.get("NVIDIA_TF32_OVERRIDE", "").strip()
    if variable in ("0", "1"):
        settings.values["tf32"] = Value(variable == "1", variable, "NVIDIA_TF32_OVERRIDE")


def _device(settings: Settings, names: Names) -> None:
    """Whether a recording is of an accelerator: switches of its libraries do nothing on a CPU."""
    if settings.source.form is Form.RECORDING:
        found = (settings.source.recorded.get(name) for name in ("devices", "device", "device_target"))
        devices = next(filter(None, found), None)
        settings.facts["on_accelerator"] = devices is not None and str(devices).lower() != "cpu"


DERIVATIONS: tuple[Callable[[Settings, Names], Any], ...] = (
    _layers, _window, _heads, _biases, _gelu, _width_of_mlp, _vocabulary, _rope_of_megatron, _rope_of_mindformers,
    _rope_of_params_json, _experts, _router, _mtp, _residuals, _clipping, _optimizer, _tf32, _device,
)  # fmt: skip
"""in this order"""
