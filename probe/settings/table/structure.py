"""Network structure."""

from __future__ import annotations

from probe.settings.setting import Category, Effect, Kind, Setting, When
from probe.settings.table import places

_S = Category.STRUCTURE
_LEARNED = (When("position_embedding", ("learned",)),)
_ROPE = (When("position_embedding", ("rope",)),)
_PLAIN_HEADS = (When("multi_latent_attention", (False,)),)
_MLA = (When("multi_latent_attention", (True,)),)
NO_DROPOUT = 0.0
"""recommended: recorded runs draw no random numbers"""

SIZES = (
    Setting("num_layers", _S, "layers",
            meta="n_layers", transformers="num_hidden_layers n_layer num_layers n_layers", megatron="num_layers encoder_num_layers",
            mindformers="num_layers num_hidden_layers", checklist="num_layers", places=(places.LAYERS,)),
    Setting("hidden_size", _S, "width of the model", meta="dim", transformers="hidden_size n_embd d_model dim",
            megatron="hidden_size", mindformers="hidden_size", checklist="hidden_size", places=(places.SIZES,)),
    Setting("num_attention_heads", _S, "heads of attention",
            meta="n_heads", transformers="num_attention_heads n_head num_heads n_heads", megatron="num_attention_heads",
            mindformers="num_heads num_attention_heads", checklist="num_heads",
            places=(places.HEADS, places.ATTENTION)),
    Setting("num_key_value_heads", _S, "heads of keys and values",
            meta="n_kv_heads", transformers="num_key_value_heads num_kv_heads n_kv_heads multi_query_group_num",
            megatron="num_query_groups",
            mindformers="n_kv_heads num_key_value_heads num_query_groups multi_query_group_num",
            checklist="n_kv_heads", only_with=_PLAIN_HEADS, places=(places.HEADS, places.ATTENTION)),
    Setting("head_dim", _S, "width of a head", meta="head_dim", transformers="head_dim", megatron="kv_channels",
            mindformers="head_dim kv_channels", only_with=_PLAIN_HEADS, places=(places.HEADS, places.ATTENTION)),
    Setting("intermediate_size", _S, "width of the MLP",
            meta="hidden_dim", transformers="intermediate_size n_inner ffn_dim d_ff ffn_hidden_size", megatron="ffn_hidden_size",
            mindformers="intermediate_size ffn_hidden_size", checklist="intermediate_size", places=(places.SIZES,)),
    Setting("vocab_size", _S, "rows of the embedding", meta="vocab_size|positive", transformers="vocab_size",
            megatron="vocab_size padded_vocab_size", mindformers="vocab_size", places=(places.VOCABULARY,)),
    Setting("max_position_embeddings", _S, "learned positions", transformers="max_position_embeddings n_positions",
            megatron="max_position_embeddings", mindformers="max_position_embeddings max_position_embedding",
            only_with=_LEARNED, places=(places.VOCABULARY,)),
    Setting("num_mtp_layers", _S, "layers that predict further tokens", transformers="num_nextn_predict_layers",
            megatron="mtp_num_layers", mindformers="mtp_depth mtp_num_layers num_nextn_predict_layers", none=0,
            effect=Effect.NUMBERS, places=(places.LAYERS,)),
)  # fmt: skip

