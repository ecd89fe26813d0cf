"""One module or weight on one side, several on the other: what is compared, and in which order the parts lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Verdict
from probe.records import Phase, Role
from probe.report.text import render
from tests.fusing import apart, mapping, mapping_from_parts, together
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.toys import GPT, WIDTH, gpt, module, replaced, scaled_gradient, stored_in_out
from tests.verdict.planted import Recorder, said

# ---- One module on one side, several on the other: what is compared, and what is said of the parts.

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


@pytest.mark.thorough
@pytest.mark.parametrize(("optimizer", "rules"), [(None, mapping), (sgd, mapping_from_parts)])
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
            (Phase.INIT, Role.PARAM), (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.PARAM_GRAD))),
        (Phase.UPDATE, Role.DELTA, "bias" if optimizer else "weight"),  # Adam makes a step of the rounding that k has
        *((Phase.UPDATE, Role.STATE, f"weight.{state}") for state in states),
    }  # fmt: skip
    (weight,) = (s for s in here if (s.step, s.phase, s.slot_a) == (0, Phase.INIT, "weight"))
    parts, none = (weight.parts_a, weight.parts_b) if pair.is_apart_first else (weight.parts_b, weight.parts_a)
    assert parts == tuple((f"layers.1.attn.{part}", "weight") for part in "qkv") and none == ()
    assert weight.shape_a == weight.shape_b == (32, 16)
    assert weight.metrics.rel_l2 < 1e-12
    if pair.task == "tensor":
        assert weight.metrics.status.value == "equal" and not weight.metrics.estimated


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["attn.q", "attn.k", "attn.qkv"])
def test_weights_that_are_stored_the_other_way_round(pair: Pair, place: str) -> None:
    """GPT-2's Conv1D has [in, out] where the projections of others have [out, in]."""
    models = apart(), together()
    linear = module(models[place.endswith("qkv")], f"layers.1.{place}")
    linear.__class__ = nn.LinearInOut
    linear.weight = nn.Parameter(np.ascontiguousarray(linear.weight.data.T))
    found = pair.compared(*models, steps=2)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    (weight,) = (s for s in found[TOGETHER] if (s.step, s.phase, s.slot_a) == (0, Phase.INIT, "weight"))
    assert weight.metrics.rel_l2 < 1e-12 and {weight.shape_a, weight.shape_b} <= {(32, 16), (16, 32)}


@pytest.mark.thorough
def test_a_gradient_that_parts_pass_back_is_estimated_from_their_sketches(pair: Pair) -> None:
    found = pair.compared()
    (passed,) = (s for s in found["layers.1.attn.v"] if s.role is Role.GRAD_INPUT)
    assert passed.metrics.rel_l2 < 1e-5 and passed.metrics.estimated


def changed(change: Callable[[Any], object]) -> Any:
    model = apart()
    change(module(model, "layers.1.attn"))
    return model


def double_k(attn: Any) -> None:
    attn.k.weight.data *= 1.5


def shift_v(attn: Any) -> None:
    attn.v.bias.data += 0.5


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "slot", "part", "rest"), [
    (double_k, "weight", "k", "q and v agree"), (shift_v, "bias", "v", "q and k agree"),
])  # fmt: skip
def test_weights_of_one_part_that_are_wrong(pair: Pair, fault: Any, slot: str, part: str, rest: str) -> None:
    evidence = pair.assert_found(pair.compared(changed(fault)), "init", slot)
    if pair.task == "tensor":
        assert f"of its parts {part} (rel " in evidence and rest in evidence
    else:
        assert "which of q, k and v it is, their values would tell" in evidence


