"""The faults of `benchmarks.localisation.faults` that are planted in a port, under the same names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.localisation.pairs.pair import Planted, Setup
from benchmarks.localisation.tools.frameworks.training import PortRun, Weights

GATES = (0, 2, 1, 3)
"""i, f, g, o as i, g, f, o"""


def plant(run: PortRun, planted: Planted) -> None:
    """Plant a fault into a model with its weights; those of the weights have been planted before."""
    if planted.fault not in _OF_WEIGHTS:
        _PLANT[planted.fault](run, planted.path, _size(planted))


def planted_weights(setup: Setup, weights: Weights) -> Weights:
    """Return weights with the faults of their conversion, by PyTorch's names."""
    for planted in setup.planted:
        change = _OF_WEIGHTS.get(planted.fault)
        if change is not None:
            keys = [key for key in weights if key.startswith(f"{planted.path}.weight")]
            weights = {**weights, **{key: change(weights[key], _size(planted)) for key in keys}}
    return weights


def _size(planted: Planted) -> float:
    return 0.1 if planted.size is None else planted.size


def _gates(weight: np.ndarray, size: float) -> np.ndarray:
    parts = np.split(weight, 4)
    return np.concatenate([parts[place] for place in GATES])


_OF_WEIGHTS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "transposed": lambda w, s: w.T.copy(),
    "rows": lambda w, s: np.roll(w, 1, 0),
    "weight": lambda w, s: w * np.float32(1 + s),
    "gates": _gates,
}


def _replaced(what: str) -> Callable[[PortRun, str, float], None]:
    return lambda run, path, size: run.replace(path, what, size)


def _option(name: str, value: Callable[[float, float], float]) -> Callable[[PortRun, str, float], None]:
    def change(run: PortRun, path: str, size: float) -> None:
        run.optimizer_options[name] = value(run.optimizer_options[name], size)

    return change


def _knob(name: str, value: Callable[[str, float], Any]) -> Callable[[PortRun, str, float], None]:
    return lambda run, path, size: setattr(run, name, value(path, size))


def _weight_gradient(run: PortRun, path: str, size: float) -> None:
    module = run.at(path)
    run.around(path, lambda forward, x: run.linear(module, x, run.with_gradient(module.weight, 1 + size)))


_PLANT: dict[str, Callable[[PortRun, str, float], None]] = {
    "eps": _replaced("eps"),
    "gelu_tanh": _replaced("gelu_tanh"),
    "momentum": _replaced("momentum"),
    "pool_padding": _replaced("pool_padding"),
    "scaled": lambda run, path, size: run.on_output(path, lambda x: x * (1 + size)),
    "shifted": lambda run, path, size: run.on_output(path, lambda x: x + size),
    "sum": _knob("reduction", lambda path, size: "sum"),
    "loss_scaled": _knob("loss_factor", lambda path, size: 1 + size),
    "gradient": lambda run, path, size: run.around(path, lambda forward, x: forward(run.with_gradient(x, 1 + size))),
    "output_gradient": lambda run, path, size: run.on_output(path, lambda x: run.with_gradient(x, 1 + size)),
    "detached": lambda run, path, size: run.around(path, lambda forward, x: forward(run.stop(x))),
    "weight_gradient": _weight_gradient,
    "frozen": lambda run, path, size: run.freeze(path),
    "gradient_lost": _knob("lost", lambda path, size: path),
    "left_out": _knob("left_out", lambda path, size: path),
    "lr": _option("lr", lambda old, size: old * (1 + size)),
    "decay": _option("decay", lambda old, size: size),
    "beta1": _option("beta1", lambda old, size: size),
    "beta2": _option("beta2", lambda old, size: size),
}
