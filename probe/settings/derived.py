"""Settings that follow from others: one function for each thing that code bases compute from their configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
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


def _window(settings: Settings, names: Names) -> None:
    """A window may be switched off, or be in no layer."""
    layers = names.get("layer_types")
    is_full = isinstance(layers, (list, tuple)) and bool(layers) and set(map(str, layers)) == {"full_attention"}
    if names.get("use_sliding_window") is False or is_full:
        settings.put("sliding_window", "off")


def _heads(settings: Settings, names: Names) -> None:
    """Without groups each head has its own keys and values; a head's width is the model's by the number of heads."""
    heads, width = settings.known("num_attention_heads"), settings.known("hidden_size")
    is_megatron = settings.source.dialect is Dialect.MEGATRON and settings.source.form is not Form.RECORDING
    has_no_groups = is_megatron and names.get("group_query_attention") is not True and settings.source.is_model
    says_groups = settings.known("num_key_value_heads") is not None and not has_no_groups
    has_all = bool(settings.source.parts) or "num_query_groups" in settings.source.keys
    if heads and not says_groups and has_all:
        settings.put("num_key_value_heads", heads)
    if heads and width and settings.known("head_dim") is None and Dialect.VLLM is not settings.source.dialect:
        settings.put("head_dim", width / heads, like="num_attention_heads")


def _layers(settings: Settings, names: Names) -> None:
    """MindSpeed counts layers that do nothing."""
    idle, layers = names.get("noop_layers"), settings.known("num_layers")
    if settings.source.dialect is Dialect.MEGATRON and idle is not None and layers:
        settings.put("num_layers", layers - len(re.findall(r"\d+", str(idle))))


def _width_of_mlp(settings: Settings, names: Names) -> None:
    """The width of the MLP has other defaults in every code base."""
    width, source = settings.known("hidden_size"), settings.source
    if settings.known("intermediate_size") is not None or not width or Part.MODEL not in source.parts:
        return
    if source.dialect in (Dialect.MINDFORMERS, Dialect.META) and settings.known("gated_mlp"):
        hidden = int(2 * 4 * width / 3)
        multiple = int(names.get("multiple_of") or 256)
        hidden = int((names.get("ffn_dim_multiplier") or 1) * hidden)
        settings.put("intermediate_size", float(multiple * -(-hidden // multiple)), Origin.DEFAULT)
    elif source.dialect is Dialect.MEGATRON and settings.known("gated_mlp"):
        settings.put(
            "intermediate_size", float(int(4 * width * 2 / 3 / _GATED_MULTIPLE) * _GATED_MULTIPLE), Origin.DEFAULT
        )
    else:
        settings.put("intermediate_size", 4 * width, Origin.DEFAULT)


def _vocabulary(settings: Settings, names: Names) -> None:
    """Megatron pads the vocabulary, and may know the padded size alone: then a little less means the same."""
    known = settings.values.get("vocab_size")
    padded = names.get("padded_vocab_size")
    if known is None or not isinstance(padded, (int, float)) or not math.isclose(padded, known.value):
        return
    by = [names.get(name) for name in ("make_vocab_size_divisible_by", "tensor_model_parallel_size")]
    multiple = math.prod(int(each) for each in by if isinstance(each, (int, float))) or 1
    settings.values["vocab_size"] = Value(known.value, known.shown, known.name, known.origin, slack=multiple - 1)


def _biases(settings: Settings, names: Names) -> None:
    """Megatron's biases in all products include those of queries, keys and values; other code bases have a key for all."""
    all_of_them = names.get("add_bias_linear")
    if settings.source.dialect is Dialect.MEGATRON and all_of_them is True:
        settings.put("qkv_bias", True)
    if settings.source.dialect is Dialect.MINDFORMERS and isinstance(all_of_them, bool):
        settings.put("mlp_bias", all_of_them)


def _gelu(settings: Settings, names: Names) -> None:
    """Megatron's kernel of bias and GELU, which is the default, computes GELU by tanh."""
    source = settings.source
    if (
        source.dialect is not Dialect.MEGATRON
        or source.form is Form.RECORDING
        or settings.known("activation") != "gelu"
    ):
        return
    is_fused = names.get("no_bias_gelu_fusion") is not True and names.get("bias_gelu_fusion") is not False
    if is_fused and settings.known("mlp_bias") and settings.known("gated_mlp") is False:
        settings.put("activation", "gelu_tanh")


def _rope_of_megatron(settings: Settings, names: Names) -> None:
    """Of Megatron's several scaling factors the one counts that belongs to the kind of scaling."""
    source = settings.source
    if source.dialect is not Dialect.MEGATRON:
        return
    interpolation = names.get("rotary_seq_len_interpolation_factor")
    compressed = names.get("rotary_scaling_factor")
    if settings.known("rope_scaling") == "llama3":
        if settings.values.get("rope_scaling_factor") is None and source.parts:
            settings.put("rope_scaling_factor", _LLAMA3_FACTOR, Origin.DEFAULT)
        settings.put("rope_original_positions", float(_LLAMA3_POSITIONS), Origin.DEFAULT)
    elif (
        settings.known("multi_latent_attention")
        and names.get("rope_type") != "rope"
        and compressed not in (None, 1, 1.0)
    ):
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
    if (
        settings.source.dialect is Dialect.MINDFORMERS
        and kind in ("yarn", "llama3")
        and settings.known("rope_scaling") in (None, "none")
    ):
        settings.put("rope_scaling", kind)


