"""`probe.noise_run` under PaddlePaddle: a training that had one in its middle goes on as if there had been none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from zoo_models_paddle import batch, mlp  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402

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
