"""Small pairs of runs in PaddlePaddle, with the answer that is right for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")
from paddle import Tensor, nn  # noqa: E402
from paddle.nn import functional  # noqa: E402

import probe  # noqa: E402
from probe.comparing import compare  # noqa: E402

Loss = Callable[[nn.Layer, int], Tensor]


def data(*shape: int, seed: int = 1) -> Tensor:
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def record(model: nn.Layer, loss_of: Loss, path: Path, task: str, steps: int, decay: float) -> None:
    made = paddle.optimizer.AdamW if decay else paddle.optimizer.SGD
    update = made(1e-2, parameters=model.parameters(), **({"weight_decay": decay} if decay else {}))
    with probe.capture(model, path, task=task):
        for step in range(steps):
            loss = loss_of(model, step)
            loss.backward()
            update.step()
            update.clear_grad()
            probe.step(loss=loss)


class Labelled(nn.Layer):
    def __init__(self, one_hot: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.words, self.norm, self.head = nn.Embedding(20, 8), nn.LayerNorm(8, epsilon), nn.Linear(8, 20)
        self.one_hot = one_hot

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        out = self.head(self.norm(self.words(ids)))
        if self.one_hot:
            return -(functional.log_softmax(out, -1) * labels).sum() / labels.sum()
        return functional.cross_entropy(out[:, :-1].reshape([-1, 20]), labels[:, 1:].reshape([-1]))


class Times(nn.Layer):
    def __init__(self, first: bool, act: Callable[[Tensor], Tensor] = functional.relu) -> None:
        super().__init__()
        self.inp, self.rnn, self.out = nn.Linear(4, 8), nn.GRU(8, 8, time_major=first), nn.Linear(8, 3)
        self.first, self.act = first, act

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        y = self.rnn(x.transpose([1, 0, 2]))[0].transpose([1, 0, 2]) if self.first else self.rnn(x)[0]
        return self.out(self.act(y))


class Cropped(nn.Layer):
    def __init__(self, outside: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2D(3, 6, 4, padding=0 if outside else 3), nn.GroupNorm(2, 6, epsilon)
        self.last, self.outside = nn.Conv2D(6, 4, 1), outside

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        y = self.conv(functional.pad(x, [3, 0, 3, 0])) if self.outside else self.conv(x)[..., :height, :width]
        return self.last(functional.silu(self.norm(y)))


class Scorer(nn.Layer):
    def __init__(self, squashes: bool) -> None:
        super().__init__()
        self.first, self.second, self.squashes = nn.Linear(8, 12), nn.Linear(12, 1), squashes

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(functional.relu(self.first(x)))
        return functional.sigmoid(y) if self.squashes else y


class Branches(nn.Layer):
    def __init__(self, times_zero: bool) -> None:
        super().__init__()
        self.main, self.side, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.times_zero = times_zero

    def forward(self, x: Tensor) -> Tensor:
        y = self.main(x)
        return self.head(y + 0.0 * self.side(x) if self.times_zero else y)


IDS = np.random.default_rng(0).integers(0, 20, (4, 9))
TRUE = (np.random.default_rng(3).standard_normal((16, 1)) > 0).astype("float32")


def of_labels(model: nn.Layer, _: int) -> Tensor:
    ids = paddle.to_tensor(IDS)
    return model(ids, ids)


def of_one_hot(model: nn.Layer, _: int) -> Tensor:
    labels = np.eye(20, dtype="float32")[np.roll(IDS, -1, 1)]
    labels[:, -1] = 0
    return model(paddle.to_tensor(IDS), paddle.to_tensor(labels))


def of_probabilities(model: nn.Layer, _: int) -> Tensor:
    return functional.binary_cross_entropy(model(data(16, 8)), paddle.to_tensor(TRUE))


def of_logits(weight: float) -> Loss:
    return lambda model, _: functional.binary_cross_entropy_with_logits(
        model(data(16, 8)), paddle.to_tensor(TRUE), pos_weight=paddle.to_tensor([weight])
    )


def squared(*shape: int) -> Loss:
    return lambda model, step: model(data(*shape, seed=step + 1)).square().mean()


# name: make, arguments of A and of B, losses of both, decay, and the place and phase; None for ``aligned``
PAIRS: dict[str, tuple[Any, ...]] = {
    "one-hot-clean": (Labelled, (False,), (True,), of_labels, of_one_hot, 0, None),
    "one-hot-eps": (Labelled, (False,), (True, 1e-3), of_labels, of_one_hot, 0, ("norm", "forward")),
    "time-clean": (Times, (False,), (True,), squared(3, 7, 4), None, 0, None),
    "time-gelu": (Times, (False,), (True, functional.gelu), squared(3, 7, 4), None, 0, ("", "forward")),
    "crop-clean": (Cropped, (False,), (True,), squared(2, 3, 7, 9), None, 0, None),
    "crop-eps": (Cropped, (False,), (True, 1e-2), squared(2, 3, 7, 9), None, 0, ("norm", "forward")),
    "sigmoid-clean": (Scorer, (True,), (False,), of_probabilities, of_logits(1.0), 0, None),
    "sigmoid-weight": (Scorer, (True,), (False,), of_probabilities, of_logits(2.0), 0, ("", "loss")),
    "branch-clean": (Branches, (False,), (True,), squared(6, 8), None, 0, None),
    "branch-decayed": (Branches, (False,), (True,), squared(6, 8), None, 0.1, ("side", "update")),
}


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str, task: str, tmp_path: Path) -> None:
    make, for_a, for_b, loss_a, loss_b, decay, place = PAIRS[name]
    paddle.seed(0)
    a, b = make(*for_a), make(*for_b)
    b.set_state_dict(a.state_dict())
    record(a, loss_a, tmp_path / "a.h5", task, 2, decay)
    record(b, loss_b or loss_a, tmp_path / "b.h5", task, 2, decay)
    answer = compare(tmp_path / "a.h5", tmp_path / "b.h5")
    found = answer.first_divergence
    assert (found and (found.a[0].path, found.phase.label)) == place, answer
    assert answer.verdict.value == ("diverged" if place else "aligned")
