"""A mixture of experts: tokens flattened as [s·b] against [b·s], and choices that rounding makes fall otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, no_grad
from probe.comparison.noise import tolerance
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from tests.comparison.planted import TASKS, Model, Recorder, said
from tests.toys import BATCH, LENGTH, VOCABULARY, WIDTH, batch, replaced

GATE, EXPERTS = "moe.gate", "moe"
ORDER = "inside moe the tokens stand in another order, as they are given to it, with two axes changed"


class Gate(nn.Module):
    """Scores of four experts; which has the most is returned beside them, or not."""

    def forward(self, rows: Tensor) -> Any:
        scores = rows @ self.weight
        return (scores, Tensor(scores.data.argmax(-1))) if self.tells else scores


class Experts(nn.Module):
    """Multiplies each token with the sum of its scores, and some tokens with a factor."""

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        given = rows[::-1] if self.is_reversed else rows
        scores = self.gate(given)
        scores = scores[0] if isinstance(scores, tuple) else scores
        factors = np.ones((rows.shape[0], 1), np.float32)
        factors[: self.tokens] = self.factor
        made = rows.data * scores.data.sum(-1, keepdims=True) * factors
        return Tensor(made.astype(self.dtype)).reshape(*x.shape)


class Routed(nn.Module):
    """An embedding, experts that are given [b, s, h] or [s, b, h], and a head."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = self.moe(x.swapaxes(0, 1) if self.is_turned else x)
        return self.head(x.swapaxes(0, 1) if self.is_turned else x)


def routed(*, turned: bool = False, tells: bool = False, tokens: int = 0, factor: float = 0.5, dtype: Any = np.float32,
           is_reversed: bool = False) -> Model:  # fmt: skip
    nn.manual_seed(3)
    gate = Gate(weight=nn.Parameter(np.random.default_rng(1).random((WIDTH, 4), np.float32)), tells=tells)
    moe = Experts(gate=gate, tokens=tokens, factor=np.float32(factor), dtype=dtype, is_reversed=is_reversed)
    return Routed(embed=nn.Embedding(VOCABULARY, WIDTH), moe=moe, head=nn.Linear(WIDTH, VOCABULARY), is_turned=turned)


def forward_only(model: Model, optimizer: nn.Optimizer, number: int) -> float:
    with no_grad():
        model(batch(number))
    return 1.0


def compared(run: Recorder, task: str, a: Model, b: Model) -> Comparison:
    return probe.compare(*(run(model, task=task, step=forward_only) for model in (a, b)))


# Tokens in another order


@pytest.mark.parametrize("task", TASKS)
def test_tokens_that_are_flattened_in_another_order(run: Recorder, task: str) -> None:
    found = compared(run, task, routed(), routed(turned=True))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert said(
        found, f"{ORDER} or the shares of ranks one behind the other: what it returns is judged, what is inside is not"
    )
    assert {slot.verdict for slot in found[GATE] if slot.step == 0 and slot.phase.label == "forward"} == {"not judged"}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("is_turned_in_a", [False, True])
def test_a_fault_in_the_block_is_no_matter_of_order(run: Recorder, task: str, is_turned_in_a: bool) -> None:
    wrong = routed(turned=not is_turned_in_a, tokens=BATCH * LENGTH)
    found = compared(run, task, routed(turned=is_turned_in_a), wrong)
    first = found.first_divergence
    assert first is not None and (first.path, first.a[0].slot) == (EXPERTS, "0")
    assert "order" not in first.hint and not any("order" in text for text in first.evidence)
    assert said(found, ORDER)


def test_another_order_than_the_one_in_which_they_were_given_is_a_fault(run: Recorder) -> None:
    first = compared(run, "tensor", routed(), routed(turned=True, is_reversed=True)).first_divergence
    assert first is not None and first.path == EXPERTS
    assert f"the input 0 of {GATE} differs, what was there before it agrees" in first.evidence


@pytest.mark.parametrize("task", TASKS)
def test_where_both_are_given_the_same_layout_order_matters(run: Recorder, task: str) -> None:
    first = compared(run, task, routed(), routed(is_reversed=True)).first_divergence
    assert first is not None
    assert f"the input 0 of {GATE} differs, what was there before it agrees" in first.evidence


# Tokens in another order where the call that flattens them has no counterpart


AFTER = "at gate the tokens stand in another order, as two axes are changed in what was made before"


