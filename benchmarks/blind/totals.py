"""The totals of a training, by which a clean pair is seen to be clean."""

from __future__ import annotations

import math

from .training import Training


def summary(training: Training, steps: int) -> list[float]:
    """Loss, gradients' norm and norm of the parameters that the optimizer holds, after each step."""
    result: list[float] = []
    left: list[float] = []
    watch = training.watch

    def event(name: str) -> None:
        watch(name)
        if name == "gradient":
            scale = training.scaler.get_scale() if training.scaler else 1.0
            grads = [p.grad.double().norm().item() for p in training.model.parameters() if p.grad is not None]
            left.append(math.hypot(*grads) / scale)

    training.watch = event
    for number in range(steps):
        result.append(float(training.step(number)))
        held = [p for group in training.optimizer.param_groups for p in group["params"]]
        result += [left[-1], math.hypot(*(p.detach().double().norm().item() for p in held))]
    return result
