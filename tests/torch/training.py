"""What many tests of PyTorch train, and what they look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

import probe

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> set[tuple]:
    """Every hook on the model, its parameters, tensors that it keeps, the optimizer, and of the process."""
    holders: list[tuple[str, Any, str]] = [("optimizer", optimizer, name) for name in OPTIMIZER_HOOKS]
    for path, module in model.named_modules():
        holders += [(path, module, name) for name in MODULE_HOOKS]
        tensors = {**module._parameters, **{k: v for k, v in vars(module).items() if isinstance(v, Tensor)}}
        holders += [(f"{path}.{slot}", tensor, name) for slot, tensor in tensors.items() for name in TENSOR_HOOKS]
    holders += [("all", nn.modules.module, f"_global{name}") for name in MODULE_HOOKS]
    holders += [("all", optimizers, name) for name in GLOBAL_OPTIMIZER_HOOKS]
    return {(where, name, key) for where, holder, name in holders for key in getattr(holder, name, None) or ()}


def train_scaled(path: Path, task: str, *, lr: float = 1e-2, scale: float = 2.0**40, backoff: float = 2.0**-30) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=backoff)
    with probe.capture(model, path, task=task):
        for _ in range(3):
            x = torch.randn(8, 16)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


class ScaledGradient(torch.autograd.Function):
    """The identity, with a gradient that is too large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None
