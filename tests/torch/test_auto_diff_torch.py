"""Both models in one call, in PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.torch.dialect import TORCH
from tests.two_models import SITUATIONS, check


@pytest.mark.parametrize("wrong", [False, True], ids=["clean", "fault"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_two_models_of_pytorch(name: str, wrong: bool) -> None:
    torch.manual_seed(0)
    check(SITUATIONS[name], TORCH, TORCH, wrong)
