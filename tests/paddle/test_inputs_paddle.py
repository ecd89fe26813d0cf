"""Inputs, settings, schedules and noise runs of PaddlePaddle."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from zoo_models_paddle import batch, mlp

paddle = pytest.importorskip("paddle")

from paddle.optimizer import lr  # noqa: E402

import probe  # noqa: E402
from probe.adapters.paddle.environment import environment, is_read, unread  # noqa: E402
from probe.adapters.paddle.seeding import to_tensor  # noqa: E402
from probe.answer.result import Verdict  # noqa: E402
from probe.errors import ConfigError  # noqa: E402
from probe.reproducibility.inputs import tensor_maker  # noqa: E402
from probe.settings.advising import advice  # noqa: E402
from probe.settings.environment import environment_of  # noqa: E402
from probe.settings.table.determinism import TRAPS  # noqa: E402

# ---- Inputs and seeds of PaddlePaddle.


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    for framework in ("torch", "mindspore"):
        monkeypatch.delitem(sys.modules, framework, raising=False)
    yield


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_tensors_have_the_bits_of_the_arrays(dtype: str) -> None:
    text = f"{dtype}[3,4] < 100" if "int" in dtype else f"{dtype}[3,4]" if "float" in dtype else "bool[3,4] mask"
    plain = probe.make_inputs({"x": text})["x"]
    made = probe.make_inputs({"x": text}, to="paddle")["x"]
    assert str(made.dtype) == f"paddle.{dtype}" and made.numpy().tobytes() == plain.tobytes()
    assert made.stop_gradient


def test_bfloat16_keeps_its_bits() -> None:
    plain = probe.make_inputs({"x": "bfloat16[3,4]"})["x"]
    made = to_tensor(plain, paddle.nn.Linear(2, 2))
    assert made.dtype == paddle.bfloat16 and made.numpy().view(np.uint16).tobytes() == plain.tobytes()
    small = np.arange(4).astype("float32").astype(ml_dtypes.float8_e4m3fn)
    made = to_tensor(small)
    assert made.dtype == paddle.float8_e4m3fn and made.astype("float32").numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_dtypes_that_paddle_lacks(dtype: str) -> None:
    with pytest.raises(
        probe.errors.ConfigError, match=f"no tensor of paddle can be made from {dtype}: PaddlePaddle has no"
    ):
        tensor_maker("paddle")(np.zeros(2, dtype))


def test_shapes_without_elements_and_without_axes() -> None:
    assert to_tensor(np.zeros((0, 3), "int64")).shape == [0, 3] and to_tensor(np.array(2.5)).shape == []


def test_twice_the_same_seed() -> None:
    def drawn() -> list[object]:
        return [paddle.rand([3]).tolist(), paddle.nn.Linear(2, 2).weight.tolist(),
                paddle.nn.functional.dropout(paddle.ones([20])).tolist(), np.random.rand()]  # fmt: skip

    probe.seed_all(3)
    first = drawn()
    assert drawn() != first
    probe.seed_all(3)
    assert drawn() == first


def test_variables_that_have_no_effect_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "FLAGS_shard_norm_align_dp", "Flags_mp_aysnc_allreduce", "FLAGS_check_nan_inf"
    for name in names:
        monkeypatch.setenv(name, "1")
    missing = [text for text in probe.seed_all(3).missing if text.startswith(names)]
    assert missing == [
        f"FLAGS_shard_norm_align_dp, set in the environment: no flag of this build of paddlepaddle {paddle.__version__} has this name",
        "Flags_mp_aysnc_allreduce, set in the environment: PaddlePaddle reads only names that begin with FLAGS_",
    ]


def test_flags_that_this_build_does_not_read_are_named() -> None:
    seeding = probe.seed_all(3)
    assert "paddle.seed" in seeding.done
    if not paddle.is_compiled_with_cuda():
        text = f"FLAGS_cudnn_deterministic: this build of paddlepaddle {paddle.__version__} does not read it"
        assert text in seeding.missing
    assert probe.seed_all(3, deterministic=False).done == ("random", "numpy.random", "paddle.seed")


# ---- Settings of PaddlePaddle: its flags, variables that nothing reads, a model's configuration.


@pytest.mark.parametrize("name", [trap.variable for trap in TRAPS if trap.variable.lower().startswith("flags_")])
def test_nothing_reads_the_flags_of_the_guides(name: str) -> None:
    assert not is_read(name)


@pytest.mark.parametrize(
    "name",
    ["FLAGS_use_mkldnn", "FLAGS_check_nan_inf", "FLAGS_sync_before_allreduce", "FLAGS_selected_gpus", "FLAGS_prim_all"],
)
def test_flags_and_what_python_code_reads(name: str) -> None:
    """The last three are no flags: PaddlePaddle's Python code asks the environment for them."""
    assert is_read(name)


def test_unread_variables_are_recorded_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAGS_of_nobody", "1")
    monkeypatch.setenv("Flags_skip_mp_c_identity", "1")
    monkeypatch.setenv("FLAGS_check_nan_inf", "0")
    model = paddle.nn.Linear(2, 2)
    with probe.capture(model, tmp_path / "a.h5"):
        model(paddle.ones([1, 2])).sum().backward()
        probe.step()
    assert set(unread()) == {"FLAGS_of_nobody", "Flags_skip_mp_c_identity"}
    _, found = environment_of(tmp_path / "a.h5")
    said = {each.variable: each.instead for each in advice(found).unread}
    assert set(said) == {"FLAGS_of_nobody", "Flags_skip_mp_c_identity"}
    assert said["Flags_skip_mp_c_identity"].endswith("mp_skip_c_identity")


