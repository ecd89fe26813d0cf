"""Weights, mixed precision, parallel strategy, and what stands under other."""

from __future__ import annotations

from probe.settings.setting import Category, Effect, Kind, Setting
from probe.settings.table import places

_W, _P, _D, _X = Category.WEIGHTS, Category.PRECISION, Category.PARALLEL, Category.OTHER

WEIGHTS = (
    Setting("init_std", _W, "spread of the first weights", effect=Effect.RANDOM,
            transformers="initializer_range init_std initializer_factor", megatron="init_method_std",
            mindformers="init_method_std initializer_range", defaults={"megatron": 0.02}, checklist="init-method-std",
            places=(places.INITIAL,)),
    Setting("init_xavier", _W, "first weights by Xavier's rule", Kind.FLAG, Effect.RANDOM,
            megatron="init_method_xavier_uniform", defaults={"megatron": False}, checklist="init-method-std",
            places=(places.INITIAL,)),
    Setting("seed", _X, "seed of the random numbers", effect=Effect.RANDOM, transformers="seed", megatron="seed",
            mindformers="seed", defaults={"transformers": 42, "paddlenlp": 42, "megatron": 1234},
            places=(places.INITIAL, places.DROPOUT)),
)  # fmt: skip

PRECISION = (
    Setting("compute_dtype", _P, "dtype of the products", Kind.DTYPE, Effect.PRECISION,
            transformers="bf16|means:bfloat16 fp16|means:float16 bf16.enabled|means:bfloat16 "
                         "fp16.enabled|means:float16 dtype torch_dtype",
            megatron="bf16|means:bfloat16 fp16|means:float16 params_dtype", mindformers="compute_dtype", vllm="dtype",
            defaults={"megatron": "float32"}, checklist="compute_dtype", places=(places.DTYPES, places.PRODUCTS)),
    Setting("norm_dtype", _P, "dtype in the normalisations", Kind.DTYPE, Effect.PRECISION,
            mindformers="layernorm_compute_type layernorm_compute_dtype",
            megatron="input_layernorm_in_fp32|means:float32", recommended="float32",
            checklist="layernorm_compute_type", places=(places.NORM_DTYPE,)),
    Setting("softmax_dtype", _P, "dtype of attention's softmax", Kind.DTYPE, Effect.PRECISION,
            megatron="attention_softmax_in_fp32|means:float32",
            mindformers="softmax_compute_type softmax_compute_dtype", recommended="float32",
            checklist="softmax_compute_type", places=(places.SOFTMAX_DTYPE,)),
    Setting("rotary_dtype", _P, "dtype of the rotary positions", Kind.DTYPE, Effect.PRECISION,
            mindformers="rotary_dtype", recommended="float32", checklist="rotary_dtype", places=(places.ROTARY,)),
    Setting("residual_dtype", _P, "dtype of the residuals", Kind.DTYPE, Effect.PRECISION,
            megatron="fp32_residual_connection|means:float32", transformers="residual_in_fp32|means:float32",
            mindformers="residual_dtype fp32_residual_connection|means:float32", checklist="residual_add",
            places=(places.RESIDUAL,)),
    Setting("loss_dtype", _P, "dtype of the cross entropy", Kind.DTYPE, Effect.PRECISION,
            megatron="fp16_lm_cross_entropy|means:float16", mindformers="fp16_lm_cross_entropy|means:float16",
            checklist="loss", places=(places.LOSS,)),
    Setting("grad_reduce_dtype", _P, "dtype in which gradients are added up", Kind.DTYPE, Effect.PRECISION,
            megatron="grad_reduce_in_bf16|means:bfloat16 accumulate_allreduce_grads_in_fp32|means:float32 "
                     "main_grads_dtype", mindformers="param_init_type params_dtype",
            paddlenlp="amp_master_grad|means:float32", recommended="float32", checklist="param_init_type",
            places=(places.SCALED_GRADIENTS,)),
    Setting("embedding_dtype", _P, "dtype of the embedding's weight", Kind.DTYPE, Effect.PRECISION,
            mindformers="embedding_init_type", checklist="Calculation_of_weights", places=(places.EMBEDDING,)),
    Setting("scaled_scores", _P, "scores are divided by the layer's number, and multiplied in the softmax", Kind.FLAG,
            Effect.ROUNDING, megatron="apply_query_key_layer_scaling", mindformers="apply_query_key_layer_scaling",
            defaults={"megatron": False}),
    Setting("fp8", _P, "products in 8 bits", Kind.CHOICE, Effect.PRECISION, megatron="fp8 fp8_format",
            words={"hybrid": "hybrid", "e4m3": "e4m3"}, none="off", defaults={"megatron": "off"},
            places=(places.PRODUCTS,)),
    Setting("quantization", _P, "weights in fewer bits", Kind.TEXT, Effect.PRECISION,
            transformers="quantization_config.quant_method quantization", vllm="quantization", none="off",
            places=(places.PRODUCTS,)),
    Setting("kv_cache_dtype", _P, "dtype of cached keys and values", Kind.TEXT, Effect.PRECISION,
            vllm="kv_cache_dtype", places=(places.ATTENTION,)),
    Setting("amp_level", _P, "level of mixed precision", Kind.TEXT, Effect.PRECISION, paddlenlp="fp16_opt_level",
            transformers="fp16_opt_level", places=(places.DTYPES, places.PRODUCTS)),
    Setting("high_precision_operators", _P, "operators of Ascend in high precision", Kind.TEXT, Effect.PRECISION,
            mindformers="context.ascend_config.ge_options.global.ge.opSelectImplmode "
                        "context.ascend_config.op_precision_mode", recorded="op_precision_mode",
            recommended="high_precision", checklist="Operator_High_Precision_Mode", places=(places.PRODUCTS,)),
    Setting("precision_mode", _P, "how Ascend chooses dtypes", Kind.TEXT, Effect.PRECISION,
            mindformers="context.ascend_config.precision_mode", recorded="ascend_config.precision_mode",
            places=(places.DTYPES, places.PRODUCTS)),
)  # fmt: skip


