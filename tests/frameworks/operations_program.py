"""A transformer of two blocks, written alike for PyTorch and PaddlePaddle, and recorded with its operations.

``python operations_program.py FRAMEWORK FILE [FAULT]``; nothing is recorded if the file is ``-``. It prints the loss and sums of gradients.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

import probe

FRAMEWORK, FILE, FAULT = [*sys.argv[1:], ""][:3]
IS_TORCH = FRAMEWORK == "torch"
P = importlib.import_module(FRAMEWORK)
F = importlib.import_module(f"{FRAMEWORK}.nn.functional")
Module = P.nn.Module if IS_TORCH else P.nn.Layer
SIZE, HEADS, LENGTH, BATCH = 32, 4, 12, 2
HEAD = SIZE // HEADS


def linear(given: int, made: int):
    return P.nn.Linear(given, made, bias=False) if IS_TORCH else P.nn.Linear(given, made, bias_attr=False)


def tensor(array):
    return (P.tensor if IS_TORCH else P.to_tensor)(np.asarray(array, "float32"))


def swapped(x, a: int, b: int):
    axes = list(range(x.ndim))
    axes[a], axes[b] = b, a
    return x.permute(axes) if IS_TORCH else x.transpose(axes)


def softmax(x, axis: int):
    return F.softmax(x, axis)


def gelu(x):
    return F.gelu(x, approximate="tanh") if IS_TORCH else F.gelu(x, approximate=True)


class Norm(Module):
    def forward(self, x):
        square = x.pow(2).mean(-1, keepdim=True) if IS_TORCH else P.mean(P.pow(x, 2), axis=-1, keepdim=True)
        return x * P.rsqrt(square + (1e-3 if FAULT == "eps" else 1e-6))


def turned(x):
    a, b = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    parts = [b, -a] if FAULT == "sign" else [-b, a]
    return P.cat(parts, -1) if IS_TORCH else P.concat(parts, -1)


class Attention(Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (linear(SIZE, SIZE) for _ in range(4))

    def forward(self, x):
        parts = [each(x).reshape([BATCH, LENGTH, HEADS, HEAD]) for each in (self.q, self.k, self.v)]
        q, k, v = (swapped(each, 1, 2) for each in parts)
        angles = np.arange(LENGTH)[:, None] * np.array([1.0, 0.1, 0.01, 0.001] * 2)
        cos, sin = tensor(np.cos(angles)), tensor(np.sin(angles))
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        scores = P.matmul(q, swapped(k, 2, 3)) * (HEAD**-0.5 * (2 if FAULT == "scale" else 1))
        scores = scores + tensor(np.triu(np.full((LENGTH, LENGTH), -1e9), 1))
        made = P.matmul(softmax(scores, 2 if FAULT == "axis" else -1), v)
        return self.o(swapped(made, 1, 2).reshape([BATCH, LENGTH, SIZE]))


class Mlp(Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = linear(SIZE, 48), linear(SIZE, 48), linear(48, SIZE)

    def forward(self, x):
        gate = self.gate(x)
        active = gelu(gate) if FAULT == "gelu" else F.silu(gate)
        return self.down(active * self.up(x))


class Block(Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.a, self.n2, self.m = Norm(), Attention(), Norm(), Mlp()

    def forward(self, x):
        normed = self.n1(x)
        x = (normed if FAULT == "residual" else x) + self.a(normed)
        return x + self.m(self.n2(x))


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.b1, self.b2 = Block(), Block()

    def forward(self, x):
        return self.b2(self.b1(x))


def main() -> None:
    net, drawn = Net(), np.random.default_rng(0)
    for name, weight in net.named_parameters():
        shape = tuple(weight.shape)[:: -1 if IS_TORCH else 1]
        values = drawn.normal(size=shape).astype("float32") * 0.2
        if IS_TORCH:
            weight.data.copy_(P.tensor(values.T.copy()))
        else:
            weight.set_value(P.to_tensor(values))
        assert name.endswith("weight")
    if FILE != "-":
        probe.start(net, FILE, level="mix", quiet=True)
    loss = (net(tensor(drawn.normal(size=(BATCH, LENGTH, SIZE)))) ** 2).mean()
    loss.backward()
    if FILE != "-":
        probe.step(loss=loss)
        probe.stop()
    print(repr(float(loss)), [float(abs(each.grad).sum()) for each in net.parameters()])


main()
