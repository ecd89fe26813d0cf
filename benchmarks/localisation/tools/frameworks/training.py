"""One side's training in any framework: what faults change, and the steps. Each framework fills in its verbs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.localisation.pairs.pair import Setup

EXAMPLES = Path(__file__).parents[4] / "docs" / "examples" / "frameworks"
MODELS = ("mlp", "cnn", "lstm", "encoder", "bert")
LR = {"sgd": 0.1, "adam": 1e-3}
Weights = dict[str, np.ndarray]
"""by PyTorch's names, as PyTorch lays them out"""
Forward = Callable[..., Any]


def model_of(architecture: str) -> str:
    """Return the name that the examples have for the model of an architecture."""
    return "bert" if architecture == "port-packed" else architecture.removeprefix("port-")


class PortRun:
    """A model in one framework and its optimizer, ready for `step`."""

    forward_name = "forward"
    """the method in which a module computes"""

    def __init__(self, setup: Setup, weights: Weights, source: Path | None = None) -> None:
        from benchmarks.localisation.tools.frameworks.planting import plant, planted_weights

        self.setup, self.name, self.source = setup, model_of(setup.architecture), source
        self.model = self.build()
        self.load(planted_weights(setup, weights))
        self.cast(setup.dtype)
        self.optimizer_options: dict[str, Any] = {"lr": LR[setup.optimizer], "decay": 0.0, "beta1": 0.9, "beta2": 0.999}
        self.reduction, self.loss_factor = "mean", 1.0
        self.left_out = ""
        """path of the module whose parameters the optimizer is not given"""
        self.lost = ""
        """path of the module whose gradients are zero when the optimizer uses them"""
        for planted in setup.planted:
            if not planted.step:
                plant(self, planted)
        self.optimizer = self.make_optimizer()
        self.captured: list[tuple[str, tuple[Any, ...]]] | None = None
        """every call that returns, where somebody asks"""
        self.is_watched = False

    def step(self, index: int) -> float:
        """Train a step; returns its loss."""
        from benchmarks.localisation.tools.frameworks.planting import plant

        for planted in self.setup.planted if index else ():
            if planted.step == index:
                plant(self, planted)
        inputs, target = batch_of(self.name, index)
        return self.train(inputs, target)

    def around(self, path: str, function: Callable[..., Any]) -> None:
        """Put ``function(forward, *args)`` in the place of what a module computes."""
        module = self.at(path)
        forward = getattr(module, self.forward_name)
        setattr(module, self.forward_name, lambda *args, **kwargs: function(partial(forward, **kwargs), *args))

    def on_output(self, path: str, change: Callable[[Any], Any]) -> None:
        """Change a module's output, or the first one of several."""

        def changed(forward: Forward, *args: Any) -> Any:
            found = forward(*args)
            return (change(found[0]), *found[1:]) if isinstance(found, tuple) else change(found)

        self.around(path, changed)

    def with_gradient(self, x: Any, factor: float) -> Any:
        """Return the same number with a gradient that is multiplied: the difference is exactly 0."""
        return x + (factor - 1) * (x - self.stop(x))

    def at(self, path: str) -> Any:
        """Return the module at a path."""
        found = self.model
        for name in path.split("."):
            found = found[int(name)] if name.isdigit() else getattr(found, name)
        return found

    # What a framework fills in

    def build(self) -> Any:
        """Return the model without its weights."""
        raise NotImplementedError

    def load(self, weights: Weights) -> None:
        """Give the model its weights."""
        raise NotImplementedError

    def cast(self, dtype: str) -> None:
        """Give the model its dtype."""
        raise NotImplementedError

    def make_optimizer(self) -> Any:
        """Return the optimizer."""
        raise NotImplementedError

    def train(self, inputs: np.ndarray, target: np.ndarray) -> float:
        """Run forward, backward and the update of a step; return the loss."""
        raise NotImplementedError

    def stop(self, x: Any) -> Any:
        """Return a tensor without its history."""
        raise NotImplementedError

    def linear(self, module: Any, x: Any, weight: Any) -> Any:
        """Compute what a linear layer does, with another weight."""
        raise NotImplementedError

    def replace(self, path: str, what: str, size: float) -> None:
        """Set an eps or a momentum, or put another activation or pooling in the place of a module."""
        raise NotImplementedError

    def freeze(self, path: str) -> None:
        """Let the parameters of a module learn nothing."""
        raise NotImplementedError

    # What brute force asks for

    def paths(self) -> list[str]:
        """Return the paths of all modules but the model itself."""
        raise NotImplementedError

    def state(self) -> Weights:
        """Return all parameters and buffers."""
        raise NotImplementedError

    def put(self, state: Weights) -> None:
        """Set all parameters and buffers."""
        raise NotImplementedError

    def trained(self) -> list[str]:
        """Return the names of the parameters that the optimizer changes."""
        raise NotImplementedError

    def moments(self) -> Weights:
        """Return what the optimizer keeps, by parameter and a suffix."""
        raise NotImplementedError

    def pulled_back(self, module: Any, args: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]]:
        """Call a module; return its outputs, and the gradients of its arguments and of its parameters."""
        raise NotImplementedError


def seeds(shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return gradients of outputs: the same ones for the same shapes."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def examples(framework: str) -> Any:
    """Return the models of the documentation's examples in a framework."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(f"{framework}_models")


def batch_of(name: str, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the inputs and targets of a step."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module("batches").batch(name, index)


def converted(run: PortRun, weights: Weights, framework: str, mappings: Mapping[str, str]) -> Weights:
    """Return weights by the names and in the layout of a framework's model."""
    import probe

    kept = {key: value for key, value in weights.items() if "num_batches_tracked" not in key}
    return probe.convert_weights(kept, mappings.get(run.name), to=framework, source=run.source, like=run.model)


_PACKED = {"embeddings.word": "word", "embeddings.position": "position", "embeddings.norm": "norm",
           "pooler": "pooler", "head": "classifier"}  # fmt: skip
_PACKED_LAYER = {"attention.proj": "out", "norm1": "norm1", "mlp.up": "up", "mlp.down": "down", "norm2": "norm2"}


def packed(weights: Weights) -> Weights:
    """Return the weights of `Bert` by the names of the models that have query, key and value in one matrix."""
    found = {}
    for kind in ("weight", "bias"):
        names = dict(_PACKED)
        for layer in range(3):
            names |= {f"blocks.{layer}.{new}": f"layers.{layer}.{old}" for new, old in _PACKED_LAYER.items()}
            parts = [weights[f"layers.{layer}.{part}.{kind}"] for part in ("query", "key", "value")]
            found[f"blocks.{layer}.attention.qkv.{kind}"] = np.concatenate(parts)
        found |= {f"{new}.{kind}": weights[f"{old}.{kind}"] for new, old in names.items() if f"{old}.{kind}" in weights}
    return found


PACKED_MAPPING: dict[str, dict[str, str]] = {
    "Bert": {old: new for new, old in _PACKED.items()} | {"layers": "blocks", "act": "act"},
    "BertLayer": {old: new for new, old in _PACKED_LAYER.items()} | {"act": "mlp.act"},
}
"""from the examples' `Bert` to the models with one matrix"""
