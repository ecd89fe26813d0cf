"""What PyTorch calls the layers of `tests.two_models`."""

from __future__ import annotations

import torch
from torch import nn

from tests.two_models import Dialect


class Functional:
    """Functions of tensors, by the names that `tests.two_models` has."""

    relu, tanh, zeros, ones_like = torch.relu, torch.tanh, torch.zeros, torch.ones_like


TORCH = Dialect(
    nn,
    Functional,
    nn.Module,
    lambda size, hidden: nn.LSTM(size, hidden, batch_first=True),
    lambda size, heads: nn.MultiheadAttention(size, heads, batch_first=True),
    lambda length: torch.triu(torch.ones(length, length, dtype=torch.bool), 1),
    lambda model, lr, beta2, decay: torch.optim.AdamW(
        model.parameters(), lr=lr, betas=(0.9, beta2), weight_decay=decay
    ),
)