def test_the_flags_of_this_build_are_recorded() -> None:
    facts = environment()
    assert facts["device"] == "cpu" and "devices" not in facts
    assert facts["flags"]["FLAGS_check_nan_inf"] is False  # type: ignore[index]


# ---- Schedules of PaddlePaddle: simulated from where they stand, on copies, and the same as PyTorch's formulas.

SCHEDULES: dict[str, Callable[[], Any]] = {
    "step": lambda: lr.StepDecay(0.1, 3, 0.5),
    "cosine": lambda: lr.CosineAnnealingDecay(0.1, 20),
    "warm-up": lambda: lr.LinearWarmup(lr.PolynomialDecay(0.1, 30, end_lr=0.0), 5, 0.0, 0.1),
    "lambda": lambda: lr.LambdaDecay(0.1, lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("already", [0, 7])
def test_what_is_simulated_is_what_a_training_has(name: str, already: int) -> None:
    schedule = SCHEDULES[name]()
    for _ in range(already):
        schedule.step()
    last = schedule.last_epoch, schedule()
    found = probe.compare_schedules(schedule, schedule, 20)
    assert found.equal and (schedule.last_epoch, schedule()) == last
    expected = []
    for _ in range(20):
        expected.append(schedule())
        schedule.step()
    assert found.a[0].tolist() == expected


def test_a_warm_up_that_starts_elsewhere_is_found() -> None:
    def reference(step: int) -> float:
        return 0.1 * min(1.0, (step + 1) / 10)

    schedule = lr.LinearWarmup(0.1, 10, 0.0, 0.1)
    found = probe.compare_schedules(reference, schedule, 30)
    assert (found.first, found.hints[0].partition(":")[0]) == (0, "A is one step ahead")


def test_what_depends_on_a_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="ReduceOnPlateau depends on a metric"):
        probe.compare_schedules(lr.ReduceOnPlateau(0.1), [0.1])


# ---- `probe.noise_run` under PaddlePaddle: a training that had one in its middle goes on as if there had been none.

OPTIMIZERS: dict[str, Callable[[list], paddle.optimizer.Optimizer]] = {
    "sgd": lambda parameters: paddle.optimizer.SGD(0.05, parameters=parameters),
    "momentum": lambda parameters: paddle.optimizer.Momentum(0.05, parameters=parameters),
    "adamw": lambda parameters: paddle.optimizer.AdamW(1e-2, parameters=parameters),
    "lamb": lambda parameters: paddle.optimizer.Lamb(1e-2, parameters=parameters),
    "lbfgs": lambda parameters: paddle.optimizer.LBFGS(0.1, max_iter=2, parameters=parameters),
}


def train(path: Path | None, name: str, before: int, task: str = "statistics") -> list[np.ndarray]:
    """Train; after ``before`` steps comes a noise run, if there is a path. Return all that the rest of the training makes."""
    paddle.seed(0)
    model = mlp()
    model.train()
    optimizer = OPTIMIZERS[name](model.parameters())

    def loss_of(index: int) -> paddle.Tensor:
        out = model(batch(index, 4, 6))
        return (out * out).mean() + paddle.rand([1]).sum()

    def step(index: int) -> paddle.Tensor:
        def closure() -> paddle.Tensor:
            optimizer.clear_grad(set_to_zero=False)
            loss = loss_of(index)
            loss.backward()
            return loss

        if name == "lbfgs":
            return optimizer.step(closure)
        loss = closure()
        optimizer.step()
        return loss

    for index in range(before):
        step(index)
    if before:
        loss_of(7).backward()  # gradients that wait for a step
    if path is not None:
        with probe.noise_run(model, path, task=task):
            for index in range(10, 12):
                probe.step(loss=step(index))
    waiting = [parameter.grad for parameter in model.parameters()]
    found = [np.zeros(0) if gradient is None else gradient.numpy() for gradient in waiting]
    found += [step(index).numpy() for index in range(before, before + 2)]
    return [*found, *(tensor.numpy() for tensor in model.state_dict().values())]


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_leaves_no_trace(tmp_path: Path, name: str, before: int) -> None:
    plain, probed = train(None, name, before), train(tmp_path / "a2.h5", name, before)
    assert len(plain) == len(probed)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(plain, probed, strict=True))


@pytest.mark.filterwarnings("error::probe.errors.ProbeWarning")
def test_the_floor_is_one_of_rounding(tmp_path: Path) -> None:
    for name in ("a", "a2"):
        paddle.seed(0)
        model = mlp()
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        block = probe.capture if name == "a" else probe.noise_run
        with block(model, tmp_path / f"{name}.h5", task="tensor"):
            loss = (model(batch(0, 4, 6)) ** 2).mean()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
    floor = probe.compare(tmp_path / "a.h5", tmp_path / "a2.h5")
    assert floor.verdict is Verdict.ALIGNED
    errors = [slot.metrics.rel_l2 for slot in floor["4"] if slot.phase.label == "forward"]
    assert 1e-9 < max(errors) < 1e-5
