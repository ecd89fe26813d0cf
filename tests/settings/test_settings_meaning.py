"""What values mean, and what follows from others: each rule of a code base by itself."""

from __future__ import annotations

from typing import Any

import pytest

from probe.settings.comparing import Held, held_against
from probe.settings.reading.dialects import source_of
from probe.settings.resolving import resolved
from probe.settings.setting import Category, Dialect, Effect, Kind, Setting
from probe.settings.side import Origin, Settings
from probe.settings.source import Form
from probe.settings.table import BY_NAME
from probe.settings.values import MISSING, Unreadable, alike, made, normalised, parsed

SIZES = {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "norm_epsilon": 1e-5}
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
MOE = {**SIZES, "num_experts": 8, "ffn_hidden_size": 128, "swiglu": True}


def megatron(**keys: Any) -> Settings:
    return resolved(source_of("run.sh", Form.SHELL, {**SIZES, **keys}))


def hugging_face(**keys: Any) -> Settings:
    return resolved(source_of("config.json", Form.ARGUMENTS_JSON, {**LLAMA, **keys}))


def mindformers(model: dict[str, Any] | None = None, **sections: Any) -> Settings:
    own = {"type": "LlamaConfig", "num_layers": 2, "hidden_size": 64, "num_heads": 4, **(model or {})}
    return resolved(source_of("run.yaml", Form.YAML, {"model": {"model_config": own}, "run_mode": "train", **sections}))


# ---- texts and values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24", 24), ("1e-6", 1e-6), ("-.5", -0.5), ("True", True), ("false", False), ("None", None), ("null", None), ("", None),
        ("[1, 2]", [1, 2]), ("(0.9, 0.95)", (0.9, 0.95)), ('{"a": 1}', {"a": 1}), ("abc", "abc"), ("'abc'", "abc"), ("[0]*3+[1]*2", "[0]*3+[1]*2"),
        ("{" * 2000, "{" * 2000), ("nan", pytest.approx(float("nan"), nan_ok=True)),
    ],
)  # fmt: skip
def test_texts_are_read_as_what_they_mean(text: str, value: Any) -> None:
    assert parsed(text) == value


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("norm_eps", "1e-6", 1e-6), ("norm_eps", 1, 1.0), ("num_layers", "24", 24.0), ("tie_word_embeddings", "false", False),
        ("tie_word_embeddings", 1, True), ("compute_dtype", "torch.bfloat16", "bfloat16"), ("compute_dtype", "BFloat16", "bfloat16"),
        ("compute_dtype", "half", "float16"), ("compute_dtype", "auto", None), ("normalization", "RMSNorm", "rmsnorm"),
        ("activation", "SiLU", "silu"), ("activation", "swiglu", "silu"), ("activation", "gelu_new", "gelu_tanh"),
        ("activation", "gelu_pytorch_tanh", "gelu_tanh"), ("activation", "new_one", "new_one"), ("lr_schedule", "SchedulerType.COSINE", "cosine"),
        ("sliding_window", None, "off"), ("sliding_window", 0, "off"), ("sliding_window", 4096, 4096.0), ("attention_dropout", None, 0.0),
        ("capacity_factor", -1.0, "off"), ("rope_scaling", None, "none"), ("num_experts", None, 1),
    ],
)  # fmt: skip
def test_values_of_one_meaning_are_one_value(name: str, raw: Any, value: Any) -> None:
    assert normalised(BY_NAME[name], raw) == value


@pytest.mark.parametrize(("name", "raw"), [("norm_eps", "fast"), ("norm_eps", float("nan")), ("norm_eps", [1]), ("tie_word_embeddings", "perhaps"),
                                           ("compute_dtype", True), ("activation", 3), ("num_layers", {})])  # fmt: skip
def test_what_is_no_value_of_a_setting_is_not_compared(name: str, raw: Any) -> None:
    with pytest.raises(Unreadable):
        normalised(BY_NAME[name], raw)


