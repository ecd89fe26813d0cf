"""numpy: seeds, and tensors from arrays, of the framework in `tests.toy.nn`."""

from __future__ import annotations

import numpy as np

from tests.toy.nn import Module, manual_seed
from tests.toy.tensor import Tensor


def seed(seed: int, deterministic: bool) -> tuple[list[str], list[str]]:
    """Seed the framework, which is deterministic anyway."""
    manual_seed(seed)
    return ["numpy_nn.manual_seed"], []


def remove_dropout() -> tuple[list[str], list[str]]:
    """Leave dropout as it is; return what was set, and what is left."""
    return [], ["numpy_nn.Dropout: set p=0"]


def to_tensor(array: np.ndarray, model: Module | None = None) -> Tensor:
    """Return a tensor with a copy of an array."""
    return Tensor(np.array(array, order="C"))