class Flat(nn.Module):
    """The same without a module for the block: what flattens the tokens is the model's own code."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = self.norm(x.swapaxes(0, 1) if self.is_turned else x)
        rows = x.reshape(-1, WIDTH)
        rows = rows[::-1] if self.is_reversed else rows
        scores = self.gate(rows.reshape(*x.shape) if self.is_deep else rows)
        scores = (scores[0] if isinstance(scores, tuple) else scores).data.reshape(-1, 4)
        factors = np.ones((len(scores), 1), np.float32)
        factors[: self.tokens] = 0.5
        made = (x.data.reshape(-1, WIDTH) * scores.sum(-1, keepdims=True) * factors).astype(self.dtype)
        y = self.last(Tensor(made).reshape(*x.shape))
        return self.head(y.swapaxes(0, 1) if self.is_turned else y) * self.scale


def flat(*, turned: bool = False, tells: bool = False, tokens: int = 0, dtype: Any = np.float32, scale: float = 1.0,
         is_reversed: bool = False, deep: bool = False) -> Model:  # fmt: skip
    nn.manual_seed(3)
    gate = Gate(weight=nn.Parameter(np.random.default_rng(1).random((WIDTH, 4), np.float32)), tells=tells)
    return Flat(embed=nn.Embedding(VOCABULARY, WIDTH), norm=nn.RMSNorm(WIDTH), gate=gate, last=nn.RMSNorm(WIDTH),
                head=nn.Linear(WIDTH, VOCABULARY), is_turned=turned, tokens=tokens, dtype=dtype, scale=np.float32(scale),
                is_reversed=is_reversed, is_deep=deep)  # fmt: skip


@pytest.mark.parametrize(
    ("task", "deep"), [("statistics", False), ("tensor", False), ("tensor", True)],
    ids=["statistics", "tensor", "flattened by the gate on one side"],
)  # fmt: skip
def test_tokens_that_the_code_between_two_modules_flattens(run: Recorder, task: str, deep: bool) -> None:
    """What the model returns is no help: a wrong factor stands at its end."""
    found = compared(run, task, flat(deep=deep), flat(turned=True, scale=1.01))
    first = found.first_divergence
    assert first is not None and (first.path, first.a[0].slot, len(found.divergences)) == ("", "0", 1)
    assert said(found, f"{AFTER}: what is made of them is judged, they are not")


def test_tokens_that_are_flattened_in_a_third_order_are_a_fault(run: Recorder) -> None:
    first = compared(run, "tensor", flat(), flat(turned=True, is_reversed=True, scale=1.01)).first_divergence
    assert first is not None and first.path == ""
    assert "the input 0 of gate differs, what was there before it agrees" in first.evidence


def test_what_is_handed_on_for_a_token_that_is_routed_otherwise_is_no_fault(run: Recorder) -> None:
    found = compared(run, "tensor", flat(tells=True, dtype=np.float16), flat(tokens=1, dtype=np.float16))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    (text,) = (text for text in found.warnings if "tokens alone" in text)
    assert text.startswith("the input 0 of last differs (rel ")
    assert text.endswith(" in 1 of 12 tokens alone (verified), as rounding can route them otherwise: it is not judged")


def test_what_is_handed_on_for_many_tokens_is_a_fault(run: Recorder) -> None:
    a, b = flat(tells=True, dtype=np.float16), flat(tokens=5, dtype=np.float16)
    first = compared(run, "tensor", a, b).first_divergence
    assert first is not None and "the input 0 of last differs, what was there before it agrees" in first.evidence


# Choices


def choosing(tokens: int = 0, factor: float = 0.5, dtype: Any = np.float16, tells: bool = False) -> Model:
    return routed(tokens=tokens, factor=factor, dtype=dtype, tells=tells)


def test_a_token_that_is_routed_otherwise_is_no_fault(run: Recorder) -> None:
    a, b = choosing(tells=True), choosing(tokens=1)
    found = compared(run, "tensor", a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    (text,) = (text for text in found.warnings if "tokens alone" in text)
    assert text.startswith("the output 0 of moe differs (rel ")
    assert text.endswith(" in 1 of 12 tokens alone (verified), as rounding can route them otherwise: it is not judged")


def test_a_token_that_is_routed_otherwise_among_those_in_another_order(run: Recorder) -> None:
    """Both gates tell which experts they choose, each in its own order: nothing says which choice is another one."""
    a = routed(dtype=np.float16, tells=True)
    found = compared(run, "tensor", a, routed(turned=True, tokens=1, dtype=np.float16, tells=True))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert said(found, ORDER) and said(found, "in 1 of 12 tokens alone (verified)")


def test_sketches_do_not_tell_whether_it_is_one_token(run: Recorder) -> None:
    found = compared(run, "statistics", choosing(tells=True), choosing(tokens=1))
    assert found.verdict is Verdict.UNDECIDED
    (text,) = (text for text in found.warnings if "of the tokens can make it" in text)
    assert text.endswith(
        "can make it that rounding routes otherwise: record with task='tensor' to see how many they are"
    )


@pytest.mark.parametrize(
    ("b", "task"),
    [
        (choosing(tokens=5), "tensor"),
        (choosing(tokens=BATCH * LENGTH, factor=3.0), "tensor"),
        (choosing(tokens=BATCH * LENGTH, factor=3.0), "statistics"),
        (choosing(tokens=1, tells=True), "tensor"),
    ],
    ids=["many tokens", "all tokens", "all tokens, by sketches", "the same choices"],
)
def test_what_no_choice_explains_is_a_fault(run: Recorder, b: Model, task: str) -> None:
    first = compared(run, task, choosing(tells=True), b).first_divergence
    assert first is not None and (first.path, first.a[0].slot) == (EXPERTS, "0")


def test_integers_that_are_made_of_integers_are_no_choice(run: Recorder) -> None:
    """Positions, say, which one side's module hands out beside the rest."""

    class Positions(Gate):
        def forward(self, rows: Tensor, ids: Tensor) -> Any:
            return rows @ self.weight, ids

    def counted(made: Model) -> Model:
        made.moe.gate = Positions(weight=made.moe.gate.weight)
        replaced(
            made, "moe.gate", __call__=lambda s, rows: Positions.__call__(s, rows, Tensor(np.arange(len(rows.data))))
        )
        return made

    pair = counted(choosing()), choosing(tokens=1)
    first = compared(run, "tensor", *pair).first_divergence
    assert first is not None and first.path == EXPERTS