def _rope_of_params_json(settings: Settings, names: Names) -> None:
    """Meta's first models have a base of 10000 and no key for it."""
    if settings.source.dialect is Dialect.META and names.find("multiple_of") and settings.known("rope_theta") is None:
        settings.put("rope_theta", 10000.0, Origin.DEFAULT)


def _experts(settings: Settings, names: Names) -> None:
    """What conditions ask about experts; the width of one where it has no key of its own; how wide the shared ones are."""
    experts, facts = settings.known("num_experts"), settings.facts
    if experts is None:
        return
    facts["is_moe"] = experts > 1
    if not facts["is_moe"]:
        return
    width = settings.known("moe_intermediate_size")
    if width is None and settings.known("intermediate_size") is not None:
        settings.put("moe_intermediate_size", settings.known("intermediate_size"), like="intermediate_size")
        width = settings.known("moe_intermediate_size")
    shared = next((names.get(name) for name in ("n_shared_experts", "shared_expert_num") if names.find(name)), None)
    if (
        isinstance(shared, (int, float))
        and not isinstance(shared, bool)
        and width
        and not _is_given(settings, "shared_expert_size")
    ):
        settings.put("shared_expert_size", shared * width)
    facts["has_shared_expert"] = bool(settings.known("shared_expert_size"))
    facts["has_several_experts"] = (settings.known("experts_per_token") or 2) > 1
    facts["is_grouped"] = (settings.known("router_groups") or 1) > 1
    facts["has_capacity"] = settings.known("capacity_factor") not in (None, "off")


def _router(settings: Settings, names: Names) -> None:
    """With sigmoid scores Megatron always normalises; a balancing loss that is not asked for has no weight."""
    if not settings.facts.get("is_moe"):
        return
    if settings.source.dialect is Dialect.MEGATRON and settings.known("router_score") == "sigmoid":
        settings.put("router_normalize", True)
    is_off = names.get("output_router_logits") is False or (
        settings.source.dialect is Dialect.MEGATRON
        and str(names.get("moe_router_load_balancing_type")).lower() in ("none", "noaux_tc")
    )
    is_hugging_face = settings.source.dialect in (Dialect.TRANSFORMERS, Dialect.VLLM, Dialect.PADDLENLP)
    is_never_asked = is_hugging_face and settings.source.is_model and not names.find("output_router_logits")
    if (is_off or is_never_asked) and settings.known("aux_loss_coef"):
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
        settings.values["residual_dtype"] = Value(
            taken.value, taken.shown, taken.name, Origin.DERIVED, of="compute_dtype"
        )


def _clipping(settings: Settings, names: Names) -> None:
    """MindFormers clips where it is told to."""
    source = settings.source
    if (
        source.dialect is Dialect.MINDFORMERS
        and Part.TRAINING in source.parts
        and names.get("runner_wrapper.use_clip_grad") is not True
    ):
        settings.put("clip_grad", 0.0)


def _optimizer(settings: Settings, names: Names) -> None:
    """Adam without decay, or with decay beside the gradient, is AdamW."""
    is_beside = settings.source.recorded.get("group.decoupled_weight_decay") is True
    if settings.known("optimizer") == "adam" and (is_beside or settings.known("weight_decay") == 0):
        known = settings.values["optimizer"]
        settings.values["optimizer"] = Value("adamw", known.shown, known.name, known.origin)


def _tf32(settings: Settings, names: Names) -> None:
    """What the variable says overrides what the program asks for."""
    variable = settings.source.variables.get("NVIDIA_TF32_OVERRIDE", "").strip()
    if variable in ("0", "1"):
        settings.values["tf32"] = Value(variable == "1", variable, "NVIDIA_TF32_OVERRIDE")


def _device(settings: Settings, names: Names) -> None:
    """Whether a recording is of an accelerator: switches of its libraries do nothing on a CPU."""
    source = settings.source
    if source.form is Form.RECORDING:
        devices = (
            source.recorded.get("devices") or source.recorded.get("device") or source.recorded.get("device_target")
        )
        settings.facts["on_accelerator"] = devices is not None and str(devices).lower() != "cpu"


def _is_given(settings: Settings, name: str) -> bool:
    return name in settings.values and settings.values[name].origin is Origin.GIVEN


DERIVATIONS: tuple[Callable[[Settings, Names], Any], ...] = (
    _layers, _window, _heads, _biases, _gelu, _width_of_mlp, _vocabulary, _rope_of_megatron, _rope_of_mindformers, _rope_of_params_json,
    _experts, _router, _mtp, _residuals,
    _clipping, _optimizer, _tf32, _device,
)  # fmt: skip
"""in this order"""
