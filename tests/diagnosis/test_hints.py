"""Hints: which mistake has which numbers; hints that fail are notes, and looking for them costs little."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import probe
from probe.answer.result import Kind, Verdict
from probe.diagnosis import choosing
from probe.diagnosis.causes import factors, formulas
from probe.diagnosis.causes.formulas import _best, _fitting
from probe.notes import note
from probe.records import Phase, Role
from probe.report.text import render
from tests.toy import nn
from tests.toy.tensor import Tensor, operation, silu
from tests.toys import GPT, VOCABULARY, WIDTH, batch, gpt, module, plain_step, replaced, rounding_otherwise
from tests.verdict.planted import DOWN, MODEL_FAULTS, Clean, Faulty, Model, Recorder, assert_found, changed

# ---- Hints, and one place for one fault.


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__(scale=nn.Parameter(np.full(WIDTH, 1.5, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_a_call_of_which_the_weights_alone_are_compared_is_told_from_one_without_a_partner(run: Recorder) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + (
            self.outer(self.inner(self.attn(self.norm1(x))))
            if "inner" in vars(self)
            else self.attn(self.norm1(x)) * self.scale
        )
        return x + self.mlp(self.norm2(x))

    def as_modules(model: Model) -> None:
        layer = module(model, "layers.1")
        layer.inner, layer.outer = Scaled(), Extra()
        replaced(model, "layers.1", forward=forward)

    def by_hand(model: Model) -> None:
        module(model, "layers.1").scale = Scaled().scale
        replaced(model, "layers.1", forward=forward)

    mapping = {"TopLayer": {"params": {"layers.1.scale": "layers.1.inner.scale"}}}
    first = probe.compare(run(changed(as_modules)), run(changed(by_hand)), mapping=mapping).first_divergence
    assert first is not None and first.path == "layers.1.inner"
    assert first.hint.startswith("B lacks this module, or runs it under a name that was not found")


def _from(first: int) -> GPT:
    def take(self: Any, x: Tensor, positions: Any) -> Tensor:
        return nn.Attention.forward(self, x + Tensor(positions.data[:, None].astype(np.float32)) * 0.01)

    def block(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), Tensor(np.arange(first, first + x.shape[1])))
        return x + self.mlp(self.norm2(x))

    return changed(lambda m: (replaced(m, "layers.1.attn", forward=take), replaced(m, "layers.1", forward=block)))


@pytest.mark.parametrize(
    ("task", "sure"), [("tensor", " everywhere (verified)"), ("statistics", ", by mean, minimum and maximum")]
)
@pytest.mark.parametrize(("a", "b", "shift"), [(0, 1, "+ 1"), (3, 1, "− 2")])
def test_position_ids_that_begin_elsewhere(run: Recorder, task: str, sure: str, a: int, b: int, shift: str) -> None:
    found = probe.compare(*(run(_from(each), task=task) for each in (a, b)))
    first = found.first_divergence
    assert first is not None and first.path == "layers.1"
    assert first.hint == (
        f"B is A {shift}{sure}: look at position ids and offsets: where each side begins to count (at 0, at 1, behind the padding)"
    )
    share = r"100" if task == "tensor" else r"≈?[\d.]+"
    assert re.search(rf"\n  {share}% of the elements, which are integers, differ\n", render(found).plain)


def test_a_row_of_an_embedding_without_a_gradient(clean: Clean, run: Recorder) -> None:
    padding = int(batch().data[0, 0])
    keeps = np.ones((VOCABULARY, 1), np.float32)
    keeps[padding] = 0

    def padded(model: Model) -> None:
        replaced(model, "embed", forward=lambda s, ids: operation(
            s.weight.data, (s.weight, lambda g: g * keeps))[ids])  # fmt: skip

    found = probe.compare(clean(), run(changed(padded)))
    assert_found(found, ("gradient", "introduced", "embed", "weight"))
    assert found.first_divergence is not None
    assert found.first_divergence.hint == "1 more row is zero on B: look at padding_idx"


def test_weights_that_differ_because_a_step_before_was_not_recorded(tmp_path: Path) -> None:
    def late(path: Path, lr: float, rough: bool = False) -> Path:
        model = rounding_otherwise(gpt()) if rough else gpt()
        optimizer = nn.AdamW(model.parameters(), lr=1e-3)
        with probe.capture(model, path, steps=[3, 4]):
            for number in range(5):
                optimizer.param_groups[0]["lr"] = lr if number == 0 else 1e-3
                probe.step(loss=plain_step(model, optimizer, number))
        return path

    a = late(tmp_path / "a.h5", 1e-3)
    first = probe.compare(a, late(tmp_path / "b.h5", 2e-3)).first_divergence
    assert first is not None and (first.phase, first.step) == (Phase.INIT, 3)
    assert first.evidence == ("39 of 39 parameters differ before step 3; step 2 was not recorded",)
    assert first.hint == "record the steps before 3 too: the runs part there, or do not start from the same weights"
    found = probe.compare(a, late(tmp_path / "c.h5", 1e-3, rough=True))
    assert found.verdict is Verdict.ALIGNED, "rounding makes weights drift apart"


def test_one_weight_that_differs_before_a_later_step(tmp_path: Path) -> None:
    def late(path: Path, factor: float) -> Path:
        model = gpt()
        module(model, "layers.1.norm2").weight.data[3] *= np.float32(factor)
        optimizer = nn.SGD(model.parameters(), lr=1e-3)
        with probe.capture(model, path, steps=[2]):
            for number in range(3):
                probe.step(loss=plain_step(model, optimizer, number))
        return path

    found = probe.compare(late(tmp_path / "a.h5", 1.0), late(tmp_path / "b.h5", 1.0002))
    assert found.verdict is not Verdict.ALIGNED
    said_ = [*found.warnings, *(text for d in found.divergences for text in (*d.evidence, d.hint))]
    assert any("step 2" in text and "step 1 was not recorded" in text for text in said_), said_


def test_layers_whose_weights_stand_in_another_order(clean: Clean, run: Recorder) -> None:
    def swapped(model: Model) -> None:
        members = vars(model.layers)
        members["0"], members["1"] = members["1"], members["0"]

    found = probe.compare(clean(), run(changed(swapped)))
    first = found.first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "")
    assert first.evidence[0] == "layers.0 and layers.1 (Block) are swapped: what A has at the one, B has at the other"


def test_weights_of_a_part_of_a_layer_that_stand_in_another_layer(clean: Clean, run: Recorder) -> None:
    def swapped(model: Model) -> None:
        first, second = (vars(vars(model.layers)[number]) for number in "01")
        first["mlp"], second["mlp"] = second["mlp"], first["mlp"]

    first = probe.compare(clean(), run(changed(swapped))).first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (Phase.INIT, Kind.INIT, "layers.0.mlp.gate")
    assert first.hint == "what layers.0.mlp.gate has in A, layers.1.mlp.gate has in B: look at the order of the layers"


def test_layers_that_run_in_another_order(clean: Clean, run: Recorder) -> None:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for number in "102":
            x = getattr(self.layers, number)(x)
        return self.head(self.norm(x))

    there = changed(lambda m: setattr(m, "__class__", type("GPT", (GPT,), {"forward": forward})))
    first = probe.compare(clean(), run(there)).first_divergence
    assert first is not None and (first.phase, first.kind) == (Phase.FORWARD, Kind.INTRODUCED)
    assert first.path == "", "the code that calls them"
    assert first.evidence[0] == "layers.0 and layers.1 are swapped: in B each runs where the other runs in A"
    assert first.hint == "look at the order in which the code calls them"


def test_a_tied_weight_is_not_called_missing_without_saying_that_it_is_tied(clean: Clean, run: Recorder) -> None:
    def tied(model: Model) -> None:
        model.head.weight = model.embed.weight

    first = probe.compare(clean(), run(changed(tied))).first_divergence
    assert first is not None and first.path == "head" and "parameters equal" not in " ".join(first.evidence)
    assert first.hint == "weight is tied to embed.weight on B, not on A"


def test_a_weight_that_is_tied_on_one_side_only_is_not_said_to_learn_nothing(run: Recorder) -> None:
    def tied(model: Model) -> None:
        model.head.weight = model.embed.weight

    def alike(model: Model) -> None:
        model.head.weight.data[:] = model.embed.weight.data

    first = probe.compare(run(changed(tied)), run(changed(alike))).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.GRADIENT, "embed")
    assert first.hint == "weight is tied to head.weight on A, not on B"


class Dropout(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1.02


class Extra(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 1.02


@pytest.mark.parametrize(
    "inner, hint",
    [
        (Dropout, "look at the code of this module itself: what it does between the modules that it calls"),
        (Extra, "look at the code of this module itself: what it does between the modules that it calls"),
    ],
)
def test_what_was_called_on_the_way_and_not_compared_is_named(
    inner: type[nn.Module], hint: str, clean: Clean, run: Recorder
) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + self.outer(self.inner(self.attn(self.norm1(x))))
        return x + self.mlp(self.norm2(x))

    def with_inner(model: Model) -> None:
        layer = module(model, "layers.1")
        layer.inner, layer.outer = inner(), Extra()
        replaced(model, "layers.1", forward=forward)

    first = probe.compare(run(changed(with_inner)), clean()).first_divergence
    assert first is not None and first.path == "layers.1"
    assert first.hint == hint


def test_frozen_weights_are_named_and_not_what_is_made_from_them(clean: Clean, run: Recorder) -> None:
    def frozen(model: Model) -> None:
        for path in ("embed", "layers.0.norm1"):
            module(model, path).weight.requires_grad = False

    found = probe.compare(clean(), run(changed(frozen)))
    assert [(d.phase, d.kind, d.path) for d in found.divergences] == [(Phase.GRADIENT, Kind.MISSING, "embed")]


def test_a_graph_that_is_cut_comes_before_the_gradients_that_follow_from_it(clean: Clean, run: Recorder) -> None:
    def detached(self: Any, x: Tensor) -> Tensor:
        return Tensor(nn.Attention.forward(self, x).data)

    found = probe.compare(clean(), run(changed(lambda m: replaced(m, "layers.1.attn", forward=detached))))
    first = found.first_divergence
    assert first is not None and (first.phase, first.kind, first.path) == (
        Phase.BACKWARD,
        Kind.MISSING,
        "layers.1.attn",
    )
    assert found.divergences == (first,)


@pytest.mark.parametrize("name", MODEL_FAULTS)
def test_a_single_fault_is_one_place(clean: Clean, faulty: Faulty, name: str) -> None:
    found = probe.compare(clean(), faulty(name, "statistics"))
    assert found.divergences == (found.first_divergence,)


def test_two_faults_of_which_the_second_does_not_follow_from_the_first_are_both_named(
    clean: Clean, run: Recorder
) -> None:
    def both(model: Model) -> None:
        MODEL_FAULTS["gradient of one weight"][0](model)
        MODEL_FAULTS["frozen"][0](model)
        module(model, "layers.2.mlp.down").weight.requires_grad = False

    found = probe.compare(clean(), run(changed(both)))
    assert {d.path for d in found.divergences} <= {DOWN, "layers.2.mlp.down"}


def test_a_gradient_that_is_zero_but_for_rounding_is_shown_beside_a_limit_of_its_own_kind(run: Recorder) -> None:
    class Shift(nn.Module):
        """Adds one number to all features: the norm behind it takes it away again."""

        rounding = np.float32(1) + np.float32(2e-7) * (np.arange(WIDTH) % 2).astype(np.float32)
        """of every other feature: the norm takes a common factor away, and with it the difference"""

        def __init__(self, up: bool) -> None:
            super().__init__(shift=nn.Parameter(np.zeros(1, np.float32)), norm=nn.LayerNorm(WIDTH), up=up)

        def forward(self, x: Tensor) -> Tensor:
            x = x * self.rounding if self.up else x
            return self.norm(x + self.shift)

    def model(up: bool) -> GPT:
        return changed(lambda m: setattr(m, "norm", Shift(up)))

    found = probe.compare(run(model(False), task="tensor"), run(model(True), task="tensor"))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    (slot,) = (s for s in found["norm"] if (s.phase, s.slot_a) == (Phase.GRADIENT, "shift"))
    assert slot.metrics.rel_l2 > 10 * slot.limit > 10 * slot.error


_FROM_SUMS = "(verified from the sums of its rows and columns): look at "
_CONVERTED = "look at how this weight is loaded or converted"
_REORDERED = (
    "B has the same numbers in another order: it is transposed, or its rows or parts are swapped; look at how this "
    "weight is converted"
)
_ROWS, _COLUMNS = (f"B has the {what} of A in another order, " for what in ("rows", "columns"))


@pytest.mark.parametrize(("change", "expected"), [
    (lambda w: w.T, f"B is the transpose of A {_FROM_SUMS}"),
    (lambda w: w[[1, 0, *range(2, 16)]], f"{_ROWS}0 and 1 swapped {_FROM_SUMS}"),
    (lambda w: w.reshape(2, 4, 2, 16).swapaxes(1, 2).reshape(16, 16), f"{_ROWS}pairs for halves (rotary layouts) inside each"),
    (lambda w: w[:, ::-1], f"{_COLUMNS}the last first {_FROM_SUMS}"),
    (lambda w: w[::-1].T, _REORDERED),
    (lambda w: np.where(np.arange(256).reshape(16, 16) == 85, w * np.float32(1.5), w), _CONVERTED),
    (lambda w: np.random.default_rng(7).permutation(w.reshape(-1)).reshape(16, 16), _REORDERED),
])  # fmt: skip
def test_a_weight_with_its_numbers_in_another_order(
    clean: Clean, run: Recorder, change: Callable[[np.ndarray], np.ndarray], expected: str
) -> None:
    def other(model: Model) -> None:
        weight = module(model, "layers.1.attn.q").weight
        weight.data[...] = change(weight.data.copy())

    found = probe.compare(clean(), run(changed(other)))
    assert_found(found, ("init", "init", "layers.1.attn.q", "weight"))
    assert found.first_divergence is not None
    assert found.first_divergence.hint.startswith(expected)


def test_what_rounds_otherwise_is_not_taken_for_another_order(run: Recorder) -> None:
    """Sums that are nearly the same are sorted otherwise; and a symmetric matrix is its transpose."""

    def model(factor: float) -> GPT:
        made = gpt()
        for path, change in (("layers.1.attn.q", lambda w: w + w.T), ("layers.1.mlp.up", lambda w: w)):
            weight = module(made, path).weight
            weight.data[...] = change(weight.data) * np.float32(factor)
        return made

    found = probe.compare(run(model(1.0)), run(model(1.000002)))
    assert found.divergences and not any("verified from the sums" in each.hint for each in found.divergences)


def test_what_is_only_noted_is_no_reason_for_undecided(run: Recorder) -> None:
    has_nan = MODEL_FAULTS["NaN"][0]
    found = probe.compare(run(changed(has_nan)), run(changed(has_nan), phases=["init", "forward", "loss"]))
    assert found.verdict is Verdict.UNDECIDED and found.doubts
    noted = [text for text in found.warnings if text.startswith("the phases that were recorded are not the same")]
    why, _, rest = " ".join(render(found).plain.split()).partition(" Compared ")
    assert noted and noted[0] not in why and f"note: {noted[0][:80]}" in rest
    assert all(doubt[:80] in why and doubt not in rest for doubt in found.doubts)


def test_a_call_that_was_entered_and_has_not_ended_is_not_blamed(clean: Clean, run: Recorder) -> None:
    """What B lacks is around the module that is given something else: the code that calls both is named, which B has too."""

    class Shell(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x * 1.02)

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.shell(self.norm2(x))

    def wrapped(model: Model) -> None:
        layer = module(model, "layers.1")
        layer.shell = Shell(layer.mlp)
        del vars(layer)["mlp"]
        replaced(model, "layers.1", forward=forward)

    mapping = {"TopLayer": {"layers.1.shell.inner": "layers.1.mlp"}}
    first = probe.compare(run(changed(wrapped)), clean(), mapping=mapping).first_divergence
    assert first is not None and first.path == "layers.1" and "the input 0 of layers.1.shell.inner" in first.evidence[0]


def test_what_one_side_alone_calls_is_no_source_of_an_activation(run: Recorder) -> None:
    """A's activation is a module that B has none for: what it returned is what the next layer was given, and no cause."""

    def as_module(model: Model) -> None:
        module(model, "layers.1.mlp.act").__class__ = nn.GELU

    def by_hand(model: Model) -> None:
        mlp = replaced(model, "layers.1.mlp", forward=lambda s, x: s.down(silu(s.gate(x)) * s.up(x)))
        del mlp.act

    first = probe.compare(run(changed(as_module), task="tensor"), run(changed(by_hand), task="tensor")).first_divergence
    assert first is not None and first.path == "layers.1.mlp"
    assert first.hint.startswith("A computes gelu by tanh, B silu (verified from what was recorded): ")


