"""Ports that get the other side's weights, and plants of the sealed set."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..blind import plant as P
from ..blind.training import Training


def carried(held: dict[str, torch.Tensor], rules: dict[str, Any], layers: int = 0) -> dict[str, torch.Tensor]:
    """Weights by B's names: a rule gives A's name, names that are joined, or a function of all; `#` counts layers."""
    result: dict[str, torch.Tensor] = {}
    for new, old in rules.items():
        for number in range(layers) if "#" in new else (0,):
            at = str(number)
            if callable(old):
                value = old(lambda name, at=at: held[name.replace("#", at)])
            elif isinstance(old, (tuple, list)):
                value = torch.cat([held[name.replace("#", at)] for name in old])
            else:
                value = held[old.replace("#", at)]
            result[new.replace("#", at)] = value.clone()
    return result


def ported(
    build: Callable[[], Training],
    own: Callable[[], nn.Module],
    rules: dict[str, Any],
    layers: int = 0,
    predict: Any = None,
    **changes: Any,
) -> Callable[[], Training]:
    """Side B: A's data and loss with a model by another hand that gets A's weights."""

    def port() -> Training:
        training, model = build(), own()
        model.load_state_dict(
            carried(training.model.state_dict() | dict(training.model.named_buffers()), rules, layers)
        )
        return dataclasses.replace(training, model=model.train(), predict=predict or training.predict, **changes)

    return port


def outliers(factor: float = 12.0) -> P.Plant:
    """Weights with what trained ones have: channels of norms far above the rest."""

    def plant(training: Training) -> None:
        with torch.no_grad():
            for parameter in training.model.parameters():
                if parameter.dim() == 1 and parameter.numel() > 8 and 0.5 < parameter.mean() < 1.5:
                    parameter[3::16] *= factor

    return plant


def rounded(training: Training, number: int) -> None:
    """Keep the master weights in bfloat16."""
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.copy_(parameter.bfloat16().float())


def kernels(kind: str) -> P.Plant:
    """Attention by another kernel of transformers."""
    return lambda training: training.model.set_attn_implementation(kind)


def threads(number: int) -> P.Plant:
    """Another number of threads."""
    return lambda training: torch.set_num_threads(number)


def channels_last(training: Training) -> None:
    """Images with channels last."""
    training.model.to(memory_format=torch.channels_last)
    training.batches = [
        [
            {k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in batch.items()}
            for batch in step
        ]
        for step in training.batches
    ]


def checkpointed(training: Training) -> None:
    """Activations are computed again in backward."""
    training.model.gradient_checkpointing_enable({"use_reentrant": False})


def in_parts(parts: int) -> P.Plant:
    """Every batch as so many micro-batches."""

    def plant(training: Training) -> None:
        training.batches = [
            [{k: v.chunk(parts)[i] for k, v in batch.items()} for batch in step for i in range(parts)]
            for step in training.batches
        ]

    return plant


def by_hand(norm: float) -> P.Plant:
    """The gradients' norm clipped by code of one's own."""

    def act(training: Training, number: int) -> None:
        grads = [p.grad for p in training.model.parameters() if p.grad is not None]
        total = torch.stack([g.double().square().sum() for g in grads]).sum().sqrt().item()
        for grad in grads:
            grad.mul_(min(1.0, norm / (total + 1e-6)))

    return P.after_backward(act)


def optimizer_of(name: str, **options: Any) -> P.Plant:
    """An optimizer of torch over all parameters that are trained."""
    return P.optimizer(
        lambda model: getattr(torch.optim, name)([p for p in model.parameters() if p.requires_grad], **options)
    )


def warmup(steps: int = 4, late: int = 0) -> P.Plant:
    """A linear warm-up."""
    return P.scheduled(lambda held: torch.optim.lr_scheduler.LambdaLR(held, lambda n: min(1.0, (n + 1 + late) / steps)))


def cosine(of: int = 6) -> P.Plant:
    """A cosine schedule."""
    return P.scheduled(lambda held: torch.optim.lr_scheduler.CosineAnnealingLR(held, of))


def lr_set_by_hand(steps: int = 4) -> P.Plant:
    """The same warm-up, set in the groups before each step."""

    def act(training: Training, number: int) -> None:
        groups = training.optimizer.param_groups
        rates = training.__dict__.setdefault("_rates", [group["lr"] for group in groups])
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * min(1.0, (number + 1) / steps)

    return P.before_step(act)


def later(step: int, plant: P.Plant) -> P.Plant:
    """Something that goes wrong only from a step on."""
    return P.before_step(lambda training, number: plant(training) if number == step else None)


def matrices(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter usually decays."""
    return parameter.squeeze().dim() > 1


def forgotten(training: Training, number: int) -> None:
    """The optimizer's state is lost, as when a checkpoint is loaded without it."""
    if number == 1:
        training.optimizer.state.clear()


def scaled_backward(factor: float) -> P.Plant:
    """The loss that is propagated is scaled, the one that is reported is not."""
    return lambda training: setattr(training, "backward", lambda loss: (loss * factor).backward())


def times(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Times a number."""
    return lambda value: value * factor


def after(path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> P.Plant:
    """A module's output is changed by the code around it."""
    return P.around(path, lambda forward, *args, **kwargs: _first(forward(*args, **kwargs), change))


def before(path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> P.Plant:
    """A module's code uses another version of its first input."""
    return P.around(path, lambda forward, x, *args, **kwargs: forward(change(x), *args, **kwargs))


def bad_backward(path: str, change: Callable[[torch.Tensor], torch.Tensor]) -> P.Plant:
    """A module computes the right value, with a wrong gradient of its input."""
    return P.around(path, lambda forward, x, *args, **kwargs: forward(P.wrong_gradient(x, change), *args, **kwargs))


def detached(path: str) -> P.Plant:
    """A module's code cuts its first input off."""
    return before(path, torch.Tensor.detach)


def _first(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


class Ema:
    """A moving average of some modules' weights in a copy that the model holds."""

    def __init__(self, source: str, copy: str, decay: float):
        self.source, self.copy, self.decay = source, copy, decay

    def __call__(self, training: Training, number: int) -> None:
        """Move the copy."""
        with torch.no_grad():
            for mean, new in zip(
                training.at(self.copy).parameters(), training.at(self.source).parameters(), strict=True
            ):
                mean.mul_(self.decay).add_(new, alpha=1 - self.decay)


def decayed(
    weight: float, which: Callable[[str, nn.Parameter], bool] = lambda name, p: True, **options: Any
) -> P.Plant:
    """AdamW whose decay is for some parameters only."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        held = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        groups = [
            {"params": [p for n, p in held if which(n, p)]},
            {"params": [p for n, p in held if not which(n, p)], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3, weight_decay=weight, **options)

    return P.optimizer(make)
