"""Statistics of CUDA tensors by the compiled kernel; where there is none, why not, and then PyTorch's operations compute them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch

from probe.adapters.torch.cuda.launching import Row, Stream, finished
from probe.adapters.torch.cuda.plans import plan_of
from probe.adapters.torch.sharded import PLAIN
from probe.errors import RecordingError
from probe.numbers.sketch import WIDTH
from probe.numbers.statistics import measure as reference
from probe.records import HashKind, TensorStats

CAPTURED = "while a CUDA graph is captured"
"""what is then neither recorded nor asked of the device: it would become part of the graph, or end the capture"""
UNUSABLE = (
    "statistics of CUDA tensors are computed by PyTorch's operations, not by the compiled kernel, which takes many times as long; the "
    "recording holds the same. The kernel needs triton, which CUDA builds of PyTorch bring, and a C compiler (gcc, clang): {}"
)
"""what is said once where the kernel cannot be used"""
_KNOWN = {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.uint8, torch.int8}
_KNOWN |= {torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}
_TRIED = 3, 130
"""shape of the tensor by which a device's kernel is tried first"""


def is_capturing() -> bool:
    """Return True if the current stream records a CUDA graph; CUDA is not initialised by asking."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Launcher:
    """Measures tensors of all devices and streams."""

    def __init__(self) -> None:
        self.unusable = ""
        """why the kernel is not used any more"""
        self._streams: dict[tuple[int, int], Stream] = {}
        self._tried: set[int] = set()

    def measure(
        self, tensor: torch.Tensor, order: Sequence[int], kind: HashKind, subtracted: torch.Tensor | None = None
    ) -> Row | None:
        """Begin to measure a tensor, or what is left of it without another one; None where the kernel cannot.

        Raises RecordingError while a CUDA graph is being captured.
        """
        if self.unusable or not self.takes(tensor):
            return None
        if is_capturing():
            raise RecordingError(f"tensors that come {CAPTURED} are not recorded")
        try:
            with _on(tensor):
                if tensor.get_device() not in self._tried:
                    self._try(tensor.device)
                return self._begin(tensor, order, kind, subtracted)
        except torch.OutOfMemoryError:  # operations would need more
            raise
        except Exception as error:  # noqa: BLE001  no triton, no compiler, a driver that is too old
            self.unusable = f"{type(error).__name__}: {error}"
            return None

    def takes(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is where the kernel can read it."""
        return tensor.is_cuda and type(tensor) in PLAIN and (tensor.dtype in _KNOWN or tensor.is_complex())

    def settle(self, pending: Sequence[Row]) -> list[TensorStats]:
        """Fetch what is under way on all of their streams, wait for it, and return the statistics."""
        for rows in {id(each.rows): each.rows for each in pending}.values():
            rows.stream.fetch(rows)
        return [finished(each) for each in pending]

    def release(self) -> None:
        """Give back what is held of the devices' memory."""
        for stream in self._streams.values():
            stream.rows = None  # they know their stream
        self._streams.clear()

    def _begin(
        self, tensor: torch.Tensor, order: Sequence[int], kind: HashKind, subtracted: torch.Tensor | None
    ) -> Row | None:
        values = _plain(tensor)
        taken = None if subtracted is None else _plain(subtracted)
        plan = plan_of(values.shape, values.stride(), tuple(order), () if taken is None else taken.stride())
        if plan is None:
            return None
        return self._stream(values).measure(values, taken, plan, kind)

    def _stream(self, tensor: torch.Tensor) -> Stream:
        index = tensor.get_device()
        key = index, torch._C._cuda_getCurrentRawStream(index) if tensor.is_cuda else 0
        stream = self._streams.get(key)
        if stream is None:
            current = torch.cuda.current_stream(index) if tensor.is_cuda else None
            stream = self._streams[key] = Stream(tensor.device, current)
        return stream

    def _try(self, device: torch.device) -> None:
        """Measure a small tensor on a device; raises where the numbers are not those of the CPU."""
        values = np.linspace(-3, 5, int(np.prod(_TRIED)), dtype=np.float32).reshape(_TRIED)
        values[0, :3] = np.nan, np.inf, 1e-40
        row = self._begin(torch.from_numpy(values).to(device), (), HashKind.WSUM64, None)
        (found,), wanted = self.settle([row] if row else []), reference(values, (), HashKind.WSUM64)
        sums = np.array([*found[2:5], *found.sketch]), np.array([*wanted[2:5], *wanted.sketch])
        exact = [name for name in found._fields if name not in ("mean", "rms", "norm", "sketch")]
        wrong = [name for name in exact if getattr(found, name) != getattr(wanted, name)]
        if wrong or not np.allclose(*sums, rtol=0, atol=1e-12 * wanted.norm * WIDTH):
            raise ArithmeticError(f"on {device} it does not compute what the CPU does ({', '.join(wrong) or 'sums'})")
        self._tried.add(device.index if device.index is not None else -1)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers or integers that lie in memory as they are meant."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.detach().resolve_conj().resolve_neg())
    if tensor.is_neg():
        return tensor.detach().resolve_neg()
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor


def _on(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Return what makes a tensor's device the current one."""
    if not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device():
        return contextlib.nullcontext()
    return torch.cuda.device(tensor.get_device())


LAUNCHER = Launcher()
