"""An input that one side's model alone is given and hands to its layers: behind what is wrong in them only if it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, cross_entropy
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from tests.comparison.planted import Recorder, said
from tests.toys import GPT, batch, gpt, module, replaced

LABELS = np.arange(12).reshape(2, 6)
ONES = np.ones((2, 6), np.float32)  # truth values would be a mask that masks nothing
KEPT = np.array([[1, 1, 1, 1, 0, 0]] * 2)
COUNT = np.array(12)


class Plain(GPT):
    """Hands its layers what it is given besides the ids and the labels."""

    factor, first = 1.0, 0

    def forward(self, ids: Tensor, *args: Tensor, labels: Tensor | None = None, **given: Tensor) -> Any:
        x = self.embed(ids)
        args, given = self.made(x, *args, **given)
        for number, layer in enumerate(self.layers):
            x = layer(x, *args, **given) if number >= self.first else layer(x)
        logits = self.head(self.norm(x * np.float32(self.factor)))
        return logits if labels is None else cross_entropy(logits, labels)

    def made(self, x: Tensor, *args: Tensor, **given: Tensor) -> Any:
        return args, given


class Making(Plain):
    """Makes a mask of what it is given, and positions."""

    def made(self, x: Tensor, *args: Tensor, **given: Tensor) -> Any:
        positions = Tensor(np.arange(6))
        return args, {"mask": Tensor(positions.data < given["lengths"].data[:, None]), "positions": positions}


class Late(Plain):
    """Hands what it is given to its second and third layer."""

    first = 1


class Weighing(Plain):
    """Uses what it is given in its own code, as much as `share` says, and hands nothing on."""

    share = 0.0

    def made(self, x: Tensor, *args: Tensor, **given: Tensor) -> Any:
        if given:
            self.factor = 1 + self.share * given["types"].data[..., None]
        return (), {}


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Tensor(2 * x.data.astype(np.float32))


class Through(Plain):
    """Hands on what a module of its own makes of what it is given."""

    def made(self, x: Tensor, *args: Tensor, **given: Tensor) -> Any:
        return args, {name: self.doubled(tensor) for name, tensor in given.items()}


class Beside(Plain):
    """Hands on what a module of its own makes of the embeddings alone, as cosines are."""

    def made(self, x: Tensor, *args: Tensor, **given: Tensor) -> Any:
        return args, {"angles": self.doubled(x)}


def layer(self: Any, x: Tensor, mask: Tensor | None = None, **given: Tensor) -> Tensor:
    own = {name: Tensor(np.arange(6)) for name in self.makes}
    x = x + self.attn(self.norm1(x), **given, **own) * self.share
    return x + self.mlp(self.norm2(x)) * (np.float32(1) if mask is None else mask.data[..., None].astype(np.float32))


def attention(self: Any, x: Tensor, **given: Tensor) -> Tensor:
    return nn.Attention.forward(self, x * np.float32(self.scale))


def model(kind: type[GPT] = Plain, change: Callable[[Any], object] | None = None) -> GPT:
    made = gpt()
    made.__class__ = type("GPT", (kind,), {})
    if kind in (Through, Beside):
        made.doubled = Doubled()
    for number in range(3):
        replaced(made, f"layers.{number}", forward=layer).share = np.float32(1)
        module(made, f"layers.{number}").makes = ()
        replaced(made, f"layers.{number}.attn", forward=attention).scale = 1
    if change is not None:
        change(made)
    return made


def compared(
    run: Recorder, a: Any, b: Any, change: Any = None, kinds: tuple[type[GPT], type[GPT]] = (Plain, Plain),
    change_a: Any = None,
) -> Comparison:  # fmt: skip
    def step(given: Any) -> Any:
        args, named = given if isinstance(given, tuple) else ((), given)

        def made(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
            more = [Tensor(each) for each in args]
            loss = model(batch(number), *more, **{name: Tensor(each) for name, each in named.items()})
            loss = loss if "labels" in named else cross_entropy(loss, Tensor(LABELS))
            loss.backward()
            return loss

        return made

    return probe.compare(run(model(kinds[0], change_a), step=step(a)), run(model(kinds[1], change), step=step(b)))


def share(path: str) -> Callable[[Any], None]:
    return lambda made: setattr(module(made, path), "share", np.float32(0.8))


def scale(path: str) -> Callable[[Any], None]:
    return lambda made: setattr(module(made, path), "scale", 1.3)


def place(found: Comparison) -> tuple[object, str]:
    first = found.first_divergence
    assert first is not None
    return first.kind, first.path


def test_it_is_behind_a_layer_of_which_the_one_before_did_not_get_it(run: Recorder) -> None:
    assert place(compared(run, {"mask": ONES}, {}, share("layers.1"), (Late, Plain))) == (Kind.INPUTS, "")
    assert place(compared(run, {"mask": ONES}, {}, share("layers.2"), (Late, Plain))) == (Kind.INTRODUCED, "layers.2")


def test_what_a_module_made_of_it_is_followed(run: Recorder) -> None:
    assert place(compared(run, {"mask": ONES}, {}, kinds=(Through, Plain))) == (Kind.INPUTS, "")
    beside = compared(run, {"mask": ONES}, {}, share("layers.0"), (Beside, Plain))
    assert place(beside) == (Kind.INTRODUCED, "layers.0")


@pytest.mark.parametrize("sides", ["A", "B"])
def test_layers_that_had_an_input_and_agree_rule_it_out(run: Recorder, sides: str) -> None:
    given = ({"mask": ONES}, {}) if sides == "A" else ({}, {"mask": ONES})
    found = compared(run, *given, share("layers.1"))
    assert place(found) == (Kind.INTRODUCED, "layers.1")
    assert said(
        found, f"the model is given mask on {sides} only: what is wrong first is not its work, since layers.0 was handed "
        "the same, and what it returns agrees",
    )  # fmt: skip


def test_it_is_behind_the_first_layer_that_gets_it(run: Recorder) -> None:
    found = compared(run, {}, ((ONES,), {}), share("layers.0"))
    first = found.first_divergence
    assert first is not None and place(found) == (Kind.INPUTS, "") and first.b[0].slot == "1"
    assert first.evidence[:2] == (
        "the model is given argument 1 (float32 [2, 6]) on B only", "the input 0 of layers.0.norm2 differs first"
    )  # fmt: skip
    assert first.hint == "give A argument 1 (float32 [2, 6]) too, or look at its default there"
    assert not said(found, "what is wrong first is not its work")


def test_layers_of_another_class_do_not_rule_it_out(run: Recorder) -> None:
    def other(made: Any) -> None:
        made.layers.__getattribute__("1").__class__ = type("OtherBlock", (type(module(made, "layers.1")),), {})

    theirs = model(change=lambda made: (other(made), share("layers.1")(made)))
    mine = model(change=other)

    def step(**given: Any) -> Any:
        def made(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Any:
            loss = cross_entropy(model(batch(number), **given), Tensor(LABELS))
            loss.backward()
            return loss

        return made

    assert place(probe.compare(run(mine, step=step(mask=Tensor(ONES))), run(theirs, step=step()))) == (Kind.INPUTS, "")


def test_it_is_not_behind_a_module_that_is_not_handed_it(run: Recorder) -> None:
    """A's attention alone is handed what A's model is given too, which is another tensor."""
    found = compared(run, {"mask": ONES, "count": COUNT}, {"mask": ONES}, lambda made: setattr(
        module(made, "layers.0.norm1"), "eps", 1e-2))  # fmt: skip
    assert place(found) == (Kind.INTRODUCED, "layers.0.norm1")


def makes(made: Any) -> None:
    """Let the first layer make, of nothing that it is given, what its attention is handed."""
    module(made, "layers.0").makes = ("places",)


TYPES = {"types": np.array([[0, 0, 1, 1, 1, 0]] * 2)}


def test_it_is_not_behind_a_call_that_was_given_the_same_and_not_it(run: Recorder) -> None:
    found = compared(run, TYPES, {}, scale("layers.0.attn"), (Weighing, Weighing), makes)
    first = found.first_divergence
    assert first is not None and place(found) == (Kind.INTRODUCED, "layers.0.attn")
    assert first.evidence[0] == "the input 0 of layers.0.attn.q differs, what was there before it agrees"
    assert found.inputs.only_a == ("types",)


def test_it_is_behind_what_the_model_s_own_code_makes_of_it(run: Recorder) -> None:
    found = compared(
        run, TYPES, {}, None, (Weighing, Weighing), lambda made: (makes(made), setattr(made, "share", 0.5))
    )
    first = found.first_divergence
    assert first is not None and place(found) == (Kind.INPUTS, "")
    assert first.evidence[:2] == ("the model is given types on A only", "the input 0 of norm differs first")
    assert first.hint == "give B the same types, or look at its default there"


def test_it_may_be_behind_a_call_that_something_else_hands_it(run: Recorder) -> None:
    """What is no tensor, and so is not recorded, may hold it."""

    def handing(made: Any) -> None:
        def forward(self: Any, x: Tensor, **given: Tensor) -> Tensor:
            x = x + self.attn(self.norm1(x), types=Tensor(TYPES["types"]))
            return x + self.mlp(self.norm2(x))

        replaced(made, "layers.0", forward=forward)

    found = compared(run, TYPES, {}, scale("layers.0.attn"), (Weighing, Weighing), handing)
    assert place(found) == (Kind.INPUTS, "")


def test_how_many_labels_there_are_is_not_behind_a_layer_that_is_handed_it(run: Recorder) -> None:
    found = compared(run, {"num_items_in_batch": COUNT}, {}, scale("layers.0.attn"))
    assert place(found) == (Kind.INTRODUCED, "layers.0.attn")
    assert place(compared(run, {"count": COUNT}, {}, scale("layers.0.attn"))) == (Kind.INPUTS, "")


def test_code_between_layers_that_agree_is_wrong_itself(run: Recorder) -> None:
    found = compared(run, {"mask": ONES}, {}, lambda made: setattr(made, "factor", 2.0))
    assert place(found) == (Kind.INTRODUCED, "")


def test_what_each_side_has_under_a_name_of_its_own_is_on_both(run: Recorder) -> None:
    found = compared(run, {"lengths": np.array([4, 4])}, ((KEPT == 1,), {}), share("layers.0"), (Making, Plain))
    assert found.inputs.only_a == ("lengths",) and found.inputs.only_b == ("1",)
    assert place(found) == (Kind.INTRODUCED, "layers.0")


def test_a_mask_under_another_name_may_be_the_one_that_lacks(run: Recorder) -> None:
    found = compared(run, {"count": COUNT}, ((KEPT == 1,), {}))
    first = found.first_divergence
    assert first is not None and place(found) == (Kind.INPUTS, "") and first.a[0].slot == "1"
    assert first.evidence[:2] == (
        "the model is given argument 1 (bool [2, 6]) on B only", "the model is given count on A only"
    )  # fmt: skip
    assert first.hint == (
        "give A argument 1 (bool [2, 6]) too, or look at its default there; or A has it as count, under another name"
    )


def test_other_labels_are_not_behind_a_layer_beside_a_mask_on_one_side(run: Recorder) -> None:
    found = compared(run, {"labels": LABELS}, ((KEPT == 1,), {"labels": np.roll(LABELS, -1, 1)}))
    first = found.first_divergence
    assert first is not None and first.kind is Kind.INPUTS and first.a[0].slot == "1"
    assert said(found, "the model's input labels differs; what is wrong first was not made of it")
    found = compared(run, {"labels": LABELS}, ((ONES,), {"labels": np.roll(LABELS, -1, 1)}), share("layers.1"))
    assert place(found) == (Kind.INTRODUCED, "layers.1")


def test_a_mask_of_ones_on_one_side_is_no_difference(run: Recorder) -> None:
    assert compared(run, {}, {"mask": ONES}).verdict is Verdict.ALIGNED
