"""The acceptance tables that people use, as data: what is held against what, and where that is written.

They say when two models count as aligned, not what is noise: what they do not speak of is judged by the rung below.
"""

from __future__ import annotations

from dataclasses import dataclass

from probe.errors import ConfigError
from probe.mapping.judging import JudgingRule, Tolerance
from probe.mapping.nearest import did_you_mean
from probe.records import Phase, Role

_NLP = "PaddleNLP, precision alignment"
_REPRODUCTION = "PaddlePaddle, paper reproduction guide"


@dataclass(frozen=True)
class Preset:
    """One row of an acceptance table."""

    name: str
    rules: tuple[JudgingRule, ...]
    source: str
    """the document"""
    text: str
    """what it says"""


def _outputs(name: str, tolerance: Tolerance, source: str, text: str) -> Preset:
    """Return a preset for what the model itself returns."""
    rule = JudgingRule(tolerance, phase=Phase.FORWARD, role=Role.OUTPUT, is_of_model=True, name=f"preset {name}")
    return Preset(name, (rule,), source, text)


def _table(name: str, logits: float, loss: float, tensors: float) -> Preset:
    """Return a row of PaddleNLP's table; a difference is the largest absolute one."""
    said = f"preset {name}"
    logits_rule = JudgingRule(
        Tolerance(logits, metric="max_abs"), phase=Phase.FORWARD, role=Role.OUTPUT, is_of_model=True, name=said
    )
    loss_rule = JudgingRule(Tolerance(loss, metric="max_abs"), is_of_loss=True, name=said)
    each = tuple(JudgingRule(Tolerance(tensors, metric="max_abs"), phase=phase, name=said)
                 for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT))  # fmt: skip
    text = f"in float32: logits differ by at most {logits:g}, the loss by {loss:g}, each tensor in all layers by {tensors:g}"
    return Preset(name, (loss_rule, logits_rule, *each), f"{_NLP}, 3.2", text)


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
