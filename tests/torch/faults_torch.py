"""What the tests of odd trainings in PyTorch share."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from probe.errors import ProbeWarning
from probe.testing import sample


def batch(seed: int = 0) -> Tensor:
    return torch.from_numpy(sample((5, 4), seed))


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    texts = [str(one.message) for one in caught if issubclass(one.category, ProbeWarning)]
    return [text.removeprefix("probe: ") for text in texts]
