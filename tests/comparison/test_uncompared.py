"""What is recorded and takes part in no comparison is said, with what it is; so are flags that differ where the numbers agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from tests.comparison.planted import Recorder
from tests.toys import GPT, Step, gpt, plain_step, replaced

ALONE = "recorded, and not compared for want of a counterpart: "
Results = Callable[[Tensor], dict[str, Any]]


def _returning(beside: Results, layers: tuple[int, ...] = (1,)) -> GPT:
    """Make a model of which attention returns more than what is used."""
    model = gpt()

    def attention(self: Any, x: Tensor) -> Any:
        y = nn.Attention.forward(self, x)
        return {"y": y, **beside(y)}

    def block(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))["y"]
        return x + self.mlp(self.norm2(x))

    for number in layers:
        replaced(model, f"layers.{number}.attn", forward=attention)
        replaced(model, f"layers.{number}", forward=block)
    return model


def _twice(y: Tensor) -> Tensor:
    return Tensor(2 * y.data)


def _highest(y: Tensor) -> np.ndarray:
    return y.data.argmax(-1)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (lambda y: {"more": _twice(y)}, lambda y: {}, (f"{ALONE}output more of layers.1.attn in A",)),
        (lambda y: {}, lambda y: {"more": _twice(y)}, (f"{ALONE}output more of layers.1.attn in B",)),
        (lambda y: {}, lambda y: {"same": Tensor(y.data.copy())}, ()),
        (lambda y: {}, lambda y: {"empty": Tensor(y.data[:0])}, ()),
        (
            lambda y: {"which": Tensor(_highest(y))},
            lambda y: {"which": Tensor(3 * _highest(y).astype(np.float32))},
            ("could not be compared: output which of layers.1.attn (int64 against float32)",),
        ),
    ],
    ids=["in A", "in B", "what was compared", "nothing in it", "integers against floats"],
)
def test_what_a_call_returns_beside(run: Recorder, a: Results, b: Results, said: tuple[str, ...]) -> None:
    found = probe.compare(run(_returning(a)), run(_returning(b)))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == said


def test_several_are_named_together(run: Recorder) -> None:
    layers = (0, 1, 2)
    found = probe.compare(
        run(_returning(lambda y: {}, layers), steps=2),
        run(_returning(lambda y: {"more": _twice(y)}, layers), steps=2),
    )
    assert found.warnings == (f"{ALONE}output more of layers.*.attn ×3 in B",)


class Table(nn.Module):
    """Returns what is handed to all layers."""

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(np.arange(7, dtype=np.float32))


@pytest.mark.parametrize("is_made_by_a_module", [False, True])
def test_what_is_handed_to_several_is_named_once(run: Recorder, is_made_by_a_module: bool) -> None:
    model = gpt()
    if is_made_by_a_module:
        model.table = Table()

    def attention(self: Any, x: Tensor, mask: Tensor) -> Tensor:
        return nn.Attention.forward(self, x)

    def block(self: Any, x: Tensor) -> Tensor:
        mask = model.table(x) if is_made_by_a_module else Tensor(np.arange(7, dtype=np.float32))
        x = x + self.attn(self.norm1(x), mask=mask)
        return x + self.mlp(self.norm2(x))

    for number in range(3):
        replaced(model, f"layers.{number}.attn", forward=attention)
        replaced(model, f"layers.{number}", forward=block)
    found = probe.compare(run(), run(model))
    assert found.verdict is Verdict.ALIGNED
    named = [text for text in found.warnings if text.startswith(ALONE)]
    assert named == ([] if is_made_by_a_module else [f"{ALONE}input mask of layers.0.attn in B"])
    assert ("table" in (*found.only_b, *found.unneeded_b)) is is_made_by_a_module


def test_behind_a_finding_nothing_is_said_of_it(run: Recorder) -> None:
    wrong = _returning(lambda y: {"more": _twice(y)})
    wrong.norm.eps = 1e-2
    found = probe.compare(run(_returning(lambda y: {})), run(wrong))
    assert found.verdict is Verdict.DIVERGED and found.warnings == ()


def test_what_the_other_side_was_not_to_record_is_not_missed(run: Recorder) -> None:
    found = probe.compare(run(gpt(), modules=["layers.0.*"]), run(_returning(lambda y: {"more": _twice(y)})))
    assert not any(text.startswith(ALONE) for text in found.warnings)


def _logging(count: int) -> Step:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        for n in range(count):
            probe.log("seen", Tensor(np.full(3, n + 0.5, np.float32)))
        return plain_step(model, optimizer, number)

    return step


@pytest.mark.parametrize(("a", "b", "side"), [(1, 0, "A"), (0, 1, "B"), (1, 2, "B")])
def test_what_was_logged_more_often_on_one_side(run: Recorder, a: int, b: int, side: str) -> None:
    found = probe.compare(run(step=_logging(a)), run(step=_logging(b)))
    assert found.warnings == (f"{ALONE}value seen of the root in {side}",)


def _with_buffer(array: np.ndarray | None, by: int = 0) -> GPT:
    """Make a model with a buffer, to which each call of the model adds something."""
    model = gpt()

    def forward(self: Any, ids: Tensor) -> Tensor:
        if by:
            self.table.data = self.table.data + by
        return GPT.forward(self, ids)

    replaced(model, "norm")
    model.__class__ = type("GPT", (GPT,), {"forward": forward})
    if array is not None:
        model.table = nn.Buffer(array)
    return model


SIX = np.arange(6)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (_with_buffer(SIX * 1.0), _with_buffer(None), f"{ALONE}buffer table of the root in A"),
        (
            _with_buffer(SIX * 1.0),
            _with_buffer(SIX[:4] * 1.0),
            "could not be compared: buffer table of the root (shape [6] against [4])",
        ),
        (
            _with_buffer(SIX, by=1),
            _with_buffer(SIX, by=2),
            "after step 0 the buffer table of the root holds other integers (100.00% of its elements); before it both agree",
        ),
    ],
    ids=["one side only", "another shape", "other integers"],
)
def test_buffers(run: Recorder, a: GPT, b: GPT, said: str) -> None:
    found = probe.compare(run(a, steps=2), run(b, steps=2))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == (said,)


class Kept(nn.AdamW):
    """Keeps something beside its states."""

    kept: np.ndarray | None = None

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        super().update(p, g, group, state)
        if self.kept is not None and p.ndim == 1:
            state["kept"] = Tensor(self.kept)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((SIX, None), f"{ALONE}state weight.kept of layers.*.norm* ×6, state bias.kept of layers.*.mlp.gate ×3"),
        ((SIX, SIX[:4]), "could not be compared: state weight.kept of layers.*.norm* ×6, "),
    ],
)
def test_states_of_optimizers(run: Recorder, kept: tuple[np.ndarray | None, np.ndarray | None], said: str) -> None:
    def recorded(array: np.ndarray | None) -> Any:
        model = gpt()
        optimizer = Kept(model.parameters(), lr=1e-3)
        optimizer.kept = array
        return run(model, optimizer=optimizer)

    found = probe.compare(*map(recorded, kept))
    assert found.verdict is Verdict.ALIGNED
    assert len(found.warnings) == 1 and found.warnings[0].startswith(said)


def test_a_weight_that_needs_a_gradient_on_one_side_only(run: Recorder) -> None:
    models = gpt(), gpt()
    for model, learns in zip(models, (True, False), strict=True):
        model.unused = nn.Parameter(np.ones(3, np.float32), requires_grad=learns)
    found = probe.compare(*map(run, models))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == ("weights that need a gradient (requires_grad) on one side only: unused in A",)


def test_a_weight_that_one_optimizer_alone_was_given(run: Recorder) -> None:
    def recorded(is_given: bool, learns: bool = True) -> Any:
        model = gpt()
        model.unused = nn.Parameter(np.ones(3, np.float32), requires_grad=learns)
        given = [each for each in model.parameters() if is_given or each is not model.unused]
        return run(model, optimizer=nn.AdamW(given, lr=1e-3))

    found = probe.compare(recorded(True), recorded(False))
    assert found.verdict is Verdict.ALIGNED
    assert found.warnings == (
        "weights that need a gradient on both sides, and one side's optimizer alone was given: unused in A",
    )
    assert probe.compare(recorded(True, False), recorded(False, False)).warnings == ()
