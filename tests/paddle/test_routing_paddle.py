"""Routing replay in PaddlePaddle: A's choices, B's weights, and everything put back."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

import probe
from probe.records import Role
from probe.store.reading.reader import Reader


class Router(paddle.nn.Layer):
    def __init__(self, is_method: bool) -> None:
        super().__init__()
        self.weight, self.is_method = self.create_parameter([16, 8]), is_method

    def forward(self, x):
        scores = F.softmax(paddle.matmul(x, self.weight), -1)
        values, chosen = scores.topk(2, axis=-1) if self.is_method else paddle.topk(scores, k=2)
        return values / values.sum(-1, keepdim=True), chosen


class Net(paddle.nn.Layer):
    def __init__(self, is_method: bool) -> None:
        super().__init__()
        self.gate, self.experts = Router(is_method), self.create_parameter([8, 16])

    def forward(self, x):
        weights, chosen = self.gate(x)
        return (paddle.gather(self.experts, chosen.flatten()).reshape([-1, 2, 16]) * weights.unsqueeze(-1)).sum(1)


def record(seed: int, path: str, is_method: bool, **options):
    """Record a step; return the gradient of the router's weight, and what it returned."""
    paddle.seed(seed)
    net = Net(is_method)
    paddle.seed(7)
    with probe.capture(net, path, task="tensor", quiet=True, **options):
        (net(paddle.randn([24, 16])) * paddle.arange(16, dtype="float32")).sum().backward()
    gate = next(at for at, each in enumerate(Reader(path).modules) if each.path == "gate")
    rows = [row for row in Reader(path).records if row["module"] == gate and row["role"] == Role.OUTPUT]
    return net.gate.weight.grad, [Reader(path).values(row["tensor"]) for row in rows], net


@pytest.mark.parametrize("is_method", [False, True])
def test_choices_are_a_s_weights_are_b_s_and_functions_are_put_back(is_method, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = paddle.topk, paddle.Tensor.topk, F.softmax
    _, (weights_a, chosen_a), _ = record(0, "a.h5", is_method)
    gradient, (weights, chosen), net = record(1, "b.h5", is_method, routing="a.h5")
    assert np.array_equal(chosen_a, chosen) and not np.allclose(weights_a, weights)
    assert np.allclose(weights.sum(-1), 1) and gradient is not None and float(gradient.abs().sum()) > 0
    assert (paddle.topk, paddle.Tensor.topk, F.softmax) == before and "forward" not in vars(net.gate)
