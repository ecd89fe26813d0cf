"""All pairs: the sets in which they were written, and the parts that can be chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from benchmarks.localisation.pairs.attention import ATTENTION
from benchmarks.localisation.pairs.clean import CLEAN
from benchmarks.localisation.pairs.forward import FORWARD, SIXTEEN_BITS
from benchmarks.localisation.pairs.frameworks import FRAMEWORKS
from benchmarks.localisation.pairs.gradients import GRADIENTS
from benchmarks.localisation.pairs.later_steps import LATER_STEPS
from benchmarks.localisation.pairs.layers import LAYERS
from benchmarks.localisation.pairs.loss_and_backward import LOSS_AND_BACKWARD
from benchmarks.localisation.pairs.making import Table
from benchmarks.localisation.pairs.near_noise import NEAR_NOISE
from benchmarks.localisation.pairs.optimizer import OPTIMIZER
from benchmarks.localisation.pairs.pair import Pair
from benchmarks.localisation.pairs.structures import FORWARD_STRUCTURES, STRUCTURES
from benchmarks.localisation.pairs.weights_and_inputs import INPUTS, WEIGHTS

_START = (WEIGHTS, INPUTS, ATTENTION, LAYERS, FORWARD)
_END = (LOSS_AND_BACKWARD, GRADIENTS, OPTIMIZER, LATER_STEPS)
_ORDER = (*_START, SIXTEEN_BITS, *_END, NEAR_NOISE, STRUCTURES, CLEAN)
_OTHER_ORDERS = {
    "tuned": (*_START, NEAR_NOISE, SIXTEEN_BITS, *_END, STRUCTURES, CLEAN),
    "held-out-4": (*_START, FORWARD_STRUCTURES, *_END, STRUCTURES, NEAR_NOISE, CLEAN),
}
"""the order in which a set was written is kept, so that lists of its pairs stay comparable"""


def _of_set(name: str, tables: Iterable[Table]) -> tuple[Pair, ...]:
    return tuple(replace(pair, set=name) for table in tables for pair in table.get(name, ()))


_NAMES = (
    "tuned",  # rules were tuned on it from the beginning
    "ports",  # PyTorch against PaddlePaddle and MindSpore; tuned on as well
    "once-held-out",  # held out until it had been scored once; tuned on since
    "held-out-1",
    "held-out-2",
    "held-out-3",
    "held-out-4",
    "held-out-5",
)
SETS: dict[str, tuple[Pair, ...]] = {
    name: _of_set(name, [FRAMEWORKS] if name == "ports" else _OTHER_ORDERS.get(name, _ORDER)) for name in _NAMES
}
PAIRS: dict[str, Pair] = {pair.name: pair for pairs in SETS.values() for pair in pairs}
PARTS: dict[str, tuple[Pair, ...]] = {
    "all": tuple(PAIRS.values()),
    "tuned": (*SETS["tuned"], *SETS["ports"], *SETS["once-held-out"]),
    "held-out": SETS["held-out-1"],
    "held-out-2": SETS["held-out-2"],
    "held-out-3": SETS["held-out-3"],
    "held-out-4": SETS["held-out-4"],
    "held-out-5": SETS["held-out-5"],
    "ports": SETS["ports"],
}
"""what the option ``--part`` chooses from"""
