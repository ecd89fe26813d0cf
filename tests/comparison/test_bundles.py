"""One module on one side, several on the other: what is compared, and what is said of the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from probe.records import Phase, Role
from probe.report.text import render
from tests.comparison.planted import Recorder, said
from tests.fusing import apart, mapping, mapping_from_parts, together
from tests.toys import module, replaced, scaled_gradient

pytestmark = pytest.mark.thorough

TASKS = ["statistics", "tensor"]
APART, TOGETHER = "layers.1.attn.q", "layers.1.attn.qkv"


@dataclass
class Pair:
    """Compares a recording of the model with the parts with one of the model with the whole, either way round."""

    run: Recorder
    task: str
    is_apart_first: bool

    def compared(self, parts: Any = None, whole: Any = None, groups: int = 2, **options: Any) -> Comparison:
        models = (parts or apart(), whole or together())
        optimizers = options.pop("optimizers", (None, None))
        rules = options.pop("rules", mapping)(groups)
        files = [self.run(m, task=self.task, optimizer=o, **options) for m, o in zip(models, optimizers, strict=True)]
        return probe.compare(*(files if self.is_apart_first else files[::-1]), mapping=rules)

    def assert_found(self, found: Comparison, phase: str, slot: str) -> str:
        """Check that q, k and v against qkv of layer 1 are named; return the evidence."""
        first = found.first_divergence
        assert found.verdict is Verdict.DIVERGED and first is not None, found.warnings
        sides = (first.a, first.b) if self.is_apart_first else (first.b, first.a)
        assert [ref.path for ref in sides[0]] == [f"layers.1.attn.{part}" for part in "qkv"]
        assert [ref.path for ref in sides[1]] == [TOGETHER]
        assert {ref.slot for refs in sides for ref in refs} == {slot}
        assert first.phase.label == phase, first
        return "\n".join(first.evidence)


@pytest.fixture(params=[*zip(TASKS, (True, False), strict=True)], ids=lambda p: f"{p[0]}-{'AB'[not p[1]]}")
def pair(request: pytest.FixtureRequest, run: Recorder) -> Pair:
    return Pair(run, *request.param)


def sgd(model: nn.Module) -> nn.Optimizer:
    return nn.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("rules", [mapping, mapping_from_parts])
@pytest.mark.parametrize("optimizer", [None, sgd])
def test_the_same_model_is_aligned_and_all_of_it_is_compared(
    pair: Pair, optimizer: Callable[..., Any] | None, rules: Any
) -> None:
    models = apart(), together()
    made = tuple(optimizer(model) if optimizer else None for model in models)
    found = pair.compared(*models, steps=2, optimizers=made, rules=rules)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert (found.coverage.only_a, found.coverage.only_b, found.coverage.not_comparable) == (0, 0, 0)
    assert not said(found, "weights that were not compared") and not found.only_a and not found.only_b
    here = found["layers.1.attn.k"]
    assert here == found[TOGETHER] == found[APART]
    compared = {(s.phase, s.role, (s.slot_a or s.slot_b)) for s in here if s.metrics.is_known and s.step == 0}
    states = {"momentum_buffer"} if optimizer else {"exp_avg", "exp_avg_sq"}
    assert compared >= {
        (Phase.FORWARD, Role.INPUT, "0"), (Phase.FORWARD, Role.OUTPUT, "0"), (Phase.BACKWARD, Role.GRAD_OUTPUT, "0"),
        (Phase.BACKWARD, Role.GRAD_INPUT, "0"),
        *((phase, role, slot) for slot in ("weight", "bias") for phase, role in (
            (Phase.INIT, Role.PARAM), (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.PARAM_GRAD),
            (Phase.UPDATE, Role.DELTA))),
        *((Phase.UPDATE, Role.STATE, f"weight.{state}") for state in states),
    }  # fmt: skip
    (weight,) = (s for s in here if s.phase is Phase.INIT and s.slot_a == "weight")
    parts, none = (weight.parts_a, weight.parts_b) if pair.is_apart_first else (weight.parts_b, weight.parts_a)
    assert parts == tuple((f"layers.1.attn.{part}", "weight") for part in "qkv") and none == ()
    assert weight.shape_a == weight.shape_b == (32, 16)
    assert weight.metrics.rel_l2 < 1e-12
    if pair.task == "tensor":
        assert weight.metrics.status.value == "equal" and not weight.metrics.estimated


@pytest.mark.parametrize("place", ["attn.q", "attn.k", "attn.qkv"])
def test_weights_that_are_stored_the_other_way_round(pair: Pair, place: str) -> None:
    """GPT-2's Conv1D has [in, out] where the projections of others have [out, in]."""
    models = apart(), together()
    linear = module(models[place.endswith("qkv")], f"layers.1.{place}")
    linear.__class__ = nn.LinearInOut
    linear.weight = nn.Parameter(np.ascontiguousarray(linear.weight.data.T))
    found = pair.compared(*models, steps=2)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    (weight,) = (s for s in found[TOGETHER] if s.phase is Phase.INIT and s.slot_a == "weight")
    assert weight.metrics.rel_l2 < 1e-12 and {weight.shape_a, weight.shape_b} <= {(32, 16), (16, 32)}