NORMS = (
    Setting("normalization", _S, "which normalisation", Kind.CHOICE, transformers="normalization norm_type",
            megatron="normalization", mindformers="normalization", defaults={"megatron": "layernorm"},
            words={"rmsnorm": "rmsnorm", "layernorm": "layernorm", "fusedrmsnorm": "rmsnorm", "l2norm": "l2norm"},
            checklist="Regularization_function", places=(places.NORM_KIND, places.NORM, places.BIASES)),
    Setting("norm_eps", _S, "eps of the normalisations",
            meta="norm_eps", transformers="rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_epsilon norm_eps",
            megatron="norm_epsilon layernorm_epsilon",
            mindformers="rms_norm_eps layernorm_epsilon layer_norm_eps layer_norm_epsilon", defaults={"megatron": 1e-5},
            checklist="rms_norm_eps", places=(places.NORM,)),
    Setting("norm_offset", _S, "normalisations multiply by 1 + weight", Kind.FLAG,
            transformers="layernorm_zero_centered_gamma",
            megatron="apply_layernorm_1p layernorm_zero_centered_gamma add_rmsnorm_offset",
            mindformers="layernorm_zero_centered_gamma", defaults={"megatron": False},
            places=(places.NORM_KIND, places.NORM)),
    Setting("qk_norm", _S, "queries and keys are normalised", Kind.FLAG,
            meta="use_qk_norm", transformers="qk_norm use_qk_norm qk_layernorm", megatron="qk_layernorm", mindformers="qk_layernorm",
            defaults={"megatron": False}, places=(places.LAYERS, places.ATTENTION)),
    Setting("residual_after_norm", _S, "the residual starts behind the normalisation (as in BERT)", Kind.FLAG,
            transformers="apply_residual_connection_post_layernorm",
            megatron="apply_residual_connection_post_layernorm",
            mindformers="apply_residual_connection_post_layernorm post_layernorm_residual",
            defaults={"megatron": False}, places=(places.RESIDUAL,)),
    Setting("norm_placement", _S, "normalisation before or behind a block", Kind.CHOICE,
            transformers="do_layer_norm_before|pre_or_post norm_placement",
            words={"pre": "pre", "post": "post", "both": "both"}, megatron="post_norm|means:both",
            mindformers="sandwich_norm|means:both", places=(places.RESIDUAL, places.LAYERS)),
    Setting("parallel_residual", _S, "attention and MLP run side by side", Kind.FLAG,
            transformers="use_parallel_residual parallel_attn", places=(places.RESIDUAL,)),
)  # fmt: skip

MLP = (
    Setting("activation", _S, "activation of the MLP", Kind.CHOICE,
            transformers="hidden_activation hidden_act activation_function activation feed_forward_proj|ungated "
                         "dense_act_fn",
            megatron="swiglu|means:silu squared_relu|means:relu2 openai_gelu|means:gelu_tanh "
                     "gelu_tanh|means:gelu_tanh quick_geglu|means:quick_gelu geglu|means:gelu activation_func",
            mindformers="hidden_act activation_func",
            words={"silu": "silu", "swish": "silu", "swiglu": "silu", "fusedswiglu": "silu", "gelu": "gelu",
                   "geglu": "gelu", "gelu_new": "gelu_tanh", "gelu_tanh": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
                   "gelu_fast": "gelu_tanh", "gelu_python": "gelu", "gelu_accurate": "gelu_tanh",
                   "quick_gelu": "quick_gelu", "quickgelu": "quick_gelu", "relu": "relu", "relu2": "relu2",
                   "squared_relu": "relu2", "tanh": "tanh", "sigmoid": "sigmoid", "mish": "mish",
                   "mindformers:gelu": "gelu_tanh", "mindformers:fast_gelu": "quick_gelu"},
            defaults={"megatron": "gelu"}, places=(places.ACTIVATION,)),
    Setting("gated_mlp", _S, "the MLP has a gate", Kind.FLAG,
            transformers="is_gated_act gated_mlp feed_forward_proj|is_gated hidden_act|is_glu",
            megatron="swiglu geglu quick_geglu gated_linear_unit gelu_tanh",
            mindformers="gated_linear_unit hidden_act|is_glu", defaults={"megatron": False},
            places=(places.ACTIVATION, places.SIZES)),
    Setting("mlp_bias", _S, "biases in the MLP", Kind.FLAG, transformers="mlp_bias use_bias bias enable_bias",
            megatron="disable_bias_linear|not add_bias_linear", mindformers="mlp_has_bias", defaults={"megatron": True},
            checklist="bias_add", places=(places.BIASES, places.ACTIVATION)),
)  # fmt: skip

