"""The same five models in MindSpore."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from batches import VOCABULARY
from mindspore import Tensor, nn, ops


class MLP(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(16, 32)
        self.act = nn.GELU(approximate=False)  # the default is PyTorch's "tanh"
        self.norm = nn.LayerNorm((32,), epsilon=1e-5)
        self.fc2 = nn.Dense(32, 8)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.act(self.fc1(x))))


class CNN(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn1 = nn.BatchNorm2d(8, momentum=0.9)  # 0.1 in PyTorch
        self.pool1 = nn.MaxPool2d(2, stride=2)
        self.conv2 = nn.Conv2d(8, 16, 3, pad_mode="pad", padding=1, has_bias=True)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.9)
        self.pool2 = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1)
        self.act = nn.ReLU()
        self.head = nn.Dense(256, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act(self.bn1(self.conv1(x))))
        x = self.pool2(self.act(self.bn2(self.conv2(x))))
        return self.head(x.reshape(x.shape[0], -1))


class LSTM(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.head = nn.Dense(24, 5)

    def construct(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class Encoder(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.CellList(
            [nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="relu", batch_first=True) for _ in range(2)]
        )
        self.head = nn.Dense(16, VOCABULARY)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class BertLayer(nn.Cell):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Dense(size, size), nn.Dense(size, size), nn.Dense(size, size)
        self.out = nn.Dense(size, size)
        self.norm1 = nn.LayerNorm((size,), epsilon=1e-12)
        self.up = nn.Dense(size, 4 * size)
        self.act = nn.GELU(approximate=False)
        self.down = nn.Dense(4 * size, size)
        self.norm2 = nn.LayerNorm((size,), epsilon=1e-12)

    def construct(self, x: Tensor) -> Tensor:
        count, length, size = x.shape
        q, k, v = (
            part(x).reshape(count, length, self.heads, -1).transpose(0, 2, 1, 3)
            for part in (self.query, self.key, self.value)
        )
        weights = ops.softmax(ops.matmul(q, k.transpose(0, 1, 3, 2)) / math.sqrt(size // self.heads), -1)
        x = self.norm1(x + self.out(ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(count, length, size)))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Bert(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(VOCABULARY, 32), nn.Embedding(16, 32)
        self.norm = nn.LayerNorm((32,), epsilon=1e-12)
        self.layers = nn.CellList([BertLayer(32, 4) for _ in range(3)])
        self.pooler = nn.Dense(32, 32)
        self.act = nn.Tanh()
        self.classifier = nn.Dense(32, 3)

    def construct(self, ids: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.position(ops.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.act(self.pooler(x[:, 0])))


MODELS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "encoder": Encoder, "bert": Bert}


def loss_of(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean squared error of numbers, the cross entropy of classes."""
    if target.is_floating_point():
        return ops.mse_loss(output, target, reduction=reduction)
    flat = target.reshape(-1).astype(ms.int32)
    return ops.cross_entropy(output.reshape(-1, output.shape[-1]), flat, reduction=reduction)


def optimizer_of(model: nn.Cell, kind: str, weight_decay: float = 0.0) -> nn.Optimizer:
    """Return gradient descent, or Adam."""
    if kind == "sgd":
        return nn.SGD(model.trainable_params(), 0.1, weight_decay=weight_decay)
    return nn.Adam(model.trainable_params(), 1e-3, eps=1e-30, weight_decay=weight_decay)


def load(model: nn.Cell, weights: dict[str, np.ndarray]) -> None:
    """Put arrays into a model."""
    missing, unexpected = ms.load_param_into_net(
        model, {name: ms.Parameter(ms.Tensor(array), name=name) for name, array in weights.items()}
    )
    assert not missing and not unexpected, (missing, unexpected)


def train_step(model: nn.Cell, optimizer: Any, inputs: np.ndarray, target: np.ndarray, reduction: str) -> float:
    """Make a training step; return the loss."""

    def forward(x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model(x), y, reduction)

    model.set_train()  # a cell is not in training mode by itself
    loss, gradients = ms.value_and_grad(forward, None, optimizer.parameters)(ms.Tensor(inputs), ms.Tensor(target))
    optimizer(gradients)
    return float(loss)
