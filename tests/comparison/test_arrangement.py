"""What is computed in another order, or in other parts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, operation
from probe.comparison.result import Kind, Verdict
from tests.comparison.planted import TASKS, Model, Recorder, changed, said
from tests.toys import GPT, LENGTH, MLP, WIDTH, evaluate, module, replaced


class Sorter(nn.Module):
    """Runs a module over its rows in an order of its own, or in two parts; returns them as they came."""

    def __init__(self, how: str, inner: Model) -> None:
        super().__init__(how=how, inner=inner)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        if self.how == "as they are":
            return self.inner(rows).reshape(*x.shape)
        order = np.random.default_rng(1).permutation(rows.shape[0])
        if self.how == "in parts":
            order = np.arange(rows.shape[0])
            parts = [self.inner(rows[order[:5]]).data, self.inner(rows[order[5:]]).data]
            spread = operation(np.concatenate(parts), (x, lambda g: g.reshape(x.shape)))
            return spread.reshape(*x.shape)
        return self.inner(rows[order])[np.argsort(order)].reshape(*x.shape)


def _with_sorter(how: str, inner: Callable[[], Model] = nn.SiLU) -> GPT:
    return changed(lambda m: setattr(module(m, "layers.1.mlp"), "after", Sorter(how, inner()))
                   or replaced(m, "layers.1.mlp", forward=lambda s, x: s.after(MLP.forward(s, x))))  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_rows_in_another_order_inside_a_call_that_returns_the_same(run: Recorder, task: str) -> None:
    a, b = run(_with_sorter("as they are"), task=task), run(_with_sorter("shuffled"), task=task)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert found.warnings == (
        "inside layers.1.mlp.after the elements stand in another order, or are split otherwise: what is returned agrees, "
        "what is inside is not judged",
    )
    inside = {slot.verdict for slot in found["layers.1.mlp.after.inner"]}
    assert inside == {"not judged"}


def test_rows_in_parts_inside_a_call_that_returns_the_same(run: Recorder) -> None:
    def forward_only(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        return evaluate(model, optimizer, number)

    found = probe.compare(
        run(_with_sorter("as they are"), step=forward_only), run(_with_sorter("in parts"), step=forward_only)
    )
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert said(found, "inside layers.1.mlp.after the elements stand in another order, or are split otherwise")


def test_rows_in_another_order_that_are_not_put_back(run: Recorder) -> None:
    wrong = _with_sorter("shuffled")
    replaced(wrong, "layers.1.mlp.after", forward=lambda s, x: s.inner(x.reshape(-1, WIDTH)[::-1]).reshape(*x.shape))
    first = probe.compare(run(_with_sorter("as they are")), run(wrong)).first_divergence
    assert first is not None and first.path == "layers.1.mlp.after"


def test_what_vanishes_behind_a_call_is_found_where_it_is(run: Recorder) -> None:
    class Plus(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + self.much

    def model(much: float) -> GPT:
        made = _with_sorter("as they are", lambda: Plus(much=much))
        replaced(made, "layers.1.mlp.after", forward=lambda s, x: s.inner(x) - s.inner.much)
        return made

    first = probe.compare(run(model(0.5)), run(model(0.25))).first_divergence
    assert first is not None and first.path == "layers.1.mlp.after.inner"


class Window(nn.Module):
    """The difference of neighbours; what it is given without a row behind the last one, it pads by itself."""

    by = np.float32(1)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.shape[1] > LENGTH else _padded(x)

        def back(g: np.ndarray) -> np.ndarray:
            behind = np.pad(g, ((0, 0), (0, 1), (0, 0)))
            return behind - self.by * np.roll(behind, 1, 1)

        return operation(x.data[:, :-1] - self.by * x.data[:, 1:], (x, back))


def _padded(x: Tensor) -> Tensor:
    return operation(np.pad(x.data, ((0, 0), (0, 1), (0, 0))), (x, lambda g: g[:, :-1]))


def _with_window(*, inside: bool, by: float = 1) -> GPT:
    def change(model: Model) -> None:
        module(model, "layers.1.mlp").window = Window()
        replaced(model, "layers.1.mlp.window", by=np.float32(by))
        replaced(model, "layers.1.mlp", forward=lambda s, x: MLP.forward(s, s.window(x if inside else _padded(x))))

    return changed(change)


@pytest.mark.parametrize("task", TASKS)
def test_padding_by_the_module_on_one_side_and_before_it_on_the_other(run: Recorder, task: str) -> None:
    """MindSpore's ``pad_mode="same"``, and ``F.pad`` before a convolution without padding."""
    a, b = run(_with_window(inside=False), task=task), run(_with_window(inside=True), task=task)
    for found in (probe.compare(a, b), probe.compare(b, a)):
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        assert found.warnings == (
            "at input 0 of layers.1.mlp.window the shapes differ, and what is computed of it agrees: the same steps in another order (padding, "
            "pooling, the norm of one token); it is not judged",
        )


@pytest.mark.parametrize("task", TASKS)
def test_another_shape_where_what_is_returned_differs_is_a_divergence(run: Recorder, task: str) -> None:
    a, b = run(_with_window(inside=False), task=task), run(_with_window(inside=True, by=1.001), task=task)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.SHAPE, "layers.1.mlp")
