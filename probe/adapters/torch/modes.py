"""The modes of PyTorch that the recorder's own operations run in, and those of the user's that see nothing of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _len_torch_dispatch_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
)


class _Open(threading.local):
    def __init__(self) -> None:
        self.all: list[Restored] = []


class Restored:
    """A context whose end an interrupt cannot keep from being set back: `Restored.end` does it, PyTorch's own managers cannot."""

    _open = _Open()

    def __enter__(self) -> None:
        self._open.all.append(self)
        self._set()

    def __exit__(self, *exc: object) -> None:
        self._set_back()
        left = self._open.all
        if left and left[-1] is self:  # mostly
            left.pop()
        elif self in left:
            left.remove(self)

    def _set(self) -> None: ...

    def _set_back(self) -> None:
        """Do it; doing it twice does no harm."""

    @classmethod
    def end(cls) -> None:
        """Set back what this thread's interrupted ones have left."""
        left = cls._open.all
        while left:
            left[-1]._set_back()
            left.pop()


class Unseen(Restored):
    """No mode of the user's (``TorchFunctionMode``, ``TorchDispatchMode``, ``FlopCounterMode``) sees what runs inside.

    Nor does the ``__torch_function__`` of a subclass of tensors.
    """

    def __init__(self) -> None:
        self._function = torch._C.DisableTorchFunction()
        self._has_function = False
        self._modes: Sequence[Any] = ()

    def _set(self) -> None:
        if count := _len_torch_dispatch_stack():
            self._modes = [_get_dispatch_stack_at(place) for place in range(count)]
            for _ in self._modes:
                _pop_torch_dispatch_stack(None)
        self._has_function = True
        self._function.__enter__()

    def _set_back(self) -> None:
        if self._has_function:
            self._function.__exit__(None, None, None)
        if self._modes:
            while (count := _len_torch_dispatch_stack()) < len(self._modes):
                _push_on_torch_dispatch_stack(self._modes[count])


_SEEN_BY_NOBODY = contextlib.nullcontext()


def unseen() -> AbstractContextManager[object]:
    """Return an `Unseen`, or what does nothing inside of one."""
    inside = torch._C._is_torch_function_all_disabled() and not _len_torch_dispatch_stack()
    return _SEEN_BY_NOBODY if inside else Unseen()


class Quiet(Restored):
    """No graph, no autocast, no inference-only tensors, for the recorder's own operations."""

    def __init__(self, grad: bool = False) -> None:
        self._grad, self._grad_before = grad, torch.is_grad_enabled()
        self._inference: Any = None
        self._autocast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]

    def _set(self) -> None:
        if torch.is_inference_mode_enabled():
            self._inference = torch._C._InferenceMode(False)  # from here on it is off
        torch._C._set_grad_enabled(self._grad)
        for device in self._autocast:
            torch.set_autocast_enabled(device, False)

    def _set_back(self) -> None:
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        torch._C._set_grad_enabled(self._grad_before)
        if self._inference is not None:
            self._inference.__exit__(None, None, None)
