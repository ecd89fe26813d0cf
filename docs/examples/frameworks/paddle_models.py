"""The same five models in PaddlePaddle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from batches import VOCABULARY
from paddle import Tensor, nn


class MLP(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(32, epsilon=1e-5)
        self.fc2 = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.act(self.fc1(x))))


class CNN(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2D(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2D(8, momentum=0.9)  # 0.1 in PyTorch
        self.pool1 = nn.MaxPool2D(2)
        self.conv2 = nn.Conv2D(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2D(16, momentum=0.9)
        self.pool2 = nn.AvgPool2D(3, stride=2, padding=1, exclusive=False)  # counts the padding, as PyTorch does
        self.act = nn.ReLU()
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act(self.bn1(self.conv1(x))))
        x = self.pool2(self.act(self.bn2(self.conv2(x))))
        return self.head(x.flatten(1))


class LSTM(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 12, 2, direction="bidirect")
        self.head = nn.Linear(24, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class Encoder(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.LayerList(
            [nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="relu") for _ in range(2)]
        )
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class BertLayer(nn.Layer):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.out = nn.Linear(size, size)
        self.norm1 = nn.LayerNorm(size, epsilon=1e-12)
        self.up = nn.Linear(size, 4 * size)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * size, size)
        self.norm2 = nn.LayerNorm(size, epsilon=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        count, length, size = x.shape
        q, k, v = (
            part(x).reshape([count, length, self.heads, -1]).transpose([0, 2, 1, 3])
            for part in (self.query, self.key, self.value)
        )
        weights = F.softmax(q @ k.transpose([0, 1, 3, 2]) / math.sqrt(size // self.heads), -1)
        x = self.norm1(x + self.out((weights @ v).transpose([0, 2, 1, 3]).reshape([count, length, size])))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Bert(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(VOCABULARY, 32), nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32, epsilon=1e-12)
        self.layers = nn.LayerList([BertLayer(32, 4) for _ in range(3)])
        self.pooler = nn.Linear(32, 32)
        self.act = nn.Tanh()
        self.classifier = nn.Linear(32, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.position(paddle.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.act(self.pooler(x[:, 0])))


MODELS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "encoder": Encoder, "bert": Bert}


def loss_of(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean squared error of numbers, the cross entropy of classes."""
    if target.is_floating_point():
        return F.mse_loss(output, target, reduction=reduction)
    return F.cross_entropy(output.reshape([-1, output.shape[-1]]), target.reshape([-1]), reduction=reduction)


def optimizer_of(model: nn.Layer, kind: str, weight_decay: float = 0.0) -> paddle.optimizer.Optimizer:
    """Return gradient descent, or Adam."""
    parameters = [parameter for parameter in model.parameters() if not parameter.stop_gradient]
    if kind == "sgd":
        return paddle.optimizer.SGD(0.1, parameters, weight_decay=weight_decay or None)
    return paddle.optimizer.Adam(1e-3, epsilon=1e-30, parameters=parameters, weight_decay=weight_decay or None)


def load(model: nn.Layer, weights: dict[str, np.ndarray]) -> None:
    """Put arrays into a model."""
    places = model.state_dict()
    for name, array in weights.items():
        places[name].set_value(array)


def train_step(model: nn.Layer, optimizer: Any, inputs: np.ndarray, target: np.ndarray, reduction: str) -> float:
    """Make a training step; return the loss."""
    loss = loss_of(model(paddle.to_tensor(inputs)), paddle.to_tensor(target), reduction)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    return float(loss)
