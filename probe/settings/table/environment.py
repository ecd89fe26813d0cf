"""The environment: switches of the frameworks, variables, versions, devices."""

from __future__ import annotations

from probe.settings.setting import Category, Effect, Kind, Setting
from probe.settings.table import places

_E, _X = Category.ENVIRONMENT, Category.OTHER

SWITCHES = (
    Setting("tf32", _E, "float32 products in TF32", Kind.FLAG, Effect.PRECISION, transformers="tf32",
            recorded="matmul_tf32 matmul_fp32_precision|is:tf32 float32_matmul_precision|is_not:highest matmul_hf32", variables="NVIDIA_TF32_OVERRIDE",
            recommended=False, places=(places.PRODUCTS,)),
    Setting("tf32_in_cudnn", _E, "convolutions in TF32", Kind.FLAG, Effect.PRECISION,
            recorded="cudnn_tf32 cudnn_fp32_precision|is:tf32 conv_hf32", recommended=False, places=(places.PRODUCTS,)),
    Setting("matmul_precision", _E, "torch.set_float32_matmul_precision", Kind.TEXT, Effect.PRECISION, recorded="float32_matmul_precision",
            recommended="highest", places=(places.PRODUCTS,)),
    Setting("reduced_bf16_sums", _E, "sums of bfloat16 products in bfloat16", Kind.FLAG, Effect.PRECISION, recorded="bf16_reduced_precision_reduction",
            megatron="disable_bf16_reduced_precision_matmul|not", places=(places.PRODUCTS,)),
    Setting("reduced_fp16_sums", _E, "sums of float16 products in float16", Kind.FLAG, Effect.PRECISION, recorded="fp16_reduced_precision_reduction",
            places=(places.PRODUCTS,)),
    Setting("half_gemm", _E, "cuBLAS computes half-precision products in half precision", Kind.TEXT, Effect.PRECISION,
            recorded="flags.FLAGS_gemm_use_half_precision_compute_type", variables="FLAGS_gemm_use_half_precision_compute_type",
            places=(places.PRODUCTS,)),
    Setting("default_dtype", _E, "dtype of new tensors", Kind.DTYPE, Effect.PRECISION, recorded="default_dtype", places=(places.DTYPES,)),
    Setting("deterministic", _E, "deterministic operations", Kind.FLAG, Effect.RANDOM, transformers="full_determinism",
            megatron="deterministic_mode use_deter_comp", mindformers="context.deterministic deterministic train_precision_sync",
            recorded="deterministic_algorithms deterministic",
            defaults={"transformers": False, "megatron": False, "mindformers": False}, recommended=True),
    Setting("deterministic_cudnn", _E, "deterministic convolutions", Kind.FLAG, Effect.ROUNDING,
            recorded="cudnn_deterministic flags.FLAGS_cudnn_deterministic", variables="FLAGS_cudnn_deterministic", recommended=True),
    Setting("deterministic_embedding", _E, "deterministic gradients of embeddings", Kind.TEXT, Effect.ROUNDING,
            recorded="flags.FLAGS_embedding_deterministic", variables="FLAGS_embedding_deterministic", recommended="1"),
    Setting("searches_algorithms", _E, "the fastest algorithm is measured", Kind.FLAG, Effect.ROUNDING,
            recorded="cudnn_benchmark flags.FLAGS_cudnn_exhaustive_search", variables="FLAGS_cudnn_exhaustive_search", recommended=False),
    Setting("attention_kernels", _E, "kernels that torch may take for attention", Kind.TEXT, Effect.ROUNDING, recorded="sdp_kernels"),
    Setting("onednn", _E, "oneDNN computes on the CPU", Kind.FLAG, Effect.ROUNDING, recorded="mkldnn flags.FLAGS_use_mkldnn", variables="FLAGS_use_mkldnn"),
    Setting("flushes_subnormals", _E, "subnormal numbers count as 0", Kind.FLAG, Effect.PRECISION, recorded="flushes_subnormals"),
    Setting("graph_kernel_fusion", _X, "MindSpore fuses operators", Kind.FLAG, Effect.ROUNDING,
            mindformers="context.enable_graph_kernel enable_graph_kernel", recorded="enable_graph_kernel", recommended=False,
            checklist="Graph_Operator_Fusion"),
    Setting("jit_level", _E, "how MindSpore compiles", Kind.TEXT, Effect.ROUNDING, mindformers="context.jit_config.jit_level",
            recorded="jit_level"),
    Setting("graph_mode", _E, "MindSpore compiles the whole model (mode 0)", Kind.TEXT, Effect.ROUNDING, mindformers="context.mode", recorded="mode"),
    Setting("torch_compile", _E, "torch.compile", Kind.FLAG, Effect.ROUNDING, transformers="torch_compile"),
    Setting("cuda_graphs", _E, "vLLM runs without CUDA graphs", Kind.FLAG, Effect.ROUNDING, vllm="enforce_eager"),
)  # fmt: skip

