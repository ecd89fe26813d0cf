"""A factor inside of a module on one side, in the code that calls it on the other: the border lies elsewhere, no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, tanh
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.comparison.planted import TASKS, Model, Recorder, said
from tests.toys import GPT, gpt, module, replaced, scaled_gradient

FACTOR = np.float32(7.3)


def forward_of(change: Callable[[Tensor], Tensor]) -> type[GPT]:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = change(self.embed(ids))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

    return type("GPT", (GPT,), {"forward": forward})


def inside(change: Callable[[Tensor], Tensor] = lambda x: x * FACTOR) -> Model:
    model = gpt()
    replaced(model, "embed", forward=lambda s, ids: change(nn.Embedding.forward(s, ids)))
    return model


def outside(change: Callable[[Tensor], Tensor] = lambda x: x * FACTOR) -> Model:
    model = gpt()
    model.__class__ = forward_of(change)
    return model


def note(factor: str) -> str:
    return (
        f"output 0 of embed is {factor} times A's in B, and what is made of it agrees: the factor stands elsewhere, and is left "
        "out here"
    )


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("turned", [False, True])
def test_a_factor_that_stands_elsewhere_is_a_note(run: Recorder, task: str, turned: bool) -> None:
    files = [run(inside(), task=task), run(outside(), task=task)]
    found = probe.compare(*(files[::-1] if turned else files))
    assert found.verdict is Verdict.ALIGNED
    assert [text for text in found.warnings if "factor" in text] == [note("7.3" if turned else "0.136986")]


@pytest.mark.parametrize("task", TASKS)
def test_a_smaller_fault_behind_it_is_found(run: Recorder, task: str) -> None:
    wrong = outside()
    module(wrong, "layers.1.norm2").eps = 1e-3
    found = probe.compare(run(inside(), task=task), run(wrong, task=task))
    assert [(each.phase, each.path) for each in found.divergences] == [(Phase.FORWARD, "layers.1.norm2")]
    assert said(found, note("0.136986"))


@pytest.mark.parametrize("wrong", [gpt, lambda: outside(lambda x: x * FACTOR * 1.001)], ids=["none", "another"])
def test_a_factor_that_is_not_made_up_for_is_a_divergence(run: Recorder, wrong: Callable[[], Model]) -> None:
    found = probe.compare(run(inside()), run(wrong()))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "embed")
    assert not said(found, "stands elsewhere")


def activated(x: Tensor) -> Tensor:
    return tanh(x) + np.float32(0.5)


BORDER = (
    "at output 0 of embed the sides differ, and what modules are given of it agrees: what the module does on one side, the code behind it does "
    "on the other; it is not judged"
)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("turned", [False, True])
def test_an_activation_that_stands_elsewhere_is_a_note(run: Recorder, task: str, turned: bool) -> None:
    """As in ``nn.BatchNorm(act="relu")`` and ``nn.Dense(activation="relu")``; the gradients that come back are those of two tensors."""
    files = [run(inside(activated), task=task), run(outside(activated), task=task)]
    found = probe.compare(*(files[::-1] if turned else files))
    assert found.verdict is Verdict.ALIGNED and said(found, BORDER)


@pytest.mark.parametrize("task", TASKS)
def test_a_smaller_fault_behind_such_an_activation_is_found(run: Recorder, task: str) -> None:
    wrong = outside(activated)
    module(wrong, "layers.1.norm2").eps = 1e-3
    found = probe.compare(run(inside(activated), task=task), run(wrong, task=task))
    assert [(each.phase, each.path) for each in found.divergences] == [(Phase.FORWARD, "layers.1.norm2")]


@pytest.mark.parametrize(
    "wrong", [gpt, lambda: outside(lambda x: activated(x) * np.float32(1.001))], ids=["none", "another"]
)
def test_an_activation_that_the_other_side_lacks_is_a_divergence(run: Recorder, wrong: Callable[[], Model]) -> None:
    found = probe.compare(run(inside(activated)), run(wrong()))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "embed")
    assert not said(found, BORDER)


@pytest.mark.parametrize("task", TASKS)
def test_an_activation_that_passes_back_another_gradient_is_found(run: Recorder, task: str) -> None:
    wrong = outside(lambda x: activated(scaled_gradient(x, 1.01)))
    first = probe.compare(run(inside(activated), task=task), run(wrong, task=task)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, "embed")


@pytest.mark.parametrize("task", TASKS)
def test_another_factor_in_backward_is_found(run: Recorder, task: str) -> None:
    wrong = outside(lambda x: scaled_gradient(x, 1.01) * FACTOR)
    first = probe.compare(run(inside(), task=task), run(wrong, task=task)).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.BACKWARD, "")
    assert first.evidence[0] == "the gradient of embed's output 0 differs"


def _gated(change: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        y = self.norm2(x)
        return x + self.mlp.down(self.mlp.act(self.mlp.gate(change(y))) * self.mlp.up(second(y)))

    return forward


def test_all_that_is_made_of_it_has_to_agree(run: Recorder) -> None:
    def model(norm: float, change: float, second: float) -> Model:
        made = gpt()
        replaced(made, "layers.1.norm2", forward=lambda s, x: nn.RMSNorm.forward(s, x) * np.float32(norm))
        uses = [(lambda x, by=by: x if by == 1 else x * np.float32(by)) for by in (change, second)]
        replaced(made, "layers.1", forward=_gated(*uses))
        return made

    a = run(model(2, 1, 1))
    assert probe.compare(a, run(model(1, 2, 2))).verdict is Verdict.ALIGNED
    found = probe.compare(a, run(model(1, 2, 1)))
    assert found.first_divergence is not None and found.first_divergence.path == "layers.1.norm2"


def test_what_the_caller_returns_is_a_use(run: Recorder) -> None:
    def by_hand(self: Any, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x)) * FACTOR

    a, b = gpt(), gpt()
    replaced(a, "layers.1.mlp.down", forward=lambda s, x: nn.Linear.forward(s, x) * FACTOR)
    replaced(b, "layers.1.mlp", forward=by_hand)
    found = probe.compare(run(a), run(b))
    assert found.verdict is Verdict.ALIGNED and said(found, "output 0 of layers.1.mlp.down is 0.136986 times A's in B")


def test_a_tolerance_of_ones_own_is_held(run: Recorder) -> None:
    first = probe.compare(run(inside()), run(outside()), rtol=1e-4, atol=1e-6).first_divergence
    assert first is not None and first.path == "embed"


@pytest.mark.parametrize("path", ["layers.1.attn", "layers.1.norm2"])
def test_what_is_inside_of_a_module_or_before_it_is_no_use(run: Recorder, path: str) -> None:
    """It agrees, as all does that comes before a wrong factor: of what the module itself returns that tells nothing."""

    class Holding(nn.Module):
        def __init__(self, inner: nn.Module, factor: float) -> None:
            super().__init__(inner=inner)
            self.factor = np.float32(factor)

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            return y if self.factor == 1 else y * self.factor

    def holding(factor: float) -> Model:
        model = gpt()
        parent, _, name = path.rpartition(".")
        setattr(module(model, parent), name, Holding(module(model, path), factor))
        return model

    first = probe.compare(run(holding(1)), run(holding(1.01))).first_divergence
    assert first is not None and first.path == path


def test_a_module_that_returns_what_it_was_given_is_not_compensated_by_other_uses_of_that(run: Recorder) -> None:
    class Same(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = np.float32(factor)

        def forward(self, x: Tensor) -> Tensor:
            return x if self.factor == 1 else x * self.factor

    def layer(self: Any, x: Tensor) -> Tensor:
        y = self.attn(self.norm1(x))
        return x + self.same(y) + self.mlp(y)

    def model(factor: float) -> Model:
        made = gpt()
        module(made, "layers.1").same = Same(factor)
        replaced(made, "layers.1", forward=layer)
        return made

    first = probe.compare(run(model(1)), run(model(1.01))).first_divergence
    assert first is not None and first.path == "layers.1.same"
