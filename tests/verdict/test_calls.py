"""Which call is which: calls in another order or number, calls of one side alone, parts that other models call, micro-batches in one call, and which argument is which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probe
from probe.answer.result import Kind, Verdict
from probe.records import Phase, Role
from probe.report.text import render
from probe.verdict.steps.slots import pair_slots
from tests.toy import nn
from tests.toy.tensor import Tensor, softmax
from tests.toys import GPT, HEADS, WIDTH, batch, gpt, loss_of, module, plain_step, replaced
from tests.verdict.planted import Model, Recorder, changed, in_micro_batches
from tests.verdict.tensors import drawn, tensor_of

# ---- Calls are aligned by what they were given: one too many, or another order, shifts nothing behind it.

WIDTH_ORDER = 6


class Reused(nn.Module):
    """One layer, run several times; what it is given is scaled before each."""

    def __init__(self, factors: tuple[float, ...], extra: int | None = None) -> None:
        nn.manual_seed(0)
        super().__init__(layer=nn.Linear(WIDTH_ORDER, WIDTH_ORDER), head=nn.Linear(WIDTH_ORDER, WIDTH_ORDER))
        self.factors, self.extra = factors, extra

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for n, factor in enumerate(self.factors):
            if n == self.extra:
                self.layer(x * 7.0)  # nobody uses it
            total = total + self.layer(x * factor)
        return self.head(total)


def step(model: Any, optimizer: Any, number: int) -> Tensor:
    x = Tensor(np.random.default_rng(number).standard_normal((4, WIDTH_ORDER)).astype(np.float32))
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def test_an_extra_call_in_the_middle_shifts_nothing(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    b = run(Reused((1.0, 2.0, 3.0), extra=1), step=step)
    for pair, name, whose in (((a, b), "B", ""), ((b, a), "A", "A's ")):
        found = probe.compare(*pair)
        assert found.verdict is Verdict.ALIGNED, found.first_divergence
        text = (
            f"B calls layer (Linear) one time {'more' if name == 'B' else 'less'} in step 0: {whose}call 1 of 4, "
            "between call 0 of layer and call 2 of layer, has no counterpart"
        )
        assert text in found.warnings
        kind, places = ("called more often", ([], ["layer"])) if name == "B" else ("called less often", (["layer"], []))
        (change,) = found.as_json()["changes"]
        told = {"kind": kind, "a": places[0], "b": places[1], "code": "other-number-of-calls", "text": text}
        assert change == told | {"facts": change["facts"]}
        assert (found.only_a, found.only_b) == ((), ()), "the module has a counterpart, this one call has none"
        inputs = [slot for slot in found["layer"] if slot.role.label == "input"]
        assert len(inputs) == 3 and {slot.metrics.status.value for slot in inputs} == {"equal"}


def test_calls_in_another_order_are_paired_by_what_they_are_given(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    b = run(Reused((3.0, 1.0, 2.0)), step=step)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert "B calls in another order than A in step 0, told by what they are given and return: layer" in found.warnings


def test_as_many_calls_that_nothing_contradicts_keep_their_order(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    b = run(Reused((1.0, 2.5, 3.0)), step=step)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.DIVERGED
    assert [slot.call for slot in found["layer"] if slot.role.label == "input"] == [0, 1, 2]
    assert not any("order" in text or "more often" in text for text in found.warnings)


def test_the_extra_call_is_the_odd_one_even_without_hashes(run: Recorder) -> None:
    a = run(Reused((1.0, 2.0, 3.0)), step=step)
    close = Reused((1.0 + 1e-6, 2.0 + 1e-6, 3.0 + 1e-6), extra=2)
    found = probe.compare(a, run(close, step=step))
    text = "call 2 of 4, between call 1 of layer and call 3 of layer, has no counterpart"
    assert f"B calls layer (Linear) one time more in step 0: {text}" in found.warnings


def test_a_model_whose_calls_agree_is_told_nothing(run: Recorder) -> None:
    found = probe.compare(run(step=plain_step), run(step=plain_step))
    assert found.verdict is Verdict.ALIGNED and not found.warnings


class Kinds(nn.Module):
    """Positions of several kinds, made by one module that is given the same each time, as Gemma 3 does over a set of names."""

    def __init__(self, kinds: tuple[float, ...], wrong: float = 1.0) -> None:
        nn.manual_seed(0)
        super().__init__(positions=Positions(), head=nn.Linear(WIDTH_ORDER, WIDTH_ORDER))
        self.kinds, self.wrong = kinds, wrong

    def forward(self, x: Tensor) -> Tensor:
        made = {}
        for kind in self.kinds:
            self.positions.kind = kind * (self.wrong if kind == 2.0 else 1.0)
            made[kind] = self.positions(x)
        total = x
        for kind in sorted(made):
            total = total + made[kind]
        return self.head(total)


class Positions(nn.Module):
    kind = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.kind


@pytest.mark.parametrize("rounding", [1.0, 1.0 + 1e-7])
def test_calls_that_are_given_the_same_are_told_by_what_they_return(run: Recorder, rounding: float) -> None:
    a, b = Kinds((1.0, 2.0, 3.0)), Kinds((3.0, 1.0, 2.0), rounding)
    found = probe.compare(run(a, step=step), run(b, step=step))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert (
        "B calls in another order than A in step 0, told by what they are given and return: positions" in found.warnings
    )


def test_a_wrong_result_is_no_other_order(run: Recorder) -> None:
    a, b = Kinds((1.0, 2.0, 3.0)), Kinds((1.0, 2.0, 3.0), 1.5)  # what is wrong is what the next call returns
    first = probe.compare(run(a, step=step), run(b, step=step)).first_divergence
    assert first is not None and first.path == "positions"


# ---- Calls that one side alone makes, between what is right and what is wrong: blamed only where they may have a part in it.


class Angles(nn.Module):
    """Makes what every layer is handed beside its input."""

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(np.linspace(0.9, 1.1, x.shape[1] * WIDTH).reshape(x.shape[1], WIDTH).astype(np.float32))


class Core(nn.Module):
    """What comes of queries, keys and values."""

    times = 1.0

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        length = q.shape[2]
        scores = q @ k.swapaxes(-1, -2) * (WIDTH / HEADS) ** -0.5 * self.times
        return softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ v


def _attention(self: Any, x: Tensor, angles: Any = None) -> Tensor:
    batch, length, width = x.shape
    q, k, v = (layer(x).reshape(batch, length, HEADS, -1).swapaxes(1, 2) for layer in (self.q, self.k, self.v))
    mixed = self.core(q * self.before, k, v)
    return self.o(mixed.swapaxes(1, 2).reshape(batch, length, width))


def _block(self: Any, x: Tensor, angles: Tensor) -> Tensor:
    x = x + self.attn(self.norm1(x * angles))
    return x + self.mlp(self.norm2(x))


def _model(times: float) -> type[GPT]:
    def forward(self: Any, ids: Tensor) -> Tensor:
        y = self.embed(ids)
        angles = self.angles(y) if hasattr(self, "angles") else Angles.forward(self, y)
        y = y * times
        for layer in self.layers:
            y = layer(y, angles)
        return self.head(self.norm(y))

    return type("GPT", (GPT,), {"forward": forward})


def _handed(model: Model, *, has_module: bool, times: float = 1.0) -> None:
    model.__class__ = _model(times)
    if has_module:
        model.angles = Angles()
    for number in "012":
        replaced(model, f"layers.{number}", forward=_block)


def _with_cores(model: Model, before: float = 1.0) -> None:
    for number in "012":
        attn = getattr(model.layers, number).attn
        attn.core, attn.before = Core(), before if number == "1" else 1.0
        replaced(model, f"layers.{number}.attn", forward=_attention)


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_handed_on_by_another_argument_has_no_part_in_a_wrong_input(run: Recorder, turned: bool) -> None:
    sides = [changed(lambda m: _handed(m, has_module=turned)), changed(lambda m: _handed(m, has_module=not turned))]
    a, b = map(run, sides)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
    wrong = changed(lambda m: _handed(m, has_module=not turned, times=1 / 12))
    found = probe.compare(a, run(wrong))
    first = found.first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.FORWARD, Kind.INTRODUCED, "")
    assert first.hint.startswith("B is 0.083333") and "times A, a uniform scale of the value" in first.hint
    assert "uniform scale" in render(found).plain and not any("angles" in text for text in first.evidence)


def test_code_around_a_call_that_one_side_alone_makes(run: Recorder) -> None:
    """Whether the call was given the right thing was never compared."""
    a = run()
    assert probe.compare(a, run(changed(_with_cores))).verdict is Verdict.ALIGNED
    first = probe.compare(a, run(changed(lambda m: _with_cores(m, before=1.5)))).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.attn")
    assert first.evidence[0] == "the input 0 of layers.1.attn.o differs, what was there before it agrees"


def test_a_call_of_one_side_that_is_known_to_have_begun_right(run: Recorder) -> None:
    class Doubling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.SiLU.forward(self, x) * self.times  # type: ignore[arg-type, attr-defined]

    def change(model: Model) -> None:
        for number in "012":
            mlp = getattr(model.layers, number).mlp
            mlp.own = Doubling()
            mlp.own.times = 1.3 if number == "1" else 1.0
            replaced(model, f"layers.{number}.mlp", forward=lambda s, x: s.down(s.own(s.gate(x))))

    def plain(model: Model) -> None:
        for number in "012":
            replaced(model, f"layers.{number}.mlp", forward=lambda s, x: s.down(nn.SiLU.forward(s, s.gate(x))))

    first = probe.compare(run(changed(plain)), run(changed(change))).first_divergence
    assert first is not None and first.b[0].path == "layers.1.mlp"
    assert first.evidence[0].startswith("the input 0 of layers.1.mlp.down differs")


def test_a_layer_less_inside_a_container_without_a_partner(run: Recorder) -> None:
    """The container runs still when the layer ends, so that it is no call between."""

    class Trunk(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class Whole(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.norm(self.trunk(self.embed(ids))))

    def held(model: Model) -> None:
        trunk = Trunk()
        trunk.layers = model.layers
        vars(model).pop("layers", None)
        model.trunk, model.__class__ = trunk, Whole

    def shorter(model: Model) -> None:
        members = vars(model.layers)
        del members["1"]
        members["1"] = members.pop("2")

    found = probe.compare(run(changed(held)), run(changed(shorter)))
    first = found.first_divergence
    assert first is not None and first.kind is Kind.MISSING
    assert (
        first.path == "trunk.layers.1" and "A calls trunk.layers.1; B does not (inlined or missing)" in first.evidence
    )
    assert first.evidence[0].startswith("B has one layer less")


class Tail(nn.Module):
    """Embeds the words once more, by a module of its own, and holds the layers behind that."""

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        x = x + self.again(ids)
        for layer in self.layers:
            x = layer(x)
        return x


class Nested(GPT):
    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.embed(ids))
        return self.head(self.norm(self.tail(Tensor(ids.data[:, ::-1].copy()), x)))


class Flat(GPT):
    """Uses one embedding twice."""

    times = 1.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.first(self.embed(ids))
        x = (x + self.embed(Tensor(ids.data[:, ::-1].copy()))) * self.times
        for layer in self.behind:
            x = layer(x)
        return self.head(self.norm(x))


def _flat(model: Model, times: float = 1.0) -> None:
    first, *behind = (getattr(model.layers, number) for number in "012")
    del model.layers
    model.__class__ = Flat
    model.first, model.behind = first, nn.ModuleList(*behind)
    vars(model)["times"] = times


def _nested(model: Model) -> None:
    _flat(model)
    layers, again = model.behind, nn.Embedding(*model.embed.weight.shape)
    del model.behind
    again.weight = model.embed.weight
    model.__class__ = Nested
    model.tail = Tail(again=again, layers=layers)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_call_that_another_module_makes_on_the_other_side_is_not_blamed(run: Recorder, swapped: bool) -> None:
    files = run(changed(_nested)), run(changed(lambda m: _flat(m, 1.01)))
    first = probe.compare(*files[:: -1 if swapped else 1]).first_divergence
    assert first is not None and (first.kind, first.path) == (Kind.INTRODUCED, "")
    assert any(each.endswith("differs, what was there before it agrees") for each in first.evidence)


# ---- A part of a model that is called with the same on both sides, by models whose calls have no partner.

LENGTH = batch(0).shape[1]


class Placed(GPT):
    """A language model with a table of positions, which is given the same whatever the batch."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions(Tensor(np.arange(LENGTH)))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Both(nn.Module):
    """The model that learns beside the one that it is held against; nobody calls this itself."""