def test_a_gradient_that_parts_pass_back_is_estimated_from_their_sketches(pair: Pair) -> None:
    found = pair.compared()
    (passed,) = (s for s in found["layers.1.attn.v"] if s.role is Role.GRAD_INPUT)
    assert passed.metrics.rel_l2 < 1e-5 and passed.metrics.estimated is (pair.task == "statistics")


def changed(change: Callable[[Any], object]) -> Any:
    model = apart()
    change(module(model, "layers.1.attn"))
    return model


def double_k(attn: Any) -> None:
    attn.k.weight.data *= 1.5


def shift_v(attn: Any) -> None:
    attn.v.bias.data += 0.5


@pytest.mark.parametrize(("fault", "slot", "part", "rest"), [
    (double_k, "weight", "k", "q and v agree"), (shift_v, "bias", "v", "q and k agree"),
])  # fmt: skip
def test_weights_of_one_part_that_are_wrong(pair: Pair, fault: Any, slot: str, part: str, rest: str) -> None:
    evidence = pair.assert_found(pair.compared(changed(fault)), "init", slot)
    assert f"of its parts {part} (rel " in evidence and rest in evidence  # from statistics, by the sums of rows


def test_one_part_computes_something_else(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn.v", forward=lambda s, x: nn.Linear.forward(s, x) * 1.25)
    evidence = pair.assert_found(pair.compared(model), "forward", "0")
    assert "inputs agree" in evidence
    if pair.task == "tensor":
        assert "of its parts v (rel " in evidence and "q and k agree" in evidence


def test_one_part_is_given_something_else(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn", forward=_with_other_input)
    evidence = pair.assert_found(pair.compared(model), "forward", "0")
    assert f"k is not given what q is given in {'A' if pair.is_apart_first else 'B'}" in evidence


def _with_other_input(self: Any, x: Tensor) -> Tensor:
    from tests.fusing import attended

    return self.o(attended(self.q(x), self.k(x * 1.5), self.v(x)))


def test_the_gradient_of_one_part_alone(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn.v", forward=lambda s, x: x @ scaled_gradient(s.weight, 1.5).swapaxes(0, 1) + s.bias)
    evidence = pair.assert_found(pair.compared(model), "gradient", "weight")
    if pair.task == "tensor":
        assert "of its parts v (rel " in evidence and "q and k agree" in evidence


def test_what_one_part_passes_back(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn.k", forward=lambda s, x: nn.Linear.forward(s, scaled_gradient(x, 2.0)))
    pair.assert_found(pair.compared(model), "backward", "0")


def test_a_part_that_does_not_learn(pair: Pair) -> None:
    found = pair.compared(changed(lambda attn: setattr(attn.k.weight, "requires_grad", False)))
    evidence = pair.assert_found(found, "gradient", "weight")
    letter = "A" if pair.is_apart_first else "B"
    assert f"k has no param_grad in {letter}" in evidence
    first = found.first_divergence
    assert first is not None and first.kind.value == "missing"
    assert (
        first.hint == f"k does not learn on {letter}: requires_grad is off, or the parameter is cut off from the loss"
    )


@pytest.mark.parametrize("steps", [1, 2])
def test_one_part_is_trained_otherwise(pair: Pair, steps: int) -> None:
    models = apart(), together()
    own = module(models[0], "layers.1.attn.k").weight
    groups = [{"params": [p for p in models[0].parameters() if p is not own]}, {"params": [own], "lr": 0.3}]
    optimizers = nn.SGD(groups, lr=0.1), nn.SGD(models[1].parameters(), lr=0.1)
    found = pair.compared(*models, steps=steps, optimizers=optimizers)
    evidence = pair.assert_found(found, "update", "weight")
    first = found.first_divergence
    values = "0.3 against 0.1" if pair.is_apart_first else "0.1 against 0.3"
    assert first is not None and f"lr {values} for k" in first.hint
    if pair.task == "tensor":
        assert "of its parts k (rel " in evidence and "q and v agree" in evidence


def swapped(model: Any) -> Any:
    """Put v's rows where k's belong, in every layer."""
    for attn in (module(model, f"layers.{n}.attn") for n in range(3)):
        for slot in ("weight", "bias"):
            k, v = getattr(attn.k, slot), getattr(attn.v, slot)
            k.data[...], v.data[...] = v.data.copy(), k.data.copy()
    return model


@pytest.mark.parametrize("task", TASKS)
def test_parts_in_another_order(run: Recorder, task: str) -> None:
    found = Pair(run, task, True).compared(whole=together(model=swapped(apart())))
    first = found.first_divergence
    assert first is not None and (first.phase, first.a[0].slot) == (Phase.INIT, "weight")
    assert first.hint.startswith(
        "B's layers.0.attn.qkv.weight holds q, v, k in 2 groups, where q, k, v in 2 groups was expected (verified"
    )
    assert any("k (rel " in text and "v (rel " in text and "q agrees" in text for text in first.evidence)


def test_a_plain_weight_where_groups_are_expected(pair: Pair) -> None:
    """The commonest mistake in a port: the model reads group by group, the weight was put together plainly."""
    whole = together()
    plain = together(groups=1)
    for n in range(3):
        for slot in ("weight", "bias"):
            place = module(whole, f"layers.{n}.attn.qkv")
            getattr(place, slot).data[...] = getattr(module(plain, f"layers.{n}.attn.qkv"), slot).data
    found = pair.compared(whole=whole)
    first = found.first_divergence
    assert first is not None and found.verdict is Verdict.DIVERGED
    assert (first.phase, first.a[0].slot) == (Phase.INIT, "weight")
    plainly = "q, k, v one after the other, where q, k, v in 2 groups was expected (verified"
    if pair.is_apart_first:
        assert first.hint.startswith(f"B's layers.0.attn.qkv.weight holds {plainly}")
    else:  # A is trusted: B is blamed
        taken = "B's q, k and v were taken out of A's layers.0.attn.qkv.weight as if it held"
        assert first.hint.startswith(f"{taken} {plainly}")
        assert "look at how B's weights are loaded or converted" in first.hint


def test_a_split_that_does_not_fit(run: Recorder) -> None:
    message = (
        r"Together: qkv: 3 groups do not divide layers.0.attn.q.weight \[16, 16\] \+ layers.0.attn.k.weight \[8, 16\]"
    )
    with pytest.raises(probe.errors.MappingError, match=message):
        Pair(run, "statistics", True).compared(groups=3)


def test_a_bias_that_one_part_lacks_is_zero(pair: Pair) -> None:
    models = apart(), apart()
    for model in models:
        for n in range(3):
            module(model, f"layers.{n}.attn.k").bias.data[...] = 0
    whole = together(model=models[1])
    for n in range(3):
        del module(models[0], f"layers.{n}.attn.k").bias
    found = pair.compared(models[0], whole)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    (bias,) = (s for s in found[TOGETHER] if s.phase is Phase.INIT and "bias" in (s.slot_a, s.slot_b))
    assert bias.metrics.rel_l2 < 1e-12


def test_the_text_names_all_parts(pair: Pair) -> None:
    found = pair.compared(changed(double_k))
    text = render(found).plain
    for part in "qkv":
        assert f"layers.1.attn.{part} " in text
    assert TOGETHER in text
    first = found.as_json()["first_divergence"]
    assert isinstance(first, dict)
    assert {len(first["a"]), len(first["b"])} == {1, 3}


def test_parts_have_columns_in_the_table(pair: Pair) -> None:
    pytest.importorskip("pandas")
    table = pair.compared().table()
    here = table[(table.role == "param") & (table.phase == "init") & table.path_a.str.startswith("layers.1.attn.q")]
    column = here.parts_a if pair.is_apart_first else here.parts_b
    assert sorted(column) == [
        ", ".join(f"layers.1.attn.{part}.{slot}" for part in "qkv") for slot in ("bias", "weight")
    ]
