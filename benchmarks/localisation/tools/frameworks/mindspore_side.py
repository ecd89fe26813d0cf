"""Ports to MindSpore."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from benchmarks.localisation.tools.frameworks.training import PortRun, Weights, converted, examples, packed, seeds

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
        """Compute what a linear layer does, bit for bit, with another weight; x has two axes."""
        found = module.matmul(x, weight)
        return module.bias_add(found, module.bias) if module.has_bias else found

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

    def paths(self) -> list[str]:
        """Return the paths of all modules but the model itself."""
        kinds = nn.CellList, nn.SequentialCell
        pairs = self.model.cells_and_names()
        return [path for path, cell in pairs if path and not isinstance(cell, kinds)]

    def state(self) -> Weights:
        """Return all parameters and buffers."""
        return {name: parameter.asnumpy().copy() for name, parameter in self.model.parameters_and_names()}

    def put(self, state: Weights) -> None:
        """Set all parameters and buffers."""
        for name, parameter in self.model.parameters_and_names():
            parameter.copy_(ms.Tensor(state[name]))

    def trained(self) -> list[str]:
        """Return the names of the parameters that the optimizer changes."""
        kept = {id(parameter) for parameter in self.optimizer.parameters}
        return [name for name, parameter in self.model.parameters_and_names() if id(parameter) in kept]

    def moments(self) -> Weights:
        """Return what the optimizer keeps, by parameter and a suffix."""
        kept = [
            p for p in self.optimizer.get_parameters() if not any(p is other for other in self.optimizer.parameters)
        ]
        return {f"{p.name.partition('.')[2]}:{p.name.partition('.')[0]}": p.asnumpy().copy() for p in kept}

    def pulled_back(self, module: nn.Cell, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]]:
        """Call a module; return its outputs, and the gradients of its arguments and of its parameters."""
        outputs = [x for x in _flat(module(*args)) if isinstance(x, Tensor)]
        floats = [at for at, x in enumerate(args) if isinstance(x, Tensor) and x.dtype in (ms.float32, ms.float16)]
        ends = [at for at, x in enumerate(outputs) if x.dtype in (ms.float32, ms.float16)]
        weights = [ms.Tensor(seed) for seed in seeds([tuple(outputs[at].shape) for at in ends])]

        def forward(*given: Any) -> Tensor:
            found = [x for x in _flat(module(*given)) if isinstance(x, Tensor)]
            return sum((found[at].astype(ms.float32) * w).sum() for at, w in zip(ends, weights, strict=True))

        parameters = [parameter for parameter in module.get_parameters() if parameter.requires_grad]
        given: tuple[Any, ...] = ()
        own: tuple[Any, ...] = ()
        if floats and parameters:
            given, own = ms.grad(forward, tuple(floats), parameters)(*args)
        elif floats:
            given = ms.grad(forward, tuple(floats))(*args)
        elif parameters:
            own = ms.grad(forward, None, parameters)(*args)
        given = given if isinstance(given, tuple) else (given,)
        own = own if isinstance(own, (tuple, list)) else (own,)
        return [x.asnumpy() for x in outputs], [x.asnumpy() for x in given], [x.asnumpy() for x in own]


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


def _flat(found: Any) -> list[Any]:
    return [x for each in found for x in _flat(each)] if isinstance(found, (tuple, list)) else [found]
