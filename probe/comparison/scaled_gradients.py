"""Judging gradients that are a multiple of the other side's: a loss scale, an average, a count of accumulated batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from probe.comparison import tolerance
from probe.comparison.result import Divergence
from probe.comparison.scaling import AVERAGED, are_several, factor_of, scaling_text, several_text, written
from probe.comparison.step_half import Event
from probe.comparison.update_findings import Fault
from probe.comparison.updates_together import UpdatesTogether
from probe.records import Phase, Role

_AS_MUCH = 0.05
"""relative difference up to which gradients carry a factor"""
USED = "gradients as the optimizer used them"
"""what faults of the gradients that the optimizer used are reported as"""


class ScaledGradients(UpdatesTogether):
    """What the optimizer made of gradients with a factor."""

    def _is_scaled(self, used: list[Fault]) -> bool:
        """Tell whether B's gradients are a multiple of A's that the optimizer did not undo; say so if it did."""
        if self.walk.scaling is None:
            return False
        factor, finding = self.walk.scaling
        judged = [j.event for j in self.walk.events if (j.event.phase, j.event.role) == (Phase.UPDATE, Role.PARAM_GRAD)]
        if are_several(self.walk.factors):
            self._report_averaged(finding, judged)
            return True
        ratio = _median_ratio(judged)
        if used and not abs(ratio / abs(factor) - 1) < _AS_MUCH:
            self._report_used_otherwise(used, factor, ratio, finding.hint)
            return True
        is_used = bool(used) or carry_factor(judged, factor)
        if judged and not is_used:
            text = f"{scaling_text(factor)}, the optimizer used them without that factor: {finding.hint}"
            self.walk.warnings.append(text)
            return False
        use = "the optimizer used them so" if is_used else "whether the optimizer used them so was not recorded"
        self.walk.findings.append(replace(finding, evidence=(*finding.evidence, use)))
        limit = max((fault.limit for fault in used), default=0.0)
        if used and factor_of(self.pairs, [fault.event for fault in used], limit) == 1:
            self._report(used, USED, Role.PARAM_GRAD)
        return True

    def _report_averaged(self, finding: Divergence, judged: list[Event]) -> None:
        """Report that each micro-batch has a factor of its own, with the loss's number if that differs too."""
        text = several_text(self.walk.factors)
        limit = max((tolerance.GRADIENT.limit(self.walk.u(event), 0.0) for event in judged), default=0.0)
        if judged and all(event.metrics is not None and event.metrics.rel_l2 <= limit for event in judged):
            self.walk.warnings.append(f"{text}; those that the optimizer used agree")
            return
        for place, other in enumerate(self.walk.findings):
            if (other.phase, other.role) == (Phase.LOSS, Role.VALUE):
                self.walk.findings[place] = replace(other, evidence=(*other.evidence, text), hint=AVERAGED)
                return
        self.walk.findings.append(replace(finding, evidence=("the model's outputs agree", text), hint=AVERAGED))

    def _report_used_otherwise(self, used: list[Fault], factor: float, ratio: float, meaning: str) -> None:
        """Report gradients that the optimizer used neither as A's nor with the factor that backward left."""
        said = f"{scaling_text(factor)} as backward left them ({meaning}), {written(ratio)} times as the optimizer used them"
        late = f"{said}: the factor was not taken out before they were clipped"
        is_clipped_scaled = math.isclose(ratio * abs(factor), 1, rel_tol=_AS_MUCH)
        before = len(self.walk.findings)
        self._report(used, USED, Role.PARAM_GRAD)
        for place in range(before, len(self.walk.findings)):
            found = self.walk.findings[place]
            evidence = (*found.evidence[:1], late if is_clipped_scaled else said, *found.evidence[1:])
            side, by = ("B", factor) if abs(factor) > 1 else ("A", 1 / factor)
            hint = f"{side} clips gradients that are still {written(by)} times as large: divide them by the loss scale, then clip"
            self.walk.findings[place] = replace(
                found, evidence=evidence, hint=hint if is_clipped_scaled else found.hint
            )


def _ratios(events: list[Event]) -> list[float]:
    return [e.metrics.norm_ratio for e in events if e.metrics is not None and math.isfinite(e.metrics.norm_ratio)]


def _median_ratio(events: list[Event]) -> float:
    ratios = _ratios(events)
    return float(np.median(ratios)) if ratios else math.nan


def carry_factor(events: list[Event], factor: float) -> bool:
    """Tell whether B's tensors are nearer to the factor times A's than to A's, though noise could hide it in each."""
    ratios = _ratios(events)
    apart = [abs(ratio - 1) for ratio in ratios], [abs(ratio / abs(factor) - 1) for ratio in ratios]
    return bool(ratios) and float(np.median(apart[1])) < float(np.median(apart[0]))