ATTENTION = (
    Setting("qkv_bias", _S, "biases of queries, keys and values", Kind.FLAG,
            transformers="qkv_bias attention_bias use_qkv_bias add_qkv_bias use_bias bias enable_bias",
            megatron="add_qkv_bias disable_bias_linear|not add_bias_linear",
            mindformers="qkv_has_bias attention_bias add_qkv_bias", defaults={"megatron": True}, checklist="bias_add",
            places=(places.BIASES, places.QKV_BIASES)),
    Setting("attention_out_bias", _S, "bias of attention's last product", Kind.FLAG,
            transformers="o_bias attention_bias use_bias bias enable_bias",
            megatron="add_dense_bias disable_bias_linear|not add_bias_linear",
            mindformers="attn_proj_has_bias add_bias_linear", defaults={"megatron": True}, checklist="bias_add",
            places=(places.BIASES, places.QKV_BIASES)),
    Setting("attention_dropout", _S, "dropout of attention's probabilities", effect=Effect.RANDOM,
            transformers="attention_dropout attn_pdrop attention_probs_dropout_prob attn_dropout",
            megatron="attention_dropout",
            mindformers="attention_dropout attention_dropout_rate attention_dropout_prob", none=0.0,
            defaults={"megatron": 0.1}, recommended=NO_DROPOUT, checklist="dropout",
            places=(places.DROPOUT_IN_ATTENTION,)),
    Setting("hidden_dropout", _S, "dropout behind attention and MLP", effect=Effect.RANDOM,
            transformers="hidden_dropout resid_pdrop hidden_dropout_prob residual_dropout dropout dropout_rate",
            megatron="hidden_dropout", mindformers="hidden_dropout hidden_dropout_rate hidden_dropout_prob", none=0.0,
            defaults={"megatron": 0.1}, recommended=NO_DROPOUT, checklist="dropout", places=(places.DROPOUT,)),
    Setting("embedding_dropout", _S, "dropout behind the embedding", effect=Effect.RANDOM,
            transformers="embd_pdrop embedding_dropout emb_dropout_prob",
            mindformers="emb_dropout_prob embedding_dropout_prob", none=0.0, recommended=NO_DROPOUT,
            checklist="dropout", places=(places.DROPOUT,)),
    Setting("sliding_window", _S, "how many tokens attention sees", meta="sliding_window _sliding_window", transformers="sliding_window",
            megatron="window_size|left_and_self sliding_window", none="off", defaults={"megatron": "off"},
            places=(places.WINDOW,)),
    Setting("softmax_scale", _S, "what queries times keys are multiplied by",
            transformers="softmax_scale attention_multiplier query_pre_attn_scalar|inverse_root",
            megatron="softmax_scale query_pre_attn_scalar|inverse_root", mindformers="softmax_scale",
            places=(places.SCALE,)),
    Setting("attention_softcap", _S, "soft cap of attention's logits", transformers="attn_logit_softcapping",
            megatron="attn_logit_softcapping", none="off", places=(places.SCALE,)),
    Setting("logits_softcap", _S, "soft cap of the model's logits", transformers="final_logit_softcapping",
            megatron="output_logit_softcapping", none="off", places=(places.LOSS,)),
    Setting("embedding_scale", _S, "what embeddings are multiplied by", transformers="embedding_multiplier scale_emb",
            megatron="embedding_multiplier_scale scale_emb", places=(places.EMBEDDING,)),
    Setting("multi_latent_attention", _S, "keys and values are compressed (MLA)", Kind.FLAG,
            megatron="multi_latent_attention multi_head_latent_attention", mindformers="multi_latent_attention",
            defaults={"megatron": False}, places=(places.ATTENTION, places.LAYERS)),
    Setting("q_lora_rank", _S, "width of compressed queries", transformers="q_lora_rank", megatron="q_lora_rank",
            mindformers="q_lora_rank", none="off", only_with=_MLA, places=(places.SIZES,)),
    Setting("kv_lora_rank", _S, "width of compressed keys and values", transformers="kv_lora_rank",
            megatron="kv_lora_rank", mindformers="kv_lora_rank", only_with=_MLA, places=(places.SIZES,)),
    Setting("qk_nope_head_dim", _S, "width of a head without rotary positions", transformers="qk_nope_head_dim",
            megatron="qk_nope_head_dim qk_head_dim", mindformers="qk_nope_head_dim qk_head_dim", only_with=_MLA,
            places=(places.SIZES, places.ATTENTION)),
    Setting("qk_rope_head_dim", _S, "width of a head with rotary positions", transformers="qk_rope_head_dim",
            megatron="qk_rope_head_dim qk_pos_emb_head_dim", mindformers="qk_rope_head_dim qk_pos_emb_head_dim",
            only_with=_MLA, places=(places.SIZES, places.ATTENTION)),
    Setting("v_head_dim", _S, "width of a head's values", transformers="v_head_dim", megatron="v_head_dim",
            mindformers="v_head_dim", only_with=_MLA, places=(places.SIZES,)),
    Setting("causal", _S, "attention sees the past alone", Kind.FLAG, transformers="is_causal is_decoder",
            places=(places.WINDOW,)),
)  # fmt: skip