def both() -> Any:
    made = []
    for seed in (0, 1):
        model = gpt(seed)
        model.__class__ = Placed
        nn.manual_seed(7 + seed)
        model.positions = nn.Embedding(LENGTH, WIDTH)
        made.append(model)
    return Both(policy=made[0], reference=made[1])


def recorded(path: Path, together: bool, task: str) -> Path:
    models = both()
    optimizer = nn.SGD(models.policy.parameters(), lr=0.1)
    chosen, rejected = batch(0).data, batch(1).data
    with probe.capture(models, path, task=task):
        parts = [np.concatenate([chosen, rejected])] if together else [chosen, rejected]
        losses = [loss_of(models.policy(Tensor(ids)), Tensor(ids)) for ids in parts]
        loss = losses[0] if together else (losses[0] + losses[1]) * 0.5
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_its_gradient_is_not_the_losss(tmp_path: Path, task: str) -> None:
    """Two calls on one side, one on the other: what comes back to one of them is a part of what comes back to the other."""
    files = [recorded(tmp_path / f"{name}.h5", together, task) for name, together in (("a", True), ("b", False))]
    found = probe.compare(*files)
    assert found.verdict is Verdict.UNDECIDED and found.first_divergence is None, found.first_divergence
    assert any("could not be compared, first: input 0 of policy, shape [4, 6]" in text for text in found.doubts)


