"""Why a module was judged as it was: what the walk saw of it, tensor by tensor, and what the codes say that stand there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probe.answer.result import Divergence, SlotResult
from probe.notes import named

LEFT = {
    "moved-border": "It differs, and all that is made of it agrees: the two sides write it otherwise, and take that back behind it.",
    "rows-without-loss": "Only rows that no loss reaches differ.",
    "other-size": "The two sizes differ; what is made of the two is judged.",
    "label-inputs": "The model is given it and shows it in its loss alone, as labels: the loss decides.",
    "no-limit": "What it is made of is so far off that any tensor of that size would pass.",
    "expert-routing": "Experts return it that were chosen otherwise, as rounding may choose them.",
    "reduced-elsewhere": "What the optimizer is given agrees: one side adds it up over ranks later.",
    "other-buffer": "It differs as the step begins, and nothing that uses it shows that.",
    "fixed-rule": "A rule of yours leaves it out.",
    "needs-values": "A tolerance of yours asks for values, and only statistics were recorded.",
}
"""of tensors that differ and are no finding (`SlotResult.exemption`)"""

LIMITS = {
    "exact": "Nothing is rounded: any difference counts.",
    "chosen": "A tolerance of yours.",
    "cancelled": "The terms of the sum are larger than it is, and so is their rounding.",
    "centred": "A mean that is most of what it is made of is taken away, and the error stays.",
    "softmax": "Softmax of large scores enlarges the error of what they are made of.",
    "beside-peaks": "A source has two elements that are most of it: its error is larger beside the others.",
    "routing": "Choices, as of experts: as many as the error of what they are made from may change.",
    "experts": "Experts that rounding may choose otherwise return it, or are given it.",
    "tokens": "Of the tokens that both sides route alike those whose inputs differ least are judged, by what these differ.",
    "norm-behind": "A norm takes most of the gradient away, and its rounding stays.",
    "larger-beside": "Rounding of larger gradients beside it.",
    "small-loss": "The loss is small beside what it is made of: rounding of that moves its gradient.",
    "kink": "Elements near the kink of an activation may lie on its other side.",
    "subnormal": "Numbers below the range of the dtype.",
    "other-split": "The batch is split otherwise: other sums are rounded.",
    "its-gradient": "What the noise rule makes of the error of the gradient that backward left.",
    "root-of-gradient": "The error of the gradient, of which an optimizer that divides by its size leaves the root.",
    "stored-weight": "Rounding of the stored weight, which is large beside its update.",
    "flips": "Elements of which rounding decides the sign of the update.",
    "last-place": "The optimizers are given the same bits: rounding of the stored weight is all.",
    "of-updates": "Its update, which it may be a sum of, is as far off.",
    "betas": "1 − β is rounded to float32 otherwise by each framework.",
    "as-begun": "The step began with it as far off.",
    "larger-given": "It is small beside what the calls are given, of which it is made.",
    "steps-before": "Steps that were not recorded lie before: their rounding adds up.",
    "measured": "Further runs, or the reference, are as far off.",
    "sources-beyond": "What it is made of is further off than in further runs.",
    "replayed": "Rounding what a module is given moves it as far.",
}
"""of limits that are neither so many roundings nor so many times the error of the sources (`SlotResult.limited_by`)"""

ANSWERS = {
    "mapping": "The line of the mapping: B has A's values in another weight, or its loss shows no difference.",
    "weight": "The weight: the two runs begin with other values.",
    "all-weights": "All weights together: most of them differ as the runs begin.",
    "weight-shape": "The module: its weight is of another size, in the same class.",
    "weight-kind": "The module: its weight holds another kind of numbers.",
    "buffer": "The buffer: it differs, and what uses it shows that.",
    "model-input": "The batch: the program gives the model, or logs beside it, something else.",
    "module": "The module: what it is given agrees, and what it returns does not.",
    "caller": "The code of the module that makes it: all calls inside up to there return what agrees.",
    "unpaired-call": "The only call that one side alone makes between the last tensors that agree and this one.",
    "maker-of-inputs": "The caller: its code makes inputs of other sizes on each side, of which nothing could be compared.",
    "loss": "The loss function: what the model returns agrees, and the loss does not.",
    "loss-scale": "The loss: outputs agree, and all gradients of B are one multiple of A's.",
    "loss-behind": "The loss: the first gradient that comes back differs.",
    "own-backward": "The module's own backward: the gradient that comes to it agrees, and the one that it passes back does not.",
    "code-behind": "The code that uses the tensor: what calls behind it pass back agrees, and their sum does not.",
    "gradient": "The weight's gradient: what it is summed up from agrees, and the sum does not.",
    "all-gradients": "All gradients of weights together: what they are summed up from agrees.",
    "settings": "The settings of the optimizer, which were recorded and differ.",
    "used-gradient": "What happens between backward and the optimizer: the gradient agrees, and what the optimizer is given does not.",
    "update": "The optimizer: gradients agree, and the update differs by more than they explain.",
    "update-of-same-bits": "The optimizer: gradient, states and weight are bit-equal, and the update is not.",
    "length-of-update": "The optimizer: the update points the same way and has another length.",
    "along-weight": "The optimizer: the updates differ by a multiple of the weight, as weight decay makes them.",
    "no-update": "The optimizer: one side alone changes the weight.",
    "one-sided-update": "The optimizer: one side alone was given the weight.",
    "longer-updates": "The optimizer: most updates of one side are longer, by about one factor.",
    "state": "What the optimizer keeps: gradients agree, and it does not.",
    "behind-optimizer": "Code behind the optimizer: the weight is not what it was and its update.",
}
"""of tensors that are wrong by themselves, and of findings (`SlotResult.blame`, `Divergence.blame`)"""


class Limit(float):
    """A limit that has a reason of its own."""

    def __new__(cls, value: float, why: str = "") -> Limit:
        """Return a limit, with a code of `LIMITS`."""
        found = super().__new__(cls, value)
        found.why = why.replace("_", "-")
        return found


@dataclass(frozen=True)
class Why:
    """What was compared of a module, in the order of cause, and how each tensor was judged.

    Its text says of each tensor: the error, the largest error among what it was computed from, the limit up to which it
    would have been noise and why, the verdict, what heals it or leaves it open, and who answers where it is wrong.
    """

    path: str
    """as it was asked for"""
    slots: Sequence[SlotResult]
    divergences: tuple[Divergence, ...] = ()
    """what is charged to the module"""

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes that stand at the tensors, in order: what gives their limits, heals or leaves them open, and who answers."""
        of_slots = (code for slot in self.slots for code in (slot.limited_by, slot.exemption, slot.blame))
        return tuple(dict.fromkeys(code for code in (*of_slots, *(each.blame for each in self.divergences)) if code))

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON: a row for each tensor, and what each code means."""
        return {
            "path": self.path,
            "tensors": [{**named(slot, *_IN_JSON), "reason": slot.metrics.reason} for slot in self.slots],
            "divergences": [each.as_json() for each in self.divergences],
            "rules": {code: explained(code) for code in self.codes},
        }

    def __str__(self) -> str:
        from probe.report.why import render

        return render(self)


_IN_JSON = (
    *("step", "micro", "call", "phase", "role", "path_a", "slot_a", "path_b", "slot_b", "error", "measure", "sources"),
    *("limit", "limited_by", "verdict", "exemption", "blame"),
)


def explained(code: str) -> str:
    """Return the sentence of a code."""
    return LEFT.get(code) or LIMITS.get(code) or ANSWERS[code]