POSITIONS = (
    Setting("position_embedding", _S, "how positions enter", Kind.CHOICE,
            transformers="position_embedding_type alibi|means:alibi", vllm="",
            megatron="use_rotary_position_embeddings|means:rope position_embedding_type",
            mindformers="position_embedding_type use_alibi_mask|means:alibi",
            words={"rope": "rope", "rotary": "rope", "yarn": "rope", "mrope": "rope", "partial_rope": "rope",
                   "llama3": "rope", "learned": "learned", "learned_absolute": "learned", "absolute": "learned",
                   "relative": "relative", "alibi": "alibi", "none": "none", "mindformers:none": "rope",
                   "mindformers:pi": "rope", "mindformers:ntk": "rope"}, defaults={"megatron": "learned"},
            places=(places.POSITIONS,)),
    Setting("rope_theta", _S, "base of the rotary angles",
            meta="rope_theta", transformers="rope_theta rope_parameters.rope_theta rope_parameters.full_attention.rope_theta "
                         "rotary_emb_base", megatron="rotary_base", mindformers="theta rope_theta rotary_base",
            defaults={"megatron": 10000}, only_with=_ROPE, places=(places.ROTARY,)),
    Setting("rotary_fraction", _S, "share of a head that is rotated",
            transformers="partial_rotary_factor rope_parameters.partial_rotary_factor rotary_pct rope_pct",
            megatron="rotary_percent", mindformers="rotary_percent partial_rotary_factor", defaults={"megatron": 1.0},
            only_with=_ROPE, places=(places.ROTARY,)),
    Setting("rotary_interleaved", _S, "neighbours are rotated, not halves", Kind.FLAG, megatron="rotary_interleaved",
            mindformers="rotary_interleaved", defaults={"megatron": False}, only_with=(*_ROPE, *_PLAIN_HEADS),
            places=(places.ROTARY,)),
    Setting("rope_scaling", _S, "how rotary angles are stretched", Kind.CHOICE,
            meta="use_scaled_rope|means:llama3", transformers="rope_scaling.rope_type rope_scaling.type rope_parameters.rope_type rope_scaling",
            megatron="use_rope_scaling|means:llama3 rope_scaling_type rope_type|unless:rope",
            mindformers="extend_method rope_scaling.rope_type rope_scaling.type rope_scaling",
            words={"none": "none", "default": "none", "linear": "linear", "pi": "linear", "dynamic": "dynamic",
                   "ntk": "dynamic", "yarn": "yarn", "llama3": "llama3", "longrope": "longrope", "su": "longrope",
                   "mrope": "none", "plm": "longrope"}, none="none", defaults={"megatron": "none"}, only_with=_ROPE,
            places=(places.ROTARY,)),
)  # fmt: skip

_SCALED = (*_ROPE, When("rope_scaling", ("linear", "dynamic", "yarn", "llama3", "longrope")))
_YARN = (When("rope_scaling", ("yarn",)),)
_LLAMA3 = (When("rope_scaling", ("llama3",)),)


def _scaling(name: str, what: str, key: str, megatron: str, only_with: tuple[When, ...],
             defaults: dict[str, object] | None = None) -> Setting:  # fmt: skip
    """Return a row of what belongs to the stretching of rotary angles."""
    sections = f"rope_scaling.{key} rope_parameters.{key}"
    return Setting(name, _S, what, transformers=sections, megatron=megatron,
                   mindformers=f'scaling_factor.{key} {sections} {key}', defaults=defaults or {}, only_with=only_with,
                   places=(places.ROTARY,))  # fmt: skip


