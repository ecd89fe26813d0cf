"""The modes of PyTorch that the recorder's own operations run in."""

from __future__ import annotations

import threading
from typing import Any

import torch


class Quiet:
    """No graph, no autocast, no inference-only tensors, for the recorder's own operations.

    What an interrupt kept from being set back, `Quiet.end` sets back: PyTorch's own context managers cannot.
    """

    _open = threading.local()

    def __init__(self, grad: bool = False) -> None:
        self._grad, self._grad_before = grad, torch.is_grad_enabled()
        self._inference: Any = None
        self._autocast = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]

    def __enter__(self) -> None:
        vars(self._open).setdefault("all", []).append(self)
        if torch.is_inference_mode_enabled():
            self._inference = torch._C._InferenceMode(False)  # from here on it is off
        torch._C._set_grad_enabled(self._grad)
        for device in self._autocast:
            torch.set_autocast_enabled(device, False)

    def __exit__(self, *exc: object) -> None:
        self._set_back()
        if self in self._open.all:
            self._open.all.remove(self)

    def _set_back(self) -> None:
        """Do it; doing it twice does no harm."""
        for device in self._autocast:
            torch.set_autocast_enabled(device, True)
        torch._C._set_grad_enabled(self._grad_before)
        if self._inference is not None:
            self._inference.__exit__(None, None, None)

    @classmethod
    def end(cls) -> None:
        """Set back what this thread's interrupted ones have left."""
        left = vars(cls._open).get("all", [])
        while left:
            left[-1]._set_back()
            left.pop()
