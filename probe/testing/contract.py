"""The contract suite: what every adapter must do, as tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.base import Adapter
from probe.errors import ProbeWarning
from probe.testing.arrays import sample
from probe.testing.observations import ObservationContract
from probe.testing.recording import Recording
from probe.testing.tensors import TensorContract


class AdapterContract(TensorContract, ObservationContract):
    """What every adapter must do; a subclass says how its framework does the small things."""

    # Options

    def test_structure_has_shapes_and_no_numbers(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, self.net(), task="structure")
        assert run.one(path="head", role="output").shape == (5, 3)
        assert {s.phase for s in run.seen} == {"init", "forward", "backward", "gradient", "update"}
        assert all(s.values is None and s.norm != s.norm and s.hash_kind == 0 for s in run.seen)

    def test_filters(self, tmp_path: Path) -> None:
        def run(name: str, **options: Any) -> Recording:
            (tmp_path / name).mkdir()
            return self.run(tmp_path / name, self.net(), count=3, **options)

        steps = run("steps", steps=[1])
        assert {s.step for s in steps.seen} == {1} == set(steps.steps["step"]) == {s[0] for s in steps.scalars}
        assert steps.find(phase="init", role="param") and not self.missed(steps)
        assert {s.phase for s in run("phases", phases=["forward", "update"]).seen} == {"forward", "update"}
        by_path = run("modules", modules=["block*", "!*.gate"])
        assert {s.path for s in by_path.find(phase="forward", role="output")} == {
            "block",
            "block.up",
            "block.act",
        }
        assert {path for _, path, _ in by_path.called()} >= {"", "embed", "head"}
        assert {s.path for s in run("class", modules="Block").find(role="output")} == {"block"}
        in_full = run("tensors", tensors=["head"])
        assert {s.path for s in in_full.seen if s.values is not None} == {"head"}
        assert in_full.one(step=0, path="embed", role="output").norm > 0

    def test_values_that_are_logged(self, tmp_path: Path) -> None:
        probe.log("nothing happens", self.tensor(sample((2,))))
        model, path = self.net(), tmp_path / "run.h5"

        def loss() -> Any:
            output = model(self.tensor(sample((5, 4))))
            probe.log("squares", output * output)
            probe.log("temperature", 2.5)
            return (output * output).sum()

        point = {"module": "Net", "after": 'probe.log("hidden", hidden)', "value": "[None, hidden]", "name": "point"}
        probe.start(model, path, task="tensor", points=[point])
        value = self.differentiate(loss, model)
        probe.step(loss=value, lr=0.1)
        probe.stop()
        run = Recording(path)
        squares = run.one(phase="loss", role="value", slot="squares")
        assert squares.path == "" and np.array_equal(squares.values, run.one(path="", role="output").values ** 2)
        hidden = run.one(phase="forward", role="value", slot="hidden").values
        assert np.array_equal(hidden, run.one(path="block", role="output").values)
        assert np.array_equal(hidden, run.one(phase="forward", role="value", slot="point.1").values)
        for slot in ("hidden", "point.1"):
            gradient = run.one(role="grad_output", slot=slot).values
            assert np.array_equal(gradient, run.one(path="head", role=self.of_input).values)
        assert {s[1]: s[2] for s in run.scalars} == {
            "temperature": 2.5, "lr": 0.1, "loss": pytest.approx(float(squares.values.sum()), rel=1e-6)
        }  # fmt: skip

    # Hooks of the process

    def test_every_call_is_told_before_it_begins(self) -> None:
        model = self.net()
        paths = {id(named.module): named.path for named in self.adapter.modules(model)}
        before, told = self.hooks(model), []
        remove = self.adapter.on_any_call(lambda module: told.append(paths.get(id(module), "?")))
        assert self.hooks(model) > before
        model(self.tensor(sample((5, 4))))
        assert told == ["", "embed", "block", "block.up", "block.act", "block.gate", "head"]
        remove()
        model(self.tensor(sample((5, 4))))
        assert len(told) == 7 and self.hooks(model) == before

    def test_hooks_that_are_set_as_a_call_begins_are_told_of_it(self) -> None:
        model = self.net()
        x, scale = self.tensor(sample((5, 4))), self.tensor(np.full(4, 2.5, np.float32))
        seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        outputs: list[Any] = []

        def hook(module: Any) -> None:
            if module is model.block and len(removals) == 1:
                removals.append(
                    self.adapter.on_call(
                        module, lambda a, k: seen.append((a, k)), lambda output, _: outputs.append(output)
                    )
                )

        removals: list[Any] = []
        removals.append(self.adapter.on_any_call(hook))
        returned = model.block(x, scale=scale)
        removals.pop(0)()
        model.block(x, scale=scale)
        removals.pop()()
        model.block(x, scale=scale)
        assert len(seen) == len(outputs) == 2 and outputs[0] is returned
        for args, kwargs in seen:
            assert args[0] is x and list(kwargs) == ["scale"] and kwargs["scale"] is scale

    def test_classes_are_those_of_modules_and_optimizers(self) -> None:
        model = self.net()
        modules, optimizers = self.adapter.classes()
        optimizer = self.optimizer(self.parameters(model), 0.1)
        assert isinstance(model.block, modules) and not isinstance(x := self.tensor(sample((2,))), modules)
        assert isinstance(optimizer, optimizers) and not isinstance(x, optimizers)
        held = [each for group in self.adapter.groups_of(optimizer) for each in group.parameters]
        assert {id(each) for each in held} == {id(each) for each in self.parameters(model)}
        assert self.adapter.inside(model) is None

    # Neutrality

    @pytest.mark.parametrize("task", ["structure", "statistics", "tensor"])
    def test_training_is_bitwise_the_same(self, tmp_path: Path, task: str) -> None:
        results = []
        for recorded in (False, True):
            model = self.net()
            for i, item in enumerate(self.adapter.parameters(model)):
                if not item.is_buffer:
                    self.assign(item.tensor, sample(self.adapter.facts(item.tensor).shape, 100 + i))
            optimizer = self.optimizer(self.parameters(model), 0.001)
            if recorded:
                probe.start(model, tmp_path / "run.h5", task=task)
                self.fit(model, optimizer, steps=3, micros=2)
                probe.stop()
            else:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(probe, "step", lambda **_: None)
                    self.fit(model, optimizer, steps=3, micros=2)
            results.append([self.adapter.values(p).tobytes() for p in self.parameters(model)])
        assert results[0] == results[1]

    def test_hooks_are_gone_after_stop(self, tmp_path: Path) -> None:
        model = self.net()
        optimizer = self.optimizer(self.parameters(model), 0.05)
        x = self.tensor(sample((5, 4)), requires_grad=True)
        before = self.hooks(model, optimizer, x)
        probe.start(model, tmp_path / "a.h5")
        assert self.hooks(model, optimizer, x) > before
        self.differentiate(self.squares(model, x), model)
        probe.stop()
        assert self.hooks(model, optimizer, x) == before
        with pytest.raises(ZeroDivisionError), probe.capture(model, tmp_path / "b.h5"):
            model(x)
            raise ZeroDivisionError
        assert self.hooks(model, optimizer, x) == before
        assert [s["state"] for s in Recording(tmp_path / "b.h5").steps] == [1]

    def test_a_model_that_raises_can_be_recorded_further(self, tmp_path: Path) -> None:
        def bad(module: Any, x: Any) -> Any:
            if failing:
                raise ZeroDivisionError
            return x * 1.0

        def forward(module: Any, x: Any) -> Any:
            return module.outer(module.layer(x))

        outer = self.module(lambda module, x: module.bad(x), bad=self.module(bad))
        model = self.module(forward, layer=self.linear(4, 4), outer=outer)
        path = tmp_path / "run.h5"
        probe.start(model, path, task="tensor")
        failing = True
        with pytest.raises(ZeroDivisionError):
            self.differentiate(self.squares(model, self.tensor(sample((5, 4), 3))), model)
        failing = False
        self.differentiate(self.squares(model, self.tensor(sample((5, 4), 4))), model)
        probe.step()
        probe.stop()
        run = Recording(path)
        assert [name for _, name, _ in run.called()] == ["", "layer", "outer", "outer.bad"] * 2
        assert run.calls["raised"].tolist() == [1, 0, 1, 1, 0, 0, 0, 0]
        assert run.calls["caller"].tolist() == [-1, 0, 0, 2, -1, 4, 4, 6]
        assert {s.micro for s in run.find(phase="backward")} == {1} and not self.missed(run)

    def test_an_error_of_probe_does_not_reach_the_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = self.adapter.measure

        def broken(adapter: Adapter, tensor: Any, axes: Sequence[int], known: bytes | None = None) -> bytes:
            if adapter.facts(tensor).shape == (5, 3):
                raise MemoryError("planted")
            return whole(tensor, axes, known)

        monkeypatch.setattr(type(self.adapter), "measure", broken)
        with pytest.warns(ProbeWarning, match="could not be recorded: MemoryError"):
            run = self.run(tmp_path, self.net())
        assert run.find(path="block", role="output") and not run.find(path="head", role="output")
        assert run.find(phase="update", path="head", slot="weight")
        texts = [text for _, _, text in run.notes]
        assert any("forward output 0 of head" in text and "planted" in text for text in texts)
        assert any("backward grad_output 0 of the root" in text for text in texts)
        assert len(set(texts)) == len(texts)