# ---- Calls of several micro-batches against one call of the other side: joined along the batch, in forward and backward.

Step = Callable[[Model, nn.Optimizer, int], float]


def with_fault(plant: Callable[[Model], None], count: int) -> Step:
    def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
        plant(model)
        return in_micro_batches(count)(model, optimizer, number)

    return step


def eps_of(path: str) -> Callable[[Model], None]:
    def plant(model: Model) -> None:
        module(model, path).eps = 10.0

    return plant


@pytest.mark.parametrize(("a", "b"), [(1, 2), (1, 4), (4, 2), (2, 1)])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_every_call_is_compared_where_one_split_divides_the_other(run: Recorder, a: int, b: int, task: str) -> None:
    answer = probe.compare(run(step=in_micro_batches(a), task=task), run(step=in_micro_batches(b), task=task))
    assert answer.verdict is Verdict.ALIGNED
    assert "micro-batches-joined" in {each.code for each in answer.notes}
    assert {slot.role for slot in answer.slots if slot.verdict in ("equal", "noise")} >= {
        Role.INPUT, Role.OUTPUT, Role.GRAD_INPUT, Role.GRAD_OUTPUT, Role.PARAM_GRAD,
    }  # fmt: skip
    assert answer.coverage.share == 1


@pytest.mark.parametrize("path", ["layers.0.norm1", "layers.1.norm2"])
@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_a_fault_is_named_in_the_forward_pass(run: Recorder, path: str, task: str) -> None:
    faulty = run(step=with_fault(eps_of(path), 4), task=task)
    first = probe.compare(run(step=in_micro_batches(2), task=task), faulty).first_divergence
    assert first is not None
    assert (first.path, first.phase, first.kind) == (path, Phase.FORWARD, Kind.INTRODUCED)


