"""Compiled layers and functions, and ``paddle.Model``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

import zoo_paddle as zoo  # noqa: E402
from paddle import Tensor, nn  # noqa: E402
from recorded import missed, recorded  # noqa: E402

import probe  # noqa: E402
from probe.errors import ProbeWarning, RecordingError  # noqa: E402
from probe.testing import Recording  # noqa: E402


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    probe.stop()


# ---- compiled programs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("full_graph", [True, False])
def test_what_runs_inside_a_compiled_layer_is_said(full_graph: bool, tmp_path: Path) -> None:
    inner = paddle.jit.to_static(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), full_graph=full_graph)
    model = nn.Sequential(inner, nn.Linear(6, 2))
    with pytest.warns(ProbeWarning, match=r"0 is compiled \(to_static\): what runs inside it is not recorded"):
        run = recorded(tmp_path / "a.h5", model, steps=2)
    assert [path for _, path, _ in run.called()] == ["", "0", "1"] * 2
    assert run.find(path="0", role="output") and run.find(path="0.0", phase="gradient", slot="weight")


@pytest.mark.filterwarnings("ignore::probe.errors.ProbeWarning")
@pytest.mark.parametrize("full_graph", [True, False])
def test_a_compiled_function_around_a_model_still_computes_the_same(full_graph: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    expected = model(zoo.batch(0, 4, 6)).numpy()
    probe.start(model, tmp_path / "a.h5")

    def forward(x: Tensor) -> Tensor:
        return model(x) * 1.0

    compiled = paddle.jit.to_static(forward, full_graph=full_graph)
    for _ in range(2):
        assert np.allclose(compiled(zoo.batch(0, 4, 6)).numpy(), expected, rtol=1e-6)
    probe.step()
    probe.stop()
    run = Recording(tmp_path / "a.h5")
    assert run.called() or any("not recorded" in text for text in missed(run))


# ---- paddle.Model --------------------------------------------------------------------------------------


class Steps(paddle.callbacks.Callback):
    def on_train_batch_end(self, step: int, logs: Any = None) -> None:
        probe.step(loss=float(np.asarray(logs["loss"]).reshape(-1)[0]))


def fitted(folder: Path | None) -> list[bytes]:
    paddle.seed(3)
    with paddle.utils.unique_name.guard():
        network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8), nn.Dropout(0.2), nn.Linear(8, 2))
        model = paddle.Model(network)
        optimizer = paddle.optimizer.AdamW(0.01, parameters=network.parameters())
        model.prepare(optimizer, nn.CrossEntropyLoss())
        batches = [(zoo.batch(i, 4, 6), zoo.tokens(i, 4, 1, words=2)) for i in range(3)]
        callbacks = []
        if folder is not None:
            probe.start(network, folder / "a.h5", task="tensor")
            callbacks = [Steps()]
        model.fit(batches, epochs=1, verbose=0, callbacks=callbacks)
        probe.stop()
    return [parameter.numpy().tobytes() for parameter in network.parameters()]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fit_of_a_model_is_recorded_and_bitwise_the_same(tmp_path: Path) -> None:
    assert fitted(tmp_path) == fitted(None)
    run = Recording(tmp_path / "a.h5")
    assert len(run.steps) == 3 and not missed(run)
    for step in range(3):
        assert {s.path for s in run.find(step=step, role="delta")} == {"0", "1", "3"}
        assert run.find(step=step, phase="gradient") and run.find(step=step, role="state")
    assert len(run.scalars) == 3


def test_a_model_that_is_no_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"was given a paddle\.hapi\.model\.Model; expected a module of"):
        probe.start(paddle.Model(nn.Linear(2, 2)), tmp_path / "a.h5")
