"""The contract for what a recording holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.numbers.statistics import measure, measure_update
from probe.records import HashKind
from probe.testing.arrays import sample
from probe.testing.kit import TrainingKit
from probe.testing.recording import Recording


@dataclass
class Pair:
    """A dataclass among a module's outputs."""

    first: Any
    second: Any


class ObservationContract(TrainingKit):
    """Everything that is recorded is there once, under the right name, with the right values."""

    def test_every_phase_and_role_appears(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, self.net())
        leaves = ["embed", "block.up", "block.gate", "head"]
        weights = [(path, slot) for path in leaves for slot in ("weight", "bias")]
        outputs = ["", "embed", "block", "block.up", "block.act", "block.gate", "head"]
        expected = {("init", "buffer", "", "scale"),
            ("update", "buffer", "", "scale"), ("forward", "input", "block", "scale"),
                    ("forward", "value", "", "hidden"), ("backward", "grad_output", "", "hidden"),
                    ("backward", "grad_total", "block", "0")}  # fmt: skip
        for phase, role in [("init", "param"), ("gradient", "param_grad"), ("update", "param_grad"),
                            ("update", "param"), ("update", "delta")]:  # fmt: skip
            expected |= {(phase, role, path, slot) for path, slot in weights}
        for path in outputs:
            expected |= {("forward", "input", path, "0"), ("forward", "output", path, "0")}
            expected |= {("backward", "grad_output", path, "0")}
        expected |= {("backward", self.of_input, path, "0") for path in ("block.up", "block.act", "block.gate", "head")}
        assert {key for key in run.keys() if key[1] != "state"} == expected
        assert len(run.find(role="state")) >= len(weights) and not self.missed(run)
        assert len({(s.phase, s.role, s.path, s.slot) for s in run.seen}) == len(run.seen)

    def test_what_is_recorded_is_what_was_computed(self, tmp_path: Path) -> None:
        model = self.net()
        before = {n.names[0]: self.adapter.values(n.tensor) for n in self.adapter.parameters(model)}
        run = self.run(tmp_path, model)
        x = sample((5, 4), 0)
        assert np.array_equal(run.one(path="", role="input").values, x)
        for name, values in before.items():
            path, _, slot = name.rpartition(".")
            assert np.array_equal(run.one(phase="init", path=path, slot=slot).values, values)
        output = run.one(path="", role="output").values
        head = run.one(path="head", role="output")
        assert head.shape == (5, 3) and head.dtype == "float32" and np.array_equal(head.values, output)
        assert np.array_equal(run.one(path="", role="grad_output", slot="0").values, 2 * output)
        act = run.one(path="block.act", role="input").values
        assert np.array_equal(run.one(path="block.act", role="output").values, np.maximum(act, 0))
        bias = run.one(phase="gradient", path="head", slot="bias").values
        assert np.allclose(bias, (2 * output).sum(0), rtol=1e-5)
        assert [s for s in run.scalars if s[:2] == (0, "loss")][0][2] == pytest.approx((output**2).sum(), rel=1e-5)

    def test_statistics_are_recorded_with_the_values(self, tmp_path: Path) -> None:
        for seen in self.run(tmp_path, self.net()).seen:
            if seen.values is not None:
                stats = measure(seen.values, (), HashKind(seen.hash_kind))
                assert seen.hash == (stats.hash_hi, stats.hash_lo)
                assert seen.norm == pytest.approx(stats.norm, rel=1e-12)
            else:
                assert seen.role == "delta"

    def test_own_contributions_sum_to_the_total(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, self.net())
        total = run.one(path="block", role="grad_total").values
        parts = [run.one(path=path, role=self.of_input).values for path in ("block.up", "block.gate")]
        assert np.array_equal(run.one(path="embed", role="grad_output").values, total)
        if "own contributions" in self.lacks:
            assert all(np.array_equal(part, total) for part in parts)
            return
        assert np.allclose(sum(parts), total, rtol=1e-6, atol=1e-6) and not np.allclose(parts[0], total)

    def test_gradients_are_in_the_order_of_backward(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, self.net())
        order = {(s.path, s.role): s.order for s in run.find(phase="backward") if s.slot == "0"}
        chain = [("head", "grad_output"), ("head", self.of_input), ("block", "grad_output"),
                 ("block.gate", self.of_input), ("block.act", "grad_output"), ("block.up", self.of_input),
                 ("block", "grad_total"), ("embed", "grad_output")]  # fmt: skip
        assert [order[link] for link in chain] == sorted(order[link] for link in chain)

    def test_a_call_is_charged_with_its_own_contribution_only(self, tmp_path: Path) -> None:
        def fork(module: Any, x: Any) -> Any:
            return x * 2.0, x * 3.0

        def both(module: Any, x: Any) -> Any:
            return x * 5.0 + x * 7.0

        def late(module: Any, x: Any) -> Any:
            return x * 11.0 + model.kept

        def forward(module: Any, x: Any) -> Any:
            h = module.first(x)
            model.kept = h * 100.0
            return module.fork(h)[0] + module.both(h) + module.late(h)

        model = self.module(
            forward, first=self.linear(4, 4), fork=self.module(fork), both=self.module(both), late=self.module(late)
        )
        run = self.run(tmp_path, model)
        own = {"fork": 2.0, "both": 12.0, "late": 11.0}
        if "own contributions" in self.lacks:
            own = dict.fromkeys(own, 125.0)
            assert any("one call contributes" in text for _, _, text in run.notes)
        gradient = run.one(path="", role="grad_output").values
        for path, factor in own.items():
            assert np.allclose(run.one(path=path, role=self.of_input).values, gradient * factor, rtol=1e-6), path
        del model.kept

    def test_names_of_nested_arguments_and_outputs(self, tmp_path: Path) -> None:
        def inner(module: Any, x: Any, nothing: None, nested: Any, flag: bool, *, extra: Any) -> Any:
            return {"a": x * 1.0, "b": [None, Pair(extra * 1.0, "text")], "c": 3}

        def forward(module: Any, x: Any) -> Any:
            return module.layer(module.inner(x, None, [x, {"k": (x,)}], True, extra=x)["a"])

        run = self.run(tmp_path, self.module(forward, inner=self.module(inner), layer=self.linear(4, 4)))
        slots = {role: [s.slot for s in run.find(path="inner", role=role)] for role in ("input", "output")}
        assert slots == {"input": ["0", "2.0", "2.1.k.0", "extra"], "output": ["a", "b.1.first"]}

    def test_operations_in_place_do_not_change_what_was_recorded(self, tmp_path: Path) -> None:
        def forward(module: Any, x: Any) -> Any:
            hidden = module.up(x)
            self.scale_in_place(hidden, 2.0)
            return module.act(hidden)

        model = self.module(forward, up=self.linear(4, 4), act=self.relu(inplace=True))
        path, x = tmp_path / "run.h5", self.tensor(sample((5, 4), 0))
        probe.start(model, path, task="tensor")
        self.differentiate(self.squares(model, x), model)
        self.scale_in_place(x, 0.0)
        probe.stop()
        run = Recording(path)
        assert np.array_equal(run.one(path="up", role="input").values, sample((5, 4), 0))
        up, act = run.one(path="up", role="output").values, run.one(path="act", role="input").values
        assert (up < 0).any() and np.array_equal(act, 2 * up)
        assert np.array_equal(run.one(path="act", role="output").values, np.maximum(act, 0))
        assert np.array_equal(run.one(path="act", role="grad_output").values, 4 * np.maximum(up, 0))
        assert np.array_equal(run.one(path="up", role="grad_output").values, 8 * np.maximum(up, 0))

    # Counting

    def test_micro_batches_and_evaluations_are_counted(self, tmp_path: Path) -> None:
        model, path = self.net(), tmp_path / "run.h5"
        optimizer = self.optimizer(self.parameters(model), 0.05)
        probe.start(model, path, task="tensor")
        self.train(model, False)
        with self.no_grad():
            for seed in (50, 51):
                model(self.tensor(sample((5, 4), seed)))
        self.train(model, True)
        self.fit(model, optimizer, steps=2, micros=2)
        probe.stop()
        run = Recording(path)
        assert [c[0] for c in run.called() if c[1] == ""] == [-1, -2, 0, 1, 0, 1]
        roots = [c for c in run.calls if run.modules[c["module"]].path == ""]
        assert [(bool(c["grad_enabled"]), bool(c["training"])) for c in roots] == [(False, False)] * 2 + [
            (True, True)
        ] * 4
        assert {s.micro for s in run.find(phase="backward", step=0)} == {0, 1}
        for step, micro in ((0, 0), (0, 1), (1, 0), (1, 1)):
            values = run.one(step=step, micro=micro, path="", role="input").values
            assert np.array_equal(values, sample((5, 4), 10 * step + micro))
        left = [run.one(step=1, micro=m, phase="gradient", path="head", slot="weight").values for m in (0, 1)]
        used = run.one(step=1, phase="update", role="param_grad", path="head", slot="weight")
        assert not np.array_equal(left[0], left[1]) and np.array_equal(used.values, left[1]) and used.micro == 0
        assert not run.find(step=1, phase="init") and run.find(step=1, phase="update", role="buffer")

    def test_calls_of_one_module_are_counted_and_nested(self, tmp_path: Path) -> None:
        def forward(module: Any, x: Any) -> Any:
            return module.layer(module.inner(module.layer(x)))

        inner = self.module(lambda module, x: module.act(x) * 1.0, act=self.relu())
        run = self.run(tmp_path, self.module(forward, layer=self.linear(4, 4), inner=inner), micros=2)
        one = [("", 0), ("layer", 0), ("inner", 0), ("inner.act", 0), ("layer", 1)]
        assert run.called() == [(micro, *call) for micro in (0, 1) for call in one]
        callers = [-1 if c["caller"] < 0 else run.modules[run.calls[c["caller"]]["module"]].path for c in run.calls]
        assert callers == [-1, "", "", "inner", ""] * 2
        assert all(c["seq"] < c["end"] for c in run.calls) and not run.calls["raised"].any()
        second = run.one(micro=0, path="layer", call=1, role="grad_output").values
        assert np.array_equal(second, 2 * run.one(micro=0, path="", role="output").values)

    def test_a_leaf_that_is_used_again_gets_the_gradient_of_each_forward(self, tmp_path: Path) -> None:
        query = self.parameter(sample((5, 4), 9))
        inner = self.module(lambda module, q: module.layer(q) * 1.0, layer=self.linear(4, 4))
        model = self.module(lambda module, x: module.inner(module.query) * x, inner=inner, query=query)
        before = self.hooks(model, query)
        run = self.run(tmp_path, model, count=2, micros=2)
        assert self.hooks(model, query) == before and not self.missed(run)
        for role, path in (("grad_total", "inner"), (self.of_input, "inner.layer")):
            found = run.find(role=role, path=path)
            assert [(s.step, s.micro) for s in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
            assert len({s.hash for s in found}) == 4
        running = run.one(phase="gradient", step=1, micro=0, slot="query").values
        assert np.allclose(run.find(role="grad_total", path="inner")[2].values, running, rtol=1e-6)

    # Parameters and optimizers

    def test_updates_are_what_the_optimizer_did(self, tmp_path: Path) -> None:
        model, path = self.net(), tmp_path / "run.h5"
        optimizer = self.optimizer(self.parameters(model), 0.05)
        probe.start(model, path, task="tensor")
        self.differentiate(self.squares(model, self.tensor(sample((5, 4)))), model)
        self.scale_gradients(model, 0.5)
        self.update(optimizer)
        self.zero_grad(optimizer)
        probe.step()
        probe.stop()
        run = Recording(path)
        for place in ({"path": "embed", "slot": "weight"}, {"path": "head", "slot": "bias"}):
            left = run.one(phase="gradient", **place).values
            used = run.one(phase="update", role="param_grad", **place).values
            before = run.one(phase="init", **place).values.astype(np.float64)
            after = run.one(phase="update", role="param", **place).values.astype(np.float64)
            delta = run.one(role="delta", **place)
            assert np.array_equal(used, left * np.float32(0.5)) and used.any()
            assert np.allclose(after - before, -0.05 * used, rtol=1e-3, atol=1e-7)
            expected = measure_update(after.astype(used.dtype), before.astype(used.dtype))
            assert delta.dtype == "float64" and delta.norm == pytest.approx(expected.norm, rel=1e-12)
            assert delta.hash == (expected.hash_hi, expected.hash_lo)
            states = [s for s in run.find(role="state", path=place["path"]) if s.slot.startswith(place["slot"] + ".")]
            assert any(np.array_equal(state.values, used) for state in states)

    @pytest.mark.parametrize("named", [True, False], ids=["optimizer=", "any"])
    def test_optimizers_of_other_parameters_are_not_recorded(self, tmp_path: Path, named: bool) -> None:
        model, other, path = self.net(), self.net(), tmp_path / "run.h5"
        first, rest = self.parameters(model)[:2], self.parameters(model)[2:]
        ours = [self.optimizer(first, 0.05), self.optimizer(rest, 0.5)]
        foreign = self.optimizer(self.parameters(other), 0.05)
        before = self.hooks(model, other, *ours, foreign)
        probe.start(model, path, optimizer=ours[0] if named else None)
        assert self.hooks(model, other, *ours, foreign) > before
        for step in range(2):
            for each in (model, other):
                self.differentiate(self.squares(each, self.tensor(sample((5, 4), step))), each)
            for optimizer in (foreign, *ours):
                self.update(optimizer)
                self.zero_grad(optimizer)
            probe.step()
        probe.stop()
        assert self.hooks(model, other, *ours, foreign) == before
        run = Recording(path)
        updated = {s.path for s in run.find(role="delta")}
        assert updated == ({"embed"} if named else {"embed", "block.up", "block.gate", "head"})
        groups = [(step, g.optimizer, g.hyper["lr"], len(g.parameters)) for step, g in run.optimizer]
        expected = [(0, 0, 0.05, 2), (0, 1, 0.5, 6), (1, 0, 0.05, 2), (1, 1, 0.5, 6)]
        assert groups == (expected[::2] if named else expected)

    def test_tied_parameters_are_one_with_all_names(self, tmp_path: Path) -> None:
        model = self.module(lambda m, x: m.b(m.a(x)), a=self.linear(4, 4), b=self.linear(4, 4))
        model.b.weight = model.a.weight
        run = self.run(tmp_path, model)
        assert {p.names for p in run.parameters} == {("a.weight", "b.weight"), ("a.bias",), ("b.bias",)}
        for phase, role in (("init", "param"), ("gradient", "param_grad"), ("update", "delta")):
            assert [s.path for s in run.find(phase=phase, role=role, slot="weight")] == ["a"]

    def test_frozen_parameters_have_no_gradient(self, tmp_path: Path) -> None:
        model = self.net()
        self.freeze(model.block.up.weight)
        run = self.run(tmp_path, model)
        frozen = {p.names: p.requires_grad for p in run.parameters}
        assert not frozen[("block.up.weight",)] and frozen[("block.up.bias",)]
        place = {"path": "block.up", "slot": "weight"}
        assert [s.phase for s in run.find(**place)] == ["init"]
        assert run.find(phase="gradient", path="block.up", slot="bias")

    def test_several_models_have_prefixes(self, tmp_path: Path) -> None:
        first, second = self.linear(4, 4), self.module(lambda m, x: m.layer(x), layer=self.linear(4, 2))
        path = tmp_path / "run.h5"
        probe.start([first, second], path, task="tensor")
        for seed in (0, 1):
            x = self.tensor(sample((5, 4), seed))
            self.differentiate(lambda x=x: second(first(x)).sum(), second)
        probe.step()
        probe.stop()
        run = Recording(path)
        assert [(m.path, m.parent) for m in run.modules] == [("", -1), ("0", 0), ("1", 0), ("1.layer", 2)]
        assert run.called() == [(m, *call) for m in (0, 1) for call in [("0", 0), ("1", 0), ("1.layer", 0)]]
        assert {p.names[0] for p in run.parameters} >= {"0.weight", "1.layer.weight"}
        assert {s.path for s in run.find(phase="gradient")} == {"0", "1.layer"}