def test_a_word_may_mean_something_else_to_one_code_base() -> None:
    """MindSpore's GELU is the one by tanh."""
    assert normalised(BY_NAME["activation"], "gelu", Dialect.MINDFORMERS) == "gelu_tanh"
    assert normalised(BY_NAME["optimizer"], "adam", Dialect.MEGATRON) == "adamw"
    assert normalised(BY_NAME["optimizer"], "adam") == "adam"


@pytest.mark.parametrize(
    ("action", "raw", "value"),
    [
        ("not", True, False), ("not", "False", True), ("not", None, MISSING), ("means:silu", True, "silu"), ("means:silu", "False", MISSING),
        ("first", [0.9, 0.95], 0.9), ("second", "(0.9, 0.95)", 0.95), ("left_and_self", "4095,0", 4096), ("left_and_self", [4095, 0], 4096),
        ("left_and_self", [-1, 0], "off"), ("left_and_self", None, "off"), ("leading_zeros", "[0]*3+[1]*58", 3), ("leading_zeros", "([0]*1+[1]*2)*3", 1),
        ("leading_zeros", [0, 0, 1], 2), ("leading_zeros", 1, MISSING), ("leading_zeros", "[1]*4", 0), ("number", True, MISSING), ("number", 2, 2),
        ("positive", -1, MISSING), ("positive", 10, 10), ("inverse_root", 256, 0.0625), ("is_glu", "gelu", MISSING), ("is_glu", "swiglu", True),
        ("is_fused", "eager", False), ("is_fused", "sdpa", True), ("unless:rope", "rope", MISSING), ("unless:rope", "yarn", "yarn"),
        ("pre_or_post", False, "post"), ("ungated", "gated-gelu", "gelu"), ("is_set", "", False), ("is_set", "stage2", True),
    ],
)  # fmt: skip
def test_what_a_names_ending_does(action: str, raw: Any, value: Any) -> None:
    assert made(action, raw) == value


@pytest.mark.parametrize("raw", ["[0]*99999999999", "[" * 150, "[0]*[1]"])
def test_hostile_patterns_are_not_computed(raw: str) -> None:
    with pytest.raises(Unreadable):
        made("leading_zeros", raw)


def test_alike() -> None:
    assert alike(1e-6, 0.000001) and alike(1, 1.0) and alike("A", "a") and alike(100, 128, slack=127)
    assert not alike(1e-6, 1e-5) and not alike(True, 2.0) and not alike("off", 4096.0) and not alike(0.0, 1e-8)


# ---- what follows from others ----------------------------------------------------------------------

