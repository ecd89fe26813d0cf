"""What a recording of a MindSpore training holds, and what is said of what it cannot hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

import zoo_mindspore as zoo  # noqa: E402
from mindspore import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.adapters.mindspore import calls  # noqa: E402
from probe.adapters.mindspore.optimizers import CLASSES  # noqa: E402
from probe.errors import ProbeWarning, RecordingError  # noqa: E402
from probe.testing import Recording  # noqa: E402


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    yield
    probe.stop()


def squares(model: nn.Cell, index: int = 0) -> Any:
    return mindspore.value_and_grad(
        lambda: model(zoo.batch(index, 4, 6)).square().sum(), None, model.trainable_params()
    )()


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


# ---- what is refused or said ---------------------------------------------------------------------------


def test_graph_mode_is_refused(tmp_path: Path) -> None:
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    with pytest.raises(RecordingError) as caught:
        probe.start(nn.Dense(2, 2), tmp_path / "a.h5")
    assert str(caught.value) == (
        "probe.start(): MindSpore is in graph mode, in which no hooks run: call "
        "mindspore.set_context(mode=mindspore.PYNATIVE_MODE) before probe.start()"
    )
    assert not (tmp_path / "a.h5").exists()


def test_a_compiled_cell_is_said_and_the_others_are_recorded(tmp_path: Path) -> None:
    model = zoo.PartlyCompiled()
    with pytest.warns(ProbeWarning, match="middle is compiled by mindspore.jit: what runs inside it is not recorded"):
        probe.start(model, tmp_path / "a.h5", task="tensor")
    squares(model)
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert [path for _, path, _ in run.called()] == ["", "first", "middle", "last"]
    gradients = {(s.path, s.slot) for s in run.find(phase="gradient")}
    assert gradients >= {("first", "weight"), ("last", "bias")}
    assert run.one(path="middle", role="grad_input").values.any()
    assert [text for _, _, text in run.notes] == [
        "middle is compiled by mindspore.jit: what runs inside it is not recorded"
    ]


def compiled_step(model: nn.Cell) -> Any:
    def forward(x: Tensor) -> Tensor:
        return model(x).square().sum()

    differentiate = mindspore.value_and_grad(forward, None, model.trainable_params())

    @mindspore.jit
    def step(x: Tensor) -> Any:
        return differentiate(x)

    return step


def test_a_compiled_step_is_said_and_gradients_can_be_handed_over(tmp_path: Path) -> None:
    model = Net()
    step = compiled_step(model)
    probe.start(model, tmp_path / "a.h5", task="tensor")
    loss, gradients = step(zoo.batch(0, 4, 6))
    with pytest.warns(ProbeWarning) as said:
        probe.step(loss=loss, grads=gradients)
    text = (
        "no module inside the model was seen to run: code that mindspore.jit compiles runs without hooks; "
        "leave mindspore.jit out while you record"
    )
    assert [str(each.message) for each in said] == [f"probe: {text}"]
    named = {"last.bias": gradients[3], "first.weight": gradients[0]}
    probe.step(grads=named)
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    names = ["first.weight", "first.bias", "last.weight", "last.bias"]
    for name, gradient in zip(names, gradients, strict=True):
        path, _, slot = name.rpartition(".")
        assert np.array_equal(run.one(step=0, phase="gradient", path=path, slot=slot).values, gradient.asnumpy())
    assert {f"{s.path}.{s.slot}" for s in run.find(step=1, phase="gradient")} == set(named)
    assert [note[2] for note in run.notes] == [text]


def test_gradients_that_probe_saw_are_not_recorded_twice(tmp_path: Path) -> None:
    model = Net()
    probe.start(model, tmp_path / "a.h5", task="tensor")
    loss, gradients = squares(model)
    probe.step(loss=loss, grads=gradients)
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert len(run.find(phase="gradient")) == 4 and not run.notes
    assert np.array_equal(run.one(phase="gradient", path="last", slot="weight").values, gradients[2].asnumpy())


def test_gradients_that_do_not_fit_are_said_and_left_out(tmp_path: Path) -> None:
    model = Net()
    probe.start(model, tmp_path / "a.h5")
    _, gradients = squares(model)
    cases: list[tuple[Any, str]] = [
        (gradients[:3], "grads: 3 gradients for 4 parameters that are trained (first.weight, first.bias, last.weight, "
                        "last.bias); give one for each, in the model's order, or a dict by their names"),
        (gradients[::-1], "grads: the gradient of first.weight has shape (3,); the parameter has (5, 6)"),
        ({"first.wait": gradients[0]}, "grads: no parameter is named 'first.wait'; expected names such as first.weight, "
                                       "first.bias, last.weight, last.bias"),
        ([None, None, None, 3.0], "grads: for last.bias got a float; expected a tensor of mindspore, or None"),
        (gradients[0], "grads: expected a list, tuple or dict of tensors, got Tensor"),
    ]  # fmt: skip
    for given, message in cases:
        expected = f"probe: probe.step() was given no gradients that can be recorded: {message}"
        with pytest.warns(ProbeWarning) as caught:
            probe.step(grads=given)
        assert expected in [str(each.message) for each in caught]
    probe.step(grads=[None, *gradients[1:]])
    probe.stop()
    assert len(Recording(tmp_path / "a.h5").steps) == len(cases) + 1


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"optimizer=mindspore\.nn\..*\.Dense; expected an optimizer of mindspore"):
        probe.start(nn.Dense(2, 2), tmp_path / "a.h5", optimizer=nn.Dense(2, 2))


def test_what_is_replaced_while_a_recording_runs_is_put_back(tmp_path: Path) -> None:
    def replaced() -> list[bool]:
        return [calls.is_replaced(), "grad" in vars(nn.cell._pynative_executor),
                *("__call__" in vars(kind) for kind in CLASSES)]  # fmt: skip

    assert replaced() == [False] * 4
    with probe.capture(Net(), tmp_path / "a.h5"):
        assert replaced() == [True] * 4
    assert replaced() == [False] * 4 and not calls.watched


# ---- how it is trained ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["train_one_step_cell", "model_train", "loss_scale", "recompute", "lstm"])
def test_every_phase_is_recorded_however_it_is_trained(name: str, tmp_path: Path) -> None:
    class Observer:
        def start(self, model: nn.Cell, optimizer: nn.Cell) -> None:
            self.names = [p.name for p in model.trainable_params()]
            self.paths = {path for path, _ in model.cells_and_names() if "_recompute_cell" not in path}
            probe.start(model, tmp_path / "a.h5", task="tensor")

        def step(self, loss: Tensor) -> None:
            probe.step(loss=loss)

        def stop(self) -> None:
            probe.stop()

    observer = Observer()
    result = zoo.train(zoo.CASES[name], observer)
    run = Recording(tmp_path / "a.h5")
    assert not run.notes
    assert len(run.steps) == zoo.STEPS and len(run.optimizer) >= zoo.STEPS
    micros = {s.micro for s in run.find(step=1, phase="gradient")}
    assert micros == ({0} if name in ("train_one_step_cell", "model_train") else {0, 1})
    for role, phase in (("param_grad", "gradient"), ("param_grad", "update"), ("param", "update"), ("delta", "update")):
        found = {f"{s.path}.{s.slot}" for s in run.find(step=1, phase=phase, role=role)}
        assert len(found) == len(observer.names), (phase, role)
    for s in run.find(step=zoo.STEPS - 1, phase="update", role="param"):
        assert s.values.tobytes() == result.weights[f"{s.path}.{s.slot}".lstrip(".")]
    assert {s.path for s in run.find(step=0, phase="backward", role="grad_output")} >= {"", "head"}
    if name == "loss_scale":
        left = run.one(step=0, micro=1, phase="gradient", path="head", slot="bias").values
        used = run.one(step=0, phase="update", role="param_grad", path="head", slot="bias").values
        assert np.allclose(left, 1024 * used, rtol=1e-6) and used.any()


def test_gradients_are_added_up_over_micro_batches_until_an_optimizer_or_a_step_uses_them(tmp_path: Path) -> None:
    model = Net()
    probe.start(model, tmp_path / "a.h5", task="tensor")
    parts = []
    for _ in range(2):
        parts.append([squares(model, index)[1][3].asnumpy() for index in (0, 1)])
        probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    for step in (0, 1):
        for micro in (0, 1):
            found = run.one(step=step, micro=micro, phase="gradient", path="last", slot="bias").values
            assert np.array_equal(found, parts[step][0] if micro == 0 else parts[step][0] + parts[step][1])


def test_a_model_that_is_itself_the_differentiated_function_has_gradients_on(tmp_path: Path) -> None:
    model = Net()
    x = zoo.batch(0, 4, 6)
    with probe.capture(model, tmp_path / "a.h5"):
        mindspore.value_and_grad(model, None, model.trainable_params())(x)
        model(x)
    run = Recording(tmp_path / "a.h5")
    roots = [call for call in run.calls if run.modules[call["module"]].path == ""]
    assert [(int(c["micro"]), bool(c["grad_enabled"])) for c in roots] == [(0, True), (-1, False)]
    assert len(run.find(phase="gradient")) == 4 and run.one(role="grad_output", path="")


def test_recomputed_calls_are_marked_and_recorded_once(tmp_path: Path) -> None:
    model = zoo.Mlp(recompute=True)
    with probe.capture(model, tmp_path / "a.h5"):
        squares(model)
    run = Recording(tmp_path / "a.h5")
    again = [run.modules[call["module"]].path for call in run.calls if call["recomputed"]]
    assert again == ["blocks.0", "blocks.0.norm", "blocks.0.up", "blocks.0.act"] or again == [
        "blocks.0.norm", "blocks.0.up", "blocks.0.act"
    ]  # fmt: skip
    assert len(run.find(path="blocks.0.up", role="output")) == 1
    assert len(run.find(path="blocks.0.up", role="grad_output")) == 1 and not run.notes


def test_a_cell_with_a_gradient_of_its_own_is_recorded(tmp_path: Path) -> None:
    class Doubled(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x * 2.0

        def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
            return (dout * 5.0,)

    model = nn.SequentialCell(nn.Dense(6, 3), Doubled())
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        squares(model)
    run = Recording(tmp_path / "a.h5")
    given = run.one(path="1", role="grad_output").values
    (passed,) = run.find(path="1", role="grad_input") or run.find(path="1", role="grad_total")
    assert np.array_equal(passed.values, 5 * given) and not run.notes


# ---- parameters and optimizers -------------------------------------------------------------------------


def test_running_statistics_are_buffers_and_have_canonical_names(tmp_path: Path) -> None:
    model = zoo.Cnn()
    model.set_train()
    model.conv.weight.requires_grad = False
    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        mindspore.value_and_grad(lambda: model(zoo.batch(0, 3, 2, 6, 6)).sum(), None, model.trainable_params())()
    run = Recording(tmp_path / "a.h5")
    named = {p.names[0]: (p.is_buffer, p.requires_grad) for p in run.parameters}
    assert named["norm.moving_mean"] == named["norm.moving_variance"] == (True, False)
    assert named["conv.weight"] == (False, False) and named["norm.gamma"] == (False, True)
    canonical = {p.names[0]: p.canonical for p in run.parameters}
    assert canonical["norm.moving_variance"] == "running_var" and canonical["norm.gamma"] == "weight"
    before, after = (run.one(phase=phase, slot="moving_mean").values for phase in ("init", "update"))
    assert not np.array_equal(before, after)


def update(model: nn.Cell, optimizer: nn.Cell, path: Path, count: int = 1) -> Recording:
    probe.start(model, path, task="tensor")
    for step in range(count):
        optimizer(squares(model, step)[1])
        probe.step()
    probe.stop()
    return Recording(path)


def test_an_optimizers_loss_scale_is_taken_out_of_gradients_and_decay(tmp_path: Path) -> None:
    model = nn.SequentialCell(nn.Dense(6, 3), nn.LayerNorm((3,)))
    optimizer = nn.Momentum(model.trainable_params(), 0.05, 0.9, weight_decay=0.1, loss_scale=4.0)
    run = update(model, optimizer, tmp_path / "a.h5")
    left = run.one(phase="gradient", path="0", slot="bias").values
    used = run.one(phase="update", role="param_grad", path="0", slot="bias").values
    assert np.array_equal(used, left / 4) and used.any()
    hyper = {tuple(run.parameters[i].names[0] for i in g.parameters): g.hyper for _, g in run.optimizer}
    assert {names: (h["lr"], h["weight_decay"], h["momentum"]) for names, h in hyper.items()} == {
        ("0.weight", "0.bias"): (0.05, pytest.approx(0.1), 0.9), ("1.gamma", "1.beta"): (0.05, 0.0, 0.9)
    }  # fmt: skip


def test_rates_of_every_step_and_group_are_recorded(tmp_path: Path) -> None:
    model = Net()
    weights = model.trainable_params()
    schedule = nn.ExponentialDecayLR(0.1, 0.5, 1)
    for number, (optimizer, expected) in enumerate(
        [
            (nn.Adam(weights, [0.1, 0.2, 0.3]), [[0.1], [0.2], [0.3]]),
            (nn.SGD(weights, schedule), [[0.1], [0.05], [0.025]]),
            (nn.Adam([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:]}], 0.01), [[0.5, 0.01]] * 3),
            (mindspore.experimental.optim.AdamW(weights, lr=0.3), [[0.3]] * 3),
        ]
    ):
        run = update(model, optimizer, tmp_path / f"{number}.h5", 3)
        rates: list[list[Any]] = [[], [], []]
        for step, group in run.optimizer:
            rates[step].append(group.hyper["lr"])
        assert [[pytest.approx(rate) for rate in each] for each in expected] == rates
        assert len(run.find(step=2, role="delta")) == 4


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (lambda w: nn.Momentum(w, 0.1, 0.9), {"moments", "global_step"}),
        (lambda w: nn.SGD(w, 0.1, 0.9), {"accum", "stat", "global_step"}),
        (lambda w: nn.Adam(w), {"moment1", "moment2", "beta2_power"}),
        (lambda w: nn.AdamWeightDecay(w), {"moments1", "moments2", "global_step"}),
        (lambda w: nn.RMSProp(w), {"ms", "moment", "global_step"}),
        (lambda w: mindspore.experimental.optim.AdamW(w), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "state_step"}),
        (lambda w: mindspore.mint.optim.SGD(w, 0.1, momentum=0.9), {"momentum_buf"}),
    ],
    ids=["momentum", "sgd", "adam", "adam_weight_decay", "rmsprop", "experimental_adamw", "mint_sgd"],
)
def test_states_have_the_names_that_the_optimizer_has_for_them(optimizer: Any, states: set, tmp_path: Path) -> None:
    model = Net()
    run = update(model, optimizer(model.trainable_params()), tmp_path / "a.h5")
    assert {s.slot for s in run.find(role="state", path="last")} == {
        f"{slot}.{state}" for slot in ("weight", "bias") for state in states
    }


def test_an_optimizer_that_cannot_be_looked_into_is_recorded_without_its_settings(tmp_path: Path) -> None:
    class Own(nn.Optimizer):
        def __init__(self, weights: Any) -> None:
            super().__init__(0.1, weights)
            self.decay_flags = None

        def construct(self, gradients: Any) -> bool:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.set_data(parameter - 0.1 * gradient)
            return True

    model = Net()
    run = update(model, Own(model.trainable_params()), tmp_path / "a.h5")
    assert [(g.class_name, g.hyper, len(g.parameters)) for _, g in run.optimizer] == [("Own", {}, 4)]
    assert len(run.find(role="delta")) == 4


def test_gradients_of_another_number_than_the_optimizers_parameters_are_said(tmp_path: Path) -> None:
    class Own(nn.Optimizer):
        def construct(self, gradients: Any) -> bool:
            return True

    model = Net()
    optimizer = Own(0.1, model.trainable_params())
    probe.start(model, tmp_path / "a.h5")
    gradients = squares(model)[1]
    text = "the optimizer has 4 parameters, and was given 2 gradients"
    with pytest.warns(ProbeWarning, match=text):
        optimizer(gradients[:2])
    probe.stop()
    assert not Recording(tmp_path / "a.h5").find(phase="update", role="param_grad")


def test_an_optimizers_step_ends_the_sum_of_gradients(tmp_path: Path) -> None:
    model = Net()
    optimizer = nn.Momentum(model.trainable_params(), 0.05, 0.9)
    with probe.capture(model, tmp_path / "a.h5", task="tensor", phases=["gradient"], optimizer=optimizer):
        optimizer(squares(model, 0)[1])
        second = squares(model, 1)[1]
    found = Recording(tmp_path / "a.h5").find(phase="gradient", path="last", slot="bias")
    assert np.array_equal(found[-1].values, second[3].asnumpy())


# ---- weights that are written to within a step ---------------------------------------------------------


def test_a_call_behind_an_optimizers_step_finds_other_weights(tmp_path: Path) -> None:
    """As a GAN's discriminator does."""
    model = nn.Dense(6, 3)
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    probe.start(model, tmp_path / "a.h5")
    for step in range(2):
        optimizer(squares(model, step)[1])
        model(zoo.batch(step, 4, 6))
        probe.step()
    probe.stop()
    found = [(seen.step, seen.slot) for seen in Recording(tmp_path / "a.h5").find(phase="forward", role="param")]
    assert sorted(found) == [(0, "bias"), (0, "weight"), (1, "bias"), (1, "weight")]
