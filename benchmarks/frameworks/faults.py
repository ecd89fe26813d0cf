"""Planting the faults, in PaddlePaddle and in MindSpore."""

from __future__ import annotations

from typing import Any

import numpy as np

GATES = (0, 2, 1, 3)
"""i, f, g, o as i, g, f, o"""


def planted_weights(name: str, weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return weights with a fault of their conversion."""
    if name == "transposed":
        (key,) = [key for key in weights if key.endswith("layers.2.query.weight")]
        return {**weights, key: weights[key].T.copy()}
    if name == "gates":
        return {key: _reordered(array) if "lstm." in key else array for key, array in weights.items()}
    return weights


def plant_paddle(name: str, model: Any) -> None:
    """Plant a fault into a loaded model."""
    from paddle import nn

    if name == "eps":
        model.layers[1].norm1._epsilon = 1e-3
    elif name == "gelu":
        model.layers[1].act = nn.GELU(approximate=True)
    elif name == "momentum":
        model.bn1._momentum = 0.8
    elif name == "bias":
        model.layers[0].up = _with_weight(nn.Linear(32, 128, bias_attr=False), model.layers[0].up.weight)
    elif name == "padding":
        model.pool2 = nn.AvgPool2D(3, stride=2, padding=1)
    elif name == "frozen":
        for parameter in model.layers[0].down.parameters():
            parameter.stop_gradient = True


def plant_mindspore(name: str, model: Any) -> None:
    """Plant a fault into a loaded model."""
    from mindspore import nn

    if name == "eps":
        model.layers[1].norm1 = nn.LayerNorm((32,), epsilon=1e-3)
    elif name == "gelu":
        model.layers[1].act = nn.GELU()
    elif name == "momentum":
        model.bn1 = nn.BatchNorm2d(8, momentum=0.8)
    elif name == "bias":
        weight = model.layers[0].up.weight
        model.layers[0].up = _with_weight(nn.Dense(32, 128, has_bias=False), weight)
    elif name == "padding":
        model.pool2 = nn.AvgPool2d(3, stride=2, pad_mode="pad", padding=1, count_include_pad=False)
    elif name == "frozen":
        for parameter in model.layers[0].down.get_parameters():
            parameter.requires_grad = False
    model.update_parameters_name()


PLANT = {"paddle": plant_paddle, "mindspore": plant_mindspore}


def _with_weight(layer: Any, weight: Any) -> Any:
    layer.weight.set_value(weight) if hasattr(layer.weight, "set_value") else layer.weight.set_data(weight)
    return layer


def _reordered(array: np.ndarray) -> np.ndarray:
    parts = np.split(array, 4)
    return np.concatenate([parts[place] for place in GATES])