RULES = {
    "Megatron without groups: each head its own keys": (megatron(), "num_key_value_heads", 4),
    "Megatron's groups count where they are switched on": (megatron(group_query_attention=True, num_query_groups=2), "num_key_value_heads", 2),
    "and not where they are not": (megatron(num_query_groups=2), "num_key_value_heads", 4),
    "transformers without groups": (hugging_face(), "num_key_value_heads", 4),
    "a head's width": (hugging_face(), "head_dim", 16),
    "a head's width that is given": (hugging_face(head_dim=32), "head_dim", 32),
    "Megatron's MLP": (megatron(), "intermediate_size", 256),
    "Megatron's gated MLP, down to a multiple of 64": (megatron(hidden_size=4096, swiglu=True), "intermediate_size", 10880),
    "MindFormers' MLP, up to a multiple": (mindformers({"hidden_size": 4096, "multiple_of": 256}), "intermediate_size", 11008),
    "GPT-2's MLP": (resolved(source_of("c.json", Form.ARGUMENTS_JSON, {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2})), "intermediate_size", 32),
    "Megatron's fused GELU is by tanh": (megatron(), "activation", "gelu_tanh"),
    "not without its fusion": (megatron(no_bias_gelu_fusion=True), "activation", "gelu"),
    "nor without biases": (megatron(disable_bias_linear=True), "activation", "gelu"),
    "SwiGLU": (megatron(swiglu=True), "activation", "silu"),
    "SwiGLU has a gate": (megatron(swiglu=True), "gated_mlp", True),
    "all biases are also those of queries": (megatron(add_bias_linear=True, add_qkv_bias=False), "qkv_bias", True),
    "biases of queries alone": (megatron(disable_bias_linear=True, add_qkv_bias=True), "mlp_bias", False),
    "learned positions by default": (megatron(), "position_embedding", "learned"),
    "the old flag for rotary positions": (megatron(use_rotary_position_embeddings=True), "position_embedding", "rope"),
    "Megatron's llama3 scaling has one factor": (megatron(use_rope_scaling=True), "rope_scaling_factor", 8),
    "and another one where it is given": (megatron(use_rope_scaling=True, rope_scaling_factor=32), "rope_scaling_factor", 32),
    "interpolation is linear scaling": (megatron(rotary_seq_len_interpolation_factor=4), "rope_scaling", "linear"),
    "compressed keys are scaled by yarn": (megatron(multi_latent_attention=True, rotary_scaling_factor=40), "rope_scaling", "yarn"),
    "with a factor of 1 they are not": (megatron(multi_latent_attention=True, rotary_scaling_factor=1.0), "rope_scaling", "none"),
    "tied unless untied": (megatron(), "tie_word_embeddings", True),
    "untied": (megatron(untie_embeddings_and_output_weights=True), "tie_word_embeddings", False),
    "a window that is switched off": (hugging_face(sliding_window=8, use_sliding_window=False), "sliding_window", "off"),
    "a window in no layer": (hugging_face(sliding_window=8, layer_types=["full_attention"] * 2), "sliding_window", "off"),
    "a window": (hugging_face(sliding_window=8), "sliding_window", 8),
    "the older place of the rotary base": (hugging_face(rope_theta=5.0), "rope_theta", 5),
    "the newer one": (hugging_face(rope_parameters={"rope_theta": 5.0}), "rope_theta", 5),
    "an expert as wide as the MLP": (megatron(**MOE), "moe_intermediate_size", 128),
    "shared experts together": (hugging_face(n_routed_experts=8, moe_intermediate_size=32, n_shared_experts=2), "shared_expert_size", 64),
    "probabilities behind the choice add up to 1": (megatron(**MOE), "router_normalize", True),
    "those before it do not": (megatron(**MOE, moe_router_pre_softmax=True), "router_normalize", False),
    "those of sigmoid always do": (megatron(**MOE, moe_router_pre_softmax=True, moe_router_score_function="sigmoid"), "router_normalize", True),
    "a balancing loss that is not asked for": (hugging_face(num_local_experts=8, router_aux_loss_coef=0.02, output_router_logits=False), "aux_loss_coef", 0),
    "one that is": (hugging_face(num_local_experts=8, router_aux_loss_coef=0.02, output_router_logits=True), "aux_loss_coef", 0.02),
    "one that Megatron's router does not take": (megatron(**MOE, moe_aux_loss_coeff=0.1, moe_router_load_balancing_type="none"), "aux_loss_coef", 0),
    "MindFormers clips where it is told to": (mindformers(optimizer={"type": "AdamW"}, runner_wrapper={"use_clip_grad": True}), "clip_grad", 1),
    "and else does not": (mindformers(optimizer={"type": "AdamW"}, runner_wrapper={"type": "x"}), "clip_grad", 0),
    "bf16": (megatron(bf16=True), "compute_dtype", "bfloat16"),
    "neither": (megatron(lr=1), "compute_dtype", "float32"),
    "residuals have the dtype of the products": (megatron(bf16=True, lr=1), "residual_dtype", "bfloat16"),
    "unless asked otherwise": (megatron(bf16=True, lr=1, fp32_residual_connection=True), "residual_dtype", "float32"),
    "layers that do nothing": (megatron(num_layers=64, noop_layers="61,62,63"), "num_layers", 61),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule(rule: str) -> None:
    settings, name, value = RULES[rule]
    assert settings.known(name) == value


def test_a_default_says_that_it_is_one() -> None:
    settings = megatron(attention_dropout=0.0)
    assert (settings.values["attention_dropout"].origin, settings.values["hidden_dropout"].origin) == (
        Origin.GIVEN,
        Origin.DEFAULT,
    )
    assert settings.values["hidden_dropout"].name == "--hidden-dropout"
    assert hugging_face().values["normalization"].origin is Origin.IMPLIED


def test_arguments_from_a_checkpoint_are_not_defaults() -> None:
    assert megatron(use_checkpoint_args=True, lr=1).known("hidden_dropout") is None


def test_an_unknown_model_has_no_defaults() -> None:
    settings = hugging_face(model_type="somebodys")
    assert settings.known("normalization") is None and settings.known("hidden_size") == 64


# ---- two sides -------------------------------------------------------------------------------------


def named(held: Held) -> set[str]:
    return {each.setting for each in held.differences}


def test_a_padded_vocabulary_means_the_same_up_to_its_padding() -> None:
    padded = megatron(padded_vocab_size=50304, make_vocab_size_divisible_by=128)
    assert "vocab_size" not in named(held_against(hugging_face(vocab_size=50257), padded))
    assert "vocab_size" in named(held_against(hugging_face(vocab_size=50000), padded))


def test_what_does_nothing_is_not_compared() -> None:
    """Rotary settings of a model with learned positions, the router of one without experts."""
    a, b = megatron(rotary_base=1, moe_router_topk=3), megatron(rotary_base=2, moe_router_topk=4)
    assert not named(held_against(a, b))
    a, b = (
        megatron(rotary_base=1, position_embedding_type="rope"),
        megatron(rotary_base=2, position_embedding_type="rope"),
    )
    assert named(held_against(a, b)) == {"rope_theta"}


def test_what_follows_from_a_difference_is_not_named_beside_it() -> None:
    assert named(held_against(megatron(bf16=True, lr=1), megatron(fp16=True, lr=1))) == {"compute_dtype"}


def test_entries_that_the_table_lacks_are_compared_where_both_have_them() -> None:
    a = hugging_face(depthwise=3, save_path="a", _private=1, logging_steps=5, only_a=1)
    b = hugging_face(depthwise=4, save_path="b", _private=2, logging_steps=6)
    held = held_against(a, b)
    (found,) = held.differences
    assert (found.setting, found.effect, found.effect.counts, found.row) == ("depthwise", Effect.UNKNOWN, False, None)


def test_likely_causes_come_first() -> None:
    a = megatron(
        bf16=True,
        lr=1,
        tensor_model_parallel_size=1,
        seed=1,
        rotary_base=1,
        position_embedding_type="rope",
        use_flash_attn=False,
    )
    b = megatron(
        fp16=True,
        lr=1,
        tensor_model_parallel_size=2,
        seed=2,
        rotary_base=2,
        position_embedding_type="rope",
        use_flash_attn=True,
    )
    effects = [each.effect for each in held_against(a, b).differences]
    assert effects == [Effect.NUMBERS, Effect.RANDOM, Effect.PRECISION, Effect.ROUNDING, Effect.ROUNDING]


def test_the_words_of_a_difference() -> None:
    (found,) = held_against(hugging_face(rms_norm_eps=1e-6), hugging_face(rms_norm_eps=1e-5)).differences
    assert (found.title, found.a.shown, found.b.shown, found.category) == (
        "rms_norm_eps",
        "1e-06",
        "1e-05",
        Category.STRUCTURE,
    )
    assert found.as_json()["a"] == {"name": "rms_norm_eps", "value": 1e-6, "shown": "1e-06", "from": "given"}
    (found,) = held_against(hugging_face(rms_norm_eps=1e-6), hugging_face(rms_norm_eps=float("inf"))).differences
    assert found.as_json()["b"]["value"] is None  # type: ignore[index]


def test_a_row_has_the_names_of_its_dialect() -> None:
    row = Setting("x", Category.OTHER, "x", Kind.NUMBER, transformers="a b", paddlenlp="c", megatron="d")
    assert row.names(Dialect.PADDLENLP) == ("c", "a", "b")
    assert row.names(Dialect.VLLM) == ("a", "b") and row.names(Dialect.MEGATRON) == ("d",)
