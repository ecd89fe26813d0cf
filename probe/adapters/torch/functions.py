"""PyTorch's functions as the program calls them: what stands in paths as ``softmax``, and where it was called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from probe.adapters import base
from probe.adapters.shared.functions import Function

_LOOK = {
    "backward", "data_ptr", "dim", "element_size", "get_device", "has_names", "item", "names", "ndimension", "nelement",
    "numel", "numpy", "register_hook", "requires_grad_", "retain_grad", "size", "storage_offset", "stride", "tolist", "type",
    "untyped_storage", "result_type", "can_cast", "promote_types", "is_tensor", "allclose", "equal",
}  # fmt: skip
"""functions that look at a tensor and compute none"""
_ASKING = (torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
"""modules whose own code asks whether functions are looked at, and then takes another kernel"""
_SHOWN = ("T", "H", "mT", "mH", "data", "grad", "imag", "real")
"""attributes of tensors that are tensors"""
_PREFIXES = {
    "_VariableFunctionsClass": "torch", "TensorBase": "torch.Tensor", "Tensor": "torch.Tensor", "torch._C._nn": "torch.nn.functional",
    "torch._C._special": "torch.special", "torch._C._linalg": "torch.linalg", "torch._C._fft": "torch.fft", "torch._tensor": "torch",
    "torch._C": "torch",
}  # fmt: skip
_BETWEEN = tuple(
    str(Path(torch.__file__).parent / name)
    for name in "overrides.py functional.py _tensor.py _jit_internal.py nn/functional.py utils/_contextlib.py".split()
)
"""files whose frames lie between a function and the program that calls it"""


def _function(function: Callable[..., Any]) -> Function:
    """Return what a function of PyTorch is called."""
    own = getattr(function, "__name__", "") or ""
    if own == "__get__":
        own = getattr(getattr(function, "__self__", None), "__name__", own)
    owner = getattr(function, "__objclass__", None)
    where = owner.__name__ if owner is not None else (getattr(function, "__module__", None) or "")
    qualified = getattr(function, "__qualname__", own)
    if "." in qualified and owner is None:
        where = qualified.rpartition(".")[0]
    return Function(function, own, _PREFIXES.get(where, where), _BETWEEN)


class Functions(TorchFunctionMode):
    """Calls back around every function that a thread calls, from `enter` to `leave`."""

    def __init__(
        self, before: Callable[[base.Operation, tuple[Any, ...], dict[str, Any]], None], after: base.Returned
    ) -> None:
        super().__init__()
        self._before, self._after = before, after

    def enter(self, module: torch.nn.Module | None) -> bool:
        """Look at the functions that this thread calls; doing it twice does no harm."""
        if isinstance(module, _ASKING):
            self.leave()
            return False
        if not any(mode is self for mode in _get_current_function_mode_stack()):
            above = [_pop_mode() for _ in _get_current_function_mode_stack()]
            for mode in (self, *reversed(above)):  # below the program's, which takes off the topmost when its own ends
                _push_mode(mode)
        return True

    def leave(self) -> None:
        """Do so no longer, whatever modes the program has set since."""
        if any(mode is self for mode in _get_current_function_mode_stack()):
            above = []
            while (mode := _pop_mode()) is not self:
                above.append(mode)
            for mode in reversed(above):
                _push_mode(mode)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None:
            return func(*args, **kwargs)
        function = _known(func)
        if function is None:
            return func(*args, **kwargs)
        self._before(function, args, kwargs)
        try:
            output = func(*args, **kwargs)
        except BaseException:
            self._after(None, True)
            raise
        other = self._after(args[0] if function.name == "setitem" else output, False)
        return output if other is None else other


@functools.cache
def _known(func: Callable[..., Any]) -> Function | None:
    """Return a function that computes tensors; None for one that only looks at them."""
    function = _function(func)
    name = function.name
    if getattr(func, "__name__", "") in ("__get__", "__set__") and name not in _SHOWN:
        return None
    is_look = name in _LOOK or name.startswith(("is_", "has_")) or getattr(func, "__name__", "") in _PYTHON
    return None if is_look else function


_PYTHON = {
    "__len__", "__bool__", "__int__", "__float__", "__index__", "__repr__", "__str__", "__format__", "__hash__", "__contains__",
    "__iter__", "__reversed__", "__array__", "__reduce_ex__", "__deepcopy__", "__dir__", "__delitem__", "__set__", "__complex__",
}  # fmt: skip
"""Python's own protocols"""