SCALING = (
    Setting("rope_scaling_factor", _S, "by how much rotary angles are stretched",
            transformers="rope_scaling.factor rope_parameters.factor", megatron="rope_scaling_factor",
            mindformers="scaling_factor.factor rope_scaling.factor rotary_scaling_factor scaling_factor",
            only_with=_SCALED, places=(places.ROTARY,)),
    _scaling("rope_original_positions", "positions that were trained before stretching",
             "original_max_position_embeddings",
             "rope_scaling_original_max_position_embeddings original_max_position_embeddings "
             "yarn_original_max_position_embeddings",
             (When("rope_scaling", ("yarn", "llama3", "longrope", "dynamic")),)),
    _scaling("rope_low_freq_factor", "llama3: where stretching ends", "low_freq_factor", "", _LLAMA3,
             {"megatron": 1.0}),
    _scaling("rope_high_freq_factor", "llama3: where stretching begins", "high_freq_factor", "", _LLAMA3,
             {"megatron": 4.0}),
    _scaling("rope_beta_fast", "yarn: where stretching begins", "beta_fast",
             "rope_scaling_beta_fast beta_fast yarn_beta_fast", _YARN,
             dict.fromkeys(("transformers", "megatron", "mindformers", "paddlenlp"), 32)),
    _scaling("rope_beta_slow", "yarn: where stretching ends", "beta_slow",
             "rope_scaling_beta_slow beta_slow yarn_beta_slow", _YARN,
             dict.fromkeys(("transformers", "megatron", "mindformers", "paddlenlp"), 1)),
    _scaling("rope_mscale", "yarn: scale of cosines and sines", "mscale", "rope_scaling_mscale mscale", _YARN,
             {"megatron": 1.0}),
    _scaling("rope_mscale_all_dim", "yarn: scale of attention", "mscale_all_dim",
             "rope_scaling_mscale_all_dim mscale_all_dim", _YARN, {"megatron": 0.0}),
)  # fmt: skip

TYING = (
    Setting("tie_word_embeddings", _S, "input and output embedding are one weight", Kind.FLAG,
            meta="tied_embeddings tie_embeddings", transformers="tie_word_embeddings tie_embeddings", megatron="untie_embeddings_and_output_weights|not",
            mindformers="tie_word_embeddings untie_embeddings_and_output_weights|not", defaults={"megatron": True},
            places=(places.TIED,)),
    Setting("lm_head_bias", _S, "bias of the last product", Kind.FLAG, transformers="lm_head_bias",
            megatron="add_output_layer_bias", defaults={"megatron": False}, places=(places.BIASES,)),
)  # fmt: skip

FUSION = (
    Setting("fused_attention", _S, "attention by a fused kernel", Kind.FLAG, Effect.ROUNDING,
            transformers="use_flash_attention attn_implementation|is_fused _attn_implementation|is_fused",
            megatron="use_flash_attn", mindformers="use_flash_attention", checklist="Fusion_computation"),
    Setting("fused_norm", _S, "normalisation by a fused kernel", Kind.FLAG, Effect.ROUNDING,
            transformers="use_fused_rms_norm", megatron="use_fused_rmsnorm no_persist_layer_norm|not",
            mindformers="fused_rms_norm", checklist="Fusion_computation"),
    Setting("fused_rope", _S, "rotary positions by a fused kernel", Kind.FLAG, Effect.ROUNDING,
            transformers="use_fused_rope", megatron="use_fused_rotary_pos_emb apply_rope_fusion no_rope_fusion|not",
            mindformers="use_fused_rope apply_rope_fusion", checklist="Fusion_computation"),
    Setting("fused_swiglu", _S, "SwiGLU by a fused kernel", Kind.FLAG, Effect.ROUNDING,
            transformers="use_fused_swiglu fuse_swiglu",
            megatron="use_fused_swiglu bias_swiglu_fusion no_bias_swiglu_fusion|not",
            mindformers="use_fused_swiglu bias_swiglu_fusion", checklist="Fusion_computation"),
    Setting("qkv_in_one", _S, "queries, keys and values by one product", Kind.FLAG, Effect.ROUNDING,
            transformers="fuse_attention_qkv", mindformers="qkv_concat", checklist="Fusion_computation"),
    Setting("transformer_impl", _S, "whose layers run", Kind.TEXT, Effect.ROUNDING, megatron="transformer_impl",
            checklist="Fusion_computation"),
)  # fmt: skip

STRUCTURE = (*SIZES, *NORMS, *MLP, *ATTENTION, *POSITIONS, *SCALING, *TYING, *FUSION)
