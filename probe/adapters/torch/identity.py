"""Tensors of PyTorch known again: it refuses to swap one that has weak references (``swap_tensors``), of Python or its own."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from probe.adapters.torch.sharded import held


class TensorIdentity:
    """A tensor that a program holds on to, by its id and its memory: may be swapped (parameters, gradients).

    Of what comes and goes this is not enough: one view of some memory may get the id of another one. It is not kept
    alive.
    """

    __slots__ = ("_id", "_memory", "_place")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._id, self._place = id(tensor), _place(tensor)
        self._memory = StorageWeakRef(held(tensor).untyped_storage())

    def is_of(self, value: Any) -> bool:
        is_there = id(value) == self._id and self.lives() and held(value).untyped_storage()._cdata == self._memory.cdata
        return is_there and _place(value) == self._place

    def lives(self) -> bool:
        return not self._memory.expired()


class PassingIdentity:
    """A tensor that comes and goes, by its id as long as PyTorch's own object behind it lives: no other one has its id before."""

    __slots__ = ("_id", "_object")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._id, self._object = id(tensor), torch._C._WeakTensorRef(tensor)

    def is_of(self, value: Any) -> bool:
        return id(value) == self._id and self.lives()

    def lives(self) -> bool:
        return not self._object.expired()


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where a tensor's values lie, and how many bytes they are: a tracer does not see that it is asked."""
    mine = held(tensor)
    return mine.data_ptr(), mine.nbytes


def writes_to(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without values whose version changes when a tensor, or what it is a view of, is written to."""
    counting = tensor.detach()
    counting.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return counting