def test_float32_makes_no_token_choose_otherwise(run: Recorder) -> None:
    pair = [choosing(dtype=np.float32, tells=True), choosing(tokens=1, dtype=np.float32)]
    first = compared(run, "tensor", *pair).first_divergence
    assert first is not None and first.path == EXPERTS


def test_how_many_tokens_may_be_routed_otherwise() -> None:
    assert 6 < 72 * tolerance.choice_limit(4e-3, 72) < 7
    assert tolerance.choice_limit(4e-3, 10**6) == pytest.approx(4 * 4e-3, rel=0.05)
    assert tolerance.choice_limit(1.0, 8) == 1.0


class Weighing(nn.Module):
    """Returns the largest of four scores, and which it is."""

    def forward(self, rows: Tensor) -> Any:
        scores = (rows @ self.weight).data
        chosen = scores.argmax(-1)
        chosen[: self.others] = scores[: self.others].argmin(-1)
        weights = np.take_along_axis(scores, chosen[:, None], -1)[:, 0] * self.factor
        return Tensor(weights.astype(np.float16)), Tensor(chosen)


class Weighed(nn.Module):
    def forward(self, ids: Tensor) -> Tensor:
        rows = Tensor(self.embed(ids).data.reshape(-1, WIDTH).astype(np.float16))
        return self.head(self.embed(ids)) * float(self.gate(rows)[0].data.mean() * 0 + 1)


def weighed(others: int = 0, factor: float = 1.0) -> Model:
    nn.manual_seed(3)
    weight = nn.Parameter(np.random.default_rng(1).random((WIDTH, 4), np.float32).astype(np.float16))
    gate = Weighing(weight=weight, others=others, factor=factor)
    return Weighed(embed=nn.Embedding(VOCABULARY, WIDTH), gate=gate, head=nn.Linear(WIDTH, VOCABULARY))


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_weights_of_other_experts_are_as_many_as_other_choices(run: Recorder, factor: float) -> None:
    found = compared(run, "statistics", weighed(), weighed(1, factor))
    slots = {
        slot.slot_a: slot.verdict
        for slot in found[GATE.removeprefix("moe.")]
        if slot.role.label == "output" and slot.step == 0
    }
    assert slots["0"] == ("introduced" if factor != 1 else "not judged"), slots
