"""Ports to PaddlePaddle."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor, nn

from benchmarks.localisation.tools.frameworks.training import PortRun, Weights, converted, examples, packed, seeds


class PaddleRun(PortRun):
    """One side in PaddlePaddle."""

    def build(self) -> nn.Layer:
        """Return the model without its weights."""
        return PackedBert() if self.setup.architecture == "port-packed" else examples("paddle").MODELS[self.name]()

    def load(self, weights: Weights) -> None:
        """Give the model its weights."""
        if self.setup.architecture == "port-packed":
            weights = {name: self._laid_out(name, array) for name, array in packed(weights).items()}
        else:
            weights = converted(self, weights, "paddle", {})
        places = self.model.state_dict()
        for name, array in weights.items():
            places[name].set_value(array)

    def _laid_out(self, name: str, array: np.ndarray) -> np.ndarray:
        is_linear = isinstance(self.at(name.rpartition(".")[0]), nn.Linear)
        return array.T.copy() if is_linear and array.ndim == 2 else array

    def cast(self, dtype: str) -> None:
        """Give the model its dtype: the CPU has no others for linear layers and convolutions."""
        assert dtype == "fp32"

    def make_optimizer(self) -> paddle.optimizer.Optimizer:
        """Return the optimizer."""
        options = self.optimizer_options
        out = self.at(self.left_out).parameters() if self.left_out else []
        kept = [p for p in self.model.parameters() if not p.stop_gradient and not any(p is other for other in out)]
        decay = options["decay"] or None
        if self.setup.optimizer == "sgd":
            return paddle.optimizer.SGD(options["lr"], kept, weight_decay=decay)
        return paddle.optimizer.Adam(
            options["lr"], options["beta1"], options["beta2"], epsilon=1e-30, parameters=kept, weight_decay=decay
        )

    def train(self, inputs: np.ndarray, target: np.ndarray) -> float:
        """Run forward, backward and the update of a step; return the loss."""
        loss = examples("paddle").loss_of(
            self.model(paddle.to_tensor(inputs)), paddle.to_tensor(target), self.reduction
        )
        loss = loss * self.loss_factor
        loss.backward()
        for parameter in self.at(self.lost).parameters() if self.lost else ():
            parameter.grad.set_value(paddle.zeros_like(parameter.grad))
        self.optimizer.step()
        self.optimizer.clear_grad()
        return float(loss)

    def stop(self, x: Tensor) -> Tensor:
        """Return a tensor without its history."""
        return x.detach()

    def linear(self, module: nn.Linear, x: Tensor, weight: Tensor) -> Tensor:
        """Compute what a linear layer does, with another weight."""
        return F.linear(x, weight, module.bias)

    def replace(self, path: str, what: str, size: float) -> None:
        """Set an eps or a momentum, or put another activation or pooling in the place of a module."""
        module = self.at(path)
        if what == "eps":
            module._epsilon = size
        elif what == "momentum":
            module._momentum = 1 - size
        elif what == "gelu_tanh":
            self.around(path, lambda forward, x: F.gelu(x, approximate=True))
        else:
            self.around(path, lambda forward, x: F.avg_pool2d(x, 3, 2, 1, exclusive=True))

    def freeze(self, path: str) -> None:
        """Let the parameters of a module learn nothing."""
        for parameter in self.at(path).parameters():
            parameter.stop_gradient = True

    def paths(self) -> list[str]:
        """Return the paths of all modules but the model itself."""
        kinds = nn.LayerList, nn.Sequential
        return [path for path, layer in self.model.named_sublayers() if not isinstance(layer, kinds)]

    def state(self) -> Weights:
        """Return all parameters and buffers."""
        return {name: tensor.numpy().copy() for name, tensor in self.model.state_dict().items()}

    def put(self, state: Weights) -> None:
        """Set all parameters and buffers."""
        for name, tensor in self.model.state_dict().items():
            tensor.set_value(state[name])

    def trained(self) -> list[str]:
        """Return the names of the parameters that the optimizer changes."""
        kept = {id(parameter) for parameter in self.optimizer._parameter_list}
        return [name for name, parameter in self.model.named_parameters() if id(parameter) in kept]

    def moments(self) -> Weights:
        """Return what the optimizer keeps, by parameter and a suffix."""
        names = {parameter.name: name for name, parameter in self.model.named_parameters()}
        found = {}
        for kind, kept in self.optimizer._accumulators.items():
            found |= {f"{names[name]}:{kind}": tensor.numpy().copy() for name, tensor in kept.items() if name in names}
        return found

    def pulled_back(self, module: nn.Layer, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]]:
        """Call a module; return its outputs, and the gradients of its arguments and of its parameters."""
        given = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
        leaves = [x for x in given if isinstance(x, Tensor) and x.dtype == paddle.float32]
        for leaf in leaves:
            leaf.stop_gradient = False
        outputs = [x for x in paddle.utils.flatten(module(*given)) if isinstance(x, Tensor)]
        ends = [x for x in outputs if not x.stop_gradient]
        parameters = [parameter for parameter in module.parameters() if not parameter.stop_gradient]
        gradients: list[Any] = [None] * (len(leaves) + len(parameters))
        if ends and gradients:
            weights = [paddle.to_tensor(seed) for seed in seeds([tuple(x.shape) for x in ends])]
            gradients = paddle.grad(ends, leaves + parameters, weights, allow_unused=True)
        arrays = [None if gradient is None else gradient.numpy() for gradient in gradients]
        return [x.numpy() for x in outputs], arrays[: len(leaves)], arrays[len(leaves) :]


class Embeddings(nn.Layer):
    """Words and positions, normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32, epsilon=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embedded tokens."""
        return self.norm(self.word(ids) + self.position(paddle.arange(ids.shape[1])))


class Attention(nn.Layer):
    """Query, key and value in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the tokens see."""
        count, length, size = x.shape
        q, k, v = (
            part.reshape([count, length, 4, -1]).transpose([0, 2, 1, 3]) for part in self.qkv(x).chunk(3, axis=-1)
        )
        weights = F.softmax(q @ k.transpose([0, 1, 3, 2]) / math.sqrt(size // 4), -1)
        return self.proj((weights @ v).transpose([0, 2, 1, 3]).reshape([count, length, size]))


class Perceptron(nn.Layer):
    """Up, GELU, down."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        """Return the changed tokens."""
        return self.down(self.act(self.up(x)))


class Block(nn.Layer):
    """A layer in parts of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), Perceptron()
        self.norm1, self.norm2 = nn.LayerNorm(32, epsilon=1e-12), nn.LayerNorm(32, epsilon=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next layer's input."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class PackedBert(nn.Layer):
    """What the examples' `Bert` computes, in another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.blocks = nn.LayerList([Block() for _ in range(3)])
        self.pooler, self.act, self.head = nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x: Any = self.embeddings(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.act(self.pooler(x[:, 0])))
