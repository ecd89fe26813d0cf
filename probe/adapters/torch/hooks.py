"""Hooks on PyTorch's modules, and what of PyTorch runs them without computing anything: tracers, exports."""

from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from probe.adapters.base import After, Before, Found, Removal
from probe.adapters.shared.hooking import CallHook, T, all_or_none, concealed, with_own_numbers
from probe.adapters.shared.user_objects import attribute

_TABLES = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
)  # fmt: skip
"""where modules have the hooks on their calls"""
_is_symbolic = getattr(torch.fx._symbolic_trace, "is_fx_symbolic_tracing", torch.fx._symbolic_trace.is_fx_tracing)
"""the older one warns where there is the newer"""
_ON_ALL_MODULES = r"Using `torch\.compile\(module\)` when there are global hooks"


def tracing() -> str:
    """Return in words by what the program is only looked at, or ``""`` where it runs."""
    if torch._C._get_tracing_state() is not None:
        return "inside torch.jit.trace or what is built on it (add_graph, the ONNX export)"
    if torch.compiler.is_compiling():
        return "inside torch.export"
    if torch._C._functorch.maybe_current_level() is not None:
        return "inside vmap or another function transform"
    return "inside torch.fx.symbolic_trace" if _is_symbolic() else ""


def numbered_apart(register: Callable[[], T]) -> T:
    """Set hooks that are not counted among the user's."""
    return with_own_numbers(RemovableHandle, "next_id", register)


def around_call(module: torch.nn.Module, before: Before, after: After) -> Removal:
    """Call back around every call of a module; return what takes the hooks off."""
    mine = weakref.ref(module)
    pre, post = _PreHook(mine, before), _PostHook(mine, after)
    tables = [attribute(module, name) for name in _TABLES]
    set_pre = functools.partial(module.register_forward_pre_hook, pre, with_kwargs=True)
    set_post = functools.partial(module.register_forward_hook, post, with_kwargs=True, always_call=True)
    return all_or_none(
        numbered_apart, lambda: concealed(pre, tables, set_pre), lambda: concealed(post, tables, set_post)
    )


def around_compiled(module: torch.nn.Module, before: Before, after: After) -> Removal:
    """Call back around the call of a module that `torch.nn.Module.compile` compiled in place; return what puts that back.

    Hooks would be compiled with it, so it is watched from outside.
    Copies and pickles of a module have no compiled call.
    """
    compiled, mine = module._compiled_call_impl, weakref.ref(module)
    assert compiled is not None

    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # inside another compiled module
            return compiled(*args, **kwargs)
        before(args, kwargs)
        try:
            output = compiled(*args, **kwargs)
        except BaseException:
            after(None, True)
            raise
        after(output, False)
        return output

    def remove() -> None:
        module = mine()
        if module is not None and module._compiled_call_impl is call:
            module._compiled_call_impl = compiled

    module._compiled_call_impl = call
    return remove


def before_any_call(before: Callable[[torch.nn.Module], None]) -> Removal:
    """Call back before every call of any module; return what takes the hook off.

    PyTorch has listed the module's own hooks by then, and would pass over those that ``before`` sets on it: they are called here.
    """

    def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_dynamo_compiling():
            return
        known = set(module._forward_pre_hooks)
        before(module)
        added = [(key, each) for key, each in module._forward_pre_hooks.items() if key not in known]
        if added:  # PyTorch gives hooks on all modules no keyword arguments, but has them where it calls them
            kwargs = sys._getframe(1).f_locals.get("kwargs", {})
            for key, each in added:
                each(module, args, kwargs) if key in module._forward_pre_hooks_with_kwargs else each(module, args)

    def quietly() -> Removal:
        """Keep compiled models from warning that there are hooks on all modules."""
        warnings.filterwarnings("ignore", _ON_ALL_MODULES, UserWarning)
        ignored = warnings.filters[0]
        return lambda: warnings.filters.remove(ignored) if ignored in warnings.filters else None

    register = torch.nn.modules.module.register_module_forward_pre_hook
    return all_or_none(numbered_apart, quietly, lambda: register(hook).remove)


class _PreHook(CallHook):
    def __call__(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        # asked in this order, so that the module is no guard of what is compiled; without kwargs it was taken off meanwhile
        if not torch.compiler.is_dynamo_compiling() and self._module() is module and kwargs is not None:
            self._call(args, kwargs)


class _PostHook(CallHook):
    def __call__(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any], *output: object) -> None:
        if not torch.compiler.is_dynamo_compiling() and self._module() is module and output:
            self._call(output[0], output[0] is None and _raised())


class GradientHook:
    """A hook on a tensor's gradient. A training has hundreds of them at a time: each is one object."""

    __slots__ = ("_found",)
    __torch_unserializable__ = True
    """or torch warns where it copies a leaf"""

    def __init__(self, found: Found) -> None:
        self._found = found

    def __call__(self, gradient: torch.Tensor) -> None:
        # compiled autograd traces this, and what it calls would be compiled with the user's backward
        if not torch.compiler.is_dynamo_compiling():
            self._found(gradient)


def _raised() -> bool:
    """Return True if a forward was left by an exception; checkpointing ends its second pass early by one of its own."""
    error = sys.exc_info()[0]
    return error is not None and error.__name__ != "_StopRecomputationError"
