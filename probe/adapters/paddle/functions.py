"""PaddlePaddle's functions and the methods of its tensors, as operations. What a program imported by name before, it calls unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle
from paddle.nn import functional

from probe.adapters.shared.functions import Function, Patches

_LOOK = {
    "backward", "dim", "element_size", "equal_all", "allclose", "item", "ndimension", "numel", "numpy", "rank", "register_hook",
    "shape", "tolist", "rand", "seed", "summary", "flops", "save", "load", "grad", "no_grad", "enable_grad", "increment",
}  # fmt: skip
"""functions that look at a tensor and compute none, and those that are none"""
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "pow", "rpow", "mod", "matmul", "neg", "getitem",
    "setitem", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "invert",
)  # fmt: skip
_BETWEEN = tuple(
    str(Path(paddle.__file__).parent / name) for name in ("tensor", "base", "nn/functional", "utils", "framework")
)


def patches(before: Callable[..., None], after: Callable[..., Any]) -> Patches:
    """Return what looks at the functions that a thread calls."""
    return Patches(_places(), before, after)


def _places() -> Iterator[tuple[Any, str, Function]]:
    methods = [*paddle.tensor.tensor_method_func, *(f"__{name}__" for name in _OPERATORS)]
    named = (paddle, "paddle", paddle.__all__), (functional, "paddle.nn.functional", functional.__all__)
    for owner, where, names in (*named, (paddle.Tensor, "paddle.Tensor", methods)):
        for name in dict.fromkeys(names):
            function = getattr(owner, name, None)
            is_look = name in _LOOK or name.startswith(("is_", "in_", "get_", "set_", "disable_", "enable_"))
            if callable(function) and not isinstance(function, type) and not is_look:
                yield owner, name, Function(function, name, where, _BETWEEN)
