"""Tensors that are sharded over ranks (FSDP, tensor parallel), and those of which the memory is not there."""

from __future__ import annotations

import functools

import torch

from probe.errors import RecordingError

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""classes of tensors that are where they say"""


def held(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a sharded tensor (a DTensor), any other as it is.

    Operations on the whole communicate: every rank would have to record, and what cannot be redistributed could not be measured.
    """
    return tensor._local_tensor if _is_sharded(type(tensor)) else tensor


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor.

    Raises RecordingError where its memory is freed: PyTorch itself would end the process on reading it.
    """
    tensor = held(tensor)
    if type(tensor) in PLAIN and last_byte(tensor) > tensor.untyped_storage().nbytes():
        raise RecordingError("tensors whose memory the program has freed are not recorded")
    return tensor


def plainly(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory of its own: what is made of other tensors (a collective's result) points nowhere."""
    if type(tensor) in PLAIN:
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    copy.copy_(tensor)
    return copy


def is_like(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two tensors have room for each other's values, laid out alike."""
    is_same = tensor.dtype == other.dtype and tensor.device == other.device
    return is_same and tensor.shape == other.shape and tensor.stride() == other.stride()


def last_byte(tensor: torch.Tensor) -> int:
    """Return the end of a tensor in its storage."""
    if not tensor.numel():
        return 0
    if tensor.is_contiguous():
        return tensor.storage_offset() * tensor.itemsize + tensor.nbytes
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (tensor.storage_offset() + steps + 1) * tensor.itemsize


@functools.cache
def _is_sharded(kind: type) -> bool:
    """Asked for every parameter at every call: a lookup that fails takes longer than all the rest."""
    return hasattr(kind, "to_local")