FOUND = np.linspace(-1, 1, 64)


@pytest.mark.parametrize(
    ("formulas", "name"),
    [
        ({"one": FOUND, "another": FOUND + 1e-12}, "one"),  # for these numbers they are the same
        ({"one": FOUND * 1.001, "another": FOUND * 0.999}, "one or another"),
        ({"far": FOUND * 1.009, "near": FOUND * 1.001}, "near"),
        ({"far": FOUND * 1.1}, None),
        ({str(number): FOUND * (1 + number * 1e-3) for number in (1, -1, 1.1, -1.1)}, None),
    ],
)
def test_a_formula_is_named_if_no_other_one_is_as_good(formulas: dict[str, np.ndarray], name: str | None) -> None:
    named = ((note("function", name=each), values) for each, values in formulas.items())
    found = _best(_fitting(FOUND, named, 0.01))
    assert found == name if name is None else str(found) == name


# ---- Tensors of odd shapes and dtypes: whatever they are, the hints say nothing that is not so, and nothing fails.

SHAPES = [(), (1,), (2,), (0, 3), (2, 1), (1, 5), (7, 1, 3), (3, 4, 5), (2, 3, 2, 3), (2, 2, 2, 2, 2)]
DTYPES = ["float32", "float64", "float16", "int64", "bool", "complex64"]


