"""Logits of routers, which the whole model returns beside its own: whose code passes another gradient back to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, softmax
from probe.records import Phase
from tests.comparison.planted import Model, Recorder, step_of
from tests.toys import GPT, MLP, gpt, loss_of, module, scaled_gradient

WIDTH = 16


class Routed(nn.Module):
    """An MLP of which the output is weighed by a softmax over what a router returns."""

    def __init__(self, mlp: MLP, factor: float = 1.0) -> None:
        super().__init__(router=nn.Linear(WIDTH, WIDTH, bias=False), mlp=mlp, factor=factor)

    def forward(self, x: Tensor) -> Tensor:
        self.logits = self.router(x)
        return self.mlp(x) * softmax(scaled_gradient(self.logits, self.factor)) * 4.0


class Returning(GPT):
    """It returns what the routers returned, too."""

    def forward(self, ids: Tensor) -> Any:
        logits = super().forward(ids)
        return logits, tuple(layer.mlp.logits for layer in self.layers)


def model(wrong: int | None = None) -> Model:
    made = gpt()
    made.__class__ = Returning
    nn.manual_seed(3)
    for n in range(3):
        block = module(made, f"layers.{n}")
        block.mlp = Routed(block.mlp, 0.5 if n == wrong else 1.0)
    return made


def with_loss(factor: float) -> Any:
    """Add the routers' squares to the loss; its gradient may have a factor that the number does not show."""

    def change(made: Model, ids: Tensor, number: int) -> Tensor:
        logits, routers = made(ids)
        loss = loss_of(logits, ids)
        for each in routers:
            loss = loss + (scaled_gradient(each, factor) ** 2).mean() * 0.1
        loss.backward()
        return loss

    return step_of(change)


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_caller_of_the_router_where_those_behind_agree(run: Recorder, wrong: int) -> None:
    files = [run(made, step=with_loss(1.0)) for made in (model(), model(wrong))]
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, f"layers.{wrong}.mlp")
    assert first.evidence[0] == f"the gradient of the root's output 1.{wrong} differs"


def test_what_uses_all_of_them_otherwise_is_not_a_layers(run: Recorder) -> None:
    files = [run(model(), step=with_loss(factor)) for factor in (1.0, 3.0)]
    first = probe.compare(*files).first_divergence
    assert first is not None and first.path == ""
    assert np.isfinite(first.error)


def test_one_of_them_that_the_loss_weighs_otherwise_is_not_a_layers(run: Recorder) -> None:
    """All of its gradient has a factor: nothing shows that its layer used it."""

    def unused(wrong: int) -> Any:
        def change(made: Model, ids: Tensor, number: int) -> Tensor:
            logits, routers = made(ids)
            loss = loss_of(logits, ids)
            for n, each in enumerate(routers):
                loss = loss + (scaled_gradient(each, 3.0 if n == wrong else 1.0) ** 2).mean() * 0.1
            loss.backward()
            return loss

        return step_of(change)

    def alone(router: nn.Module, x: Tensor) -> Tensor:
        router.logits = router.router(x)
        return router.mlp(x)

    made = [model(), model()]
    for each in made:
        for n in range(3):
            module(each, f"layers.{n}.mlp").__class__ = type("Routed", (Routed,), {"forward": alone})
    first = probe.compare(
        *(run(each, step=unused(wrong)) for each, wrong in zip(made, (-1, 0), strict=True))
    ).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.LOSS, "")


def test_a_router_that_its_block_does_not_learn_by_is_the_blocks(run: Recorder) -> None:
    """What the loss passes back is next to nothing beside what is lost: a multiple, as far as rounding tells."""
    files = []
    for factor in (1.0, 0.0):
        made = model()
        module(made, "layers.1.mlp").factor = factor
        files.append(run(made, step=with_loss(1e-6)))
    first = probe.compare(*files).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, "layers.1.mlp")
