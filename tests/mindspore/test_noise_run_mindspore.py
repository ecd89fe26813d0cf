"""`probe.noise_run` under MindSpore: a training that had one in its middle goes on as if there had been none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.experimental import optim  # noqa: E402
from zoo_mindspore import Mlp, batch  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402

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
