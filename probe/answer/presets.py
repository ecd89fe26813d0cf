"""The acceptance tables that people use, as data: what is held against what, and where that is written.

They say when two models count as aligned, not what is noise: the verdict does not depend on them. `probe.diagnosis.accepting` holds
a comparison against one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from probe.errors import ConfigError
from probe.mapping.judging import Tolerance
from probe.mapping.nearest import did_you_mean
from probe.notes import named

_NLP = "PaddleNLP, precision alignment"
_REPRODUCTION = "PaddlePaddle, paper reproduction guide"


class Scope(enum.StrEnum):
    """Which tensors a row of an acceptance table is about."""

    OUTPUTS = "outputs"
    """what the model returns, but for a loss"""
    LOGITS = "logits"
    """what the model returns over its vocabulary; where it returns a loss alone, what its last layer over the vocabulary does"""
    LOSS = "loss"
    """the number that the program gives as loss, and the one that the model returns"""
    FORWARD = "forward tensors"
    """what each module is given and returns"""
    BACKWARD = "backward tensors"
    """gradients of what each module is given and returns"""
    GRADIENTS = "weight gradients"


@dataclass(frozen=True, slots=True)
class Item:
    """A row of an acceptance table."""

    scope: Scope
    tolerance: Tolerance

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {"item": self.scope.value, **named(self.tolerance, "metric", "atol", "rtol")}


@dataclass(frozen=True, slots=True)
class Preset:
    """An acceptance table."""

    name: str
    items: tuple[Item, ...]
    source: str
    """the document"""
    text: str
    """what it says"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {**named(self, "name", "source", "text"), "items": [each.as_json() for each in self.items]}


def _outputs(name: str, tolerance: Tolerance, source: str, text: str) -> Preset:
    """Return a preset for what the model itself returns."""
    return Preset(name, (Item(Scope.OUTPUTS, tolerance),), source, text)


def _table(name: str, logits: float, loss: float, tensors: float) -> Preset:
    """Return a row of PaddleNLP's table; a difference is the largest absolute one."""
    bounds = {Scope.LOGITS: logits, Scope.LOSS: loss, Scope.FORWARD: tensors, Scope.BACKWARD: tensors, Scope.GRADIENTS: tensors}  # fmt: skip
    items = tuple(Item(scope, Tolerance(bound, metric="max_abs")) for scope, bound in bounds.items())
    text = f"in float32: logits differ by at most {logits:g}, the loss by {loss:g}, each tensor in all layers by {tensors:g}"
    return Preset(name, items, f"{_NLP}, 3.2", text)


_ALL = [
    _outputs("r-forward", Tolerance(1e-6, metric="mean_abs"), f"{_REPRODUCTION}, 3.1.3",
             "np.mean(np.abs(o1 - o2)) of the outputs is below 1e-6"),
    _outputs("p-forward", Tolerance(1e-5, metric="max_abs"), f"{_NLP}, 3.1.3",
             "np.max(np.abs(o1 - o2)) of the outputs is below 1e-5"),
    _outputs("p-forward-code", Tolerance(1e-3, 1e-5), f"{_NLP}, 3.1.3, its code",
             "np.allclose of the outputs with rtol=1e-5, atol=1e-3: a hundred times what its text asks for"),
    _outputs("p-forward-distributed", Tolerance(1e-4, 1e-5), f"{_NLP}, 3.1.4 and 3.2, their code",
             "np.allclose of the outputs with rtol=1e-5, atol=1e-4"),
    _table("paddlenlp/qwen2-0.5b", 1e-4, 1e-5, 1e-4),
    _table("paddlenlp/qwen2-1.5b", 1e-3, 1e-5, 1e-3),
    _table("paddlenlp/qwen2-7b", 1e-3, 1e-5, 1e-3),
    _table("paddlenlp/qwen1.5-14b", 1e-4, 1e-5, 1e-4),
]  # fmt: skip
PRESETS = {preset.name: preset for preset in _ALL}


def preset_named(name: str) -> Preset:
    """Return a preset.

    Raises
    ------
    ConfigError
        there is none of that name
    """
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r} is not known; expected {', '.join(PRESETS)}{did_you_mean(name, PRESETS)}")
    return PRESETS[name]
