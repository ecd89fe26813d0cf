"""What only one of the two sides has."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Kind, Verdict
from probe.errors import ProbeWarning
from probe.records import Phase, Role
from probe.report.text import render
from tests.comparison.planted import Clean, Model, Recorder, changed
from tests.toys import GPT, MLP, batch, gpt, loss_of, plain_step, replaced


def test_an_input_that_only_one_side_has_lowers_confidence(run: Recorder) -> None:
    def with_mask(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.Attention.forward(self, x)

    def block(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), mask=Tensor(np.ones((3, 3), np.float32)))
        return x + self.mlp(self.norm2(x))

    def masked() -> GPT:
        return changed(
            lambda m: (replaced(m, "layers.1.attn", forward=with_mask), replaced(m, "layers.1", forward=block))
        )

    a = run()
    assert probe.compare(a, run(masked())).verdict is Verdict.ALIGNED
    wrong = masked()
    replaced(wrong, "layers.1.attn", forward=lambda s, x, mask: with_mask(s, x) * 1.01)
    surely = probe.compare(a, run(changed(lambda m: replaced(
        m, "layers.1.attn", forward=lambda s, x: nn.Attention.forward(s, x) * 1.01)))).first_divergence  # fmt: skip
    less = probe.compare(a, run(wrong)).first_divergence
    assert surely is not None and less is not None
    assert surely.path == less.path == "layers.1.attn"
    assert less.confidence < surely.confidence
    assert any(text.startswith("inputs that are not known to agree: mask") for text in less.evidence)


def _skips(number: int) -> type[GPT]:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for name, layer in self.layers.children():
            x = x if name == str(number) else layer(x)
        return self.head(self.norm(x))

    return type("GPT", (GPT,), {"forward": forward})


def _skipping(model: Model) -> None:
    model.__class__ = _skips(1)


@pytest.mark.parametrize("turned", [False, True])
def test_a_layer_that_one_side_has_and_does_not_call(run: Recorder, turned: bool) -> None:
    files = [run(), run(changed(_skipping))]
    found = probe.compare(*(files[::-1] if turned else files))
    first, caller, other = found.first_divergence, "B" if turned else "A", "A" if turned else "B"
    assert first is not None and (first.phase, first.kind) == (Phase.FORWARD, Kind.MISSING)
    assert [ref.path for ref in (*first.a, *first.b)] == ["", ""], "what is not called is up to the code that calls it"
    assert first.evidence[0] == (
        f"the model does not call its child layers.1 on {other}: {caller} calls it between layers.0 and layers.2"
    )
    assert first.hint == f"look at the code that calls layers.1: {other} does not call layers.1"
    assert len(found.divergences) == 1
    text = render(found).plain
    assert f"step 0 · forward · missing · {other} does not call layers.1\n" in text
    assert re.search(rf"[├└] layers\.1 .*not called on {other}, the first\n", text)


def test_gradients_of_zeros_do_not_make_a_layer_that_is_not_called_a_used_one(run: Recorder) -> None:
    """As buffers of gradients that are made beforehand have them."""

    def step(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        loss = loss_of(model(batch(number)), batch(number))
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = Tensor(np.zeros_like(parameter.data)) if parameter.grad is None else parameter.grad
        optimizer.step()
        return loss

    found = probe.compare(run(step=step), run(changed(_skipping), step=step))
    first = found.first_divergence
    assert first is not None and first.hint == "look at the code that calls layers.1: B does not call layers.1"
    assert found.divergences == (first,), "nor are its gradients"


def test_a_child_that_one_side_does_not_call_is_up_to_its_caller(run: Recorder) -> None:
    without = changed(lambda m: replaced(m, "layers.1.mlp", forward=lambda s, x: s.down(s.act(s.gate(x)))))
    found = probe.compare(run(), run(without))
    first = found.first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.FORWARD, Kind.MISSING, "layers.1.mlp")
    assert first.evidence[0] == (
        "layers.1.mlp does not call its child layers.1.mlp.up on B: A calls it between layers.1.mlp.act and "
        "layers.1.mlp.down"
    )
    assert "step 0 · forward · missing · B does not call up\n" in render(found).plain


class _Holding(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_an_uncalled_module_whose_caller_is_on_one_side_only_is_named_itself(run: Recorder) -> None:
    def held(model: Model) -> None:
        vars(model.layers)["1"] = _Holding(vars(model.layers)["1"])

    first = probe.compare(run(changed(held)), run(changed(_skipping))).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.FORWARD, Kind.MISSING)
    assert [ref.path for ref in (*first.a, *first.b)] == ["layers.1.inner", "layers.1"]
    assert first.evidence[0] == (
        "layers.1.inner is called on A only, alone in what calls it: B has layers.1 and does not call it"
    )
    assert not first.uncalled


def _by_hand(self: Any, x: Tensor) -> Tensor:
    y = self.act(self.gate(x)) * (x @ self.up.weight.swapaxes(0, 1) + self.up.bias)
    return self.down(y * 1.01)


def test_a_module_of_which_the_weights_are_used_without_a_call_is_not_blamed(run: Recorder) -> None:
    by_hand = changed(lambda m: replaced(m, "layers.1.mlp", forward=_by_hand))
    first = probe.compare(run(), run(by_hand)).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INTRODUCED, "layers.1.mlp")
    assert first.evidence[:2] == (
        "the input 0 of layers.1.mlp.down differs, what was there before it agrees",
        "it is made between act and down; not compared there: layers.1.mlp.up (in A only)",
    )


def _gate_by_hand(self: Any, x: Tensor) -> Tensor:
    gate = (x @ self.gate.weight.swapaxes(0, 1) + self.gate.bias) * 1.01
    return self.down(self.act(gate) * self.up(x))


def test_a_module_of_which_the_weights_are_used_is_named_where_what_it_returns_is_handed_on(run: Recorder) -> None:
    by_hand = changed(lambda m: replaced(m, "layers.1.mlp", forward=_gate_by_hand))
    first = probe.compare(run(), run(by_hand)).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INTRODUCED, "layers.1.mlp.gate")
    assert first.evidence[0] == (
        "A calls layers.1.mlp.gate; only its weights are compared, with layers.1.mlp.gate of B"
    )
    assert first.hint == "look at what B has in the place of layers.1.mlp.gate, of which the weights alone are compared"


def test_inputs_with_other_names_are_paired_by_their_content(run: Recorder) -> None:
    def by_keyword(name: str) -> GPT:
        model = gpt()
        replaced(model, "layers.1.mlp", forward=lambda s, **given: MLP.forward(s, given[name]))
        replaced(model, "layers.1", forward=lambda s, x: _call_mlp(s, x, name))
        return model

    def _call_mlp(self: Any, x: Tensor, name: str) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(**{name: self.norm2(x)})

    found = probe.compare(run(by_keyword("hidden")), run(by_keyword("x")))
    assert found.verdict is Verdict.ALIGNED
    pairs = {(s.slot_a, s.slot_b) for s in found["layers.1.mlp"] if s.role in (Role.INPUT, Role.GRAD_TOTAL)}
    assert pairs == {("hidden", "x")}


def test_what_could_not_be_recorded_is_passed_on(clean: Clean, run: Recorder) -> None:
    def odd(model: Model, optimizer: nn.Optimizer, number: int) -> Tensor:
        probe.log("odd", Tensor(np.array([None])))
        return plain_step(model, optimizer, number)

    with pytest.warns(ProbeWarning, match="could not be recorded"):
        there = run(step=odd)
    found = probe.compare(clean("statistics"), there)
    assert found.verdict is Verdict.ALIGNED
    assert [text for text in found.warnings if text.startswith("B: loss value odd of the root could not be recorded")]


@pytest.mark.parametrize("side", "AB")
def test_a_layer_that_is_skipped_returns_its_input_which_is_said_first(clean: Clean, run: Recorder, side: str) -> None:
    skipped = run(changed(lambda model: replaced(model, "layers.1", forward=lambda self, x: x)))
    pair = (clean("statistics"), skipped) if side == "B" else (skipped, clean("statistics"))
    first = probe.compare(*pair).first_divergence
    assert first is not None and first.evidence[0] == f"layers.1 returns its input unchanged on {side}"
