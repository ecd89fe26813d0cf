"""What loss, gradient norm, learning rate and loss scale are called in logs, and which other numbers say nothing about the model."""

from __future__ import annotations

import re

LOSS, GRAD_NORM, LR, LOSS_SCALE = "loss", "grad_norm", "lr", "loss_scale"

_SPELLED = {
    LOSS: ("loss", "lm loss", "train loss", "training loss", "step loss", "lm loss training"),
    GRAD_NORM: ("grad norm", "gradient norm", "global norm", "global grad norm", "total norm"),
    LR: ("lr", "learning rate"),
    LOSS_SCALE: ("loss scale", "scaling sens", "loss scaling", "lossscale"),
}
_KNOWN = {spelling: name for name, spellings in _SPELLED.items() for spelling in spellings}
_PREFIXES = {"train", "training"}
_OF_THE_MACHINE = re.compile(
    r"time|elapsed|throughput|flop|speed|memory|\bmem\b|per second|per sec\b|samples/s|runtime|\bmfu\b|\bips\b|\bcost\b|"
    r"\bvs (samples|tokens)\b",
    re.IGNORECASE,
)


def canonical(written: str) -> str:
    """Return the name that a series has here: ``loss``, ``grad_norm``, ``lr``, ``loss_scale``, or the one that it was written under.

    ``lm loss``, ``global_norm``, ``train/grad_norm``, ``grad-norm/grad-norm`` and ``learning_rate`` are known.
    """
    parts = [re.sub(r"[\s_-]+", " ", part).strip().lower() for part in written.split("/")]
    while len(parts) > 1 and (parts[0] in _PREFIXES or parts[0] == parts[1]):
        parts = parts[1:]
    return _KNOWN.get(parts[0], written.strip()) if len(parts) == 1 else written.strip()


def is_of_the_machine(name: str) -> bool:
    """Tell the names of times, speeds and memory, and of curves drawn twice (``… vs samples``)."""
    return bool(_OF_THE_MACHINE.search(name.replace("_", " ").replace("-", " ")))
