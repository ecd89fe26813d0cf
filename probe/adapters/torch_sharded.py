"""Tensors that are sharded over ranks (FSDP, tensor parallel)."""

from __future__ import annotations

import functools

import torch


def held(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a sharded tensor (a DTensor), any other as it is.

    Operations on the whole communicate: every rank would have to record, and what cannot be redistributed could not be measured.
    """
    return tensor._local_tensor if _is_sharded(type(tensor)) else tensor


@functools.cache
def _is_sharded(kind: type) -> bool:
    """Asked for every parameter at every call: a lookup that fails takes longer than all the rest."""
    return hasattr(kind, "to_local")