@pytest.mark.thorough
def test_one_part_computes_something_else(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn.v", forward=lambda s, x: nn.Linear.forward(s, x) * 1.25)
    evidence = pair.assert_found(pair.compared(model), "forward", "0")
    assert "inputs agree" in evidence
    if pair.task == "tensor":
        assert "of its parts v (rel " in evidence and "q and k agree" in evidence


@pytest.mark.thorough
def test_one_part_is_given_something_else(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn", forward=_with_other_input)
    evidence = pair.assert_found(pair.compared(model), "forward", "0")
    if pair.task == "tensor":
        assert "of its parts k (rel " in evidence and "q and v agree" in evidence


def _with_other_input(self: Any, x: Tensor) -> Tensor:
    from tests.fusing import attended

    return self.o(attended(self.q(x), self.k(x * 1.5), self.v(x)))


@pytest.mark.thorough
def test_the_gradient_of_one_part_alone(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn.v", forward=lambda s, x: x @ scaled_gradient(s.weight, 1.5).swapaxes(0, 1) + s.bias)
    evidence = pair.assert_found(pair.compared(model), "gradient", "weight")
    if pair.task == "tensor":
        assert "of its parts v (rel " in evidence and "q and k agree" in evidence


@pytest.mark.thorough
def test_what_one_part_passes_back(pair: Pair) -> None:
    model = apart()
    replaced(model, "layers.1.attn.k", forward=lambda s, x: nn.Linear.forward(s, scaled_gradient(x, 2.0)))
    pair.assert_found(pair.compared(model), "backward", "0")


@pytest.mark.thorough
def test_a_part_that_does_not_learn(pair: Pair) -> None:
    found = pair.compared(changed(lambda attn: setattr(attn.k.weight, "requires_grad", False)))
    evidence = pair.assert_found(found, "gradient", "weight")
    letter = "A" if pair.is_apart_first else "B"
    assert f"k has no param_grad in {letter}" in evidence


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [1, 2])
def test_one_part_is_trained_otherwise(pair: Pair, steps: int) -> None:
    models = apart(), together()
    own = module(models[0], "layers.1.attn.k").weight
    groups = [{"params": [p for p in models[0].parameters() if p is not own]}, {"params": [own], "lr": 0.3}]
    optimizers = nn.SGD(groups, lr=0.1), nn.SGD(models[1].parameters(), lr=0.1)
    found = pair.compared(*models, steps=steps, optimizers=optimizers)
    pair.assert_found(found, "update", "weight")
    first = found.first_divergence
    values = "0.3 against 0.1" if pair.is_apart_first else "0.1 against 0.3"
    assert first is not None and f"lr {values}" in first.hint


def swapped(model: Any) -> Any:
    """Put v's rows where k's belong, in every layer."""
    for attn in (module(model, f"layers.{n}.attn") for n in range(3)):
        for slot in ("weight", "bias"):
            k, v = getattr(attn.k, slot), getattr(attn.v, slot)
            k.data[...], v.data[...] = v.data.copy(), k.data.copy()
    return model


@pytest.mark.thorough
@pytest.mark.parametrize("task", TASKS)
def test_parts_in_another_order(run: Recorder, task: str) -> None:
    found = Pair(run, task, True).compared(whole=together(model=swapped(apart())))
    first = found.first_divergence
    assert first is not None and (first.phase, first.a[0].slot) == (Phase.INIT, "weight")
    assert "in another order" in first.hint
    assert task == "statistics" or any("k (rel " in text and "v (rel " in text for text in first.evidence)


@pytest.mark.thorough
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
    assert "in another order" in first.hint


@pytest.mark.thorough
def test_a_split_that_does_not_fit(run: Recorder) -> None:
    message = (
        r"Together: qkv: 3 groups do not divide layers.0.attn.q.weight \[16, 16\] \+ layers.0.attn.k.weight \[8, 16\]"
    )
    with pytest.raises(probe.errors.MappingError, match=message):
        Pair(run, "statistics", True).compared(groups=3)


@pytest.mark.thorough
@pytest.mark.xfail(strict=True, reason="a fused bias is not compared where a part has none")
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


@pytest.mark.thorough
def test_the_text_names_all_parts(pair: Pair) -> None:
    found = pair.compared(changed(double_k))
    text = render(found).plain
    for part in "qkv":
        assert f"layers.1.attn.{part} " in text
    assert TOGETHER in text
    first = found.as_json()["first_divergence"]
    assert isinstance(first, dict)
    assert {len(first["a"]), len(first["b"])} == {1, 3}


@pytest.mark.thorough
def test_parts_have_columns_in_the_table(pair: Pair) -> None:
    pytest.importorskip("pandas")
    table = pair.compared().table()
    here = table[(table.role == "param") & (table.phase == "init") & table.path_a.str.startswith("layers.1.attn.q")]
    column = here.parts_a if pair.is_apart_first else here.parts_b
    assert sorted(column) == [
        ", ".join(f"layers.1.attn.{part}.{slot}" for part in "qkv") for slot in ("bias", "weight")
    ]


# ---- Parameters that a mapping renames, turns, or puts together; modules that it leaves out.

EXPERTS = 4


class Expert(nn.Module):
    """down(silu(gate x) · up x)."""

    def __init__(self) -> None:
        super().__init__(gate=nn.Linear(WIDTH, 6, False), up=nn.Linear(WIDTH, 6, False), down=nn.Linear(6, WIDTH, False),
                         act=nn.SiLU())  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Apart(nn.Module):
    """The sum of some experts, each a module."""

    def __init__(self) -> None:
        super().__init__(**{str(i): Expert() for i in range(EXPERTS)})

    def forward(self, x: Tensor) -> Tensor:
        return sum((expert(x) for _, expert in self.children()), x * 0.0)


class Stacked(nn.Module):
    """The same with all experts in two parameters: [E, gate and up, in] and, turned, [E, in, out]."""

    def __init__(self, experts: Apart) -> None:
        each = [expert for _, expert in experts.children()]
        gate_up = np.stack([np.concatenate([e.gate.weight.data, e.up.weight.data]) for e in each])
        down = np.stack([e.down.weight.data.T for e in each])
        super().__init__(gate_up=nn.Parameter(gate_up), down=nn.Parameter(down), act=nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        total = x * 0.0
        for i in range(EXPERTS):
            y = x @ self.gate_up[i].swapaxes(0, 1)
            total = total + (self.act(y[..., :6]) * y[..., 6:]) @ self.down[i]
        return total


STACKED_WEIGHTS = {"Stacked": {"params": {
    "gate_up": {"to": ["{i}.gate.weight", "{i}.up.weight"]}, "down": {"to": ["{i}.down.weight"], "transpose": True},
}}}  # fmt: skip


def models_weights(change: Callable[[Apart], object] = lambda experts: None) -> tuple[Any, Any]:
    """Return the model with experts apart, changed, and that with all in one."""
    found = []
    for _ in range(2):
        model = gpt()
        nn.manual_seed(5)
        module(model, "layers.1").mlp = Apart()
        found.append(model)
    module(found[1], "layers.1").mlp = Stacked(module(found[1], "layers.1.mlp"))
    change(module(found[0], "layers.1.mlp"))
    return found[0], found[1]


@pytest.fixture(params=["statistics", "tensor"])
def task_weights(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.xfail(
    strict=True, reason="a part of a joined weight has no row of its own, so that asking for its module finds nothing"
)
@pytest.mark.parametrize("turned", [False, True])
def test_stacked_experts(run: Recorder, task_weights: str, turned: bool) -> None:
    files = [run(model, steps=2, task=task_weights) for model in models_weights()]
    found = probe.compare(*(files[::-1] if turned else files), mapping=STACKED_WEIGHTS)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert not said(found, "weights that were not compared")
    compared = {(s.phase, s.role, s.slot_a) for s in found["layers.1.mlp.2.gate"] if s.metrics.is_known}
    assert compared >= {
        (Phase.INIT, Role.PARAM, "gate_up"), (Phase.GRADIENT, Role.PARAM_GRAD, "gate_up"),
        (Phase.UPDATE, Role.DELTA, "gate_up"), (Phase.UPDATE, Role.STATE, "gate_up.exp_avg"),
    }  # fmt: skip
    (down,) = (s for s in found["layers.1.mlp.3.down"] if s.phase is Phase.INIT and s.slot_a == "down")
    assert down.metrics.rel_l2 < 1e-12 and (down.metrics.status.value == "equal") is (task_weights == "tensor")


class InOneMatrix(nn.Module):
    """`Stacked`, with each parameter as one matrix that is seen as [E, in, out]."""

    def __init__(self, stacked: Stacked) -> None:
        turned = np.ascontiguousarray(stacked.gate_up.data.swapaxes(1, 2))
        weight2 = np.ascontiguousarray(stacked.down.data)
        super().__init__(weight1=nn.Parameter(turned.reshape(WIDTH, -1)), weight2=nn.Parameter(weight2.reshape(-1, WIDTH)),
                         act=nn.SiLU())  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        total, first, second = (
            x * 0.0,
            self.weight1.reshape(EXPERTS, WIDTH, -1),
            self.weight2.reshape(EXPERTS, -1, WIDTH),
        )
        for i in range(EXPERTS):
            y = x @ first[i]
            total = total + (self.act(y[..., :6]) * y[..., 6:]) @ second[i]
        return total


@pytest.mark.parametrize("turned", [False, True])
def test_experts_in_one_matrix(run: Recorder, task_weights: str, turned: bool) -> None:
    rules = {"InOneMatrix": {"params": {
        "weight1": {"to": "gate_up", "reshape": True, "transpose": True}, "weight2": {"to": "down", "reshape": True},
    }}}  # fmt: skip
    found = {}
    for factor in (1.0, 1.5):
        one, other = models_weights()[1], models_weights()[1]
        module(one, "layers.1").mlp = InOneMatrix(module(one, "layers.1.mlp"))
        module(one, "layers.1.mlp").weight1.data[...] *= factor
        files = [run(model, steps=2, task=task_weights) for model in (one, other)]
        found[factor] = probe.compare(*(files[::-1] if turned else files), mapping=rules)
    assert found[1.0].verdict is Verdict.ALIGNED, (found[1.0].first_divergence, found[1.0].warnings)
    assert not said(found[1.0], "weights that were not compared")
    (weight,) = (
        s
        for s in found[1.0]["layers.1.mlp"]
        if s.phase is Phase.INIT and "gate_up" in s.slot_a + s.slot_b and s.step == 0
    )
    assert weight.metrics.rel_l2 < 1e-12
    first = found[1.5].first_divergence
    assert first is not None and first.phase is Phase.INIT
    assert {ref.slot for ref in (*first.a, *first.b)} == {"weight1", "gate_up"}


def _wrong(experts: Apart) -> None:
    getattr(experts, "2").up.weight.data[...] *= 1.5


def _gradient(experts: Apart) -> None:
    found = getattr(experts, "3").gate
    found.__class__ = type("Linear", (nn.Linear,), {
        "forward": lambda s, x: x @ scaled_gradient(s.weight, 1.5).swapaxes(0, 1),
    })  # fmt: skip


@pytest.mark.parametrize(("fault", "phase", "part"), [(_wrong, "init", "2.up"), (_gradient, "gradient", "3.gate")])
def test_one_expert_is_wrong(
    run: Recorder, task_weights: str, fault: Callable[[Apart], None], phase: str, part: str
) -> None:
    files = [run(model, task=task_weights) for model in models_weights(fault)]
    first = probe.compare(*files, mapping=STACKED_WEIGHTS).first_divergence
    assert first is not None and first.phase.label == phase
    assert [(ref.path, ref.slot) for ref in first.b] == [("layers.1.mlp", "gate_up")]
    assert {ref.path for ref in first.a} == {
        f"layers.1.mlp.{i}.{name}" for i in range(EXPERTS) for name in ("gate", "up")
    }
    if task_weights == "tensor":
        assert any(f"of its parts {part} (rel" in text for text in first.evidence), first.evidence
    text = render(probe.compare(*files, mapping=STACKED_WEIGHTS)).plain
    assert "  A layers.1.mlp.2.up" in text and "layers.1.mlp.3.gate  " not in text and "  A and 2 more\n" in text


def test_experts_that_hold_up_before_gate(run: Recorder, task_weights: str) -> None:
    both = models_weights()
    gate_up = module(both[1], "layers.1.mlp").gate_up
    gate_up.data[...] = np.concatenate([gate_up.data[:, 6:], gate_up.data[:, :6]], 1)
    first = probe.compare(*(run(model, task=task_weights) for model in both), mapping=STACKED_WEIGHTS).first_divergence
    assert first is not None
    if task_weights == "tensor":
        assert first.phase is Phase.INIT and first.b[0].slot == "gate_up"
        assert (
            "in another order, moved by 6 (verified): look at the order of the parts (q, k, v; gate, up)" in first.hint
        )
    else:  # of weights that are one on the other side, no sketch is known
        assert (first.phase, first.path) == (Phase.FORWARD, "layers.1.mlp")


# ---- renamed, turned -----------------------------------------------------------------------------------


class Scaled(nn.Module):
    """RMSNorm under other names."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        super().__init__(scale=norm.weight, eps=norm.eps)

    def forward(self, x: Tensor) -> Tensor:
        return x * ((x * x).mean(-1, keepdims=True) + self.eps) ** -0.5 * self.scale


def renamed(change: float = 1.0) -> Any:
    model = gpt()
    for number in range(3):
        block = module(model, f"layers.{number}")
        block.norm1 = Scaled(block.norm1)
    module(model, "layers.1.norm1").scale.data[...] *= change
    return model


def test_parameters_that_are_renamed(run: Recorder, task_weights: str) -> None:
    files = run(renamed(), task=task_weights), run(task=task_weights)
    mapping = {"Scaled": {"params": {"scale": "weight"}}}
    found = probe.compare(*files, mapping=mapping)
    assert found.verdict is Verdict.ALIGNED
    compared = {(s.phase, s.role, s.slot_a, s.slot_b) for s in found["layers.1.norm1"] if s.metrics.is_known}
    assert compared >= {
        (Phase.INIT, Role.PARAM, "scale", "weight"), (Phase.UPDATE, Role.STATE, "scale.exp_avg", "weight.exp_avg"),
    }  # fmt: skip
    first = probe.compare(run(renamed(1.5), task=task_weights), files[1], mapping=mapping).first_divergence
    assert first is not None and (first.phase, first.path, first.a[0].slot) == (Phase.INIT, "layers.1.norm1", "scale")


TURNED = {"Block": {f"{path}": {"to": path, "transpose": True} for path in ("mlp.up", "mlp.gate", "mlp.down",
          "attn.q", "attn.k", "attn.v", "attn.o")}}  # fmt: skip
TURNED["GPT"] = {"head": {"to": "head", "transpose": True}}


def _compared(run: Recorder, model: Any, task: str) -> Comparison:
    return probe.compare(run(stored_in_out(model), task=task), run(task=task), mapping={**TURNED})


def test_weights_that_are_turned_square_ones_too(run: Recorder, task_weights: str) -> None:
    found = _compared(run, gpt(), task_weights)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    (square,) = (s for s in found["layers.1.attn.q"] if (s.phase, s.role) == (Phase.INIT, Role.PARAM))
    assert square.metrics.rel_l2 < 1e-12
    model = gpt()
    module(model, "layers.1.attn.q").weight.data[...] *= 1.5
    first = _compared(run, model, task_weights).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "layers.1.attn.q")


# ---- left out -----------------------------------------------------------------------------------------


class Extra(nn.Module):
    """Something that one side alone has, and that changes nothing."""

    def __init__(self, size: int) -> None:
        super().__init__(weight=nn.Parameter(np.ones(size, np.float32)))

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.0 * self.weight


def with_extra() -> Any:
    """Return a model with something before its head."""

    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.extra(self.norm(x)))

    model = gpt()
    model.extra = Extra(WIDTH)
    model.__class__ = type("GPT", (GPT,), {"forward": forward})
    return model


IGNORE = {"ignore": ["**/Extra"]}


def test_what_is_left_out_is_neither_paired_nor_left(run: Recorder, task_weights: str) -> None:
    files = run(with_extra(), task=task_weights), run(task=task_weights)
    found = probe.compare(*files)
    assert found.only_a == ("extra",)
    without = probe.compare(*files, mapping=IGNORE)
    assert without.only_a == () and without.coverage.only_a == 0 and found.coverage.only_a == 1
    assert without.verdict is Verdict.ALIGNED and not said(without, "extra")
    head = render(without).plain.partition("\n")[0]
    assert head.startswith("ALIGNED but for 1 weight (ignored by the mapping)  A ")


def test_what_is_left_out_is_not_blamed_but_named(run: Recorder, task_weights: str) -> None:
    model = with_extra()
    model.extra.weight.data *= 1.5
    files = run(model, task=task_weights), run(task=task_weights)
    blamed = probe.compare(*files).first_divergence
    assert blamed is not None and blamed.path == "extra"
    first = probe.compare(*files, mapping=IGNORE).first_divergence
    assert first is not None and first.path == ""
    assert "not compared on the way: extra" in "\n".join(first.evidence)


# ---- In which order parts lie in a weight, where no values are stored: by the sums along its axes.


def without_sums(path: Path) -> Path:
    """Make it a file that was written before there were sums."""
    with h5py.File(path, "r+") as file:
        del file["axis_sums"], file["sums"]
    return path


def swapped_rows(model: Any, first: int, second: int) -> None:
    weight = module(model, "layers.1.attn.qkv").weight.data
    weight[[first, second]] = weight[[second, first]]


def test_two_rows_of_a_packed_weight_that_are_swapped(run: Recorder) -> None:
    whole = together()
    swapped_rows(whole, 1, 2)
    first = probe.compare(run(apart()), run(whole), mapping=mapping()).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "layers.1.attn.q")
    assert "parameters equal" not in first.evidence[0]


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_values_on_one_side_are_enough(run: Recorder, task: str) -> None:
    tasks = task, "statistics" if task == "tensor" else "tensor"
    right = [run(model, task=each) for model, each in zip((apart(), together()), tasks, strict=True)]
    assert probe.compare(*right, mapping=mapping()).verdict is Verdict.ALIGNED
    whole = together()
    swapped_rows(whole, 3, 20)
    first = probe.compare(right[0], run(whole, task=tasks[1]), mapping=mapping()).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.attn.q")


def test_without_them_the_order_is_not_compared_and_that_is_said(run: Recorder) -> None:
    whole, plain = together(), together(groups=1)
    for n in range(3):
        for slot in ("weight", "bias"):
            place = module(whole, f"layers.{n}.attn.qkv")
            getattr(place, slot).data[...] = getattr(module(plain, f"layers.{n}.attn.qkv"), slot).data
    files = without_sums(run(apart())), without_sums(run(whole))
    first = probe.compare(*files, mapping=mapping()).first_divergence
    assert first is not None and first.phase is Phase.FORWARD and first.path in ("layers.0.attn", "layers.0.attn.o")


@pytest.mark.parametrize("slot", ["gate_up", "down"])
def test_two_experts_that_are_swapped(run: Recorder, slot: str) -> None:
    both = models_weights()
    weight = getattr(module(both[1], "layers.1.mlp"), slot).data
    weight[[0, 2]] = weight[[2, 0]]
    first = probe.compare(*(run(model) for model in both), mapping=STACKED_WEIGHTS).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.FORWARD, "layers.1.mlp")


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_whole_that_is_stored_the_other_way_round(run: Recorder, is_wrong: bool) -> None:
    whole = together()
    if is_wrong:
        swapped_rows(whole, 1, 2)
    linear = module(whole, "layers.1.attn.qkv")
    linear.__class__ = nn.LinearInOut
    linear.weight = nn.Parameter(np.ascontiguousarray(linear.weight.data.T))
    found = probe.compare(run(apart()), run(whole), mapping=mapping())
    assert found.verdict is (Verdict.DIVERGED if is_wrong else Verdict.ALIGNED), found.first_divergence


def test_the_file_has_them_once_and_only_of_parameters(run: Recorder) -> None:
    model = together()
    with h5py.File(run(model, steps=3)) as file:
        rows = file["axis_sums"][:]
        names = [row.decode() for row in file["parameters"]["slot"]]
        assert set(rows["step"]) == {0} and len(rows) == sum(p.data.ndim for p in model.parameters())
        assert {names[row] for row in rows["parameter"]} <= {"weight", "bias"} and rows["count"].sum() == len(
            file["sums"]
        )
    with h5py.File(run(together(), task="tensor")) as file:
        assert not len(file["sums"])  # values say more


def test_values_of_some_modules_leave_sums_of_the_others(run: Recorder) -> None:
    whole = together()
    swapped_rows(whole, 1, 2)
    files = [run(model, task="tensor", tensors=["*.norm1"]) for model in (apart(), whole)]
    first = probe.compare(*files, mapping=mapping()).first_divergence
    assert first is not None and (first.phase, first.path) == (Phase.INIT, "layers.1.attn.q")


def test_swapped_experts_are_not_called_groups_of_one_part(run: Recorder) -> None:
    both = models_weights()
    weight = module(both[1], "layers.1.mlp").down.data
    weight[[0, 2]] = weight[[2, 0]]
    first = probe.compare(*(run(model) for model in both), mapping=STACKED_WEIGHTS).first_divergence
    assert first is not None and "groups" not in first.hint
