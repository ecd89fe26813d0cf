"""Mixture of experts."""

from __future__ import annotations

from probe.settings.setting import Category, Effect, Kind, Setting, When
from probe.settings.table import places

_M = Category.MOE
_MANY = (When("is_moe", (True,)),)
_GROUPED = (*_MANY, When("is_grouped", (True,)))

EXPERTS = (
    Setting("num_experts", _M, "experts that are routed to",
            meta="moe.num_experts moe_args.num_experts", transformers="num_local_experts num_experts n_routed_experts moe_num_experts",
            megatron="num_experts num_moe_experts",
            mindformers="moe_config.expert_num expert_num n_routed_experts num_experts num_moe_experts", none=1,
            defaults={"megatron": 1, "mindformers": 1}, checklist="expert_num",
            places=(places.EXPERTS, places.LAYERS)),
    Setting("experts_per_token", _M, "experts of a token",
            meta="moe.num_experts_per_tok moe_args.top_k", transformers="num_experts_per_tok moe_topk num_experts_per_token moe_k", megatron="moe_router_topk",
            mindformers="moe_config.num_experts_chosen num_experts_chosen num_experts_per_tok moe_router_topk",
            defaults={"megatron": 2, "mindformers": 1}, only_with=_MANY, checklist="num_experts_chosen",
            places=(places.ROUTER, places.EXPERTS)),
    Setting("moe_intermediate_size", _M, "width of an expert", transformers="moe_intermediate_size",
            megatron="moe_intermediate_size moe_ffn_hidden_size",
            mindformers="moe_intermediate_size moe_ffn_hidden_size", only_with=_MANY, places=(places.SIZES,)),
    Setting("shared_expert_size", _M, "width of the experts that see every token",
            transformers="shared_expert_intermediate_size moe_shared_expert_intermediate_size",
            megatron="moe_shared_expert_intermediate_size", mindformers="moe_shared_expert_intermediate_size", none=0,
            defaults={"megatron": 0}, only_with=_MANY, places=(places.SIZES, places.EXPERTS)),
    Setting("shared_expert_gate", _M, "the shared expert has a gate", Kind.FLAG, transformers="shared_expert_gate",
            megatron="shared_expert_gate moe_shared_expert_gate", mindformers="use_shared_expert_gating",
            defaults={"megatron": False, "mindformers": False}, only_with=(*_MANY, When("has_shared_expert", (True,))),
            checklist="use_shared_expert_gating", places=(places.EXPERTS, places.LAYERS)),
    Setting("dense_layers_first", _M, "first layers without experts", transformers="first_k_dense_replace",
            megatron="first_k_dense_replace moe_layer_freq|leading_zeros", mindformers="first_k_dense_replace|number",
            none=0, defaults={"megatron": 0}, only_with=_MANY, places=(places.LAYERS, places.EXPERTS)),
    Setting("moe_layer_step", _M, "every so many layers have experts",
            transformers="decoder_sparse_step moe_layer_freq", megatron="moe_layer_freq|number",
            mindformers="moe_layer_freq|number", only_with=_MANY, places=(places.LAYERS,)),
)  # fmt: skip