def test_a_loss_that_is_not_divided_is_told_as_before(run: Recorder) -> None:
    first = probe.compare(run(step=in_micro_batches(4)), run(step=in_micro_batches(2, scale=2.0))).first_divergence
    assert first is not None and first.path == ""
    assert first.hint.startswith(
        "look at the loss scale, and at how the loss is reduced: sum or mean, number of micro-batches"
    )


def test_samples_in_another_order_are_no_fault_and_other_samples_are_one(run: Recorder) -> None:
    def of(order: list[int]) -> Step:
        def step(model: Model, optimizer: nn.Optimizer, number: int) -> float:
            ids = np.concatenate([batch(number).data, batch(number + 50).data])[order]
            for part in np.split(ids, 2):
                (loss_of(model(Tensor(part)), Tensor(part)) * 0.5).backward()
            optimizer.step()
            optimizer.zero_grad()
            return 1.0

        return step

    one = run(step=in_micro_batches(1), task="tensor")
    strided = probe.compare(one, run(step=of([0, 2, 1, 3]), task="tensor"))
    assert strided.verdict is Verdict.ALIGNED and strided.coverage.share == 1
    other = probe.compare(one, run(step=of([0, 1, 2, 2]), task="tensor")).first_divergence
    assert other is not None and other.kind is Kind.INPUTS


