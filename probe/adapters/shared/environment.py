"""What of a process's environment changes numerics: variables, and facts that a framework may not want to tell."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping

NAMES = frozenset((
    "ASCEND_LAUNCH_BLOCKING", "ASCEND_RT_VISIBLE_DEVICES", "CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "DEVICE_ID", "INF_NAN_MODE_ENABLE",
    "MALLOC_PERTURB_", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF", "TE_PARALLEL_COMPILER", "TORCH_CUDNN_V8_API_DISABLED", "PYTHON_HASH_SEED",
    "TF_CUDNN_DETERMINISTIC", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_DETERMINISTIC", "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_LINALG_PREFER_CUSOLVER", "VLLM_ATTENTION_BACKEND", "VLLM_BATCH_INVARIANT", "VLLM_FLASH_ATTN_VERSION",
    "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_USE_V1",
))  # fmt: skip
"""variables that change numerics, or which numbers are computed where"""
PREFIXES = (
    "ATEN_CPU_", "CUBLASLT_", "CUBLAS_", "CUDNN_", "DNNL_", "FLAGS_", "GOMP_", "HCCL_", "KMP_", "LCCL_", "MKL_",
    "MS_", "NCCL_", "NVTE_", "ONEDNN_", "OPENBLAS_", "TORCHINDUCTOR_", "XLA_",
)  # fmt: skip
"""families of such variables"""
_NO_NUMBERS = (
    "_PATH", "_DIR", "_HOME", "_FILE", "_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_PORT", "_IP", "_IFNAME", "_HOST",
    "_ADDR", "_ADDRESS", "_TIMEOUT",
)  # fmt: skip
"""how names end of variables that name places, or nobody's business"""
_LONGEST = 200
"""characters of a value"""


def variables() -> dict[str, str]:
    """Return the environment variables that change numerics."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in NAMES or name.upper().startswith(PREFIXES))
        and not name.endswith(_NO_NUMBERS)
        and len(value) <= _LONGEST
    }


def told(facts: Mapping[str, Callable[[], object]]) -> dict[str, object]:
    """Return the facts that a framework tells: a switch that raises, as PyTorch's do where two kinds of them are mixed, is left out."""
    found: dict[str, object] = {}
    for name, ask in facts.items():
        with contextlib.suppress(Exception):
            value = ask()
            if value is not None:
                found[name] = value
    return found
