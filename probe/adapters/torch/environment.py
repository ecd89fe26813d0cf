"""PyTorch's switches that change numerics. Nothing here starts CUDA, which would take memory from the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import backends

from probe.adapters.shared.environment import told, variables
from probe.numbers import kernel

_KERNELS = ("flash", "mem_efficient", "math", "cudnn")
_SWITCHES: Mapping[str, Callable[[], object]] = {
    "num_threads": torch.get_num_threads,
    "interop_threads": torch.get_num_interop_threads,
    "default_dtype": lambda: str(torch.get_default_dtype()).removeprefix("torch."),
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "matmul_tf32": lambda: backends.cuda.matmul.allow_tf32,
    "matmul_fp32_precision": lambda: backends.cuda.matmul.fp32_precision,  # PyTorch 2.9 and later
    "cudnn_tf32": lambda: backends.cudnn.allow_tf32,
    "cudnn_fp32_precision": lambda: backends.cudnn.fp32_precision,
    "fp16_reduced_precision_reduction": lambda: _flag(backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
    "bf16_reduced_precision_reduction": lambda: _flag(backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
    "cudnn_enabled": lambda: backends.cudnn.enabled,
    "cudnn_deterministic": lambda: backends.cudnn.deterministic,
    "cudnn_benchmark": lambda: backends.cudnn.benchmark,
    "mkldnn": lambda: torch._C._get_mkldnn_enabled() and backends.mkldnn.is_available(),
    "sdp_kernels": lambda: [name for name in _KERNELS if getattr(backends.cuda, f"{name}_sdp_enabled")()],
    "cpu_capability": lambda: backends.cpu.get_cpu_capability(),
    "cuda": lambda: torch.version.cuda,
    "initial_seed": lambda: str(torch.initial_seed()),
    "flushes_subnormals": lambda: flushes_subnormals(),
}  # fmt: skip
_OF_CUDA: Mapping[str, Callable[[], object]] = {
    "devices": lambda: [_gpu(index) for index in range(torch.cuda.device_count())],
    "cudnn": backends.cudnn.version,
}


def environment() -> dict[str, object]:
    """Return the switches, the variables, and the devices that are in use."""
    facts = told(_SWITCHES)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        facts |= told(_OF_CUDA)
    npu: Any = getattr(torch, "npu", None)
    if npu is not None:
        facts |= told(_of_ascend(npu))
    return {**facts, "statistics_on_cpu": kernel.INSTRUCTIONS or "torch operations", "variables": variables()}


def flushes_subnormals() -> bool:
    """Return True if numbers too small for a full mantissa count as 0 (torch.set_flush_denormal)."""
    return not np.nextafter(np.float32(0), np.float32(1)) * np.float32(1)


def _flag(value: Any) -> bool:
    """Return a switch that newer versions have as a tuple whose first part it is."""
    return bool(value[0]) if isinstance(value, tuple) else bool(value)


def _gpu(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} (compute capability {major}.{minor})"


def _of_ascend(npu: Any) -> Mapping[str, Callable[[], object]]:
    """Return what torch_npu tells, where an NPU is in use."""
    if not getattr(npu, "is_initialized", lambda: False)():
        return {}
    return {
        "devices": lambda: [npu.get_device_name(index) for index in range(npu.device_count())],
        "matmul_hf32": lambda: npu.matmul.allow_hf32,
        "conv_hf32": lambda: npu.conv.allow_hf32,
        "cann": lambda: torch.version.cann,  # type: ignore[attr-defined]
    }
