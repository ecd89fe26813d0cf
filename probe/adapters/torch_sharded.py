"""Tensors that are sharded over ranks (FSDP, tensor parallel)."""

from __future__ import annotations

import torch


def held(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a sharded tensor (a DTensor), any other as it is.

    Operations on the whole communicate: every rank would have to record, and what cannot be redistributed could not be measured.
    """
    return tensor._local_tensor if hasattr(type(tensor), "to_local") else tensor
