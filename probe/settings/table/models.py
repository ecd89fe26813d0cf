"""What the name of a model says: settings that its configuration has no key for, and defaults of the keys that it leaves out.

By ``model_type`` of transformers, whose names PaddleNLP and the newer MindFormers share; `tests/torch/test_settings_torch.py`
holds the table against the installed transformers.
"""

from __future__ import annotations

_PLAIN: dict[str, object] = {
    "norm_offset": False, "qk_norm": False, "residual_after_norm": False, "norm_placement": "pre",
    "parallel_residual": False,
    "attention_dropout": 0.0, "hidden_dropout": 0.0, "embedding_dropout": 0.0, "sliding_window": "off",
    "rope_scaling": "none",
    "multi_latent_attention": False, "num_mtp_layers": 0, "lm_head_bias": False, "init_std": 0.02,
    "attention_softcap": "off",
    "logits_softcap": "off", "num_experts": 1,
}  # fmt: skip
_ROTARY: dict[str, object] = {
    "position_embedding": "rope",
    "rope_theta": 10000.0,
    "rotary_fraction": 1.0,
    "rotary_interleaved": False,
}
_NO_BIAS: dict[str, object] = {"qkv_bias": False, "attention_out_bias": False, "mlp_bias": False}
_BIAS: dict[str, object] = dict.fromkeys(_NO_BIAS, True)
_LLAMA: dict[str, object] = {
    **_PLAIN, **_ROTARY, **_NO_BIAS, "normalization": "rmsnorm", "norm_eps": 1e-6, "gated_mlp": True,
    "activation": "silu",
    "tie_word_embeddings": False,
}  # fmt: skip
_QWEN2 = {**_LLAMA, "qkv_bias": True}
_QWEN3 = {**_LLAMA, "qk_norm": True}
_GPT: dict[str, object] = {**_PLAIN, **_BIAS, "normalization": "layernorm", "norm_eps": 1e-5, "gated_mlp": False}
_ROUTED: dict[str, object] = {
    "capacity_factor": "off", "router_score": "softmax", "router_groups": 1, "router_scaling_factor": 1.0,
    "router_bias": False,
    "router_jitter": 0.0, "z_loss_coef": 0.0, "shared_expert_size": 0, "dense_layers_first": 0, "moe_layer_step": 1,
}  # fmt: skip
_DEEPSEEK = {
    **_LLAMA, **_ROUTED, "multi_latent_attention": True, "qk_norm": True, "aux_loss_coef": 0.0,
    "shared_expert_gate": False,
}  # fmt: skip
_BERT: dict[str, object] = {
    **_GPT, "norm_eps": 1e-12, "activation": "gelu", "attention_dropout": 0.1, "hidden_dropout": 0.1,
    "norm_placement": "post",
    "tie_word_embeddings": True, "position_embedding": "learned",
}  # fmt: skip
del _BERT["embedding_dropout"]

_SAYS_NOTHING = ("tie_word_embeddings", "init_std", "rotary_interleaved", "rope_theta")
PARAMS_JSON: dict[str, object] = {name: value for name, value in _LLAMA.items() if name not in _SAYS_NOTHING}
"""what Meta's and Mistral's params.json leaves out; weights are stored for neighbours or for halves, so that rotary_interleaved is not known"""
PARAMS_JSON["norm_eps"] = 1e-5

