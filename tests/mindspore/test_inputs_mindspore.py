"""Inputs, settings, curves and noise runs of MindSpore."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from zoo_mindspore import Mlp, batch

mindspore = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.experimental import optim  # noqa: E402
from mindspore.train import LossMonitor  # noqa: E402

import probe  # noqa: E402
from probe.adapters.mindspore.environment import environment  # noqa: E402
from probe.adapters.mindspore.seeding import to_tensor  # noqa: E402
from probe.answer.result import Verdict  # noqa: E402
from probe.curve_comparison.reading.files import read_curves  # noqa: E402
from probe.errors import ConfigError  # noqa: E402
from probe.reproducibility.inputs import tensor_maker  # noqa: E402
from probe.settings.reading.recordings import recorded  # noqa: E402
from probe.settings.resolving import resolved  # noqa: E402

# ---- Inputs and seeds of MindSpore.


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    for framework in ("torch", "paddle"):
        monkeypatch.delitem(sys.modules, framework, raising=False)
    yield


DTYPES = ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_have_the_bits_of_the_arrays(dtype: str) -> None:
    text = f"{dtype}[3,4] < 100" if "int" in dtype else f"{dtype}[3,4]" if "float" in dtype else "bool[3,4] mask"
    plain = probe.make_inputs({"x": text})["x"]
    made = probe.make_inputs({"x": text}, to="mindspore")["x"]
    assert str(made.dtype).lower() == dtype and made.asnumpy().tobytes() == plain.tobytes()


def test_bfloat16_keeps_its_bits() -> None:
    plain = probe.make_inputs({"x": "bfloat16[3,4]"})["x"]
    made = to_tensor(plain, mindspore.nn.Dense(2, 2))
    assert made.dtype == mindspore.bfloat16
    assert made.float().asnumpy().tolist() == plain.astype("float32").tolist()


def test_dtypes_that_mindspore_lacks() -> None:
    small = np.arange(4).astype("float32").astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(probe.errors.ConfigError, match="MindSpore has no float8_e4m3fn that it makes from an array"):
        tensor_maker("mindspore")(small)


def test_a_tensor_does_not_write_into_an_array() -> None:
    array = np.zeros(3, "float32")
    made = to_tensor(array)
    array[:] = 1
    assert made.asnumpy().tolist() == [0, 0, 0]


def test_shapes_without_elements_and_without_axes() -> None:
    assert to_tensor(np.zeros((0, 3), "int64")).shape == (0, 3) and to_tensor(np.array(2.5)).shape == ()


def test_twice_the_same_seed() -> None:
    def drawn() -> list[object]:
        drop = mindspore.nn.Dropout(p=0.5).set_train(True)
        return [mindspore.ops.rand(3).asnumpy().tolist(), mindspore.nn.Dense(2, 2).weight.asnumpy().tolist(),
                drop(mindspore.ops.ones((20,))).asnumpy().tolist(), np.random.rand()]  # fmt: skip

    probe.seed_all(3)
    first = drawn()
    assert drawn() != first
    probe.seed_all(3)
    assert drawn() == first


def test_determinism_is_switched_on_once() -> None:
    done = "mindspore.set_deterministic, with HCCL_DETERMINISTIC and TE_PARALLEL_COMPILER"
    for _ in range(2):
        seeding = probe.seed_all(3)
        assert done in seeding.done and mindspore.get_context("deterministic") == "ON"
    assert done not in probe.seed_all(3, deterministic=False).done


# ---- Settings of MindSpore: its context, and a model's configuration.


class Config:
    """As MindFormers has them: plain values, dtypes, and ``to_dict``."""

    def to_dict(self) -> dict[str, object]:
        return {
            "n_kv_heads": 2, "num_heads": 4, "hidden_size": 8, "rms_norm_eps": 1e-5, "theta": 500000.0, "compute_dtype": mindspore.bfloat16,
            "softmax_compute_type": mindspore.float32, "parallel_config": nn.Dense(1, 1),
        }  # fmt: skip


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.config = Config()
        self.out = nn.Dense(2, 2)

    def construct(self, x: mindspore.Tensor) -> mindspore.Tensor:
        return self.out(x)


def test_a_models_configuration_is_recorded(tmp_path: Path) -> None:
    model = Net()
    with probe.capture(model, tmp_path / "a.h5"):
        model(mindspore.ops.ones((1, 2)))
        probe.step()
    settings = resolved(recorded(tmp_path / "a.h5"))
    known = {
        name: settings.known(name)
        for name in ("num_key_value_heads", "norm_eps", "rope_theta", "compute_dtype", "softmax_dtype")
    }
    assert known == {
        "num_key_value_heads": 2,
        "norm_eps": 1e-5,
        "rope_theta": 5e5,
        "compute_dtype": "bfloat16",
        "softmax_dtype": "float32",
    }


def test_the_context_is_recorded() -> None:
    facts = environment()
    assert (facts["device_target"], facts["mode"]) == ("CPU", mindspore.PYNATIVE_MODE)
    assert facts["deterministic"] == mindspore.get_context("deterministic"), (
        "another test may have set it: it is set once"
    )


# ---- Schedules of MindSpore, and what its LossMonitor prints.


def test_schedules_round_in_float32_alone() -> None:
    def cosine(step: int) -> float:
        return 0.01 + 0.5 * (0.1 - 0.01) * (1 + math.cos(math.pi * min(step, 20) / 20))

    schedule = nn.CosineDecayLR(0.01, 0.1, 20)
    assert probe.compare_schedules(cosine, schedule, 25).equal
    found = probe.compare_schedules(cosine, nn.CosineDecayLR(0.01, 0.103, 20), 25)
    assert found.first == 0 and not found.equal


def test_lists_and_what_has_a_state() -> None:
    rates = nn.cosine_decay_lr(0.01, 0.1, 20, 1, 20)
    assert probe.compare_schedules(rates, nn.CosineDecayLR(0.01, 0.1, 20)).steps == 20
    optimizer = mindspore.experimental.optim.SGD(nn.Dense(2, 2).trainable_params(), lr=0.1)
    schedule = mindspore.experimental.optim.lr_scheduler.StepLR(optimizer, 2)
    with pytest.raises(ConfigError, match="StepLR of mindspore.experimental cannot be copied"):
        probe.compare_schedules(schedule, [0.1])


def test_what_the_loss_monitor_prints_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor, batches = LossMonitor(per_print_times=2), 5
    for step in range(1, 13):
        values = {
            "cur_epoch_num": (step - 1) // batches + 1, "cur_step_num": step, "batch_num": batches,
            "net_outputs": mindspore.Tensor(10.0 / step), "dataset_sink_mode": False,
        }  # fmt: skip
        parameters = SimpleNamespace(**values, get=lambda name, default=None, values=values: values.get(name, default))
        monitor.step_end(SimpleNamespace(original_args=lambda parameters=parameters: parameters))
    (tmp_path / "log").write_text(capsys.readouterr().out)
    loss = read_curves(tmp_path / "log").series["loss"]
    assert loss.steps.tolist() == [2, 4, 6, 8, 10, 12]
    assert loss.values.tolist() == pytest.approx([10.0 / step for step in (2, 4, 6, 8, 10, 12)], rel=1e-6)


# ---- `probe.noise_run` under MindSpore: a training that had one in its middle goes on as if there had been none.

OPTIMIZERS: dict[str, Callable[[list], nn.Cell]] = {
    "sgd": lambda parameters: nn.SGD(parameters, 0.05),
    "momentum": lambda parameters: nn.Momentum(parameters, [0.05, 0.04, 0.03, 0.02, 0.01, 0.009], 0.9),
    "adam": lambda parameters: nn.AdamWeightDecay(parameters, 1e-2),
    "experimental": lambda parameters: optim.AdamW(parameters, 1e-2),
}


def train(path: Path | None, name: str, before: int) -> list[np.ndarray]:
    """Train; after ``before`` steps comes a noise run, if there is a path. Return all that the rest of the training makes."""
    mindspore.set_seed(0)
    np.random.seed(0)
    model = Mlp()
    optimizer = OPTIMIZERS[name](model.trainable_params())

    def loss_of(x: mindspore.Tensor) -> mindspore.Tensor:
        return (model(x) ** 2).mean() + ops.rand(1).sum()

    graded = mindspore.value_and_grad(loss_of, None, optimizer.parameters)

    def step(index: int) -> mindspore.Tensor:
        loss, gradients = graded(batch(index, 4, 6))
        optimizer(gradients)
        return loss

    for index in range(before):
        step(index)
    if path is not None:
        with probe.noise_run(model, path):
            for index in range(10, 12):
                probe.step(loss=step(index))
            if name == "experimental":
                optimizer.param_groups[0]["weight_decay"] = 0.5
    losses = [step(index).asnumpy() for index in range(before, before + 2)]
    return [*losses, *(parameter.asnumpy() for parameter in model.get_parameters())]


@pytest.mark.filterwarnings("error::probe.errors.ProbeWarning")
@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_leaves_no_trace(tmp_path: Path, name: str, before: int) -> None:
    plain, probed = train(None, name, before), train(tmp_path / "a2.h5", name, before)
    assert len(plain) == len(probed)
    assert all(np.isfinite(x).all() and x.tobytes() == y.tobytes() for x, y in zip(plain, probed, strict=True))


def test_the_floor_is_one_of_rounding(tmp_path: Path) -> None:
    for name in ("a", "a2"):
        mindspore.set_seed(0)
        model = nn.SequentialCell(nn.Dense(6, 8), nn.LayerNorm((8,)), nn.GELU(), nn.Dense(8, 3))
        optimizer = OPTIMIZERS["adam"](model.trainable_params())
        graded = mindspore.value_and_grad(lambda x, model=model: (model(x) ** 2).mean(), None, optimizer.parameters)
        block = probe.capture if name == "a" else probe.noise_run
        with block(model, tmp_path / f"{name}.h5", task="tensor"):
            loss, gradients = graded(batch(0, 4, 6))
            optimizer(gradients)
            probe.step(loss=loss)
    floor = probe.compare(tmp_path / "a.h5", tmp_path / "a2.h5")
    assert floor.verdict is Verdict.ALIGNED
    errors = [slot.metrics.rel_l2 for slot in floor["3"] if slot.phase.label == "forward"]
    assert 1e-9 < max(errors) < 1e-5


def test_weights_that_are_loaded_in_the_middle_of_a_training_are_trained_on(tmp_path: Path) -> None:
    mindspore.set_seed(0)
    model = nn.Dense(6, 3)
    optimizer = OPTIMIZERS["sgd"](model.trainable_params())
    graded = mindspore.value_and_grad(lambda x: (model(x) ** 2).mean(), None, optimizer.parameters)

    def step(index: int) -> None:
        optimizer(graded(batch(index, 4, 6))[1])

    with probe.capture(model, tmp_path / "a.h5", task="tensor"):
        probe.step(loss=(model(batch(0, 4, 6)) ** 2).mean())
    loaded = model.weight.asnumpy().copy()
    step(0)
    trained = model.weight.asnumpy().copy()
    probe.load_matching(model, tmp_path / "a.h5")
    assert model.weight.asnumpy().tobytes() == loaded.tobytes()
    step(0)
    assert model.weight.asnumpy().tobytes() == trained.tobytes()
