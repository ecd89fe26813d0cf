"""Calls of modules that `torch.nn.Module.compile` compiled in place: their hooks are compiled with them, so they are recorded from outside."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from probe.adapters.shared.hooking import Removal


def around_compiled(
    module: torch.nn.Module,
    before: Callable[[tuple[Any, ...], dict[str, Any]], None],
    after: Callable[[object, bool], None],
) -> Removal:
    """Call back around the compiled call of a module; return what puts that back.

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