MODELS: dict[str, dict[str, object]] = {
    "llama": _LLAMA,
    "mistral": {**_LLAMA, "sliding_window": 4096},
    "qwen2": _QWEN2,
    "qwen2_5": _QWEN2,
    "qwen3": _QWEN3,
    "olmo": {**_LLAMA, "normalization": "layernorm"},
    "olmo2": {**_LLAMA, "qk_norm": True, "norm_placement": "post", "norm_eps": 1e-5},
    "phi3": {**_LLAMA, "norm_eps": 1e-5},
    "glm4": {**_LLAMA, "norm_placement": "both", "rotary_fraction": 0.5, "norm_eps": 1.5625e-07,
             "rotary_interleaved": True,
             "qkv_bias": True},
    "gemma": {**_LLAMA, "norm_offset": True, "activation": "gelu_tanh", "tie_word_embeddings": True},
    "gemma2": {**_LLAMA, "norm_offset": True, "activation": "gelu_tanh", "tie_word_embeddings": True,
               "norm_placement": "both",
               "sliding_window": 4096, "attention_softcap": 50.0, "logits_softcap": 30.0},
    "gemma3_text": {**_LLAMA, "norm_offset": True, "activation": "gelu_tanh", "tie_word_embeddings": True,
                    "norm_placement": "both",
                    "sliding_window": 4096, "qk_norm": True},
    "mixtral": {**_LLAMA, **_ROUTED, "norm_eps": 1e-5, "rope_theta": 1e6, "num_experts": 8, "experts_per_token": 2,
                "router_normalize": True, "aux_loss_coef": 0.001},
    "qwen2_moe": {**_QWEN2, **_ROUTED, "num_experts": 60, "experts_per_token": 4, "router_normalize": False,
                  "aux_loss_coef": 0.001,
                  "shared_expert_gate": True, "shared_expert_size": 5632, "moe_intermediate_size": 1408},
    "qwen3_moe": {**_QWEN3, **_ROUTED, "num_experts": 128, "experts_per_token": 8, "router_normalize": False,
                  "aux_loss_coef": 0.001,
                  "moe_intermediate_size": 768},
    "deepseek_v2": {**_DEEPSEEK, "num_experts": 64, "router_normalize": False, "rotary_interleaved": True},
    "deepseek_v3": {**_DEEPSEEK, "num_experts": 256, "experts_per_token": 8, "router_score": "sigmoid",
                    "router_bias": True,
                    "router_normalize": True, "router_scaling_factor": 2.5, "router_groups": 8, "router_group_topk": 4,
                    "dense_layers_first": 3, "num_mtp_layers": 1, "rotary_interleaved": True},
    "gpt2": {**_GPT, "activation": "gelu_tanh", "attention_dropout": 0.1, "hidden_dropout": 0.1,
             "embedding_dropout": 0.1,
             "tie_word_embeddings": True, "position_embedding": "learned"},
    "gpt_neox": {**_GPT, **_ROTARY, "rotary_fraction": 0.25, "activation": "gelu", "tie_word_embeddings": False,
                 "parallel_residual": True},
    "opt": {**_GPT, "activation": "relu", "hidden_dropout": 0.1, "tie_word_embeddings": True,
            "position_embedding": "learned"},
    "starcoder2": {**_GPT, **_ROTARY, "activation": "gelu_tanh", "tie_word_embeddings": True, "init_std": 0.018042},
    "bloom": {**_GPT, "activation": "gelu_tanh", "tie_word_embeddings": True, "position_embedding": "alibi"},
    "bert": _BERT,
    "roberta": _BERT,
}  # fmt: skip

FIXED: dict[str, dict[str, object]] = {"glm4": {"attention_out_bias": False}}
"""what a model's code does whatever its configuration says by a name that means more elsewhere"""

_MINDFORMERS_LLAMA: dict[str, object] = {
    **_LLAMA, "norm_eps": 1e-5, "init_std": 0.01, "compute_dtype": "float16", "norm_dtype": "float32",
    "softmax_dtype": "float32",
    "rotary_dtype": "float32", "grad_reduce_dtype": "float16", "seq_length": 2048, "vocab_size": 32000,
}  # fmt: skip

MINDFORMERS_TYPES: dict[str, dict[str, object]] = {
    "LlamaConfig": _MINDFORMERS_LLAMA,
    "DeepseekV3Config": {**_MINDFORMERS_LLAMA,
                         **{name: MODELS["deepseek_v3"][name] for name in _DEEPSEEK if name not in _LLAMA},
                         "multi_latent_attention": True, "qk_norm": True},
    "GPT2Config": {**MODELS["gpt2"], "compute_dtype": "float16"},
}  # fmt: skip
"""what ``model.model_config.type`` says: the classes of MindFormers whose defaults are not those of transformers"""
del MINDFORMERS_TYPES["DeepseekV3Config"]["router_bias"], MINDFORMERS_TYPES["DeepseekV3Config"]["router_score"]