def _ways(
    name: str, what: str, transformers: str, megatron: str, mindformers: str, paddlenlp: str, vllm: str, checklist: str
) -> Setting:
    """Return a row of a number of processes."""
    defaults: dict[str, object] = (
        {"megatron": 1, "mindformers": 1, "vllm": 1} if megatron != "data_parallel_size" else {}
    )
    return Setting(name, _D, what, effect=Effect.ROUNDING, transformers=transformers, megatron=megatron,
                   mindformers=mindformers, paddlenlp=paddlenlp, vllm=vllm, none=1, defaults=defaults, recommended=1,
                   checklist=checklist)  # fmt: skip


PARALLEL = (
    _ways("data_parallel", "copies of the model", "", "data_parallel_size",
          "parallel_config.data_parallel data_parallel", "data_parallel_degree", "data_parallel_size",
          "data_parallel"),
    _ways("tensor_parallel", "parts of a weight", "", "tensor_model_parallel_size",
          "parallel_config.model_parallel model_parallel", "tensor_parallel_degree", "tensor_parallel_size",
          "model_parallel"),
    _ways("pipeline_parallel", "parts of the layers", "", "pipeline_model_parallel_size",
          "parallel_config.pipeline_stage pipeline_stage", "pipeline_parallel_degree", "pipeline_parallel_size",
          "pipeline_stage"),
    _ways("context_parallel", "parts of a sample", "", "context_parallel_size",
          "parallel_config.context_parallel context_parallel", "context_parallel_degree sep_parallel_degree", "", ""),
    _ways("expert_parallel", "parts of the experts", "ep_size", "expert_model_parallel_size",
          "parallel_config.expert_parallel expert_parallel", "expert_parallel_degree", "", ""),
    Setting("sequence_parallel", _D, "norms work on parts of a sample", Kind.FLAG, Effect.ROUNDING,
            megatron="sequence_parallel", mindformers="parallel_config.use_seq_parallel use_seq_parallel",
            paddlenlp="sequence_parallel", recommended=False, checklist="use_seq_parallel"),
    Setting("optimizer_parallel", _D, "the optimizer's states are in parts", Kind.FLAG, Effect.ROUNDING,
            megatron="use_distributed_optimizer",
            mindformers="parallel.enable_parallel_optimizer enable_parallel_optimizer", paddlenlp="sharding|is_set",
            recommended=False, checklist="enable_parallel_optimizer"),
    Setting("micro_batch_interleave", _D, "copies of a micro-batch that run at once", effect=Effect.ROUNDING,
            mindformers="micro_batch_interleave_num", recommended=1, checklist="micro_batch_interleave_num"),
    Setting("virtual_pipeline", _D, "parts of the layers in one process", effect=Effect.ROUNDING,
            megatron="num_layers_per_virtual_pipeline_stage virtual_pipeline_model_parallel_size",
            mindformers="pp_interleave_num", paddlenlp="virtual_pp_degree"),
    Setting("recompute", _D, "activations are computed again in backward", Kind.TEXT, Effect.NONE,
            transformers="gradient_checkpointing", megatron="recompute_granularity",
            mindformers="recompute_config.recompute", paddlenlp="recompute"),
)  # fmt: skip

IDS = (
    Setting("pad_token_id", _X, "id of padding", effect=Effect.UNKNOWN, transformers="pad_token_id",
            mindformers="pad_token_id", checklist="Special_Words_Check", places=(places.IDS, places.MASKS)),
    Setting("bos_token_id", _X, "id that begins a text", effect=Effect.UNKNOWN, transformers="bos_token_id",
            mindformers="bos_token_id", checklist="Special_Words_Check", places=(places.IDS,)),
    Setting("eos_token_id", _X, "id that ends a text", Kind.TEXT, Effect.UNKNOWN, transformers="eos_token_id",
            mindformers="eos_token_id", checklist="Special_Words_Check", places=(places.IDS,)),
    Setting("ignored_label", _X, "label that the loss leaves out", mindformers="ignore_token_id",
            transformers="ignore_index", places=(places.LOSS,)),
    Setting("eod_mask_loss", _X, "the loss leaves out the ends of documents", Kind.FLAG, megatron="eod_mask_loss",
            mindformers="train_dataset.data_loader.config.eod_mask_loss", defaults={"megatron": False},
            places=(places.LOSS,)),
    Setting("reset_position_ids", _X, "positions begin anew with each document", Kind.FLAG,
            megatron="reset_position_ids", mindformers="train_dataset.data_loader.config.reset_position_ids",
            defaults={"megatron": False}, places=(places.ROTARY, places.POSITIONS)),
    Setting("reset_attention_mask", _X, "documents do not see one another", Kind.FLAG,
            megatron="reset_attention_mask",
            mindformers="train_dataset.data_loader.config.reset_attention_mask use_eod_reset",
            defaults={"megatron": False}, places=(places.WINDOW, places.MASKS)),
    Setting("prompt_template", _X, "template of prompts", Kind.TEXT, megatron="prompt_type",
            transformers="template chat_template", checklist="Training_Inference_Template_Consistency",
            places=(places.IDS,)),
)  # fmt: skip

TRAINING = (*WEIGHTS, *PRECISION, *PARALLEL, *IDS)
