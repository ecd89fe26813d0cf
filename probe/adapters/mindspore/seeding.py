"""MindSpore: seeds, determinism, and tensors from arrays. Tested against 2.10.0."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np

_DROPOUTS = ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d")
_ZERO = "_probe_p_is_zero"


def seed(seed: int, deterministic: bool) -> tuple[list[str], list[str]]:
    """Seed MindSpore; return what was set, and what is not deterministic."""
    mindspore.set_seed(seed)
    mindspore.manual_seed(seed)
    done, missing = ["mindspore.set_seed", "mindspore.manual_seed"], []
    if not deterministic:
        return done, missing
    if mindspore.get_context("deterministic") != "ON":
        try:
            mindspore.set_deterministic(True)
        except RuntimeError as error:
            missing.append(f"MindSpore's operations: set_deterministic can be called once only ({error})")
            return done, missing
    done.append("mindspore.set_deterministic, with HCCL_DETERMINISTIC and TE_PARALLEL_COMPILER")
    if mindspore.get_context("device_target") == "GPU":
        missing.append("MindSpore's operations on a GPU: set_deterministic is read on Ascend alone")
    return done, missing


def remove_dropout() -> tuple[list[str], list[str]]:
    """Set p of dropout cells to 0 that are made from now on; return what was set, and what is left."""
    for name in _DROPOUTS:
        cell = getattr(mindspore.nn, name)
        if _ZERO not in vars(cell):
            cell.__init__ = _with_p_of_zero(cell.__init__)
            setattr(cell, _ZERO, True)
    return [f"p=0 in mindspore.nn.{', '.join(_DROPOUTS)} made from now on"], [
        "mindspore.ops.dropout and mindspore.mint"
    ]


def _with_p_of_zero(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def without(self: Any, *args: Any, **named: Any) -> None:
        init(self, p=0.0)

    return without


def to_tensor(array: np.ndarray, model: mindspore.nn.Cell | None = None) -> mindspore.Tensor:
    """Return a tensor with the bits of an array; MindSpore moves it to the device when it is used.

    Raises TypeError where MindSpore has no such dtype.
    """
    if array.dtype.name.startswith(("float8", "float4", "int4", "uint4")):
        raise TypeError(f"MindSpore has no {array.dtype.name} that it makes from an array")
    return mindspore.Tensor(np.array(array, order="C"))
