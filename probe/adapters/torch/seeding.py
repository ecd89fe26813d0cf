"""PyTorch: seeds, determinism, and tensors from arrays."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np
import torch

_RAW = {1: np.uint8, 2: np.int16}
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def seed(seed: int, deterministic: bool) -> tuple[list[str], list[str]]:
    """Seed PyTorch on all devices; return what was set, and what is not deterministic."""
    torch.manual_seed(seed)
    done, missing = ["torch.manual_seed"], []
    if not deterministic:
        return done, missing
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    done += ["torch.use_deterministic_algorithms", "torch.backends.cudnn.deterministic, benchmark off"]
    missing.append("PyTorch's operations that have no deterministic form: it warns when one runs")
    if "enable" in vars(torch.backends.cudnn):  # the module takes any name
        missing.append("torch.backends.cudnn.enable, which was set: PyTorch reads torch.backends.cudnn.enabled")
    if torch.backends.cuda.is_built():
        if torch.cuda.is_initialized() and _WORKSPACE not in os.environ:
            missing.append(f"cuBLAS: CUDA is in use already, {_WORKSPACE}=:4096:8 has to be set before")
        else:
            done.append(f"{_WORKSPACE}={os.environ.setdefault(_WORKSPACE, ':4096:8')}")
    if hasattr(torch, "npu"):
        done.append(f"HCCL_DETERMINISTIC={os.environ.setdefault('HCCL_DETERMINISTIC', 'true')}")
    return done, missing


def to_tensor(array: np.ndarray, model: torch.nn.Module | None = None) -> torch.Tensor:
    """Return a tensor with the bits of an array, on the device of a model's first parameter."""
    name = array.dtype.name
    plain = np.array(array, order="C")
    if hasattr(ml_dtypes, name):
        tensor = torch.from_numpy(plain.view(_RAW[plain.itemsize])).view(getattr(torch, name))
    else:
        tensor = torch.from_numpy(plain)
    first: Any = None if model is None else next(model.parameters(), None)
    return tensor if first is None else tensor.to(first.device)
