"""Ports to MindSpore."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from benchmarks.localisation.ports.training import PortRun, Weights, converted, examples, packed

DTYPES = {"fp32": ms.float32, "fp16": ms.float16}
MAPPINGS = {"encoder": "torch/mindspore"}


class MindsporeRun(PortRun):
    """One side in MindSpore."""

    forward_name = "construct"

    def build(self) -> nn.Cell:
        """Return the model without its weights."""
        return PackedBert() if self.setup.architecture == "port-packed" else examples("mindspore").MODELS[self.name]()

    def load(self, weights: Weights) -> None:
        """Give the model its weights."""
        if self.setup.architecture == "port-packed":
            weights = {self._renamed(name): array for name, array in packed(weights).items()}
        else:
            weights = converted(self, weights, "mindspore", MAPPINGS)
        examples("mindspore").load(self.model, weights)

    def _renamed(self, name: str) -> str:
        path, _, slot = name.rpartition(".")
        if isinstance(self.at(path), nn.LayerNorm):
            slot = {"weight": "gamma", "bias": "beta"}[slot]
        return f"{path}.embedding_table" if isinstance(self.at(path), nn.Embedding) else f"{path}.{slot}"

    def cast(self, dtype: str) -> None:
        """Give the model its dtype."""
        if dtype != "fp32":
            for parameter in self.model.get_parameters():
                parameter.set_dtype(DTYPES[dtype])

    def make_optimizer(self) -> nn.Optimizer:
        """Return the optimizer."""
        options = self.optimizer_options
        out = list(self.at(self.left_out).get_parameters()) if self.left_out else []
        kept = [p for p in self.model.trainable_params() if not any(p is other for other in out)]
        if self.setup.optimizer == "sgd":
            return nn.SGD(kept, options["lr"], weight_decay=options["decay"])
        return nn.Adam(
            kept, options["lr"], options["beta1"], options["beta2"], eps=1e-30, weight_decay=options["decay"]
        )

    def train(self, inputs: np.ndarray, target: np.ndarray) -> float:
        """Run forward, backward and the update of a step; return the loss."""

        def forward(x: Tensor, y: Tensor) -> Tensor:
            found = self.model(x).astype(ms.float32)
            return examples("mindspore").loss_of(found, y, self.reduction) * self.loss_factor

        x = ms.Tensor(inputs)
        x = x.astype(DTYPES[self.setup.dtype]) if x.dtype == ms.float32 else x
        self.model.set_train()
        parameters = self.optimizer.parameters
        loss, gradients = ms.value_and_grad(forward, None, parameters)(x, ms.Tensor(target))
        lost = list(self.at(self.lost).get_parameters()) if self.lost else []
        pairs = zip(parameters, gradients, strict=True)
        self.optimizer(tuple(ops.zeros_like(g) if any(p is other for other in lost) else g for p, g in pairs))
        return float(loss)

    def stop(self, x: Tensor) -> Tensor:
        """Return a tensor without its history."""
        return ops.stop_gradient(x)

    def linear(self, module: nn.Dense, x: Tensor, weight: Tensor) -> Tensor:
        """Compute what a linear layer does, with another weight."""
        found = ops.matmul(x, weight.T)
        return found if module.bias is None else found + module.bias

    def replace(self, path: str, what: str, size: float) -> None:
        """Set an eps or a momentum, or put another activation or pooling in the place of a module."""
        module = self.at(path)
        if what == "eps":
            fresh = nn.LayerNorm(module.normalized_shape, epsilon=size)
            module.layer_norm = fresh.layer_norm
        elif what == "momentum":
            self._put(path, nn.BatchNorm2d(module.num_features, momentum=1 - size))
        elif what == "gelu_tanh":
            self.around(path, lambda forward, x: ops.gelu(x, approximate="tanh"))
        else:
            self._put(path, nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False))

    def _put(self, path: str, module: nn.Cell) -> None:
        around, _, name = path.rpartition(".")
        setattr(self.at(around) if around else self.model, name, module)
        self.model.update_parameters_name()

    def freeze(self, path: str) -> None:
        """Let the parameters of a module learn nothing."""
        for parameter in self.at(path).get_parameters():
            parameter.requires_grad = False


class Embeddings(nn.Cell):
    """Words and positions, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norm = nn.LayerNorm((32,), epsilon=1e-12)

    def construct(self, ids: Tensor) -> Tensor:
        """Return the embedded tokens."""
        return self.norm(self.word(ids) + self.position(ops.arange(ids.shape[1])))


class Attention(nn.Cell):
    """Query, key and value in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Dense(32, 96), nn.Dense(32, 32)

    def construct(self, x: Tensor) -> Tensor:
        """Return what the tokens see."""
        count, length, size = x.shape
        q, k, v = (
            part.reshape(count, length, 4, -1).transpose(0, 2, 1, 3) for part in ops.chunk(self.qkv(x), 3, axis=-1)
        )
        weights = ops.softmax(ops.matmul(q, k.transpose(0, 1, 3, 2)) / math.sqrt(size // 4), -1)
        return self.proj(ops.matmul(weights, v).transpose(0, 2, 1, 3).reshape(count, length, size))


class Perceptron(nn.Cell):
    """Up, GELU, down."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Dense(32, 128), nn.GELU(approximate=False), nn.Dense(128, 32)

    def construct(self, x: Tensor) -> Tensor:
        """Return the changed tokens."""
        return self.down(self.act(self.up(x)))


class Block(nn.Cell):
    """A layer in parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Perceptron()
        self.norm1, self.norm2 = nn.LayerNorm((32,), epsilon=1e-12), nn.LayerNorm((32,), epsilon=1e-12)

    def construct(self, x: Tensor) -> Tensor:
        """Return the next layer's input."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class PackedBert(nn.Cell):
    """What the examples' `Bert` computes, in another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.blocks = nn.CellList([Block() for _ in range(3)])
        self.pooler, self.act, self.head = nn.Dense(32, 32), nn.Tanh(), nn.Dense(32, 3)

    def construct(self, ids: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x: Any = self.embeddings(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(self.pooler(x[:, 0])))