VARIABLES = (
    Setting("cublas_workspace", _E, "cuBLAS is deterministic with :4096:8 or :16:8", Kind.TEXT, Effect.ROUNDING, variables="CUBLAS_WORKSPACE_CONFIG",
            recommended=":4096:8"),
    Setting("nccl_algorithm", _E, "in which order NCCL sums", Kind.TEXT, Effect.ROUNDING, variables="NCCL_ALGO"),
    Setting("nccl_protocol", _E, "protocol of NCCL", Kind.TEXT, Effect.ROUNDING, variables="NCCL_PROTO"),
    Setting("hccl_deterministic", _E, "HCCL sums in one order", Kind.TEXT, Effect.ROUNDING, variables="HCCL_DETERMINISTIC",
            recommended="true"),
    Setting("hccl_algorithm", _E, "in which order HCCL sums", Kind.TEXT, Effect.ROUNDING, variables="HCCL_ALGO"),
    Setting("lccl_deterministic", _E, "LCCL sums in one order", Kind.TEXT, Effect.ROUNDING, variables="LCCL_DETERMINISTIC"),
    Setting("te_nondeterministic", _E, "Transformer Engine may be nondeterministic", Kind.TEXT, Effect.ROUNDING,
            variables="NVTE_ALLOW_NONDETERMINISTIC_ALGO", recommended="0"),
    Setting("te_flash_attention", _E, "Transformer Engine may take FlashAttention", Kind.TEXT, Effect.ROUNDING, variables="NVTE_FLASH_ATTN"),
    Setting("te_fused_attention", _E, "Transformer Engine may take cuDNN's attention", Kind.TEXT, Effect.ROUNDING, variables="NVTE_FUSED_ATTN"),
    Setting("attention_backend", _E, "whose attention vLLM takes", Kind.TEXT, Effect.ROUNDING, vllm="attention_backend", variables="VLLM_ATTENTION_BACKEND"),
    Setting("batch_invariant", _E, "vLLM computes a sample alike in every batch", Kind.TEXT, Effect.ROUNDING, variables="VLLM_BATCH_INVARIANT"),
    Setting("overflow_mode", _X, "what Ascend does beyond the largest number", Kind.TEXT, Effect.NUMBERS, variables="MS_ASCEND_CHECK_OVERFLOW_MODE INF_NAN_MODE_ENABLE",
            recommended="INFNAN_MODE", checklist="Overflow_Detection", places=(places.SCALED_GRADIENTS,)),
    Setting("launches_block", _E, "each operator is waited for", Kind.TEXT, Effect.NONE, recorded="pynative_synchronize",
            variables="ASCEND_LAUNCH_BLOCKING CUDA_LAUNCH_BLOCKING"),
    Setting("hash_seed", _E, "order of sets of strings", Kind.TEXT, Effect.RANDOM, variables="PYTHONHASHSEED"),
    Setting("threads", _E, "threads of a CPU operation", effect=Effect.ROUNDING, recorded="num_threads runtime_num_threads", variables="OMP_NUM_THREADS MKL_NUM_THREADS"),
)  # fmt: skip

MACHINE = (
    Setting("framework_version", _X, "version of the framework", Kind.TEXT, Effect.ROUNDING, recorded="framework_version", checklist="Version_Check"),
    Setting("transformers_version", _X, "version of transformers", Kind.TEXT, Effect.UNKNOWN, recorded="packages.transformers", checklist="Version_Check"),
    Setting("cuda_version", _X, "version of CUDA", Kind.TEXT, Effect.ROUNDING, recorded="cuda", checklist="Version_Check"),
    Setting("cudnn_version", _X, "version of cuDNN", Kind.TEXT, Effect.ROUNDING, recorded="cudnn", checklist="Version_Check"),
    Setting("cann_version", _X, "version of CANN", Kind.TEXT, Effect.ROUNDING, recorded="cann", checklist="Version_Check"),
    Setting("devices", _E, "devices", Kind.TEXT, Effect.ROUNDING, recorded="devices device device_target"),
    Setting("cpu", _E, "instructions of the CPU", Kind.TEXT, Effect.ROUNDING, recorded="cpu_capability"),
    Setting("commit", _E, "git commit of the working directory", Kind.TEXT, Effect.UNKNOWN, recorded="git_commit"),
)  # fmt: skip

ENVIRONMENT = (*SWITCHES, *VARIABLES, *MACHINE)
