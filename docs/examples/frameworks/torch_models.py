"""Five models in PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from batches import VOCABULARY
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.act = nn.GELU()
        self.norm = nn.LayerNorm(32, eps=1e-5)
        self.fc2 = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.norm(self.act(self.fc1(x))))


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8, momentum=0.1)
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16, momentum=0.1)
        self.pool2 = nn.AvgPool2d(3, stride=2, padding=1)
        self.act = nn.ReLU()
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act(self.bn1(self.conv1(x))))
        x = self.pool2(self.act(self.bn2(self.conv2(x))))
        return self.head(x.flatten(1))


class LSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 12, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(ids))[0])


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="relu", batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(16, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class BertLayer(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(size, size), nn.Linear(size, size), nn.Linear(size, size)
        self.out = nn.Linear(size, size)
        self.norm1 = nn.LayerNorm(size, eps=1e-12)
        self.up = nn.Linear(size, 4 * size)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * size, size)
        self.norm2 = nn.LayerNorm(size, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        count, length, size = x.shape
        q, k, v = (
            part(x).reshape(count, length, self.heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(size // self.heads), -1)
        x = self.norm1(x + self.out((weights @ v).transpose(1, 2).reshape(count, length, size)))
        return self.norm2(x + self.down(self.act(self.up(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(VOCABULARY, 32), nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(32, 4) for _ in range(3))
        self.pooler = nn.Linear(32, 32)
        self.act = nn.Tanh()
        self.classifier = nn.Linear(32, 3)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.position(torch.arange(ids.shape[1])))
        for layer in self.layers:
            x = layer(x)
        return self.classifier(self.act(self.pooler(x[:, 0])))


MODELS = {"mlp": MLP, "cnn": CNN, "lstm": LSTM, "encoder": Encoder, "bert": Bert}


def loss_of(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean squared error of numbers, the cross entropy of classes."""
    if target.is_floating_point():
        return F.mse_loss(output, target, reduction=reduction)
    return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1), reduction=reduction)


def optimizer_of(model: nn.Module, kind: str, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    """Return gradient descent, or Adam."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, weight_decay=weight_decay)
    return torch.optim.Adam(parameters, lr=1e-3, eps=1e-30, weight_decay=weight_decay)


def load(model: nn.Module, weights: dict[str, np.ndarray]) -> None:
    """Put arrays into a model."""
    model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in weights.items()})


def train_step(model: nn.Module, optimizer: Any, inputs: np.ndarray, target: np.ndarray, reduction: str) -> float:
    """Make a training step; return the loss."""
    loss = loss_of(model(torch.from_numpy(inputs)), torch.from_numpy(target), reduction)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