ROUTER = (
    Setting("router_score", _M, "scores of the experts", Kind.CHOICE, transformers="scoring_func score_func",
            megatron="moe_router_score_function",
            mindformers="moe_config.use_gating_sigmoid|means:sigmoid use_gating_sigmoid|means:sigmoid "
                        "moe_router_score_function scoring_func",
            words={"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrtsoftplus"},
            defaults={"megatron": "softmax", "mindformers": "softmax"}, only_with=_MANY, places=(places.ROUTER,)),
    Setting("router_normalize", _M, "probabilities of the chosen experts add up to 1", Kind.FLAG,
            transformers="norm_topk_prob", megatron="norm_topk_prob moe_router_pre_softmax|not",
            mindformers="norm_topk_prob", defaults={"megatron": True, "mindformers": True},
            only_with=(*_MANY, When("has_several_experts", (True,))), places=(places.ROUTER, places.EXPERTS)),
    Setting("router_scaling_factor", _M, "what the probabilities are multiplied by",
            transformers="routed_scaling_factor", megatron="routed_scaling_factor moe_router_topk_scaling_factor",
            mindformers="routed_scaling_factor moe_router_topk_scaling_factor", none=1.0,
            defaults={"megatron": 1.0, "mindformers": 1.0}, only_with=_MANY, places=(places.ROUTER, places.EXPERTS)),
    Setting("router_groups", _M, "groups of experts", transformers="n_group",
            megatron="n_group moe_router_num_groups", mindformers="n_group moe_router_num_groups", none=1,
            defaults={"megatron": 1, "mindformers": 1}, only_with=_MANY, places=(places.ROUTER,)),
    Setting("router_group_topk", _M, "groups that a token may go to", transformers="topk_group",
            megatron="topk_group moe_router_group_topk", mindformers="topk_group moe_router_group_topk", none=1,
            only_with=_GROUPED, places=(places.ROUTER,)),
    Setting("router_bias", _M, "a bias balances the experts", Kind.FLAG, transformers="topk_method|is:noaux_tc",
            megatron="moe_router_enable_expert_bias", mindformers="balance_via_topk_bias moe_router_enable_expert_bias",
            defaults={"megatron": False, "mindformers": False}, only_with=_MANY, places=(places.ROUTER,)),
    Setting("router_bias_update_rate", _M, "by how much that bias changes in a step",
            megatron="moe_router_bias_update_rate", mindformers="topk_bias_update_rate moe_router_bias_update_rate",
            defaults={"megatron": 0.001}, only_with=(*_MANY, When("router_bias", (True,))), places=(places.UPDATE,)),
    Setting("router_dtype", _M, "precision of the router", Kind.DTYPE, Effect.PRECISION,
            megatron="router_gating_in_fp32|means:float32 moe_router_dtype",
            mindformers="moe_config.router_dense_type router_dense_type moe_router_dtype", recommended="float32",
            only_with=_MANY, checklist="router_dense_type", places=(places.ROUTER,)),
    Setting("router_jitter", _M, "noise on what the router gets", effect=Effect.RANDOM,
            transformers="router_jitter_noise", megatron="moe_input_jitter_eps", mindformers="moe_input_jitter_eps",
            none=0.0, defaults={"megatron": 0.0}, recommended=0.0, only_with=_MANY, places=(places.ROUTER,)),
    Setting("fused_router", _M, "routing by a fused kernel", Kind.FLAG, Effect.ROUNDING, megatron="moe_router_fusion",
            mindformers="use_fused_ops_topkrouter", recommended=True, only_with=_MANY,
            checklist="use_fused_ops_topkrouter"),
    Setting("grouped_gemm", _M, "the experts' products in one kernel", Kind.FLAG, Effect.ROUNDING,
            megatron="moe_grouped_gemm", mindformers="use_gmm moe_grouped_gemm", only_with=_MANY),
)  # fmt: skip

LOSSES = (
    Setting("aux_loss_coef", _M, "weight of the balancing loss", transformers="router_aux_loss_coef aux_loss_alpha",
            megatron="moe_aux_loss_coeff", mindformers="moe_config.aux_loss_factor aux_loss_factor", none=0.0,
            defaults={"megatron": 0.0, "mindformers:moe_config": 0.05}, recommended=0.0, only_with=_MANY,
            checklist="aux_loss_factor", places=(places.LOSS, places.ROUTER)),
    Setting("aux_loss_type", _M, "which balancing loss", Kind.CHOICE, transformers="seq_aux|means:sequence",
            megatron="seq_aux|means:sequence moe_router_load_balancing_type",
            mindformers="moe_router_load_balancing_type",
            words={"batch": "batch", "global": "global", "aux_loss": "batch", "seq_aux_loss": "sequence",
                   "sequence": "sequence", "global_aux_loss": "global", "sinkhorn": "sinkhorn", "none": "none",
                   "noaux_tc": "batch"}, only_with=(*_MANY, When("has_aux_loss", (True,))), places=(places.LOSS,)),
    Setting("z_loss_coef", _M, "weight of the router's z loss", transformers="router_z_loss_coef",
            megatron="moe_z_loss_coeff", mindformers="z_loss_factor moe_z_loss_coeff", none=0.0,
            defaults={"megatron": 0.0, "mindformers": 0.0}, only_with=_MANY, places=(places.LOSS,)),
)  # fmt: skip

CAPACITY = (
    Setting("capacity_factor", _M, "tokens that an expert takes",
            transformers="capacity_factor moe_capacity_factor expert_capacity_factor",
            megatron="moe_expert_capacity_factor",
            mindformers="moe_config.capacity_factor capacity_factor moe_expert_capacity_factor", none="off",
            defaults={"megatron": "off", "mindformers:moe_config": 1.1}, only_with=_MANY, checklist="capacity_factor",
            places=(places.EXPERTS, places.ROUTER)),
    Setting("token_drop_policy", _M, "which tokens are dropped beyond that", Kind.CHOICE,
            megatron="moe_token_drop_policy", mindformers="enable_sdrop|means:position moe_token_drop_policy",
            words={"probs": "probs", "position": "position"}, defaults={"megatron": "probs"}, recommended="position",
            only_with=(*_MANY, When("has_capacity", (True,))), checklist="enable_sdrop", places=(places.EXPERTS,)),
    Setting("pad_to_capacity", _M, "experts get as many tokens as they take", Kind.FLAG, Effect.ROUNDING,
            megatron="moe_pad_expert_input_to_capacity", mindformers="moe_pad_expert_input_to_capacity",
            recommended=True, only_with=(*_MANY, When("has_capacity", (True,))), checklist="enable_sdrop"),
)  # fmt: skip

MOE = (*EXPERTS, *ROUTER, *LOSSES, *CAPACITY)
