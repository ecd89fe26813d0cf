"""PaddlePaddle's flags and switches that change numerics."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping

import paddle

from probe.adapters.shared.environment import told, variables
from probe.numbers import kernel

NUMERIC_FLAGS = (
    "FLAGS_cudnn_deterministic", "FLAGS_embedding_deterministic", "FLAGS_cudnn_exhaustive_search", "FLAGS_use_mkldnn",
    "FLAGS_gemm_use_half_precision_compute_type", "FLAGS_use_accuracy_compatible_kernel", "FLAGS_use_legacy_gemm",
    "FLAGS_enable_cublas_tensor_op_math", "FLAGS_cudnn_batchnorm_spatial_persistent", "FLAGS_flash_attn_version",
    "FLAGS_check_nan_inf",
)  # fmt: skip
PREFIX = "FLAGS_"
_READ_BY_PYTHON = frozenset((
    "1f1b_backward_forward_overlap", "FIXED_PORT", "FORCE_USE_PROGRAM_CACHE", "LAUNCH_BARRIER", "START_PORT",
    "apply_pass_to_program", "dist_prim_all", "enable_auto_recompute", "enable_fused_ffn_qkv_pass",
    "enable_moe_utils", "enable_pir_api", "enable_prim_after_distribute", "enable_tensor_fusion", "infer_spmd_enable",
    "last_vpp_chunk_forward", "log_memory_stats", "model_return_data", "nccl_nrings", "new_einsum",
    "optim_transformation", "p2p_device_synchronize", "pipeline_nccl_comm_init_option", "pp_check_naninf",
    "print_auto_recompute_debug", "print_extra_attrs", "print_launcher_env", "profile_optimizer_details_steps",
    "profile_pipeline_details_steps", "program_topo_reorder", "shard_bypass_dygraph_optimizer",
    "sharding_sort_parameters", "sharding_v2_check_zero_padding", "stop_check_timeout", "sync_before_allreduce",
    "sync_nccl_allreduce", "trace_api", "use_shm_cache",
))  # fmt: skip
"""behind the prefix: variables that are no flags, which PaddlePaddle 3.3's own Python code asks the environment for"""
_FAMILIES = ("communicator_", "prim_", "rpc_", "selected_")
"""how more of these begin"""
_SWITCHES: Mapping[str, Callable[[], object]] = {
    "device": paddle.get_device,
    "default_dtype": paddle.get_default_dtype,
    "initial_seed": lambda: str(paddle.framework.core.default_cpu_generator().initial_seed()),
    "flags": lambda: dict(_flags()),
    "unread_variables": lambda: list(unread()) or None,
}
_OF_CUDA: Mapping[str, Callable[[], object]] = {
    "devices": lambda: [_gpu()],
    "cuda": lambda: paddle.version.cuda(),
    "cudnn": lambda: paddle.version.cudnn(),
}


def environment() -> dict[str, object]:
    """Return the flags that this build has, the variables, and the device in use."""
    facts = told(_SWITCHES)
    if str(facts.get("device", "")).startswith("gpu"):
        facts |= told(_OF_CUDA)
    return {**facts, "statistics_on_cpu": kernel.INSTRUCTIONS or "numpy", "variables": variables()}


def unread() -> Iterator[str]:
    """Yield the names of variables that are meant for PaddlePaddle and that this build does not read."""
    for name in sorted(os.environ):
        if name.lower().startswith(PREFIX.lower()) and not is_read(name):
            yield name


def is_read(name: str) -> bool:
    """Return True if this build has a flag of a name, or its Python code asks for it."""
    own = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX):
        return False
    if own in _READ_BY_PYTHON or own.startswith(_FAMILIES):
        return True
    try:
        paddle.get_flags([name])
    except ValueError:
        return False
    return True


def _flags() -> Iterator[tuple[str, object]]:
    for name in NUMERIC_FLAGS:
        with contextlib.suppress(ValueError):
            yield name, paddle.get_flags(name)[name]


def _gpu() -> str:
    major, minor = paddle.device.cuda.get_device_capability()
    return f"{paddle.device.cuda.get_device_name()} (compute capability {major}.{minor})"
