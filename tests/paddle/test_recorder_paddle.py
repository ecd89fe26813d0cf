"""What of PaddlePaddle's own ways a recording holds: buffers, optimizers, recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import zoo_paddle as zoo  # noqa: E402
from hooks import wrapped_methods  # noqa: E402
from paddle import Tensor, nn  # noqa: E402
from paddle.distributed.fleet.utils import recompute  # noqa: E402
from recorded import Update, missed, recorded  # noqa: E402

import probe  # noqa: E402
from probe.adapters.paddle.backward import set_hook  # noqa: E402
from probe.errors import ProbeWarning  # noqa: E402
from probe.testing import Recording  # noqa: E402


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    probe.stop()


# ---- parameters ----------------------------------------------------------------------------------------


def test_running_statistics_are_buffers(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1D(6), nn.BatchNorm(6), nn.Linear(6, 2))
    run = recorded(tmp_path / "a.h5", model, zoo.by_momentum(model))
    buffers = {name for p in run.parameters if p.is_buffer for name in p.names}
    assert buffers == {"0._mean", "0._variance", "1._mean", "1._variance"}
    assert {s.slot for s in run.find(path="0", phase="update", role="buffer")} == {"_mean", "_variance"}
    assert not [s for s in run.seen if s.slot in ("_mean", "_variance") and s.role != "buffer"]
    (_, group), *others = run.optimizer
    assert not others and len(group.parameters) == 6  # the optimizer was given the statistics, too


def test_a_frozen_batch_norm_has_parameters_still(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1D(6), nn.Linear(6, 2))
    model[0].weight.stop_gradient = True
    run = recorded(tmp_path / "a.h5", model)
    kinds = {p.names[0]: (p.is_buffer, p.requires_grad) for p in run.parameters}
    assert kinds["0.weight"] == (False, False) and kinds["0._mean"] == (True, False)


def test_weights_of_linear_layers_are_turned_by_class_not_by_name(tmp_path: Path) -> None:
    class Mine(nn.Linear):
        pass

    class Linear(nn.Layer):  # somebody else's: nothing is known of it
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([6, 6])

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model = nn.Sequential(("conv", nn.Linear(6, 6)), ("mine", Mine(6, 6)), ("linear", Linear()))
    run = recorded(tmp_path / "a.h5", model)
    axes = {p.names[0]: p.axes for p in run.parameters}
    assert axes == {
        "conv.weight": (1, 0), "conv.bias": (), "mine.weight": (1, 0), "mine.bias": (), "linear.weight": (),
    }  # fmt: skip


def test_tensors_that_are_attributes_are_no_buffers(tmp_path: Path) -> None:
    class Keeps(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", paddle.ones([6]))
            self.register_buffer("passing", paddle.ones([6]), persistable=False)

        def forward(self, x: Tensor) -> Tensor:
            self.kept = x * self.scale
            return self.kept * self.passing

    model = nn.Sequential(nn.Linear(6, 6), Keeps())
    run = recorded(tmp_path / "a.h5", model, steps=2)
    assert [p.names for p in run.parameters if p.is_buffer] == [("1.scale",)] and not missed(run)


# ---- optimizers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [zoo.step_and_clear, zoo.minimize])
def test_gradients_as_used_are_clipped_by_value(update: Update, tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=nn.ClipGradByValue(0.01))
    run = recorded(tmp_path / "a.h5", model, optimizer, update)
    for slot in ("weight", "bias"):
        left = run.one(phase="gradient", slot=slot).values
        used = run.one(phase="update", role="param_grad", slot=slot).values
        assert np.array_equal(used, left.clip(-0.01, 0.01)) and not np.array_equal(used, left)


@pytest.mark.parametrize("update", [zoo.step_and_clear, zoo.minimize])
def test_gradients_as_used_are_clipped_and_without_decay(update: Update, tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    clip = nn.ClipGradByGlobalNorm(1e-3)
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters(), weight_decay=0.5, grad_clip=clip)
    run = recorded(tmp_path / "a.h5", model, optimizer, update)
    left = [run.one(phase="gradient", slot=slot).values for slot in ("weight", "bias")]
    used = [run.one(phase="update", role="param_grad", slot=slot).values for slot in ("weight", "bias")]
    norm = np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in left))
    assert norm > 1e-2
    for before, after in zip(left, used, strict=True):
        assert np.allclose(after, before * (1e-3 / norm), rtol=1e-5)
    assert not missed(run) and model.weight.grad.abs().sum() == 0


def test_rates_and_decay_are_those_of_each_parameter(tmp_path: Path) -> None:
    own = paddle.ParamAttr(learning_rate=0.5, regularizer=paddle.regularizer.L2Decay(0.3))
    other = paddle.ParamAttr(regularizer=paddle.regularizer.L1Decay(0.2))
    model = nn.Sequential(nn.Linear(6, 6, weight_attr=own), nn.Linear(6, 6, weight_attr=other), nn.Linear(6, 2))
    for kind in (paddle.optimizer.SGD, paddle.optimizer.Momentum):
        optimizer = kind(learning_rate=0.1, parameters=model.parameters(), weight_decay=0.01)
        run = recorded(tmp_path / f"{kind.__name__}.h5", model, optimizer)
        found = {
            run.parameters[index].names[0]: (
                group.hyper["lr"], group.hyper["weight_decay"], group.hyper.get("weight_decay_kind")
            )
            for _, group in run.optimizer
            for index in group.parameters
        }  # fmt: skip
        assert found == {
            "0.weight": (pytest.approx(0.05), 0.3, None), "1.weight": (0.1, 0.2, "L1Decay"),
            **{name: (0.1, 0.01, None) for name in ("0.bias", "1.bias", "2.weight", "2.bias")},
        }  # fmt: skip


def test_decay_of_adamw_follows_its_function_of_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    biases = {layer.bias.name for layer in model}
    optimizer = paddle.optimizer.AdamW(
        paddle.optimizer.lr.StepDecay(0.1, 1, gamma=0.5), parameters=model.parameters(), weight_decay=0.2,
        apply_decay_param_fun=lambda name: name not in biases,
    )  # fmt: skip

    def update(optimizer: paddle.optimizer.Optimizer, loss: Tensor) -> None:
        zoo.step_and_clear(optimizer, loss)
        optimizer._learning_rate.step()

    run = recorded(tmp_path / "a.h5", model, optimizer, update, steps=2)
    found = [(step, g.hyper["lr"], g.hyper["weight_decay"], len(g.parameters)) for step, g in run.optimizer]
    assert found == [
        (0, 0.1, 0.2, 2), (0, 0.1, 0.0, 2), (1, 0.05, 0.2, 2), (1, 0.05, 0.0, 2),
    ]  # fmt: skip
    assert run.optimizer[0][1].hyper["betas"] == [0.9, 0.999] and run.optimizer[0][1].hyper["eps"] == 1e-8
    assert {s.slot for s in run.find(role="state", path="0")} == {
        f"{slot}.{state}"
        for slot in ("weight", "bias")
        for state in ("moment1", "moment2", "beta1_pow_acc", "beta2_pow_acc")
    }


def test_a_named_optimizer_prefixes_its_states(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer = paddle.optimizer.Momentum(0.1, parameters=model.parameters(), name="mine")
    run = recorded(tmp_path / "a.h5", model, optimizer)
    assert {s.slot for s in run.find(role="state")} == {"weight.velocity", "bias.velocity"}


def test_a_closure_is_said(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    optimizer = paddle.optimizer.LBFGS(0.1, max_iter=2, parameters=model.parameters())

    def closure() -> Tensor:
        optimizer.clear_grad()
        loss = model(zoo.batch(0, 4, 6)).square().mean()
        loss.backward()
        return loss

    with pytest.warns(ProbeWarning, match="the optimizer computes its gradients in a closure"):
        probe.start(model, tmp_path / "a.h5")
        optimizer.step(closure)
        probe.step()
        probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert run.find(role="delta") and not run.find(phase="update", role="param_grad")
    assert run.optimizer[0][1].hyper["lr"] == 0.1


def test_optimizers_of_classes_made_later_are_seen(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    probe.start(model, tmp_path / "a.h5")

    class Late(paddle.optimizer.SGD):
        def step(self) -> None:
            super().step()

    optimizer = Late(0.1, parameters=model.parameters())
    model(zoo.batch(0, 4, 6)).sum().backward()
    optimizer.step()
    probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert [group.class_name for _, group in run.optimizer] == ["Late"] and run.find(role="delta")


def test_settings_that_cannot_be_read_do_not_reach_the_training(tmp_path: Path) -> None:
    class Own(paddle.regularizer.WeightDecayRegularizer):  # no coefficient
        def __call__(self, parameter: Tensor, gradient: Tensor, block: object) -> Tensor:
            return parameter * 0.0

    model = nn.Linear(6, 2, weight_attr=paddle.ParamAttr(regularizer=Own()))
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    run = recorded(tmp_path / "a.h5", model, optimizer)
    assert {s.slot for s in run.find(role="delta")} == {"weight", "bias"}
    ((_, group),) = run.optimizer
    assert list(group.hyper) == ["not_recorded"] and "_coeff" in group.hyper["not_recorded"]


def test_gradients_that_are_passed_on_in_another_form_are_said(tmp_path: Path) -> None:
    class Own(paddle.optimizer.SGD):
        def append_regularization_ops(self, pairs: Any, regularization: Any = None) -> Any:
            return super().append_regularization_ops([pair[:2] for pair in pairs], regularization)

        def step(self) -> None:
            triples = [(p, p.grad, "mine") for p in self._parameter_list]
            self.append_regularization_ops(triples)
            super().step()

    model = nn.Linear(6, 2)
    optimizer = Own(0.1, parameters=model.parameters())
    with pytest.warns(ProbeWarning, match="Own passes them on in a form of its own"):
        run = recorded(tmp_path / "a.h5", model, optimizer)
    assert run.find(role="delta")


def test_optimizers_get_their_methods_back(tmp_path: Path) -> None:
    assert not wrapped_methods()  # nor did the tests before leave any
    model = nn.Linear(6, 2)
    with probe.capture(model, tmp_path / "a.h5", optimizer=paddle.optimizer.SGD(parameters=model.parameters())):
        names = {name for _, name in wrapped_methods()}
    assert names == {"step", "_apply_optimize", "append_regularization_ops"} and not wrapped_methods()


def test_a_step_that_fails_is_said(tmp_path: Path) -> None:
    class Failing(paddle.optimizer.SGD):
        def _create_optimization_pass(self, *args: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError

    model = nn.Linear(6, 2)
    optimizer = Failing(0.1, parameters=model.parameters())
    with pytest.warns(ProbeWarning, match="an optimizer's step was not seen to its end"):
        probe.start(model, tmp_path / "a.h5")
        model(zoo.batch(0, 4, 6)).sum().backward()
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
        probe.step()
        probe.stop()


# ---- backward ------------------------------------------------------------------------------------------


class Segments(nn.Layer):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 2)
        self.blocks = nn.LayerList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = recompute(block, x, use_reentrant=self.reentrant)
        return self.last(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_recognised_and_gradients_are_recorded_once(reentrant: bool, tmp_path: Path) -> None:
    paddle.seed(0)
    model = Segments(reentrant)
    plain = Segments(reentrant)
    plain.set_state_dict(model.state_dict())
    plain(zoo.batch(0, 4, 6)).square().mean().backward()
    run = recorded(tmp_path / "a.h5", model)
    assert not missed(run)
    again = [run.modules[call["module"]].path for call in run.calls if call["recomputed"]]
    inside = {f"blocks.{i}{part}" for i in range(3) for part in ("", ".0", ".1")}
    assert set(again) == inside and len(again) == len(inside)
    assert {int(call["call"]) for call in run.calls} == {0}
    expected = {name: p.grad.numpy() for name, p in plain.named_parameters()}
    for name, gradient in expected.items():
        path, _, slot = name.rpartition(".")
        assert np.array_equal(run.one(phase="gradient", path=path, slot=slot).values, gradient), name
    for path in inside:
        assert run.one(phase="forward", role="output", path=path, slot="0").shape == (4, 6)
        assert run.one(role="grad_output", path=path, slot="0").values.any()


def test_a_gradient_that_passes_inside_and_outside_of_a_segment_is_recorded_when_it_is_whole(tmp_path: Path) -> None:
    class Twice(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(recompute(self.layer, self.layer(x), use_reentrant=True))

    model = Twice()
    run = recorded(tmp_path / "a.h5", model)
    for slot, parameter in model.layer.named_parameters():
        assert np.array_equal(run.one(phase="gradient", slot=slot).values, parameter.grad.numpy()), slot


def test_gradients_are_recorded_when_the_model_begins_with_a_segment(tmp_path: Path) -> None:
    class First(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.outside = nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.outside(recompute(self.inside, x, use_reentrant=True))

    model, x = First(), zoo.batch(0, 4, 6)
    x.stop_gradient = False
    with probe.capture(model, tmp_path / "a.h5"):
        model(x).sum().backward()
        probe.step()
    run = Recording(tmp_path / "a.h5")
    assert sorted(s.path for s in run.find(phase="gradient")) == ["inside"] * 2 + ["outside"] * 2


def test_what_a_hook_returns_does_not_reach_the_framework() -> None:
    x = zoo.batch(0, 2)
    x.stop_gradient = False
    set_hook(x, lambda gradient: 1)  # it would end the process
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_writes_that_do_not_count_are_seen(tmp_path: Path) -> None:
    class Writes(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Identity(), nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            x.set_value(paddle.zeros_like(x))
            return self.second(x)

    model = Writes()
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        model(zoo.batch(0, 4, 6))
    run = Recording(tmp_path / "a.h5")
    assert run.one(path="first", role="output").values.any()
    assert not run.one(path="second", role="input").values.any()


def test_a_backward_that_failed_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        hidden = model[0](zoo.batch(0, 4, 6))
        hidden.register_hook(fail)
        with pytest.raises(OSError, match="ZeroDivisionError"):
            model[1](hidden).sum().backward()
        for parameter in model.parameters():
            parameter.clear_gradient(True)
        model[0](zoo.batch(1, 4, 6)).sum().backward()
        probe.step()
    run = Recording(tmp_path / "a.h5")
    assert {s.path for s in run.find(phase="gradient")} == {"0"}


def test_gradients_of_the_input_by_paddle_grad_are_no_gradients_of_parameters(tmp_path: Path) -> None:
    model = nn.Linear(6, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        x = zoo.batch(0, 4, 6)
        x.stop_gradient = False
        paddle.grad(model(x).sum(), x)
        probe.step()
    run = Recording(tmp_path / "a.h5")
    assert not run.find(phase="gradient") and run.find(role="grad_output", path="")


# ---- weights that are written to within a step ----------------------------------------------------------


def test_a_call_behind_an_optimizers_step_finds_other_weights(tmp_path: Path) -> None:
    """As a GAN's discriminator does; set_value counts as no write either."""
    model = nn.Linear(6, 2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    x = paddle.ones([4, 6])
    probe.start(model, tmp_path / "a.h5", steps=[0, 1])
    for _ in range(2):
        model(x).sum().backward()
        optimizer.step()
        model(x)
        model.bias.set_value(paddle.ones([2]))
        model(x)
        probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    found = [(seen.step, seen.slot) for seen in run.find(phase="forward", role="param")]
    assert sorted(found) == [(0, "bias"), (0, "bias"), (0, "weight"), (1, "bias"), (1, "bias"), (1, "weight")]
