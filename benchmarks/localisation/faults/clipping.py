"""Faults between backward and the optimizer: clipping and loss scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Planted
from benchmarks.localisation.tools.planting import CLIPPING, Fault, Plant, before_update, size_of
from benchmarks.localisation.tools.run import Run


def _gradients_of(run: Run) -> list[Tensor]:
    return [parameter.grad for parameter in run.names if parameter.grad is not None]


# Clipping


def _disable_clipping(run: Run, planted: Planted) -> None:
    run.setup = replace(run.setup, clip=0.0)


def _clip_each_parameter(run: Run, planted: Planted) -> None:
    most = run.setup.clip
    run.setup = replace(run.setup, clip=0.0)
    run.before_update.append(lambda: [nn.utils.clip_grad_norm_([parameter], most) for parameter in run.names])


def _clip_scaled_gradients(run: Run, planted: Planted) -> None:
    most, update = run.setup.clip, run.update
    run.setup = replace(run.setup, clip=0.0)

    def clipped(index: int) -> None:
        nn.utils.clip_grad_norm_(list(run.names), most)
        update(index)

    run.update = clipped


def _clip_with(run: Run, clip: Callable[[Run, float], Any]) -> None:
    most = run.setup.clip
    run.setup = replace(run.setup, clip=0.0)
    run.before_update.append(lambda: clip(run, most))


def _clip_groups(run: Run, most: float) -> None:
    for group in run.groups:
        nn.utils.clip_grad_norm_(group["params"], most)


def _clip_by_largest(run: Run, most: float) -> None:
    nn.utils.clip_grad_norm_(list(run.names), most, norm_type=math.inf)


def _clip_by_norm(norm: Callable[[Run, float], Tensor], default: float = 0.0) -> Plant:
    """Return what clips all gradients by another norm."""

    def plant(run: Run, planted: Planted) -> None:
        most, size = run.setup.clip, size_of(planted, default)
        run.setup = replace(run.setup, clip=0.0)

        def clip() -> None:
            factor = (most / (norm(run, size) + 1e-6)).clamp_max(1.0)
            for gradient in _gradients_of(run):
                gradient.mul_(factor)

        run.before_update.append(clip)

    return plant


def _norm_of_half(run: Run, size: float) -> Tensor:
    gradients = _gradients_of(run)
    return torch.stack([gradient.float().norm() for gradient in gradients[: len(gradients) // 2]]).norm()


def _norm_with_repeats(run: Run, size: float) -> Tensor:
    squares = [g.float().square().sum() * (size if g.dim() < 2 else 1) for g in _gradients_of(run)]
    return torch.stack(squares).sum().sqrt()


# What the optimizer uses


def _zero_gradients(run: Run, planted: Planted) -> None:
    for parameter in run.model.get_submodule(planted.path).parameters():
        parameter.grad = torch.zeros_like(parameter)


def _keep_loss_scale(run: Run, planted: Planted) -> None:
    run.setup = replace(run.setup, loss_scale=1.0)


def _delay_gradients(run: Run, planted: Planted) -> None:
    kept: dict[Tensor, Tensor] = {}

    def exchange() -> None:
        for parameter in run.names:
            if parameter.grad is not None:
                now = parameter.grad
                parameter.grad = kept.get(parameter, now)
                kept[parameter] = now

    run.before_update.append(exchange)


def _divide_gradients(run: Run, by: float) -> None:
    for gradient in _gradients_of(run):
        gradient.div_(by)


def _round_gradients(run: Run, planted: Planted) -> None:
    for gradient in _gradients_of(run):
        gradient.copy_(gradient.bfloat16())


CLIPPING_FAULTS: dict[str, Fault] = {
    # clipping
    "clip": Fault("clipping at a norm of size", CLIPPING, before_update(lambda r, p: nn.utils.clip_grad_norm_(list(r.names), p.size)), True),
    "clip_value": Fault("clipping each element at size", CLIPPING, before_update(lambda r, p: nn.utils.clip_grad_value_(list(r.names), p.size)), True),
    "not_clipped": Fault("no clipping", CLIPPING, _disable_clipping, True),
    "clip_each": Fault("every parameter's gradient is clipped by itself", CLIPPING, _clip_each_parameter, True),
    "clip_scaled": Fault("gradients are clipped before the loss scale is taken off", CLIPPING, _clip_scaled_gradients, True),
    "clip_groups": Fault("each group of parameters is clipped by itself", CLIPPING, lambda run, planted: _clip_with(run, _clip_groups), True),
    "clip_largest": Fault("gradients are clipped by the largest element instead of the norm", CLIPPING, lambda run, planted: _clip_with(run, _clip_by_largest), True),
    "clip_local": Fault("clipping by the norm of half of the gradients: that of the other rank is missing", CLIPPING, _clip_by_norm(_norm_of_half), True),
    "clip_counted": Fault("clipping by a norm in which what all of size ranks have counts as often", CLIPPING, _clip_by_norm(_norm_with_repeats, 8), True),
    # what the optimizer uses
    "gradient_lost": Fault("a module's gradients are zero when the optimizer uses them", CLIPPING, before_update(_zero_gradients)),
    "norms_lost": Fault("gradients of one dimension are zero when the optimizer uses them", CLIPPING, before_update(lambda run, planted: [p.grad.zero_() for p in run.names if p.grad is not None and p.dim() < 2]), True, True),
    "still_scaled": Fault("the loss scale is not taken off the gradients", CLIPPING, _keep_loss_scale, True),
    "unscaled_twice": Fault("the loss scale is taken off twice", CLIPPING, before_update(lambda run, p: _divide_gradients(run, run.setup.loss_scale)), True),
    "averaged_again": Fault("gradients are divided by size: averaged over ranks again", CLIPPING, before_update(lambda run, p: _divide_gradients(run, size_of(p, 2.0))), True),
    "delayed": Fault("the optimizer uses the gradients of the step before", CLIPPING, _delay_gradients, True),
    "signs": Fault("the optimizer uses the gradients' signs", CLIPPING, before_update(lambda run, planted: [p.grad.sign_() for p in run.names if p.grad is not None]), True),
    "used_narrow": Fault("the optimizer is given gradients in bf16", CLIPPING, before_update(_round_gradients), True),
}  # fmt: skip
