"""Parameters that a mapping renames, turns, or puts together; modules that it leaves out."""

from __future__ import annotations

from collections.abc import Callable
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
from tests.toys import GPT, WIDTH, gpt, module, scaled_gradient, stored_in_out

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


STACKED = {"Stacked": {"params": {
    "gate_up": {"to": ["{i}.gate.weight", "{i}.up.weight"]}, "down": {"to": ["{i}.down.weight"], "transpose": True},
}}}  # fmt: skip


def models(change: Callable[[Apart], object] = lambda experts: None) -> tuple[Any, Any]:
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
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("turned", [False, True])
def test_stacked_experts(run: Recorder, task: str, turned: bool) -> None:
    files = [run(model, steps=2, task=task) for model in models()]
    found = probe.compare(*(files[::-1] if turned else files), mapping=STACKED)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    assert not said(found, "weights that were not compared")
    compared = {(s.phase, s.role, s.slot_a) for s in found["layers.1.mlp.2.gate"] if s.metrics.is_known}
    assert compared >= {
        (Phase.INIT, Role.PARAM, "gate_up"), (Phase.GRADIENT, Role.PARAM_GRAD, "gate_up"),
        (Phase.UPDATE, Role.DELTA, "gate_up"), (Phase.UPDATE, Role.STATE, "gate_up.exp_avg"),
    }  # fmt: skip
    (down,) = (s for s in found["layers.1.mlp.3.down"] if s.phase is Phase.INIT and s.slot_a == "down")
    assert down.metrics.rel_l2 < 1e-12 and (down.metrics.status.value == "equal") is (task == "tensor")


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
def test_experts_in_one_matrix(run: Recorder, task: str, turned: bool) -> None:
    rules = {"InOneMatrix": {"params": {
        "weight1": {"to": "gate_up", "reshape": True, "transpose": True}, "weight2": {"to": "down", "reshape": True},
    }}}  # fmt: skip
    found = {}
    for factor in (1.0, 1.5):
        one, other = models()[1], models()[1]
        module(one, "layers.1").mlp = InOneMatrix(module(one, "layers.1.mlp"))
        module(one, "layers.1.mlp").weight1.data[...] *= factor
        files = [run(model, steps=2, task=task) for model in (one, other)]
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
def test_one_expert_is_wrong(run: Recorder, task: str, fault: Callable[[Apart], None], phase: str, part: str) -> None:
    files = [run(model, task=task) for model in models(fault)]
    first = probe.compare(*files, mapping=STACKED).first_divergence
    assert first is not None and first.phase.label == phase
    assert [(ref.path, ref.slot) for ref in first.b] == [("layers.1.mlp", "gate_up")]
    assert {ref.path for ref in first.a} == {
        f"layers.1.mlp.{i}.{name}" for i in range(EXPERTS) for name in ("gate", "up")
    }
    if task == "tensor":
        assert any(f"of its parts {part} (rel" in text for text in first.evidence), first.evidence
    text = render(probe.compare(*files, mapping=STACKED)).plain
    assert "  A layers.1.mlp.2.up" in text and "layers.1.mlp.3.gate  " not in text and "  A and 2 more\n" in text


def test_experts_that_hold_up_before_gate(run: Recorder, task: str) -> None:
    both = models()
    gate_up = module(both[1], "layers.1.mlp").gate_up
    gate_up.data[...] = np.concatenate([gate_up.data[:, 6:], gate_up.data[:, :6]], 1)
    first = probe.compare(*(run(model, task=task) for model in both), mapping=STACKED).first_divergence
    assert first is not None
    assert "B's layers.1.mlp.gate_up holds 0.up, 0.gate one after the other, where 0.gate, 0.up one" in first.hint


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


def test_parameters_that_are_renamed(run: Recorder, task: str) -> None:
    files = run(renamed(), task=task), run(task=task)
    mapping = {"Scaled": {"params": {"scale": "weight"}}}
    found = probe.compare(*files, mapping=mapping)
    assert found.verdict is Verdict.ALIGNED
    compared = {(s.phase, s.role, s.slot_a, s.slot_b) for s in found["layers.1.norm1"] if s.metrics.is_known}
    assert compared >= {
        (Phase.INIT, Role.PARAM, "scale", "weight"), (Phase.UPDATE, Role.STATE, "scale.exp_avg", "weight.exp_avg"),
    }  # fmt: skip
    first = probe.compare(run(renamed(1.5), task=task), files[1], mapping=mapping).first_divergence
    assert first is not None and (first.phase, first.path, first.a[0].slot) == (Phase.INIT, "layers.1.norm1", "scale")


TURNED = {"Block": {f"{path}": {"to": path, "transpose": True} for path in ("mlp.up", "mlp.gate", "mlp.down",
          "attn.q", "attn.k", "attn.v", "attn.o")}}  # fmt: skip
TURNED["GPT"] = {"head": {"to": "head", "transpose": True}}


def _compared(run: Recorder, model: Any, task: str) -> Comparison:
    return probe.compare(run(stored_in_out(model), task=task), run(task=task), mapping={**TURNED})


def test_weights_that_are_turned_square_ones_too(run: Recorder, task: str) -> None:
    found = _compared(run, gpt(), task)
    assert found.verdict is Verdict.ALIGNED, (found.first_divergence, found.warnings)
    (square,) = (s for s in found["layers.1.attn.q"] if (s.phase, s.role) == (Phase.INIT, Role.PARAM))
    assert square.metrics.rel_l2 < 1e-12
    model = gpt()
    module(model, "layers.1.attn.q").weight.data[...] *= 1.5
    first = _compared(run, model, task).first_divergence
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


def test_what_is_left_out_is_neither_paired_nor_left(run: Recorder, task: str) -> None:
    files = run(with_extra(), task=task), run(task=task)
    found = probe.compare(*files)
    assert found.only_a == ("extra",)
    without = probe.compare(*files, mapping=IGNORE)
    assert without.only_a == () and without.coverage.only_a == 0 and found.coverage.only_a == 1
    assert without.verdict is Verdict.ALIGNED and not said(without, "extra")
    head = render(without).plain.partition("\n")[0]
    assert head.startswith("ALIGNED but for 1 weight (ignored by the mapping)  A ")


def test_what_is_left_out_is_not_blamed_but_named(run: Recorder, task: str) -> None:
    model = with_extra()
    model.extra.weight.data *= 1.5
    files = run(model, task=task), run(task=task)
    blamed = probe.compare(*files).first_divergence
    assert blamed is not None and blamed.path == "extra"
    first = probe.compare(*files, mapping=IGNORE).first_divergence
    assert first is not None and first.path == ""
    assert "not compared on the way: extra" in "\n".join(first.evidence)
