"""Errors that no hint is for: random ones of every size, in modules of every sort."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.torch.hint_faults_forms import cast_head, noise
from tests.torch.hint_faults_modules import attend, norm, rotary
from tests.torch.hint_faults_training import act
from tests.torch.hint_runs import Fault, Run, linear, of, stepping, two, weight, with_forward


def wrong(function: Callable[..., Tensor], size: float, seed: int = 5) -> Callable[..., Tensor]:
    """Return a function with a random error of a size relative to its values."""

    def computed(self: Any, x: Tensor) -> Tensor:
        y = function(self, x)
        return y + size * y.detach().pow(2).mean().sqrt() * noise(seed).to(y.dtype)

    return computed


def outputs() -> Iterator[tuple[str, Fault]]:
    parts = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), linear)
    sorts: dict[str, tuple[str, Callable[..., Tensor], dict[str, Any]]] = {
        "module": ("Of", lambda s, x: x * 1.5, {}),
        "activation": ("Act", lambda s, x: F.gelu(x), {}),
        "norm": ("MyNorm", norm(), {"weight": weight}),
        "softmax": ("Softmax", lambda s, x: F.softmax(x, -1), {}),
        "attention": ("Attention", attend(), parts),
        "rotary": ("RotaryEmbedding", rotary(1e4), {}),
        "block": ("Block", lambda s, x: x + s.inner(x), {"inner": linear}),
    }
    for name, (class_name, function, members) in sorts.items():
        for size in (3e-5, 1.0):
            yield f"{name}, {size:g}", two("", class_name, function, wrong(function, size), **members)
    yield "numbers times random ones", two("", "Of", lambda s, x: x, lambda s, x: x * (1 + 0.3 * noise()))
    yield "random signs", two("", "Of", lambda s, x: x, lambda s, x: x * noise().sign())
    yield "other numbers", two("", "Of", lambda s, x: x, lambda s, x: 0 * x + noise())
    yield (
        "another matrix",
        two(
            "",
            "Of",
            lambda s, x: x @ noise(1)[0, :10, :].T @ noise(2)[0, :10, :],
            lambda s, x: x @ noise(3)[0, :10, :].T @ noise(4)[0, :10, :],
        ),
    )
    yield "both random", two("", "Of", wrong(lambda s, x: x, 0.01, 6), wrong(lambda s, x: x, 0.01, 7))
    yield (
        "in bfloat16",
        Fault(
            "",
            Run(of(lambda s, x: x.bfloat16()), after=cast_head),
            Run(of(lambda s, x: wrong(lambda s, x: x, 0.3)(s, x).bfloat16()), after=cast_head),
        ),
    )
    yield (
        "linear",
        Fault(
            "",
            Run(lambda: with_forward(linear(), nn.Linear.forward)),
            Run(lambda: with_forward(linear(), wrong(nn.Linear.forward, 1e-3))),
        ),
    )


def elsewhere() -> Iterator[tuple[str, Fault]]:
    for size in (1e-4, 0.1):
        yield (
            f"weight, {size:g}",
            Fault(
                "",
                Run(linear),
                Run(
                    linear,
                    after=lambda net, size=size: net.tested.weight.add_(size * noise().flatten()[:256].reshape(16, 16)),
                ),
            ),
        )
        change = lambda g, size=size: g + size * g.pow(2).mean().sqrt() * noise()  # noqa: E731
        yield f"gradient of an activation, {size:g}", Fault("", Run(act(lambda g: g)), Run(act(change)))
    yield (
        "logits",
        Fault(
            "",
            Run(linear),
            Run(
                linear,
                step=stepping(
                    lambda x, y: F.cross_entropy(
                        (x + 0.1 * x.detach() * torch.sin(x.detach())).flatten(0, 1), y.flatten()
                    )
                ),
            ),
        ),
    )
    yield (
        "a function of the input",
        two(
            "",
            "Of",
            lambda s, x: x,
            lambda s, x: x @ torch.eye(16).roll(1, 0) * 0.5 + x @ noise(1)[0, :10].T @ noise(2)[0, :10] * 0.1,
        ),
    )


NOISE: dict[str, Fault] = dict(each for family in (outputs, elsewhere) for each in family())
