"""Initialisations that frameworks and models use, as data: what a weight's standard deviation and shape look like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from probe.checks.initial.distributions import Drawn

_UNIFORM, _NORMAL = "uniform", "normal"
_PEAK_OF_UNIFORM = math.sqrt(3.0)
_OF_UNIFORM = 0.2
"""times 1/n is the relative variance of the standard deviation of n uniform elements: (κ − 1)/4 with κ = 1.8"""
_FEWEST = 256
"""elements from which on a shape can be told"""
_STANDARD_ERRORS = 4.0
_ROUNDED = 0.003
"""relative error of a standard deviation that 16 bits make"""


@dataclass(frozen=True, slots=True)
class Initialisation:
    """A way to draw a weight."""

    name: str
    shape: str
    """uniform, or normal (a truncated one too)"""
    std: Callable[[int, int], float]
    """from the numbers of inputs and outputs of an element"""
    needs_fans: bool = True
    """it is for weights with inputs and outputs, not for tables"""


def _constant(name: str, std: float) -> Initialisation:
    return Initialisation(name, _NORMAL, lambda fan_in, fan_out: std, False)


INITIALISATIONS = (
    Initialisation("uniform ±1/√fan_in (PyTorch's and MindSpore's default of Linear)", _UNIFORM, lambda i, o: 1 / math.sqrt(3 * i)),
    Initialisation("Xavier uniform (PaddlePaddle's default of Linear and Embedding)", _UNIFORM, lambda i, o: math.sqrt(2 / (i + o)), False),
    Initialisation("Xavier normal", _NORMAL, lambda i, o: math.sqrt(2 / (i + o))),
    Initialisation("Kaiming uniform (ReLU)", _UNIFORM, lambda i, o: math.sqrt(2 / i)),
    Initialisation("Kaiming normal (ReLU)", _NORMAL, lambda i, o: math.sqrt(2 / i)),
    Initialisation("LeCun uniform (Kaiming, linear)", _UNIFORM, lambda i, o: math.sqrt(1 / i)),
    Initialisation("LeCun normal (Kaiming, linear)", _NORMAL, lambda i, o: math.sqrt(1 / i)),
    _constant("normal(0, 0.02)", 0.02),
    _constant("normal(0, 0.01) (MindSpore's default of Embedding)", 0.01),
    _constant("normal(0, 0.006)", 0.006),
    _constant("normal(0, 1) (PyTorch's default of Embedding)", 1.0),
)  # fmt: skip
"""PyTorch: torch.nn.init and reset_parameters of its layers; PaddlePaddle: paddle.nn.initializer; models: initializer_range"""


def fans(shape: Sequence[int]) -> tuple[int, int] | None:
    """Return the numbers of inputs and outputs of a weight in the canonical layout [out, in, …]; None for a vector."""
    if len(shape) < 2:
        return None
    inner = math.prod(shape[2:])
    return shape[1] * inner, shape[0] * inner


def like(sample: Drawn, shape: Sequence[int], is_table: bool) -> str:
    """Return the initialisation that a weight's numbers are like; empty where it is none that is known.

    The shape is in the canonical layout. ``is_table``: it is an embedding's, whose rows have neither inputs nor
    outputs.
    """
    if sample.is_constant:
        return f"constant {sample.mean:.6g}"
    return next(_fitting(sample, shape, is_table), "")


def _fitting(sample: Drawn, shape: Sequence[int], is_table: bool) -> Iterator[str]:
    found = fans(shape)
    if sample.count < _FEWEST or found is None:
        return
    highest = _PEAK_OF_UNIFORM * (1 + _STANDARD_ERRORS * math.sqrt(_OF_UNIFORM / sample.count))
    form = _UNIFORM if sample.peak < highest else _NORMAL
    if abs(sample.mean) > _STANDARD_ERRORS * sample.std / math.sqrt(sample.count):
        return
    for each in INITIALISATIONS:
        if each.shape != form or (each.needs_fans and is_table):
            continue
        if abs(sample.std / each.std(*found) - 1) < _STANDARD_ERRORS * math.sqrt(0.5 / sample.count) + _ROUNDED:
            yield each.name
