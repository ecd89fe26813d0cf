"""Values of CUDA tensors on their way to the CPU: copied where they are, then beside the training, into pinned memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import ml_dtypes
import numpy as np
import torch

_LARGE = 128 << 20
"""bytes from which on a tensor is copied at once, and waited for: so much memory is not pinned"""
_RAW = {1: torch.uint8, 2: torch.int16}

_streams: dict[int, torch.cuda.Stream] = {}
"""the side stream of each device"""


def begin_values(tensor: torch.Tensor) -> Callable[[], np.ndarray] | None:
    """Begin to copy a tensor's values as they are now; None where they have to be waited for at once.

    Returns what waits for the copy, and gives an array that nobody else writes to.
    """
    if not tensor.is_cuda or tensor.nbytes > _LARGE:
        return None
    index = tensor.get_device()
    now = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    extra = getattr(ml_dtypes, str(now.dtype).removeprefix("torch."), None)
    if extra is not None:
        now = now.view(_RAW[now.element_size()])
    host = torch.empty(now.shape, dtype=now.dtype, device="cpu", pin_memory=True)
    side = _streams.get(index) or _streams.setdefault(index, torch.cuda.Stream(index))
    side.wait_stream(torch.cuda.current_stream(index))
    with torch.cuda.stream(side):
        host.copy_(now, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
    left = [now]  # the copy's memory is used on another stream than its own: it is held until that is done

    def wait() -> np.ndarray:
        arrived.synchronize()
        left.clear()
        return host.numpy() if extra is None else host.numpy().view(extra)

    return wait


def release() -> None:
    """Give the pinned memory back to the system that is not in use any more."""
    empty = getattr(torch._C, "_host_emptyCache", None)
    if _streams and empty is not None:
        with contextlib.suppress(RuntimeError):  # the program's own error, which it has been told
            empty()
    _streams.clear()
