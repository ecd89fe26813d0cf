"""PyTorch: seeds, determinism, and tensors from arrays."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.nn import functional

_RAW = {1: np.uint8, 2: np.int16}
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_ZERO = "_probe_p_is_zero"


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


def remove_dropout() -> tuple[list[str], list[str]]:
    """Set p of the functions to 0 that dropout modules call too; return what was set, and what is left."""
    for name in _DROPOUTS:
        setattr(functional, name, _with_p_of_zero(getattr(functional, name)))
    left = "dropout_p of torch.nn.functional.scaled_dot_product_attention, torch.dropout, and dropout inside nn.LSTM, GRU and RNN"
    return [f"p=0 in torch.nn.functional.{', '.join(_DROPOUTS)}, which the modules call"], [left]


def _with_p_of_zero(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    if getattr(function, _ZERO, False):
        return function

    @functools.wraps(function)
    def without(input: torch.Tensor, p: float = 0.5, *args: Any, **named: Any) -> torch.Tensor:
        return function(input, 0.0, *args, **named)

    setattr(without, _ZERO, True)
    return without


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