class Made(nn.Module):
    """Returns an array that does not depend on what it is given."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        self.array = array

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(self.array)


class Softmax(Made):
    """Called as a class of which formulas are tried."""


class LayerNorm(Made):
    """The same."""


class RotaryEmbedding(Made):
    """The same."""


KINDS = [Softmax, LayerNorm, RotaryEmbedding]


class ShapesModel(nn.Module):
    def __init__(self, made: nn.Module) -> None:
        super().__init__(made=made)

    def forward(self, x: Tensor) -> Tensor:
        self.made(x)
        return x


def record(path: Path, made: nn.Module, given: np.ndarray, task: str) -> Path:
    model = ShapesModel(made)
    with probe.capture(model, path, task=task):
        model(Tensor(given))
        probe.step()
    return path


@pytest.mark.parametrize("kind, dtype", [*((Made, dtype) for dtype in DTYPES), *((kind, "float32") for kind in KINDS)])
def test_odd_tensors(kind: type[Made], dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, shape in enumerate(SHAPES):
        a, b = (np.asarray(10 * rng.standard_normal(shape)).astype(dtype) for _ in range(2))
        given = np.asarray(rng.standard_normal(shape)).astype("float32")
        for task in ("tensor", "statistics") if (kind, dtype) == (Made, "float32") else ("tensor",):
            folder = tmp_path / f"{number}-{task}"
            folder.mkdir()
            found = probe.compare(
                record(folder / "a.h5", kind(a), given, task), record(folder / "b.h5", kind(b), given, task)
            )
            if a.size > 8 and dtype != "bool":
                assert found.verdict is Verdict.DIVERGED
                assert not any(hint["verified"] for each in found.divergences for hint in each.hints), found.divergences


# ---- What fails while a cause is looked for costs its own text: the comparison stands.


def _named(name: str) -> type[nn.RMSNorm]:
    return type(name, (nn.RMSNorm,), {})


def _record(path: Path, norm: nn.Module, width: int) -> Path:
    rng = np.random.default_rng(0)
    norm.weight.data[:] += 0.1 * rng.standard_normal(width).astype(np.float32)  # type: ignore[attr-defined]
    model = nn.Sequential(norm)
    with probe.capture(model, path, task="tensor"):
        model(Tensor(0.05 * rng.standard_normal((2, 6, width)).astype(np.float32)))
        probe.step()
    return path


@pytest.mark.parametrize(
    "name",
    [
        "GraniteRMSNorm",
        "GridRMSNorm",
        "InternLM2RMSNorm",
        "InstructRMSNorm",
        "BatchNorm",
        "GroupNorm",
        "InstanceNorm1d",
    ],
)
def test_eps_of_a_norm_of_any_name_is_solved(name: str, tmp_path: Path) -> None:
    norms = [_named(name)(8, eps) for eps in (1e-6, 1e-5)]
    found = probe.compare(*(_record(tmp_path / f"{k}.h5", norm, 8) for k, norm in enumerate(norms)))
    assert found.first_divergence is not None and not any("please report" in text for text in found.warnings)
    assert found.first_divergence.hint == (
        "A used eps 1.0e-06, B 1.0e-05 (verified from the recorded input, weight and output): "
        "look at eps in the settings of this module"
    )


def test_a_hint_that_fails_is_left_out_and_named(clean: Clean, faulty: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(evidence: object) -> None:
        raise ValueError("operands could not\nbe broadcast")

    hints = [replace(each, test=fails) if each.name == "eps" else each for each in choosing.HINTS]
    monkeypatch.setattr(choosing, "HINTS", hints)
    found = probe.compare(clean("tensor"), faulty("eps", "tensor"))
    assert found.verdict is Verdict.DIVERGED and found.first_divergence is not None
    assert found.first_divergence.path == "layers.1.norm2"
    said = "the hint “eps” failed at layers.1.norm2 and is left out: ValueError: operands could not be broadcast; please report"
    assert found.warnings.count(said) == 1


def test_settings_that_cannot_be_read_off_the_numbers_leave_the_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("planted")

    def record(path: Path, lr: float) -> Path:
        model = nn.Sequential(nn.RMSNorm(8))
        optimizer = nn.SGD(model.parameters(), lr=lr)
        with probe.capture(model, path):
            model(Tensor(np.arange(16, dtype=np.float32).reshape(2, 8))).sum().backward()
            optimizer.step()
            probe.step()
        return path

    monkeypatch.setattr("probe.diagnosis.optimizer.naming.named_settings", fails)
    found = probe.compare(record(tmp_path / "a.h5", 0.1), record(tmp_path / "b.h5", 0.2))
    assert found.first_divergence is not None
    assert found.first_divergence.hint.startswith("the settings differ: lr 0.1 against 0.2")
    said = "the hint “settings by the numbers” failed at the whole model and is left out: ZeroDivisionError: planted; please report"
    assert said in found.warnings


# ---- What hints compute of large tensors is a sample.


def test_products_are_computed_of_some_rows_and_columns() -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = rng.standard_normal((6, 50, 40)), rng.standard_normal((700, 40)), rng.standard_normal(700)
    half: Any = SimpleNamespace(
        dtype="float32",
        parameter={"weight": weight, "bias": bias}.get,
        given=lambda: [x],
        values=x @ weight.T + bias,
    )
    found = dict(formulas._linear_formulas(half, SimpleNamespace(role=Role.OUTPUT)))  # type: ignore[arg-type]
    assert len(found) == 6 and all(values.size <= 128 * 256 for values in found.values())
    np.testing.assert_allclose(found[note("product-with-bias")], formulas._sampled_product(half))


def test_the_factor_of_a_finding_is_computed_once() -> None:
    evidence: Any = SimpleNamespace(
        known={},
        values=None,
        metrics=SimpleNamespace(norm_a=0.0),
        halves=2 * (SimpleNamespace(tensor=SimpleNamespace(sketch=None)),),
    )
    assert factors.factor_of(evidence) is None and list(evidence.known.values()) == [None]
    again: Any = SimpleNamespace(known=evidence.known)
    assert factors.factor_of(again) is None
