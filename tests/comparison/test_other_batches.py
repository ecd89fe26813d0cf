"""Batches, passes and states that are not the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, no_grad
from probe.comparison.result import Kind, Verdict
from probe.records import Role
from tests.comparison.planted import TASKS, Model, Recorder, changed, said
from tests.toys import GPT, VOCABULARY, WIDTH, batch, evaluate, gpt, loss_of, plain_step, replaced


class Scaled(GPT):
    """A model with a second input, which does not depend on the batch."""

    def forward(self, ids: Tensor, scale: Tensor) -> Tensor:
        x = self.embed(ids) * scale
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _evaluating(shape: tuple[int, int]) -> Callable[..., float]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        ids = np.random.default_rng(7).integers(0, VOCABULARY, shape)
        with no_grad():
            model(Tensor(ids), Tensor(np.full(WIDTH, 0.5, np.float32)))
        return 0.0

    return step


@pytest.mark.parametrize("task", ["structure", *TASKS])
@pytest.mark.parametrize("shape", [(4, 6), (2, 9), (3, 4)], ids=["batch", "length", "as many elements"])
def test_an_evaluation_of_another_batch_is_not_aligned(run: Recorder, task: str, shape: tuple[int, int]) -> None:
    def scaled() -> GPT:
        return changed(lambda m: setattr(m, "__class__", Scaled))

    found = probe.compare(
        run(scaled(), step=_evaluating((2, 6)), task=task), run(scaled(), step=_evaluating(shape), task=task)
    )
    if task == "structure" and shape == (3, 4):
        assert found.verdict is Verdict.UNDECIDED
        return
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "0")
    assert first.evidence == (f"shape [2, 6] against {list(shape)}",)
    assert found.divergences == (first,)


class WithLoss(GPT):
    """A model that returns its loss, which has one size whatever the batch has."""

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        logits = super().forward(ids)
        return loss_of(logits, ids), logits


def _half_of(rows: int) -> Callable[..., Tensor]:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss, _ = model(Tensor(np.concatenate([batch(number).data, batch(number + 1).data])[:rows]))
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("task", TASKS)
def test_a_part_of_the_batch_where_the_model_returns_its_loss(run: Recorder, task: str) -> None:
    paths = [
        run(changed(lambda m: setattr(m, "__class__", WithLoss)), step=_half_of(rows), task=task) for rows in (4, 2)
    ]
    first = probe.compare(*paths).first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "0")
    assert first.evidence == ("shape [4, 6] against [2, 6]",)


def test_another_batch_where_the_model_itself_was_not_recorded(run: Recorder) -> None:
    paths = []
    for shape in ((2, 6), (4, 6)):
        model = changed(lambda m: setattr(m, "__class__", Scaled))
        paths.append(run(model, step=_evaluating(shape), modules=["layers.1*"]))
    found = probe.compare(*paths)
    first = found.first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INPUTS, "layers.1")
    assert first.evidence == (
        "the input 0 of layers.1 differs already, and nothing before it was compared",
        "shape [2, 6, 16] against [4, 6, 16]",
    )
    assert not said(found, "weights that were not compared"), "they were not recorded"


FLIPS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "channels": lambda x: x[:, ::-1],
    "rows": lambda x: x[[2, 0, 3, 1]],
    "height and width": lambda x: x.swapaxes(2, 3),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("flip", FLIPS)
def test_an_input_in_another_order_is_another_input(run: Recorder, task: str, flip: str) -> None:
    def step(change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., Tensor]:
        def made(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            images = np.random.default_rng(3).random((4, 3, 5, 5)).astype(np.float32)
            loss = (model(Tensor(np.ascontiguousarray(change(images)))) ** 2.0).mean()
            loss.backward()
            return loss

        return made

    def net() -> Model:
        nn.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    found = probe.compare(run(net(), step=step(lambda x: x), task=task), run(net(), step=step(FLIPS[flip]), task=task))
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "0")
    assert found.divergences == (first,)


def test_passes_without_gradients_that_one_side_did_not_make_are_said(run: Recorder) -> None:
    def evaluations(count: int) -> Callable[..., Tensor]:
        def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            loss = plain_step(model, optimizer, number)
            for _ in range(count):
                evaluate(model, optimizer, number)
            return loss

        return step

    found = probe.compare(run(step=evaluations(3)), run(step=evaluations(1)))
    assert found.verdict is Verdict.ALIGNED
    text = "A made 3 forward passes without gradients in a step, B 1: those that both made are compared"
    assert found.warnings == (text,)
    assert found.only_a == ()


def test_an_input_that_one_side_alone_is_given_and_that_changes_something(run: Recorder) -> None:
    def masked(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.Attention.forward(self, x if mask is None else x * mask)

    def block(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + (self.attn(self.norm1(x)) if mask is None else self.attn(self.norm1(x), mask=mask))
        return x + self.mlp(self.norm2(x))

    def forward(self: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x, mask=mask)
        return self.head(self.norm(x))

    def model() -> GPT:
        made = gpt()
        made.__class__ = type("GPT", (GPT,), {"forward": forward})
        for number in range(3):
            replaced(made, f"layers.{number}", forward=block)
            replaced(made, f"layers.{number}.attn", forward=masked)
        return made

    def step(mask: Tensor | None) -> Callable[..., Tensor]:
        def made(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            loss = loss_of(model(batch(), mask=mask) if mask is not None else model(batch()), batch())
            loss.backward()
            return loss

        return made

    mask = Tensor(np.array([1, 1, 1, 1, 0, 0], np.float32)[:, None])
    found = probe.compare(run(model(), step=step(mask)), run(model(), step=step(None)))
    first = found.first_divergence
    assert first is not None and (first.kind, first.path, first.a[0].slot) == (Kind.INPUTS, "", "mask")
    assert first.evidence == (
        "the model is given mask on A only", "the input 0 of layers.0.attn.q differs first",
    )  # fmt: skip
    assert first.hint == "give B the same mask, or look at its default there"
    assert found.divergences == (first,)
    ones = Tensor(np.ones((6, 1), np.float32))
    assert probe.compare(run(model(), step=step(ones)), run(model(), step=step(None))).verdict is Verdict.ALIGNED


def test_a_state_that_is_handed_in_again_is_no_other_input(run: Recorder) -> None:
    """Its error grows from step to step past what a fresh input may differ by."""

    class Map(nn.Module):
        """1 − 1.9 x²: doubles what its input is off, whatever that is."""

        def forward(self, x: Tensor) -> Tensor:
            return x * x * np.float32(-1.9 * self.factor) + np.float32(1)

    class Recurrent(nn.Module):
        def __init__(self, factor: float) -> None:
            nn.manual_seed(0)
            super().__init__(inner=Map(factor=factor), read=nn.Linear(WIDTH, 3))

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            state = self.inner(state)
            return self.read(state) + x, state

    def step() -> Callable[..., Tensor]:
        kept = [np.linspace(-0.9, 0.95, 2 * WIDTH, dtype=np.float32).reshape(2, WIDTH)]

        def made(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
            y, state = model(Tensor(np.full(3, number, np.float32)), Tensor(kept[0]))
            kept[0] = state.data.copy()
            loss = (y * y).mean()
            loss.backward()
            return loss

        return made

    found = probe.compare(run(Recurrent(1.0), step=step(), steps=12), run(Recurrent(1 + 2e-7), step=step(), steps=12))
    states = [slot for slot in found.slots if slot.role is Role.INPUT and (slot.path_a, slot.slot_a) == ("", "1")]
    assert max(slot.error for slot in states) > 16 * 2.0**-24, "else it would pass as a fresh input"
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