# ---- Which argument or result of a call of A is which of B's.

X, Y, IDS = tensor_of(drawn(3, 4)), tensor_of(drawn(3, 4, seed=1)), tensor_of(np.arange(6).reshape(2, 3), "int64")


def test_names_come_first():
    assert pair_slots({"x": X, "y": Y}, {"y": X, "x": Y}) == [("x", "x"), ("y", "y")]


def test_then_equal_bytes():
    assert set(pair_slots({"0": X, "1": Y}, {"a": Y, "b": X})) == {("0", "b"), ("1", "a")}


def test_then_a_form_that_one_alone_has():
    assert set(pair_slots({"0": X, "1": IDS}, {"hidden": Y, "ids": IDS})) == {("0", "hidden"), ("1", "ids")}


def test_positions_pair_with_names_in_order():
    others = {"first": tensor_of(drawn(3, 4, seed=2)), "second": tensor_of(drawn(3, 4, seed=3))}
    assert pair_slots({"0": X, "1": Y}, others) == [("0", "first"), ("1", "second")]


def test_masks_of_two_notations_are_a_pair():
    shown = np.tril(np.ones((4, 4), bool))
    found = pair_slots({"mask": tensor_of(shown, "bool")}, {"bias": tensor_of(np.where(shown, 0, -1e9))})
    assert found == [("mask", "bias")]


def test_what_cannot_be_compared_is_still_a_pair_of_one_name():
    assert pair_slots({"x": X}, {"x": tensor_of(drawn(7))}) == [("x", "x")]


@given(st.permutations(range(5)), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_each_slot_is_in_one_pair_at_most(order, count):
    tensors = [tensor_of(drawn(2, 3 + at % 2, seed=at)) for at in range(5)]
    a = {str(at): tensors[at] for at in range(5)}
    b = {f"n{at}": tensors[at] for at in order[:count]}
    found = pair_slots(a, b)
    assert len({x for x, _ in found}) == len({y for _, y in found}) == len(found)
    assert all(tensors[int(x)] is b[y] for x, y in found)
